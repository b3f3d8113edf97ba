"""Who asks, and when: sequences in the order of their schedule in, submissions at their times out.

`OpenFeed` keeps to the schedule whatever the engine does; `ClosedFeed` keeps so many requests in flight. Both hold
back a request that answers an earlier one (`after`) until that answer is complete and its pause is over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush

import msgspec

from dynamometer.errors import UsageError
from dynamometer.sim.kernel import NEVER
from dynamometer.sim.sequence import Sequence

Submit = Callable[[Sequence, float], None]


class OpenFeed:
    """Sends each sequence at its due time; a follow-up at the later of its due time and its predecessor's end plus the
    pause."""

    def __init__(self, sequences: Iterator[Sequence], submit: Submit, on_end: Callable[[float], None]) -> None:
        self._source, self._submit, self._on_end = sequences, submit, on_end
        self._held: dict[int, list[Sequence]] = {}  # predecessor → those that wait for it
        self._open: set[int] = set()  # requests of conversations that are not answered yet
        self._late: list[tuple[float, int, Sequence]] = []
        self._next = next(self._source, None)
        self.wake_s = NEVER
        self._plan()

    def _plan(self) -> None:
        due_s = self._next.at_s if self._next is not None else NEVER
        self.wake_s = min(due_s, self._late[0][0]) if self._late else due_s

    def act(self, now_s: float) -> None:
        while self._late and self._late[0][0] <= now_s:
            at_s, _, sequence = heappop(self._late)
            sequence.sent_s = at_s
            self._submit(sequence, at_s)
        sequence_due = self._next
        if sequence_due is not None and sequence_due.at_s <= now_s:
            self._next = next(self._source, None)
            if sequence_due.session:
                self._open.add(sequence_due.index)
            if sequence_due.after in self._open:
                self._held.setdefault(sequence_due.after, []).append(sequence_due)
            else:
                self._submit(sequence_due, now_s)
            if self._next is None:
                self._on_end(now_s)
        self._plan()

    def answered(self, sequence: Sequence, at_s: float) -> float:
        """An answer is complete at the client at `at_s`; returns the feed's new wake-up."""
        if sequence.session:
            self._open.discard(sequence.index)
            for held in self._held.pop(sequence.index, ()):
                heappush(self._late, (max(held.at_s, at_s + held.think_s), held.index, held))
            self._plan()
        return self.wake_s


class Streams(msgspec.Struct, frozen=True):
    """A closed loop: so many streams, each with one request in flight, until `until_s`.

    `starts_s`: when each stream begins (all at 0 if empty); `turn_s`: the client's time from an answer to the next
    request.
    """

    concurrency: int
    until_s: float = NEVER
    starts_s: tuple[float, ...] = ()
    turn_s: float = 0.0

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise UsageError(f"the concurrency is {self.concurrency}; give 1 or more")
        if self.starts_s and len(self.starts_s) != self.concurrency:
            raise UsageError(
                f"{len(self.starts_s)} start times for {self.concurrency} streams; give one a stream or none"
            )


class ClosedFeed:
    """Keeps the streams busy until the source or the time ends."""

    def __init__(
        self, sequences: Iterator[Sequence], submit: Submit, streams: Streams, on_end: Callable[[float], None]
    ) -> None:
        self._source, self._submit, self._streams, self._on_end = sequences, submit, streams, on_end
        starts_s = streams.starts_s or (0.0,) * streams.concurrency
        self._due = [(at_s, stream, stream) for stream, at_s in enumerate(sorted(starts_s))]
        self._order = streams.concurrency
        self._open: dict[int, float | None] = {}  # conversations: when the answer came, None = not yet
        self._held: dict[int, Sequence] = {}
        self.wake_s = self._due[0][0]

    def act(self, now_s: float) -> None:
        while self._due and self._due[0][0] <= now_s:
            at_s, _, _ = heappop(self._due)
            if at_s > self._streams.until_s:
                continue
            sequence = next(self._source, None)
            if sequence is None:
                self._on_end(at_s)
                self._due.clear()
                break
            self._send(sequence, at_s)
        self.wake_s = self._due[0][0] if self._due else NEVER

    def _send(self, sequence: Sequence, at_s: float) -> None:
        """Its turn has come; a follow-up may have to wait for the answer before it."""
        if sequence.session:
            ended_s = self._open.get(sequence.after, -NEVER)
            self._open[sequence.index] = None
            if ended_s is None:
                self._held[sequence.after] = sequence
                return
            at_s = max(at_s, ended_s + sequence.think_s)
        sequence.at_s = sequence.sent_s = at_s
        self._submit(sequence, at_s)

    def answered(self, sequence: Sequence, at_s: float) -> float:
        """The stream is free again at `at_s`; returns the feed's new wake-up."""
        if sequence.session:
            self._open[sequence.index] = at_s
            self._open.pop(sequence.after, None)
            held = self._held.pop(sequence.index, None)
            if held is not None:
                held.at_s = held.sent_s = at_s + held.think_s
                self._submit(held, held.at_s)
        self._order += 1
        heappush(self._due, (at_s + self._streams.turn_s, self._order, 0))
        self.wake_s = self._due[0][0]
        return self.wake_s
