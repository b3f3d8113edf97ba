"""KEDA's two loops: a metric in, replicas out. Polling switches between nothing and something, an HPA does the rest.

Pure. Between 0 (or the idle number) and the minimum KEDA acts itself, every polling interval, on whether the metric is
above its activation value. From 1 up it leaves the number to an HPA on an external metric. Source: KEDA's documentation
of ScaledObject and the behaviour of its scale executor as of 2.17.
"""

from __future__ import annotations

import msgspec

from dynamometer.errors import UsageError
from dynamometer.policies.autoscale import Choice, Seen
from dynamometer.policies.hpa import TIMING, TOLERANCE, Behavior, Bounds, Hpa, Timing, Tolerance


class Rule(msgspec.Struct, frozen=True):
    """A ScaledObject. `threshold_milli`: what one replica should carry; active: a metric above `activation_milli`."""

    threshold_milli: int
    activation_milli: int = 0
    least: int = 0
    most: int = 100
    idle: int | None = None
    polling_s: float = 30.0
    cooldown_s: float = 300.0
    initial_cooldown_s: float = 0.0
    kind: str = "average-value"  # metricType: average-value or value

    def __post_init__(self) -> None:
        if self.polling_s <= 0 or self.cooldown_s < 0:
            raise UsageError("KEDA's polling interval must be above 0 s and its cooldown at least 0 s")
        if self.idle is not None and not 0 <= self.idle < self.least:
            raise UsageError(f"idleReplicaCount is {self.idle}; give less than the minimum, which is {self.least}")


class Keda(msgspec.Struct, frozen=True):
    """A ScaledObject with the HPA that it owns. `active_s`: when a trigger was last active; None: never yet."""

    rule: Rule
    hpa: Hpa
    active_s: float | None = None

    @property
    def loops(self) -> tuple[tuple[str, float], ...]:
        return (("poll", self.rule.polling_s), *self.hpa.loops)

    @property
    def least(self) -> int:
        return self.rule.least if self.rule.idle is None else self.rule.idle

    @property
    def most(self) -> int:
        return self.rule.most

    def step(self, loop: str, seen: Seen) -> tuple[Choice, Keda]:
        """One round of the loop named."""
        if loop == "poll":
            return self._poll(seen)
        if seen.replicas < self.hpa.bounds.least:  # at nothing, or idle: the HPA waits for KEDA
            return Choice(seen.replicas, seen.replicas, "idle"), self
        choice, hpa = self.hpa.step(loop, seen)
        return choice, msgspec.structs.replace(self, hpa=hpa)

    def _poll(self, seen: Seen) -> tuple[Choice, Keda]:
        rule, current = self.rule, seen.replicas
        active = seen.total_milli > rule.activation_milli
        if active:
            now = msgspec.structs.replace(self, active_s=seen.now_s)
            if current == 0 or (rule.idle is not None and current < rule.least):
                return Choice(max(1, rule.least), max(1, rule.least), "activated"), now
            return Choice(current, current), now
        floor = rule.least if rule.idle is None else rule.idle
        if (rule.idle is not None and current > rule.idle) or (current > 0 and rule.least == 0):
            return Choice(
                *((floor, floor, "deactivated") if self._cold(seen.now_s) else (current, floor, "cooldown"))
            ), self
        if rule.idle is None and current < rule.least:
            return Choice(rule.least, rule.least, "minimum"), self
        return Choice(current, current), self

    def _cold(self, now_s: float) -> bool:
        """True once the cooldown is over; an object that was never active counts from its creation."""
        if self.active_s is None:
            return self.rule.initial_cooldown_s < now_s
        return self.active_s + self.rule.cooldown_s < now_s


def keda(
    rule: Rule, behavior: Behavior | None = None, tolerance: Tolerance = TOLERANCE, timing: Timing = TIMING
) -> Keda:
    """The scaler of a ScaledObject: the HPA below it never goes under one replica."""
    bounds = Bounds(max(1, rule.least), rule.most)
    return Keda(rule, Hpa(rule.threshold_milli, rule.kind, bounds, behavior, tolerance, timing))
