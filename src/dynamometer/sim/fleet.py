"""A fleet that grows and shrinks: requests, a scaler and the law of a cold start in, what happened to each request and
how many replicas there were out.

The replicas are the simulator's own, on one timeline with the scaler's control loops and a probe that reads the metric
as a scrape does. A removed replica takes nothing new and ends what it has; one that is still starting is removed first,
then the youngest, as a ReplicaSet does. While nobody is ready requests wait in front.
"""

from __future__ import annotations

import gc
import math
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import msgspec
import numpy as np

from dynamometer.errors import UsageError
from dynamometer.hardware.coldstart import ColdStart
from dynamometer.policies.autoscale import Change, Choice, Course, Moment, Pod, Scaler, Seen
from dynamometer.policies.routing import RULES
from dynamometer.sim.cluster import Ledger
from dynamometer.sim.feed import OpenFeed
from dynamometer.sim.kernel import NEVER, Timeline
from dynamometer.sim.replica import Replica
from dynamometer.sim.rules import Sink
from dynamometer.sim.sequence import Sequence

MakeReplica = Callable[[Sink, int], Replica]
METRICS: Final = ("in-flight", "waiting", "running", "rate", "gpu-utilization", "kv-cache")
_STARTING, _READY, _LEAVING, _GONE = range(4)


class Probe(msgspec.Struct, frozen=True):
    """How a metric reaches the scaler: read every `every_s`, handed on every `push_s` (0: at once) and `delay_s` later,
    as the mean over `window_s` (0: the last reading)."""

    metric: str = "in-flight"
    every_s: float = 5.0
    window_s: float = 0.0
    push_s: float = 0.0
    delay_s: float = 0.0

    def __post_init__(self) -> None:
        if self.metric not in METRICS:
            raise UsageError(f"metric is {self.metric!r}; one of {', '.join(METRICS)}")
        if self.every_s <= 0 or min(self.window_s, self.push_s, self.delay_s) < 0:
            raise UsageError("a metric needs an interval above 0 s, and a window, a push and a delay of at least 0 s")


class Plan(msgspec.Struct, frozen=True):
    """What a fleet starts with and how long it is watched. `grace_s`: after the load, for what is still open."""

    scaler: Scaler
    start: ColdStart
    probe: Probe
    initial: int
    routing: str = "least-loaded"
    until_s: float = 0.0
    grace_s: float = 300.0


class _Member:
    """One replica and its place in its life."""

    def __init__(self, engine: Replica, place: int, asked_s: float) -> None:
        self.engine, self.place, self.asked_s = engine, place, asked_s
        self.state, self.ready_s, self.left_s = _STARTING, NEVER, NEVER
        self.taken = 0  # requests it was given
        self.readings: deque[tuple[float, float]] = deque()
        self.counted = (0.0, 0)


class _Alarm:
    """Calls a function at a time, and again when the function names another one."""

    def __init__(self, act: Callable[[float], float]) -> None:
        self._act = act
        self.wake_s = NEVER

    def act(self, now_s: float) -> None:
        self.wake_s = self._act(now_s)


