"""The settings of an autoscaler in, what can never work or will hurt out, each with its remedy. No clock, no load.

Published faults that it knows: a gauge that stops at the slot count under a higher target, GPU utilization as a signal
for continuous batching, a counter read as a gauge, a shrinking window of nothing under a noisy metric.
"""

from __future__ import annotations

import math
import re
from typing import Final

import msgspec

from dynamometer.policies.hpa import Tolerance

_UTILIZATION: Final = re.compile(r"gpu[-_.]?util|duty[-_.]?cycle|sm[-_.]?(active|util)|gpu[-_.]?utili[sz]ation", re.I)
_COUNTER: Final = re.compile(r"(_total|_count|_sum|_created)\Z", re.I)
_HOST: Final = ("cpu", "memory")
_CAPPED: Final = re.compile(r"requests_(processing|running)\Z|(\A|[-_])running\Z", re.I)
_SHARE: Final = re.compile(r"cache_usage|kv-cache|kv_cache|_perc\Z", re.I)
_BETTER: Final = "scale on queue length or requests in flight per replica"


class Settings(msgspec.Struct, frozen=True):
    """What a scaler is told, in the metric's own unit. `most_per_pod`: the most that one replica can ever show, None:
    not known. `kind`: gauge or counter. `smoothed_s`: the metric is a mean over so long.
    """

    scaler: str  # hpa | keda | ray
    metric: str
    target: float
    most_per_pod: float | None = None
    kind: str = "gauge"
    tolerance: Tolerance = Tolerance()
    least: int = 1
    most: int = 10
    shrink_window_s: float = 300.0
    grow_window_s: float = 0.0
    smoothed_s: float = 0.0
    cold_start_s: float | None = None
    late_s: float | None = None
    per_pod: bool = True
    value: float | None = None  # what it shows now, a replica
    in_flight_per_pod: float | None = None


class Finding(msgspec.Struct, frozen=True):
    """`level`: never (it cannot work), wrong (it works against you), risk."""

    code: str
    level: str
    says: str
    remedy: str


def lint(s: Settings) -> tuple[Finding, ...]:
    """All findings, the worst first."""
    found = [*_reach(s), *_signal(s), *_stability(s), *_bounds(s)]
    rank = {"never": 0, "wrong": 1, "risk": 2}
    return tuple(sorted(found, key=lambda one: rank[one.level]))


def ceiling(s: Settings) -> float | None:
    """The most that one replica can show: stated, or known from the metric's name (a share cannot pass 1)."""
    if s.most_per_pod is not None:
        return s.most_per_pod
    if _UTILIZATION.search(s.metric) or _SHARE.search(s.metric):
        return 1.0 if s.target <= 1 else 100.0
    return None


def _reach(s: Settings) -> list[Finding]:
    most = ceiling(s)
    if most is None or not s.per_pod or s.kind == "counter":
        return []
    threshold = s.target * (1 + (s.tolerance.up if s.scaler != "ray" else 0.0))
    if most > threshold:
        return []
    if most <= s.target:
        return [
            Finding(
                "target-above-maximum",
                "never",
                f"target above the metric's maximum: {s.metric} stops at {most:g} a replica and the target is "
                f"{s.target:g}; it asks for ceil(n · {most:g} / {s.target:g}) replicas, never more than n, "
                "however long the queue",
                f"{_BETTER}, which has no ceiling, or set the target to at most {_below(most, s)}",
            )
        ]
    return [
        Finding(
            "target-inside-tolerance",
            "never",
            f"target inside the tolerance: {s.metric} stops at {most:g} a replica, {most / s.target:.3g} times the "
            f"target; up to {threshold / s.target:.3g} changes nothing",
            f"set the target to at most {_below(most, s)}, or scaleUp.tolerance below {most / s.target - 1:.2g}",
        )
    ]


