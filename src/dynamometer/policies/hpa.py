"""Kubernetes' HorizontalPodAutoscaler, autoscaling/v2: pods with a metric and a memory in, replicas out. Pure.

The arithmetic is the controller's, with its whole thousandths and its truncations: usage is a whole mean, utilization a
whole per cent, a shrinking percentage policy truncates and a growing one rounds up. Sources: the documentation
("Algorithm details", "Configurable scaling behavior"), KEP-853 and the controller's behaviour as of Kubernetes 1.33,
whose tolerance may differ by direction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec

from dynamometer.errors import UsageError
from dynamometer.policies.autoscale import Choice, Pod, Seen

KINDS: Final = ("pods", "average-value", "value", "utilization")


class Tolerance(msgspec.Struct, frozen=True):
    """A ratio of usage to target from 1 − down to 1 + up changes nothing."""

    up: float = 0.1
    down: float = 0.1

    def holds(self, ratio: float) -> bool:
        return (1.0 - self.down) <= ratio <= (1.0 + self.up)


class Timing(msgspec.Struct, frozen=True):
    """The controller's own flags, seconds."""

    sync_s: float = 15.0
    cpu_initialization_s: float = 300.0
    initial_readiness_s: float = 30.0
    downscale_stabilization_s: float = 300.0  # where no behavior is given


class Limit(msgspec.Struct, frozen=True):
    """A scaling policy: so many pods, or so many per cent, within `period_s`."""

    kind: str  # pods | percent
    value: int
    period_s: float

    def __post_init__(self) -> None:
        if self.kind not in ("pods", "percent") or self.value < 1 or not 0 < self.period_s <= 1800:
            raise UsageError(
                f"scaling policy {self.kind}:{self.value}:{self.period_s:g}s is none; give pods or percent, "
                "a whole number above 0 and a period of at most 1800s, e.g. percent:100:15s"
            )


class Direction(msgspec.Struct, frozen=True):
    """behavior.scaleUp or behavior.scaleDown. `select`: max, min or disabled."""

    window_s: float
    limits: tuple[Limit, ...]
    select: str = "max"

    def __post_init__(self) -> None:
        if self.select not in ("max", "min", "disabled"):
            raise UsageError(f"selectPolicy is {self.select!r}; one of max, min, disabled")
        if not 0 <= self.window_s <= 3600:
            raise UsageError(f"the stabilization window is {self.window_s:g} s; give 0 to 3600 s")
        if not self.limits and self.select != "disabled":
            raise UsageError("a scaling direction needs at least one policy, or selectPolicy Disabled")


TOLERANCE: Final = Tolerance()
TIMING: Final = Timing()
UP: Final = Direction(0.0, (Limit("percent", 100, 15.0), Limit("pods", 4, 15.0)))
DOWN: Final = Direction(300.0, (Limit("percent", 100, 15.0),))


class Behavior(msgspec.Struct, frozen=True):
    up: Direction = UP
    down: Direction = DOWN


class Memory(msgspec.Struct, frozen=True):
    """What the controller remembers: recommendations before stabilization, and changes, each (time, number)."""

    recommended: tuple[tuple[float, int], ...] = ()
    ups: tuple[tuple[float, int], ...] = ()
    downs: tuple[tuple[float, int], ...] = ()


class Groups(msgspec.Struct, frozen=True):
    """Pods by what is known of them; deleted and failed ones are in none."""

    ready: tuple[Pod, ...]
    unready: tuple[Pod, ...]
    missing: tuple[Pod, ...]


def group(pods: Sequence[Pod], cpu: bool, timing: Timing, now_s: float) -> Groups:
    """Sorts pods as the controller does. Only a CPU metric looks at readiness: others count each pod with a sample."""
    ready: list[Pod] = []
    unready: list[Pod] = []
    missing: list[Pod] = []
    for pod in pods:
        if pod.deleting or pod.phase == "failed":
            continue
        if pod.phase == "pending":
            unready.append(pod)
        elif pod.milli is None:
            missing.append(pod)
        elif cpu and _not_yet_ready(pod, timing, now_s):
            unready.append(pod)
        else:
            ready.append(pod)
    return Groups(tuple(ready), tuple(unready), tuple(missing))


def _not_yet_ready(pod: Pod, timing: Timing, now_s: float) -> bool:
    """CPU at start is no load: its sample counts only once the pod has been ready for a metric's window."""
    if pod.changed_s is None or pod.started_s is None:
        return True
    if pod.started_s + timing.cpu_initialization_s > now_s:
        return not pod.ready or pod.sampled_s < pod.changed_s + pod.window_s
    return not pod.ready and pod.started_s + timing.initial_readiness_s > pod.changed_s