class Fleet:
    """Replicas that come and go. `make` builds one engine; `loads` of them all are one list."""

    def __init__(self, make: MakeReplica, plan: Plan, ledger: Ledger, seed: int = 0) -> None:
        if plan.routing not in RULES:
            raise UsageError(f"routing is {plan.routing!r}; one of {', '.join(RULES)}")
        if plan.initial < 0:
            raise UsageError(f"the fleet starts with {plan.initial} replicas; give 0 or more")
        self.timeline, self._make, self._plan, self._ledger = Timeline(), make, plan, ledger
        self._scaler = plan.scaler
        self._route, self._turn = RULES[plan.routing], 0
        self._chance = np.random.default_rng([seed, 0xC01D])
        self._loads: list[int] = []
        self._members: list[_Member] = []
        self._front: deque[Sequence] = deque()
        self._asked = 0
        self._open = 0
        self._fed = False
        self._totals: deque[tuple[float, float]] = deque()
        self._changes: list[Change] = []
        self._moments: list[Moment] = []
        self._ready_s: list[tuple[float, int]] = []

    # ── the run ──

    def run(self, sequences: Iterator[Sequence]) -> Course:
        """Feeds the sequences at their due times and lets the scaler act until the watch ends."""
        timeline, plan = self.timeline, self._plan
        self._resize(0.0, plan.initial)
        for member in self._members:
            self._becomes_ready(member, 0.0)
        self._idle_before(plan.probe)
        feed = OpenFeed(sequences, self._submit, self._no_more)
        timeline.wake(feed, feed.wake_s)
        self._every(plan.probe.every_s, self._read)
        self._every(1.0, self._note)
        for name, period_s in plan.scaler.loops:
            self._every(period_s, partial(self._control, name))
        collects = gc.isenabled()
        gc.disable()
        try:
            end_s = timeline.run(plan.until_s + plan.grace_s)
        finally:
            if collects:
                gc.enable()
        return self._course(max(end_s, plan.until_s))

    def _idle_before(self, probe: Probe) -> None:
        """A mean over a window reaches back before the load, when the fleet had nothing to do."""
        for step in range(math.floor(probe.window_s / probe.every_s), 0, -1):
            self._totals.append((-step * probe.every_s, 0.0))
            for member in self._members:
                member.readings.append((-step * probe.every_s, 0.0))

    def _every(self, period_s: float, act: Callable[[float], None]) -> None:
        """Calls `act` at 0 and every period, by whole multiples so that no error adds up, while there is reason to."""
        done = 0

        def again(now_s: float) -> float:
            nonlocal done
            act(now_s)
            done += 1
            return done * period_s if self._lasts(now_s) else NEVER

        self.timeline.wake(_Alarm(again), 0.0)

    def _lasts(self, now_s: float) -> bool:
        return now_s < self._plan.until_s or not self._fed or self._open > 0

    # ── requests ──

    def _submit(self, sequence: Sequence, now_s: float) -> None:
        self._open += 1
        ready = [member for member in self._members if member.state == _READY]
        if not ready:
            self._front.append(sequence)
            return
        self._give(sequence, ready, now_s)

    def _give(self, sequence: Sequence, ready: list[_Member], now_s: float) -> None:
        loads = [self._loads[member.place] for member in ready]
        member = ready[self._route(self._turn, sequence.key, loads)]
        self._turn += 1
        member.taken += 1
        if member.engine.arrive(sequence, now_s):
            self.timeline.wake(member.engine, member.engine.wake_s)

    def finished(self, sequence: Sequence) -> None:
        self._open -= 1
        self._ledger.finished(sequence)

    def refused(self, sequence: Sequence, now_s: float) -> None:
        self._open -= 1
        self._ledger.refused(sequence, now_s)

    def _no_more(self, now_s: float) -> None:
        self._fed = True
        for member in self._members:
            self._last(member, now_s)

    def _last(self, member: _Member, now_s: float) -> None:
        """No request will come to it any more: a half-filled static batch starts."""
        engine = member.engine
        engine.no_more = True
        if engine.waiting and engine.resting:
            self.timeline.wake(engine, max(now_s, self.timeline.now_s))

    # ── replicas ──

    def _resize(self, now_s: float, number: int) -> None:
        """Starts or removes replicas until so many are asked for."""
        while self._asked < number:
            member = _Member(self._make(self, len(self._members)), len(self._members), now_s)
            self._loads.append(0)
            member.engine.loads, member.engine.place = self._loads, member.place
            self._members.append(member)
            self._asked += 1
            if now_s > 0:
                at_s = now_s + self._plan.start.draw(self._chance)
                self.timeline.wake(_Alarm(partial(self._becomes_ready, member)), at_s)
        while self._asked > number:
            self._remove(now_s)
            self._asked -= 1

    def _becomes_ready(self, member: _Member, now_s: float) -> float:
        if member.state == _STARTING:
            member.state, member.ready_s = _READY, now_s
            self._count_ready(now_s)
            waiting, self._front = self._front, deque()
            ready = [one for one in self._members if one.state == _READY]
            for sequence in waiting:
                self._give(sequence, ready, now_s)
        return NEVER

    def _remove(self, now_s: float) -> None:
        alive = [member for member in self._members if member.state in (_STARTING, _READY)]
        leaver = max(alive, key=lambda member: (member.state == _STARTING, member.asked_s, member.place))
        was_ready = leaver.state == _READY
        leaver.state, leaver.left_s = (_LEAVING, NEVER) if self._loads[leaver.place] else (_GONE, now_s)
        if was_ready:
            self._last(leaver, now_s)
            self._count_ready(now_s)

    def _count_ready(self, now_s: float) -> None:
        self._ready_s.append((now_s, sum(member.state == _READY for member in self._members)))

    # ── the metric and the scaler ──

    def _read(self, now_s: float) -> None:
        """One scrape of every ready replica."""
        keep_s = (
            now_s - max(self._plan.probe.window_s + self._plan.probe.delay_s + self._plan.probe.push_s, 1.0) * 2 - 60
        )
        total = float(len(self._front)) if self._plan.probe.metric in ("in-flight", "waiting") else 0.0
        for member in self._members:
            if member.state == _READY:
                value = self._value(member, now_s)
                total += value
                member.readings.append((now_s, value))
                _trim(member.readings, keep_s)
        self._totals.append((now_s, total))
        _trim(self._totals, keep_s)

    def _value(self, member: _Member, now_s: float) -> float:
        metric, engine, load = self._plan.probe.metric, member.engine, self._loads[member.place]
        waits = len(engine.waiting) + len(engine.door)
        if metric == "in-flight":
            return float(load)
        if metric == "waiting":
            return float(min(waits, load))
        if metric == "running":
            return float(max(0, load - waits))
        if metric == "gpu-utilization":
            return 1.0 if load else 0.0  # a kernel runs while there is anything to do, one request or a hundred
        if metric == "kv-cache":
            return engine.memory.used / engine.memory.total
        since_s, before = member.counted
        member.counted = (now_s, member.taken)
        return (member.taken - before) / (now_s - since_s) if now_s > since_s else 0.0

    def _known(self, readings: deque[tuple[float, float]], now_s: float) -> float | None:
        """What the scaler is told of a metric now."""
        probe = self._plan.probe
        seen_s = now_s - probe.delay_s
        if probe.push_s:
            seen_s = math.floor(seen_s / probe.push_s + 1e-9) * probe.push_s
        known = [value for at_s, value in readings if at_s <= seen_s and at_s > seen_s - probe.window_s]
        if probe.window_s:
            return sum(known) / len(known) if known else None
        last = [value for at_s, value in readings if at_s <= seen_s]
        return last[-1] if last else None

    def _control(self, loop: str, now_s: float) -> None:
        pods = tuple(self._pod(m, now_s) for m in self._members if m.state in (_STARTING, _READY))
        total = self._known(self._totals, now_s)
        seen = Seen(now_s, self._asked, pods, _milli(total or 0.0))
        choice, self._scaler = self._scaler.step(loop, seen)
        if choice.replicas != self._asked and now_s > 0:
            self._apply(choice, now_s)

    def _apply(self, choice: Choice, now_s: float) -> None:
        self._changes.append(Change(now_s, self._asked, choice.replicas, choice.wanted, choice.because))
        self._resize(now_s, choice.replicas)

    def _pod(self, member: _Member, now_s: float) -> Pod:
        known = self._known(member.readings, now_s) if member.state == _READY else None
        return Pod(
            None if known is None else _milli(known),
            ready=member.state == _READY,
            started_s=member.asked_s,
            changed_s=member.ready_s if member.state == _READY else member.asked_s,
            sampled_s=now_s,
        )

    def _note(self, now_s: float) -> None:
        for member in self._members:
            if member.state == _LEAVING and not self._loads[member.place]:
                member.state, member.left_s = _GONE, now_s
        states = [member.state for member in self._members]
        waits = sum(
            min(len(m.engine.waiting) + len(m.engine.door), self._loads[m.place])
            for m in self._members
            if m.state in (_READY, _LEAVING)
        )
        held = len(states) - states.count(_GONE)
        moment = Moment(now_s, self._asked, states.count(_READY), held, waits + len(self._front), self._open)
        self._moments.append(moment)

    def _course(self, end_s: float) -> Course:
        watched_s = self._plan.until_s
        cost_s = sum(
            max(0.0, min(member.left_s, watched_s) - member.asked_s)
            for member in self._members
            if member.asked_s < watched_s
        )
        starts = tuple((m.asked_s, m.ready_s) for m in self._members if m.asked_s > 0 and m.ready_s < NEVER)
        return Course(
            tuple(self._changes), tuple(self._moments), starts, cost_s, self._open, end_s, tuple(self._ready_s)
        )


def _milli(value: float) -> int:
    """Thousandths, rounded up as Kubernetes' quantities are."""
    return math.ceil(value * 1000 - 1e-9)


def _trim(readings: deque[tuple[float, float]], keep_s: float) -> None:
    while readings and readings[0][0] < keep_s:
        readings.popleft()
