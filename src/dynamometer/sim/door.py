"""An engine's front end: requests from the wire in, requests that the scheduler can see out, each at its time.

One event loop parses and tokenizes all requests at once, so they share it: with `k` inside, each advances at 1/k of
the speed. Equal work means that they leave in the order they came, and the first leaves no sooner than the later ones
have let it.
"""

from __future__ import annotations

from collections import deque

from dynamometer.sim.kernel import NEVER
from dynamometer.sim.sequence import Sequence


class Door:
    """`work_s` seconds of the shared loop for each request, then `latency_s` that nobody shares."""

    __slots__ = ("_now_s", "_served_s", "inside", "latency_s", "ready", "work_s")

    def __init__(self, work_s: float, latency_s: float) -> None:
        self.work_s, self.latency_s = work_s, latency_s
        self.inside: deque[tuple[float, Sequence]] = deque()  # (service at which it leaves, request)
        self.ready: deque[Sequence] = deque()
        self._served_s = 0.0  # service that each request inside has had, summed since the start
        self._now_s = 0.0

    def __len__(self) -> int:
        return len(self.inside) + len(self.ready)

    def enter(self, sequence: Sequence, now_s: float) -> None:
        """A request arrives at the wire; its `visible_s` is set when it leaves the loop."""
        self._serve(now_s)
        if self.work_s > 0:
            self.inside.append((self._served_s + self.work_s, sequence))
        else:
            sequence.visible_s = now_s + self.latency_s
            self.ready.append(sequence)

    def next_s(self) -> float:
        """When the next request becomes visible, if no other one enters before."""
        if self.ready:
            return self.ready[0].visible_s
        if not self.inside:
            return NEVER
        return self._now_s + (self.inside[0][0] - self._served_s) * len(self.inside) + self.latency_s

    def leave(self, now_s: float) -> list[Sequence]:
        """All that are visible by `now_s`, in order."""
        if self.inside:
            self._serve(now_s)
        ready, out = self.ready, []
        while ready and ready[0].visible_s <= now_s:
            out.append(ready.popleft())
        return out

    def _serve(self, now_s: float) -> None:
        inside = self.inside
        while inside:
            ends_s = self._now_s + (inside[0][0] - self._served_s) * len(inside)
            if ends_s > now_s:
                break
            self._served_s, sequence = inside.popleft()
            self._now_s = ends_s
            sequence.visible_s = ends_s + self.latency_s
            self.ready.append(sequence)
        if inside:
            self._served_s += max(0.0, now_s - self._now_s) / len(inside)
        self._now_s = max(self._now_s, now_s)