def plain(current: int, target_milli: int, groups: Groups, tolerance: Tolerance) -> int | None:
    """Replicas for a mean per pod, thousandths (metric type Pods, or Resource with AverageValue); None: no sample."""

    def ratio(counted: Sequence[Counted]) -> float:
        return float(sum(one.value for one in counted) // len(counted)) / float(target_milli)

    low = [Counted(target_milli, 0)] * len(groups.missing)
    return _balanced(current, groups, tolerance, ratio, (low, [Counted(0, 0)] * len(groups.missing)))


def utilization(current: int, target_percent: int, groups: Groups, tolerance: Tolerance) -> int | None:
    """Replicas for a mean share of the requested resource, per cent; None: no pod has a sample."""

    def ratio(counted: Sequence[Counted]) -> float:
        used, asked = sum(one.value for one in counted), sum(one.request for one in counted)
        return float(used * 100 // asked) / float(target_percent)

    full = max(100, target_percent)
    low = [Counted(pod.request_milli * full // 100, pod.request_milli) for pod in groups.missing]
    high = [Counted(0, pod.request_milli) for pod in groups.missing]
    return _balanced(current, groups, tolerance, ratio, (low, high))


class Counted(NamedTuple):
    """A pod's part in a mean, thousandths."""

    value: int
    request: int


def _balanced(
    current: int,
    groups: Groups,
    tolerance: Tolerance,
    ratio: Callable[[Sequence[Counted]], float],
    missing: tuple[Sequence[Counted], Sequence[Counted]],
) -> int | None:
    """The controller's two looks: without the pods that say nothing, then with them counted against the change.

    `missing`: what pods without a sample count for where the fleet would shrink, and where it would grow.
    """
    counted = [Counted(pod.milli or 0, pod.request_milli) for pod in groups.ready]
    if not counted:
        return None
    first = ratio(counted)
    grows_past_unready = bool(groups.unready) and first > 1.0
    if not grows_past_unready and not groups.missing:
        return current if tolerance.holds(first) else math.ceil(first * len(counted))
    if first < 1.0:
        counted += missing[0]
    elif first > 1.0:
        counted += missing[1]
    if grows_past_unready:
        counted += [Counted(0, pod.request_milli) for pod in groups.unready]
    second = ratio(counted)
    if tolerance.holds(second) or (first < 1.0 < second) or (second < 1.0 < first):
        return current
    wanted = math.ceil(second * len(counted))
    if (second < 1.0 and wanted > current) or (second > 1.0 and wanted < current):
        return current
    return wanted


def value(current: int, target_milli: int, used_milli: int, ready: int, tolerance: Tolerance) -> int:
    """Replicas for one number of the whole fleet against a target (Object or External with Value)."""
    ratio = float(used_milli) / float(target_milli)
    if current == 0:
        return math.ceil(ratio)
    return current if tolerance.holds(ratio) else math.ceil(ratio * float(ready))


def average_value(current: int, target_milli: int, used_milli: int, tolerance: Tolerance) -> int:
    """Replicas for one number shared out among the pods (Object or External with AverageValue)."""
    if current and tolerance.holds(float(used_milli) / (float(target_milli) * float(current))):
        return current
    return math.ceil(float(used_milli) / float(target_milli))


# ── from what is wanted to what may be ──


def _changed(changes: tuple[tuple[float, int], ...], period_s: float, now_s: float) -> int:
    return sum(number for at_s, number in changes if at_s > now_s - period_s)


def up_limit(current: int, memory: Memory, rule: Direction, now_s: float) -> int:
    """The most replicas that the policies allow now; never below `current`."""
    if rule.select == "disabled":
        return current
    allowed = []
    for limit in rule.limits:
        start = _start(current, memory, limit, now_s)
        grown = start + limit.value if limit.kind == "pods" else math.ceil(start * (1 + limit.value / 100))
        allowed.append(grown)
    return max(current, max(allowed) if rule.select == "max" else min(allowed))


def down_limit(current: int, memory: Memory, rule: Direction, now_s: float) -> int:
    """The fewest replicas that the policies allow now; never above `current`."""
    if rule.select == "disabled":
        return current
    allowed = []
    for limit in rule.limits:
        start = _start(current, memory, limit, now_s)
        shrunk = start - limit.value if limit.kind == "pods" else int(start * (1 - limit.value / 100))
        allowed.append(shrunk)
    return min(current, min(allowed) if rule.select == "max" else max(allowed))


def _start(current: int, memory: Memory, limit: Limit, now_s: float) -> int:
    """Replicas at the start of the policy's period."""
    return current - _changed(memory.ups, limit.period_s, now_s) + _changed(memory.downs, limit.period_s, now_s)


def stabilized(current: int, wanted: int, memory: Memory, behavior: Behavior, now_s: float) -> int:
    """Between the lowest recommendation of the growing window and the highest of the shrinking one."""
    grow = min([wanted, *(n for at_s, n in memory.recommended if at_s > now_s - behavior.up.window_s)])
    shrink = max([wanted, *(n for at_s, n in memory.recommended if at_s > now_s - behavior.down.window_s)])
    return min(max(current, grow), shrink)


class Bounds(msgspec.Struct, frozen=True):
    """minReplicas and maxReplicas."""

    least: int = 1
    most: int = 10

    def __post_init__(self) -> None:
        if self.least < 0 or self.most < max(1, self.least):
            raise UsageError(
                f"replicas from {self.least} to {self.most} are none; give 0 ≤ minimum ≤ maximum, maximum ≥ 1"
            )


def settle(
    current: int, wanted: int, memory: Memory, bounds: Bounds, behavior: Behavior | None, at: tuple[float, float]
) -> tuple[int, str, Memory]:
    """(replicas, the limit that bound, the new memory). `behavior` None: the rules of an HPA without one.

    `at`: now and the controller's own downscale window, seconds.
    """
    now_s, window_s = at
    kept_s = max(window_s, behavior.up.window_s, behavior.down.window_s) if behavior else window_s
    kept = tuple(one for one in memory.recommended if one[0] >= now_s - kept_s)
    if behavior is None:
        steady = max([wanted, *(n for at_s, n in kept if at_s >= now_s - window_s)])
        low, high = bounds.least, min(bounds.most, max(2 * current, 4))
    else:
        steady = stabilized(current, wanted, memory, behavior, now_s)
        low = max(bounds.least, down_limit(current, memory, behavior.down, now_s)) if steady < current else bounds.least
        high = min(bounds.most, up_limit(current, memory, behavior.up, now_s)) if steady > current else bounds.most
    replicas = min(max(steady, low), high)
    because = "" if replicas == wanted else _reason(steady, wanted, replicas, bounds)
    ups, downs = _recent(memory.ups, now_s), _recent(memory.downs, now_s)
    if replicas > current:
        ups = (*ups, (now_s, replicas - current))
    elif replicas < current:
        downs = (*downs, (now_s, current - replicas))
    return replicas, because, Memory((*kept, (now_s, wanted)), ups, downs)


def _recent(changes: tuple[tuple[float, int], ...], now_s: float) -> tuple[tuple[float, int], ...]:
    """Changes that a policy may still look at: the longest period is half an hour."""
    return tuple(one for one in changes if one[0] > now_s - 1800.0)


def _reason(steady: int, wanted: int, replicas: int, bounds: Bounds) -> str:
    if replicas == bounds.most and wanted > replicas:
        return "maximum"
    if replicas == bounds.least and wanted < replicas:
        return "minimum"
    return "rate limit" if steady == wanted else "stabilization"


class Hpa(msgspec.Struct, frozen=True):
    """One HPA with one metric. `kind`: how it is read (KINDS). `target_milli`: thousandths, or per cent of it."""

    target_milli: int
    kind: str = "pods"
    bounds: Bounds = Bounds()
    behavior: Behavior | None = None
    tolerance: Tolerance = TOLERANCE
    timing: Timing = TIMING
    cpu: bool = False
    memory: Memory = Memory()

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UsageError(f"metric is read as {self.kind!r}; one of {', '.join(KINDS)}")
        if self.target_milli < 1:
            raise UsageError("the target must be above 0; give what one replica should carry")

    @property
    def loops(self) -> tuple[tuple[str, float], ...]:
        return (("sync", self.timing.sync_s),)

    @property
    def least(self) -> int:
        return self.bounds.least

    @property
    def most(self) -> int:
        return self.bounds.most

    def step(self, loop: str, seen: Seen) -> tuple[Choice, Hpa]:
        """One round of the controller. A fleet at 0 that may not be there is left alone (maintenance mode)."""
        current, bounds = seen.replicas, self.bounds
        if current == 0 and bounds.least > 0:
            return Choice(0, 0, "switched off"), self
        if current > bounds.most:
            return Choice(bounds.most, bounds.most, "maximum"), self
        if current < bounds.least:
            return Choice(bounds.least, bounds.least, "minimum"), self
        wanted = self.wanted(seen)
        if wanted is None:
            return Choice(current, current, "no sample"), self
        at = (seen.now_s, self.timing.downscale_stabilization_s)
        replicas, because, memory = settle(current, wanted, self.memory, bounds, self.behavior, at)
        return Choice(replicas, wanted, because), msgspec.structs.replace(self, memory=memory)

    def wanted(self, seen: Seen) -> int | None:
        """What the metric alone asks for; None: there is no sample."""
        if self.kind == "average-value":
            return average_value(seen.replicas, self.target_milli, seen.total_milli, self.tolerance)
        if self.kind == "value":
            return value(seen.replicas, self.target_milli, seen.total_milli, seen.ready, self.tolerance)
        groups = group(seen.pods, self.cpu, self.timing, seen.now_s)
        if self.kind == "utilization":
            return utilization(seen.replicas, self.target_milli, groups, self.tolerance)
        return plain(seen.replicas, self.target_milli, groups, self.tolerance)


def largest(current: int, proposals: Sequence[int | None]) -> int | None:
    """Of several metrics the one that asks for most; if one is unknown the fleet does not shrink. None: no change."""
    known = [proposal for proposal in proposals if proposal is not None]
    if not known or (len(known) < len(proposals) and max(known) < current):
        return None
    return max(known)
