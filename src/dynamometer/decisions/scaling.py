"""What a fleet did under a surge in (requests, replicas over time), what a person wants to know of it out.

The same account is made of a replay and of a real fleet. Latencies are the client's, from when a request was due; a
request that nobody answered is slower than all that were.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import msgspec
import numpy as np

from dynamometer.metrics.intervals import effective_n, order, refused, share
from dynamometer.metrics.quantiles import weighted
from dynamometer.policies.autoscale import Course
from dynamometer.types import Decision, Estimate, Float64
from dynamometer.units import show, significant

FLAP_S = 300.0  # a change of direction within so long of the last change is a flap
_BIN_S = 5.0  # of the P99 over time
_FEWEST = 20  # answers of a bin whose P99 is drawn (it is then the slowest but few)


class Answers(msgspec.Struct, frozen=True):
    """Equal arrays, one entry an answered request: seconds from the load's start. `refused`: turned away, e.g. by a
    full queue; `open`: not answered when the watch ended.
    """

    due_s: Float64
    first_s: Float64
    last_s: Float64
    refused: int = 0
    open: int = 0

    @property
    def asked(self) -> int:
        return len(self.due_s) + self.refused + self.open


class Frame(msgspec.Struct, frozen=True):
    """What the course is held against. `surge_s`: when the load begins to rise; `late_s`: an answer's first token after
    so long is late; `usd_per_hour`: of one replica, None: not known; `initial`: replicas at the start."""

    surge_s: float
    end_s: float
    late_s: float
    initial: int
    usd_per_hour: float | None = None
    provenance: str = "simulated"


class Point(msgspec.Struct, frozen=True):
    """Replicas at a moment: asked for, and ready."""

    at_s: float
    asked: int
    ready: int


class Tail(msgspec.Struct, frozen=True):
    """The slowest of the answers to requests that were due in a bin of five seconds, milliseconds."""

    at_s: float
    p99_ms: float
    ttft_p99_ms: float
    n: int


class Scaled(msgspec.Struct, frozen=True):
    """The account. Times are seconds from the load's start; None: it did not happen, or cannot be said (`notes`)."""

    provenance: str
    decision: Decision
    replicas: tuple[Point, ...]
    surge_at_s: float
    first_scale_s: float | None  # the scaler first asked for more
    first_ready_s: float | None  # a replica beyond the first ones was first ready
    scale_out_s: float | None  # from the surge until the last replica of the growth was ready
    steady_replicas: int  # ready at the end of the load
    peak_replicas: int
    p99_ms: float | None
    ttft_p99_ms: float | None
    p99_before_ms: float | None
    p99_peak_ms: float | None
    p99_end_ms: float | None
    p99_swing: float | None  # peak over before
    requests: int
    answered: int
    dropped: int
    unanswered: int
    late: int
    late_share: Estimate
    flaps: int
    replica_hours: float
    usd: float | None
    usd_per_1k_requests: float | None
    most_waiting: int
    estimates: dict[str, Estimate]
    tails: tuple[Tail, ...]
    waiting: tuple[tuple[float, int], ...]
    notes: tuple[str, ...] = ()


def account(answers: Answers, course: Course, frame: Frame) -> Scaled:
    """The whole account of one fleet under one load."""
    e2e_ms = (answers.last_s - answers.due_s) * 1e3
    ttft_ms = (answers.first_s - answers.due_s) * 1e3
    whole, first = _tail(e2e_ms, answers), _tail(ttft_ms, answers)
    tails = _tails(answers, e2e_ms, ttft_ms)
    before, peak, end = _swing(tails, frame)
    late = int((ttft_ms > frame.late_s * 1e3).sum()) + answers.open
    grown = [change.at_s for change in course.changes if change.after > change.before]
    ready = [at_s for at_s, n in course.ready_s if n > frame.initial]
    out_s = _scale_out(course, frame)
    hours = course.replica_s / 3600.0
    usd = None if frame.usd_per_hour is None else hours * frame.usd_per_hour
    made = Scaled(
        provenance=frame.provenance,
        decision=Decision("", "", ()),
        replicas=_points(course, frame),
        surge_at_s=frame.surge_s,
        first_scale_s=grown[0] if grown else None,
        first_ready_s=ready[0] if ready else None,
        scale_out_s=out_s,
        steady_replicas=_ready_at(course, frame.end_s, frame.initial),
        peak_replicas=max((n for at_s, n in course.ready_s if at_s <= frame.end_s), default=frame.initial),
        p99_ms=whole.value,
        ttft_p99_ms=first.value,
        p99_before_ms=before,
        p99_peak_ms=peak,
        p99_end_ms=end,
        p99_swing=peak / before if peak is not None and before else None,
        requests=answers.asked,
        answered=len(answers.due_s),
        dropped=answers.refused,
        unanswered=answers.open,
        late=late,
        late_share=share(_lost(answers, ttft_ms, frame.late_s), ""),
        flaps=flaps([(c.at_s, c.after - c.before) for c in course.changes]),
        replica_hours=hours,
        usd=usd,
        usd_per_1k_requests=1e3 * usd / len(answers.due_s) if usd is not None and len(answers.due_s) else None,
        most_waiting=max((moment.waiting for moment in course.moments), default=0),
        estimates={"p99_ms": whole, "ttft_p99_ms": first},
        tails=tails,
        waiting=tuple((moment.at_s, moment.waiting) for moment in course.moments),
        notes=_notes(answers, course),
    )
    return msgspec.structs.replace(made, decision=_decide(made, course, frame))


