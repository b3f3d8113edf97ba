"""The decoding batch: sequences that join and leave in, what a step reads, who stops next and each token's time out.

A tick is one decode step; every sequence of the batch takes part in every tick, so a sequence needs no work until the
tick at which it ends (known, because its length is) or fills its attention window.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Final

import numpy as np

from dynamometer.policies.speculation import Speculation, draw_steps, expected_tokens
from dynamometer.sim.paged import Memory, Paged
from dynamometer.sim.sequence import Sequence

_KEPT_TICKS = 100_000
NO_TIMES: Final[list[float]] = []
_NOBODY: Final[list[Sequence]] = []


class Batch:
    """`n` sequences, ghosts included, that read `context` tokens (`windowed` of them through a window) in a step.

    With `holds`, a sequence that has ended still costs its share until the batch is emptied: static batching.
    """

    def __init__(self, memory: Memory, window: int, speculation: Speculation, holds: bool, keep_times: bool) -> None:
        self.memory, self.window, self.holds = memory, window, holds
        self.speculation, self._speculates = speculation, speculation.draft > 0
        self.gain = expected_tokens(speculation) if self._speculates else 1.0
        self.running: dict[int, Sequence] = {}
        self.tick = self.n = 0
        self.context = self.windowed = 0.0
        self.growing = 0  # sequences whose window is not full
        self.peak_context = 0.0
        self._stops: list[tuple[int, Sequence]] = []
        self._keep = keep_times
        self._times: list[float] = []
        self._base = 0  # tick of the first entry of `_times`

    def join(self, sequence: Sequence, chance: np.random.Generator) -> None:
        """`context` tokens of the sequence are cached, `produced` are out; the rest come one a tick, or as speculation
        yields."""
        tick, window = self.tick, self.window
        self.running[sequence.index] = sequence
        left = sequence.output - sequence.produced
        if self._speculates:
            if not sequence.yields:
                sequence.yields = draw_steps(self.speculation, left, chance)
            left = len(sequence.yields) - sequence.accepted
        else:
            self.memory.join(sequence, tick)
        sequence.start_tick, sequence.end_tick = tick, tick + left
        self.n += 1
        self.context += sequence.context
        stop = tick + left
        if window:
            self.windowed += min(sequence.context, window)
            if sequence.context < window:
                self.growing += 1
                stop = min(stop, tick + window - sequence.context)
        sequence.stop_tick = stop
        heappush(self._stops, (stop, sequence))

    def leave(self, sequence: Sequence, stays: bool = False) -> None:
        """Out of the batch; its blocks stay until they are released. `stays`: as a ghost it still costs its share."""
        del self.running[sequence.index]
        sequence.stop_tick = -1
        steps = self.tick - sequence.start_tick
        if not self._speculates:
            self.memory.part(sequence, self.tick)
        if self._keep:
            self._copy_times(sequence)
        if stays:
            return
        self.n -= 1
        self.context -= sequence.context + steps * self.gain
        if self.window:
            self.windowed -= min(sequence.context + steps, self.window)
            if sequence.context + steps < self.window:
                self.growing -= 1

    def preempted(self, sequence: Sequence) -> None:
        """Leaves early: what it has produced so far is booked."""
        self.leave(sequence)
        steps = self.tick - sequence.start_tick
        if self._speculates:
            done = sequence.accepted + steps
            sequence.produced += sum(sequence.yields[sequence.accepted : done])
            sequence.accepted = done
        else:
            sequence.produced += steps
        sequence.start_tick = -1

    def clear(self) -> None:
        """The held batch is over: ghosts cost nothing any more."""
        self.n, self.context, self.windowed, self.growing = 0, 0.0, 0.0, 0

    def next_stop(self) -> int:
        """Ticks until the first sequence ends or fills its window."""
        stops = self._stops
        while stops[0][1].stop_tick != stops[0][0]:
            heappop(stops)
        return stops[0][0] - self.tick

    def advance(self, ends_s: list[float], steps: int) -> list[Sequence]:
        """`steps` ticks pass, ending at `ends_s` (empty if times are not kept); returns the sequences that end with
        the last one."""
        if not self._speculates:
            self.memory.grow(self.tick, steps)
        self.tick += steps
        self.context += self.n * steps * self.gain
        self.windowed += self.growing * steps
        if self.context > self.peak_context:
            self.peak_context = self.context
        if ends_s:
            self._times.extend(ends_s)
        stops, tick = self._stops, self.tick
        if not stops or stops[0][0] > tick:
            return _NOBODY
        ended: list[Sequence] = []
        while stops and stops[0][0] <= tick:
            at_tick, sequence = heappop(stops)
            if sequence.stop_tick != at_tick:
                continue
            if self.window and sequence.context < self.window == sequence.context + tick - sequence.start_tick:
                self._fill_window(sequence)
            if sequence.end_tick == at_tick:
                ended.append(sequence)
                self.leave(sequence, stays=self.holds)
            else:
                sequence.stop_tick = sequence.end_tick
                heappush(stops, (sequence.end_tick, sequence))
        return ended

    def _fill_window(self, sequence: Sequence) -> None:
        self.growing -= 1
        if isinstance(self.memory, Paged) and self.memory.window and not self._speculates:
            self.memory.saturate(sequence, self.tick)

    def settle(self, done_s: float, sequences: list[Sequence]) -> None:
        """The last tick's tokens came at `done_s`, after the device ended: the host was busy with the next launch."""
        if self._keep and self._times:
            self._times[-1] = max(self._times[-1], done_s)
            for sequence in sequences:
                if sequence.token_s and sequence.start_tick >= 0:
                    sequence.token_s[-1] = max(sequence.token_s[-1], done_s)

    def _copy_times(self, sequence: Sequence) -> None:
        sequence.token_s.extend(self._times[sequence.start_tick - self._base : self.tick - self._base])
        if len(self._times) > _KEPT_TICKS:
            floor = min((s.start_tick for s in self.running.values()), default=self.tick)
            del self._times[: max(0, floor - self._base)]
            self._base = max(self._base, floor)
