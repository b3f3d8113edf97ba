"""One engine: requests that arrive and virtual time in, steps, tokens, preemptions and completions out.

Time is compressed: between two changes of the batch decode steps form a `Stretch`, one event of any length. An
arrival cuts it at the first boundary at which a real scheduler would see it. With depth 2 the next step is scheduled
while the last one still runs (vLLM's default), so an arrival waits for the running step and for the one already in
the queue.
"""

from __future__ import annotations

from collections import deque
from itertools import islice

import numpy as np

from dynamometer.hardware.stepcost import StepCost
from dynamometer.policies.admission import accepts, rank
from dynamometer.policies.batching import RULES, Room, holds
from dynamometer.policies.eviction import resume_tokens, victim
from dynamometer.sim.batch import NO_TIMES, Batch
from dynamometer.sim.door import Door
from dynamometer.sim.kernel import NEVER
from dynamometer.sim.paged import Memory
from dynamometer.sim.pricing import Pricing
from dynamometer.sim.rules import Rules, Sink
from dynamometer.sim.sequence import NOT_YET, Sequence
from dynamometer.sim.stretch import Stretch


class Replica:
    """An engine's scheduler and device as an actor of the timeline."""

    def __init__(self, cost: StepCost, rules: Rules, memory: Memory, sink: Sink, seed: int = 0) -> None:
        self.wake_s = NEVER
        self.now_s = 0.0
        self.loads, self.place = [0], 0  # requests in flight of all engines behind a router; ours is at `place`
        self.cost, self.rules, self.memory, self.sink = cost, rules, memory, sink
        batching, guess = rules.batching, rules.speculation
        self._plan, self._holds, self._fcfs = RULES[batching.name], holds(batching), rules.admission.order == "fcfs"
        self._chance = np.random.default_rng([seed, 0xD1])
        self._limited = rules.admission.queue > 0
        most_tokens = max(batching.tokens, batching.size * (guess.draft + 1)) + batching.size
        self._price = Pricing(cost, guess, most_tokens, self._chance)
        self._width, self._ahead, self._keep = self._price.width, cost.depth == 2, rules.keep_tokens
        self.batch = Batch(memory, cost.window, guess, self._holds, rules.keep_tokens)
        self.no_more = False  # no request will come any more: static batching flushes
        self.door = Door(cost.host.accept_s, cost.host.arrive_s)  # requests on their way through the front end
        self.waiting: deque[Sequence] = deque()
        self.started: list[Sequence] = []  # prompts partly computed
        self.resting = True  # nothing is scheduled; a request may wake the engine at once
        self._run: Stretch | None = None
        self._second_s = 0.0  # when the run's second step was scheduled
        self._end_s = 0.0  # when the device ends its last scheduled step
        self._fresh: list[Sequence] = []  # their first token comes with the last scheduled step
        self._leaving: list[Sequence] = []  # and their last token
        self._gone: list[tuple[float, Sequence]] = []
        self._ghosts: list[Sequence] = []
        self._open = False  # the last tick's time is not final
        self._extra_s = 0.0  # swapping, charged to the next step
        self.busy_s = 0.0
        self.decode_steps = self.prefill_steps = self.preemptions = self.peak_blocks = self.peak_tokens = 0

    def arrive(self, sequence: Sequence, now_s: float) -> bool:
        """Takes a request at the wire; True if the replica's wake-up changed and the timeline must know."""
        if not self.memory.fits(sequence.prompt + sequence.output):
            return self._refuse(sequence, "context: prompt and answer do not fit into the KV cache", now_s)
        if self._limited and not accepts(self.rules.admission, len(self.waiting) + len(self.door)):
            return self._refuse(sequence, "rate-limited: the queue is full", now_s)
        self.loads[self.place] += 1
        blocked = self._fcfs and bool(self.waiting)
        self.door.enter(sequence, now_s)
        if self._run is not None:
            return not blocked and self._cut(self.door.next_s())
        if self.resting and self.door.next_s() < self.wake_s:
            self.wake_s = self.door.next_s()
            return True
        return False

    def _refuse(self, sequence: Sequence, reason: str, now_s: float) -> bool:
        sequence.error = reason
        self.sink.refused(sequence, now_s)
        return False

    def _queue(self, sequence: Sequence) -> None:
        order = self.rules.admission
        if self._fcfs:
            self.waiting.append(sequence)
            return
        key = rank(order, sequence.priority, sequence.remaining)
        keys = (rank(order, other.priority, other.remaining) for other in self.waiting)
        self.waiting.insert(next((i for i, other in enumerate(keys) if other > key), len(self.waiting)), sequence)

    def _cut(self, seen_s: float) -> bool:
        """Ends the run at the first boundary at or after `seen_s`, if the newcomer could join at all."""
        run = self._run
        if run is None or self._holds or self.batch.n + len(self.started) >= self.rules.batching.size:
            return False
        depth = self.cost.depth
        if depth == 2 and self._second_s >= seen_s:
            steps, at_s = 1, self._second_s
        else:
            after = run.step_at(seen_s)
            steps, at_s = after + depth - 1, run.end_s(after)
        if steps >= run.steps:
            return False
        run.steps = steps
        self._end_s = run.end_s(steps)
        self.wake_s = at_s
        return True

    def act(self, now_s: float) -> None:
        """One scheduling point: book what ended, then start the next step or run."""
        run = self._run
        if run is not None:
            self._run = None
            self.busy_s += self._end_s - run.first_s
            self._advance(run.ends_s() if self._keep else NO_TIMES, run.steps)
        if not self._ahead and (self._open or self._fresh or self._leaving):
            self._stamp(now_s)
        if self._gone or self._ghosts:
            self._release(now_s)
        door = self.door
        if door.inside or door.ready:
            for sequence in door.leave(now_s):
                self._queue(sequence)
        until_s = NEVER
        self.resting = False
        if self.waiting or self.started:
            until_s = self._schedule(now_s)
            if until_s < 0:
                return
        if not self.batch.running or not self._start_run(now_s):
            self._rest(now_s, until_s)

    def catch_up(self, until_s: float) -> None:
        """Acts on its own up to a time. Only for an engine that nobody watches in between."""
        while self.wake_s <= until_s:
            self.now_s, self.wake_s = self.wake_s, NEVER
            self.act(self.now_s)

    def _schedule(self, now_s: float) -> float:
        """Lets prompts in as the rule says: −1 if a step was started, else when to look again."""
        batch, started, waiting = self.batch, self.started, self.waiting
        if waiting and waiting[0].remaining == 0:
            self._resume(now_s)
        size = self.rules.batching.size
        slots = size - batch.n - len(started) - len(self._leaving) - len(self._gone)
        if slots < 0:
            slots = 0
        if not started and not (slots and waiting):
            return NEVER
        queue = [s.remaining for s in started]
        queue.extend(s.remaining for s in islice(waiting, slots))
        oldest_s = waiting[0].visible_s if waiting else now_s
        last = self.no_more and not len(self.door)
        room = Room(now_s, batch.n * self._width, slots, len(started), oldest_s, last)
        step = self._plan(self.rules.batching, queue, room)
        chunks = self._let_in(now_s, step.chunks) if step.chunks else []
        if not chunks:
            return step.until_s
        self._mixed_step(now_s, chunks, step.decode and bool(batch.running) and self._carry_on(now_s))
        return -1.0

    def _let_in(self, now_s: float, chunks: tuple[int, ...]) -> list[tuple[Sequence, int]]:
        """The chosen chunks with their sequences; a waiting one needs memory first, and those behind it wait too."""
        chosen = list(zip(self.started, chunks, strict=False))
        for tokens in chunks[len(chosen) :]:
            sequence = self.waiting[0]
            if not self.memory.admit(sequence, self._reserve(sequence)):
                break
            self.waiting.popleft()
            self._admitted(sequence, now_s)
            sequence.remaining -= sequence.cached
            self.started.append(sequence)
            chosen.append((sequence, min(tokens, sequence.remaining)))
        return chosen

    def _reserve(self, sequence: Sequence) -> int:
        """Tokens to find room for at admission: the prompt; with speculation, whose growth is uneven, the whole answer
        too."""
        if self._width > 1:
            return sequence.prompt + sequence.output
        return sequence.prompt + sequence.produced

    def _admitted(self, sequence: Sequence, now_s: float) -> None:
        if sequence.admitted_s == NOT_YET:
            sequence.admitted_s = now_s
        if self.memory.used > self.peak_blocks:
            self.peak_blocks = self.memory.used

    def _resume(self, now_s: float) -> None:
        """Sequences whose cache is already computed (swapped out, or sent by a prefill engine) go straight to
        decoding."""
        size = self.rules.batching.size
        while self.waiting and self.waiting[0].remaining == 0:
            sequence = self.waiting[0]
            if self.batch.n + len(self.started) + len(self._leaving) + len(self._gone) >= size:
                return
            sequence.context = sequence.prompt + sequence.produced - 1  # its newest token is computed by the next step
            if not self.memory.admit(sequence, sequence.context if self._width == 1 else self._reserve(sequence)):
                return
            self.waiting.popleft()
            self._admitted(sequence, now_s)
            if sequence.evictions:
                self._extra_s += self.rules.swap_s * sequence.context
            self.batch.join(sequence, self._chance)

    def _mixed_step(self, now_s: float, chunks: list[tuple[Sequence, int]], decode: bool) -> None:
        """One step with prompt tokens, and with decoding if the rule says so."""
        batch = self.batch
        n = batch.n if decode else 0
        longest = max(count for _, count in chunks) if self._holds else 0
        sizes: list[tuple[int, int]] = []
        sampled = n
        for sequence, count in chunks:
            past = sequence.prompt + sequence.produced - sequence.remaining
            sizes.append((longest or count, past))  # a static batch is padded to its longest prompt
            sequence.remaining -= count
            if not sequence.remaining:
                sampled += 1
        device_s, tokens = self._price.prompts_s(sizes, n, batch.context, batch.windowed)
        device_s += self.cost.sequence_s * sampled + self._extra_s
        self._extra_s = 0.0
        self._place_step(now_s, device_s, self._price.launch_prompts_s(tokens))
        self.prefill_steps += 1
        if tokens > self.peak_tokens:
            self.peak_tokens = tokens
        if n:
            self._advance([self._end_s] if self._keep else NO_TIMES, 1)
        if sampled > n:
            self.started = [sequence for sequence in self.started if sequence.remaining]
            for sequence, _ in chunks:
                if not sequence.remaining:
                    self._prompt_done(sequence)

    def _place_step(self, now_s: float, device_s: float, launch_s: float) -> None:
        """Puts a step on the device's and the host's time line and plans the next scheduling point."""
        self.busy_s += device_s
        if not self._ahead:
            self._end_s = self.wake_s = now_s + launch_s + device_s
            return
        launched_s, end_s = now_s + launch_s, self._end_s
        self.wake_s = launched_s if launched_s > end_s else end_s
        if self._open or self._fresh or self._leaving:
            self._stamp(self.wake_s)
        start_s = now_s + self._price.prepare_s
        if end_s > start_s:
            start_s = end_s
        end_s = start_s + device_s
        self._end_s = end_s if end_s > launched_s else launched_s

    def _prompt_done(self, sequence: Sequence) -> None:
        """The prompt is computed; a token comes with it, and decoding starts if more are wanted."""
        sequence.context = sequence.prompt + sequence.produced
        sequence.produced += 1
        self._fresh.append(sequence)
        if sequence.produced >= sequence.output:
            self._leaving.append(sequence)
        else:
            self.batch.join(sequence, self._chance)

    def _start_run(self, now_s: float) -> bool:
        """Decode steps until the batch changes: a sequence's end, the memory's end, or an arrival that cuts the run.

        False: the memory ended and nobody is left to run.
        """
        batch, price = self.batch, self._price
        most = 1 if self.waiting and (self._leaving or self._gone) else batch.next_stop()
        steps = most if self._width > 1 else self.memory.ticks(batch.tick, most)
        if not steps:
            return self._carry_on(now_s) and self._start_run(now_s)
        n = batch.n
        device_s = price.decode_s(n, batch.context, batch.windowed)
        slope_s = price.context_s * n * price.gain + price.window_s * batch.growing
        launch_s = price.launch_s + price.launch_n_s * n
        self.busy_s += device_s
        if self._ahead:
            run = self._run_ahead(now_s, device_s, slope_s, launch_s, steps)
        else:
            first_s = now_s + launch_s + device_s + self._extra_s
            run = Stretch(first_s, launch_s + device_s + slope_s, slope_s, steps)
            self._end_s = self.wake_s = run.end_s(steps)
        self._extra_s = 0.0
        self._run = run
        door = self.door
        if (door.inside or door.ready) and door.next_s() < self.wake_s:
            self._cut(door.next_s())
        return True

    def _run_ahead(self, now_s: float, device_s: float, slope_s: float, launch_s: float, steps: int) -> Stretch:
        """A run whose every step is scheduled while the one before runs: the slower of the two sets the pace."""
        end_s = self._end_s
        second_s = now_s + launch_s
        first_s = now_s + self._price.prepare_s
        if end_s > first_s:
            first_s = end_s
        first_s += device_s + self._extra_s
        if second_s > first_s:
            first_s = second_s
        if end_s > second_s:
            second_s = end_s
        self._second_s = second_s
        if self._open or self._fresh or self._leaving:
            self._stamp(second_s)
        period_s = device_s + slope_s
        if period_s < launch_s:  # until the context has grown
            if slope_s > 0:
                steps = min(steps, 2 + int((launch_s - period_s) / slope_s))
            period_s, slope_s = launch_s, 0.0
        run = Stretch(first_s, period_s, slope_s, steps)
        self._end_s = run.end_s(steps)
        self.wake_s = second_s if steps == 1 else run.end_s(steps - 1)
        return run

    def _advance(self, ends_s: list[float], steps: int) -> None:
        ended = self.batch.advance(ends_s, steps)
        if ended:
            self._leaving += ended
        self._open = self._keep
        self.decode_steps += steps
        if self.memory.used > self.peak_blocks:
            self.peak_blocks = self.memory.used

    def _carry_on(self, now_s: float) -> bool:
        """Makes sure the cache holds one more token of everyone, by preempting if need be; False: nobody is left."""
        batch = self.batch
        while self._width == 1 and batch.running and not self.memory.ticks(batch.tick, 1):
            candidates = list(batch.running.values())
            chosen = victim([s.visible_s for s in candidates], [s.priority for s in candidates])
            sequence = candidates[chosen]
            batch.preempted(sequence)
            sequence.remaining = resume_tokens(self.rules.preemption, sequence.prompt, sequence.produced)
            sequence.cached = 0
            sequence.evictions = (*sequence.evictions, now_s)
            if self.rules.preemption == "swap":
                self._extra_s += self.rules.swap_s * (sequence.prompt + sequence.produced)
            self.memory.release(sequence)
            self.waiting.appendleft(sequence)
            self.preemptions += 1
        return bool(batch.running)

    def _stamp(self, done_s: float) -> None:
        """The results of the last scheduled step reach the front end at `done_s`, and the client after the reply's
        lag."""
        host = self.cost.host
        lag_s = host.reply_s + host.reply_per_sequence_s * self.batch.n
        if self._open:
            self._open = False
            self.batch.settle(done_s, self._leaving)
        if self._fresh:
            for sequence in self._fresh:
                if sequence.first_s == NOT_YET:
                    sequence.first_s = done_s
                    sequence.first_lag_s = lag_s + host.reply_first_s
                elif self._keep:
                    sequence.token_s.append(done_s)
            self._fresh = []
        if self._leaving:
            leaving, self._leaving = self._leaving, []
            for sequence in leaving:
                sequence.last_s = done_s
                sequence.last_lag_s = lag_s
                self._gone.append((done_s, sequence))
                self.loads[self.place] -= 1
                self.sink.finished(sequence)

    def _release(self, now_s: float) -> None:
        """Memory and places of answers that are out; a held batch gives both back together."""
        if self._holds:
            self._ghosts.extend(sequence for _, sequence in self._gone)
            self._gone = []
            if self.batch.running or self.started or self._leaving or self._fresh:
                return
            for sequence in self._ghosts:
                self.memory.release(sequence)
            self._ghosts = []
            self.batch.clear()
            return
        kept: list[tuple[float, Sequence]] = []
        for done_s, sequence in self._gone:
            if done_s <= now_s:
                self.memory.release(sequence)
            else:
                kept.append((done_s, sequence))
        self._gone = kept

    def _rest(self, now_s: float, until_s: float) -> None:
        """Nothing to schedule: wait for the last step's results, for the timeout of a batch, or for a request."""
        if self._fresh or self._leaving or self._open:
            self._stamp(max(self._end_s, now_s))
        self.resting = True
        if self._gone and (self.waiting or self.started or self._holds):
            until_s = min(until_s, max(done_s for done_s, _ in self._gone))
        elif self._ghosts and not self.batch.running and not self.started:
            until_s = now_s  # everyone else was preempted: the held batch is over
        self.wake_s = min(until_s, self.door.next_s())

    def close(self) -> None:
        """After the last event: gives back what answers still hold, so that a leak would show."""
        self._release(NEVER)