def _below(most: float, s: Settings) -> str:
    """A target that leaves a fifth of the metric's range above the tolerance."""
    return f"{most / (1 + s.tolerance.up) * 0.8:.3g}"


def _signal(s: Settings) -> list[Finding]:
    found = []
    if s.kind == "counter" or (_COUNTER.search(s.metric) and s.kind == "gauge"):
        found.append(
            Finding(
                "counter-as-gauge",
                "wrong",
                f"counter used as gauge: {s.metric} only grows, so the fleet runs to its maximum of {s.most} and never "
                "comes back",
                f"take rate({s.metric}[1m]), or {_BETTER}",
            )
        )
    if _UTILIZATION.search(s.metric):
        found.append(
            Finding(
                "saturating-signal",
                "wrong",
                f"saturating signal: {s.metric} is near 100 % with one request in flight under continuous batching: "
                f"the fleet climbs to {s.most} replicas and tells nothing of the room left",
                f"{_BETTER} (vllm:num_requests_waiting, or running + waiting)",
            )
        )
    elif s.metric.lower() in _HOST:
        found.append(
            Finding(
                "host-signal",
                "wrong",
                f"{s.metric} of the host says little of an engine whose work and memory are the GPU's: weights and "
                "cache are reserved at start",
                _BETTER,
            )
        )
    elif _SHARE.search(s.metric):
        found.append(
            Finding(
                "late-signal",
                "risk",
                f"{s.metric} rises only once sequences have grown; with a prefix cache it may stay high at rest",
                f"{_BETTER}; keep the cache as a second metric",
            )
        )
    return found


def _stability(s: Settings) -> list[Finding]:
    found = []
    noise = 1.0 / math.sqrt(s.target) if s.per_pod and s.target > 0 and not _SHARE.search(s.metric) else 0.0
    noisy = s.smoothed_s < 30.0 and noise > s.tolerance.down
    if s.shrink_window_s < 60.0 and noisy and s.scaler != "ray":
        found.append(
            Finding(
                "no-stabilization",
                "wrong",
                f"a shrinking window of {s.shrink_window_s:g} s under a metric whose chance alone is {noise:.0%} of "
                f"the target at one replica, with a tolerance of {s.tolerance.down:.0%}: it flaps",
                "set behavior.scaleDown.stabilizationWindowSeconds to 300, or read a mean over a minute",
            )
        )
    if s.scaler == "ray" and s.shrink_window_s < 60.0 and s.smoothed_s < 30.0:
        found.append(
            Finding(
                "no-stabilization",
                "wrong",
                f"downscale_delay_s is {s.shrink_window_s:g} s over a mean of {s.smoothed_s:g} s: it flaps",
                "set downscale_delay_s to 300 and look_back_period_s to 30",
            )
        )
    if s.grow_window_s > 60.0:
        found.append(
            Finding(
                "slow-to-grow",
                "risk",
                f"growth waits {s.grow_window_s:g} s for the lowest recommendation; a surge waits as long",
                "set the growing window to 0 and limit the step with a policy",
            )
        )
    if s.cold_start_s is not None and s.shrink_window_s < s.cold_start_s:
        found.append(
            Finding(
                "shrinks-faster-than-it-starts",
                "risk",
                f"a replica takes {s.cold_start_s:g} s to start and is given up after {s.shrink_window_s:g} s",
                "make the shrinking window a few starts long",
            )
        )
    return found


def _bounds(s: Settings) -> list[Finding]:
    found = []
    if s.least == s.most:
        found.append(
            Finding("no-room", "never", f"minimum and maximum are both {s.most}: it cannot scale", "raise the maximum")
        )
    if s.least == 0 and s.cold_start_s and s.late_s is not None and s.cold_start_s > s.late_s:
        found.append(
            Finding(
                "late-from-nothing",
                "risk",
                f"from 0 replicas the first request waits for a start of {s.cold_start_s:g} s; late is {s.late_s:g} s",
                "set the minimum to 1",
            )
        )
    return found