def flaps(changes: Sequence[tuple[float, int]], within_s: float = FLAP_S) -> int:
    """Changes of direction, each within `within_s` of the change before. `changes`: (seconds, replicas added)."""
    return sum(a * b < 0 and at_s - before_s <= within_s for (before_s, a), (at_s, b) in pairwise(changes))


def _tail(values_ms: Float64, answers: Answers) -> Estimate:
    """P99 over all requests that were let in; those without an answer lie above all others."""
    n = len(values_ms) + answers.open
    if not n:
        return refused(0.99, 0, "ms")
    if answers.open > 0.01 * n:
        why = f"{answers.open:,} of {n:,} requests had no answer: P99 lies beyond the watch"
        return Estimate(None, float(values_ms.max()) if len(values_ms) else None, None, n, "ms", method=why)
    full = np.concatenate([values_ms, np.full(answers.open, np.inf)])
    found = order(weighted(np.sort(full)), 0.99, effective_n(values_ms), "ms", n)
    if found.high is not None and math.isinf(found.high):
        return msgspec.structs.replace(found, high=None)
    return found


def _tails(answers: Answers, e2e_ms: Float64, ttft_ms: Float64) -> tuple[Tail, ...]:
    if not len(e2e_ms):
        return ()
    place = np.floor(answers.due_s / _BIN_S).astype(np.int64)
    made = []
    for bin_ in np.unique(place):
        inside = place == bin_
        n = int(inside.sum())
        if n >= _FEWEST:
            tails = [float(np.quantile(values[inside], 0.99)) for values in (e2e_ms, ttft_ms)]
            made.append(Tail(float(bin_) * _BIN_S, tails[0], tails[1], n))
    return tuple(made)


def _swing(tails: Sequence[Tail], frame: Frame) -> tuple[float | None, float | None, float | None]:
    """P99 of the bins before the surge (their median), the worst bin after it, and the last bins of the load."""
    before = [tail.p99_ms for tail in tails if tail.at_s + _BIN_S <= frame.surge_s]
    after = [tail.p99_ms for tail in tails if tail.at_s + _BIN_S > frame.surge_s]
    return (
        float(np.median(before)) if before else None,
        max(after) if after else None,
        float(np.median(after[-3:])) if after else None,
    )


def _scale_out(course: Course, frame: Frame) -> float | None:
    """From the surge to the moment from which on as many were ready as at the most."""
    inside = [(at_s, n) for at_s, n in course.ready_s if at_s <= frame.end_s]
    most = max((n for _, n in inside), default=frame.initial)
    if most <= frame.initial:
        return None
    return max(0.0, next(at_s for at_s, n in inside if n == most) - frame.surge_s)


def _ready_at(course: Course, at_s: float, initial: int) -> int:
    known = [n for ready_s, n in course.ready_s if ready_s <= at_s]
    return known[-1] if known else initial


def _points(course: Course, frame: Frame) -> tuple[Point, ...]:
    """One point a change of either number."""
    times = sorted({0.0, *(c.at_s for c in course.changes), *(at_s for at_s, _ in course.ready_s), frame.end_s})
    made: list[Point] = []
    for at_s in times:
        asked = [c.after for c in course.changes if c.at_s <= at_s]
        made.append(Point(at_s, asked[-1] if asked else frame.initial, _ready_at(course, at_s, frame.initial)))
    return tuple(made)


def _lost(answers: Answers, ttft_ms: Float64, late_s: float) -> Float64:
    """1 for each request that was late or lost, the answered ones in the order in which they were due."""
    flags = (ttft_ms > late_s * 1e3)[np.argsort(answers.due_s, kind="stable")]
    return np.concatenate([flags.astype(np.float64), np.ones(answers.refused + answers.open)])


def _notes(answers: Answers, course: Course) -> tuple[str, ...]:
    if not answers.open:
        return ()
    return (f"{answers.open:,} requests were still open at {course.end_s:,.0f} s, when the watch ended",)


def _decide(found: Scaled, course: Course, frame: Frame) -> Decision:
    """The verdict in one sentence, and what stood in the way."""
    if found.first_scale_s is None:
        head = f"The fleet never grew beyond {frame.initial}"
    else:
        asked_s = found.first_scale_s - frame.surge_s
        when = f"{asked_s:,.0f} s after the surge began" if asked_s >= 0 else f"{-asked_s:,.0f} s before the surge"
        took = (
            "" if found.scale_out_s is None else f", {found.peak_replicas} were ready after {found.scale_out_s:,.0f} s"
        )
        head = f"The scaler first asked for more {when}{took}"
    if found.p99_peak_ms is not None and found.p99_before_ms is not None:
        tail = f"P99 went from {significant(found.p99_before_ms)} to {significant(found.p99_peak_ms)} ms at the worst"
        tail += f" and ended at {significant(found.p99_end_ms or 0.0)} ms"
    else:
        tail = f"P99 {show(found.estimates['p99_ms'])}"
    lost = found.dropped + found.unanswered
    ends = f"{lost:,} of {found.requests:,} requests were lost, {found.late - found.unanswered:,} answers were late"
    because = [f"{n} of {len(course.changes)} changes were held back: {why}" for why, n in _bound(course)]
    if found.flaps:
        because.append(f"{found.flaps} changes of direction within {FLAP_S:.0f} s: the fleet flaps")
    return Decision("How does the fleet take the surge?", f"{head}; {tail}; {ends}.", tuple(because))


def _bound(course: Course) -> list[tuple[str, int]]:
    """Which limits cut a change, the commonest first."""
    return Counter(c.because for c in course.changes if c.because and c.wanted != c.after).most_common()
