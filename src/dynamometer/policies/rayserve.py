"""Ray Serve's autoscaler: requests in flight over the fleet in, replicas out. Pure.

desired = running · (in flight / (target · running)), drawn towards the present by a factor, then held until it has been
wanted without a break for the delay. Source: Ray Serve's documentation of AutoscalingConfig and the behaviour of its
default policy as of 2.60 (delays by the clock, not by counted rounds).
"""

from __future__ import annotations

import math

import msgspec

from dynamometer.errors import UsageError
from dynamometer.policies.autoscale import Choice, Seen

_EPSILON_S = 1e-6  # a delay that has passed but for rounding has passed


class RayServe(msgspec.Struct, frozen=True):
    """AutoscalingConfig with its memory. `direction`: −1, 0 or 1, what was wanted last, since `since_s`.

    The metric that it is shown must be the mean of requests in flight over `look_back_s`, pushed every `metrics_s`.
    """

    target: float = 2.0
    least: int = 1
    most: int = 100
    upscale_delay_s: float = 30.0
    downscale_delay_s: float = 600.0
    to_zero_delay_s: float | None = None
    upscaling: float = 1.0
    downscaling: float = 1.0
    metrics_s: float = 10.0
    look_back_s: float = 30.0
    control_s: float = 0.1
    direction: int = 0
    since_s: float | None = None

    def __post_init__(self) -> None:
        if self.target <= 0 or self.upscaling <= 0 or self.downscaling <= 0 or self.control_s <= 0:
            raise UsageError("Ray Serve's target, factors and control interval must be above 0")
        if not 0 <= self.least <= self.most or self.most < 1:
            raise UsageError(f"replicas from {self.least} to {self.most} are none; give 0 ≤ minimum ≤ maximum")

    @property
    def loops(self) -> tuple[tuple[str, float], ...]:
        return (("control", self.control_s),)

    def step(self, loop: str, seen: Seen) -> tuple[Choice, RayServe]:
        """One round of the controller. `seen.replicas` is its target; running replicas are the ready pods."""
        in_flight, running = seen.total_milli / 1000.0, seen.ready
        if running == 0:
            wanted = max(math.ceil(self.upscaling), seen.replicas) if in_flight > 0 else seen.replicas
            return Choice(self._bound(wanted), wanted, "from nothing"), self
        wanted = self.wanted(in_flight, running)
        replicas, now = self._held(max(0, wanted), seen)
        return Choice(self._bound(replicas), wanted, "" if replicas == wanted else "delay"), now

    def wanted(self, in_flight: float, running: int) -> int:
        """Replicas before delays and bounds."""
        raw = running * (in_flight / (self.target * running))
        factor = self.upscaling if raw > running else self.downscaling
        scaled = math.ceil(running + factor * (raw - running))
        if math.ceil(raw) < running and scaled == running:  # a small factor must not hold it for ever
            scaled -= 1
        return scaled

    def _held(self, wanted: int, seen: Seen) -> tuple[int, RayServe]:
        current, now_s = seen.replicas, seen.now_s
        direction = (wanted > current) - (wanted < current)
        if direction == 0:
            return current, self._remember(0, None)
        since_s = self.since_s if direction == self.direction and self.since_s is not None else now_s
        delay_s = self.upscale_delay_s
        if direction < 0:
            delay_s = self.downscale_delay_s
            if current == 1 and self.to_zero_delay_s is not None:
                delay_s = self.to_zero_delay_s
            if current != 1:
                wanted = max(1, wanted)
        if now_s - since_s + _EPSILON_S >= delay_s:
            return wanted, self._remember(0, None)
        return current, self._remember(direction, since_s)

    def _remember(self, direction: int, since_s: float | None) -> RayServe:
        if direction == self.direction and since_s == self.since_s:
            return self
        return msgspec.structs.replace(self, direction=direction, since_s=since_s)

    def _bound(self, replicas: int) -> int:
        return min(max(replicas, self.least), self.most)
