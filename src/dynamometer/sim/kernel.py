"""Virtual time: actors with a wake-up time in, each called at its time in order out. No clock, threads or chance."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Protocol

NEVER = float("inf")


class Actor(Protocol):
    """Something that acts at `wake_s`; it may set a new `wake_s` while it acts."""

    wake_s: float

    def act(self, now_s: float) -> None: ...


class Timeline:
    """A queue of wake-ups. An actor that was woken earlier than planned leaves a stale entry, which is skipped."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Actor]] = []
        self._order = 0
        self.now_s = 0.0

    def wake(self, actor: Actor, at_s: float) -> None:
        """The actor acts at `at_s` instead of at whatever time it had before. Equal times keep the order of these
        calls."""
        actor.wake_s = at_s
        if at_s < NEVER:
            self._order += 1
            heappush(self._heap, (at_s, self._order, actor))

    def run(self, until_s: float = NEVER) -> float:
        """Acts until nothing is planned or the next act is after `until_s`; returns the time of the last act."""
        heap = self._heap
        while heap and heap[0][0] <= until_s:
            at_s, _, actor = heappop(heap)
            if actor.wake_s != at_s:
                continue
            self.now_s = at_s
            actor.wake_s = NEVER
            actor.act(at_s)
            if actor.wake_s < NEVER:
                self._order += 1
                heappush(heap, (actor.wake_s, self._order, actor))
        return self.now_s
