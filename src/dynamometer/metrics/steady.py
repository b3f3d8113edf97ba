"""Latencies of a run in the order of sending in; the steady part of it out: where warm-up ends and where the drain
begins.

MSER-5 (White, Cobb and Spratt, WSC 2000): of all cuts take the one that leaves the mean with the smallest standard
error, over means of five neighbours. It is used on logarithms, so that one outlier does not decide, never cuts more
than half, and cuts nothing where the part before the cut does not differ from the rest by more than chance. It stands
here and not among the models because every figure needs it.
"""

from __future__ import annotations

import math

import duckdb
import msgspec
import numpy as np

from dynamometer.metrics.intervals import effective_n
from dynamometer.metrics.views import Span, columns_of, whole
from dynamometer.types import Float64, Run

BATCH = 5
FEWEST = 20  # values below which no warm-up can be told from chance
SCORE = 4.0  # standard errors by which a part must differ: the cut was chosen among many
MOVING = frozenset({"trace", "ramp", "step", "burst"})  # laws that are not steady by intention
POINTS = 200  # of the series that is kept for the plot
STAYS = 3.0  # mean answer's times that a window must hold: in a shorter one the waves of a closed loop are not averaged


class Cut(msgspec.Struct, frozen=True):
    """`index`: values to leave out at the beginning; `steady` False: the first half and the second do not agree even
    then."""

    index: int
    steady: bool


class Steady(msgspec.Struct, frozen=True):
    """The measured window and why. `series`: (seconds on the run's clock, ms), means of neighbours of the metric that
    was watched."""

    from_ns: int
    until_ns: int
    cut_requests: int
    drain_s: float  # left out of rates at the end: nothing new was sent any more
    state: str  # steady | cut | not steady | off | too short | resumed
    reason: str
    watched: str = ""
    series: tuple[tuple[float, float], ...] = ()


def mser(values: Float64) -> Cut:
    """The cut of one series of positive values in time order."""
    if len(values) < FEWEST:
        return Cut(0, True)
    size = BATCH if len(values) >= 10 * BATCH else 1
    logs = np.log(np.maximum(values, 1e-9))
    logs -= np.median(logs)  # so that equal values have no rounding error that could choose the cut
    means = logs[: len(logs) // size * size].reshape(-1, size).mean(axis=1)
    kept = len(means) - np.arange(len(means) // 2 + 1)
    tail = np.cumsum(means[::-1])[::-1][: len(kept)]
    squares = np.cumsum((means**2)[::-1])[::-1][: len(kept)]
    error = np.maximum(squares - tail**2 / kept, 0.0) / kept.astype(np.float64) ** 2
    at = int(np.argmin(error))
    if at and not _differ(means[:at], means[at:]):
        at = 0
    rest = means[at:]
    half = len(rest) // 2
    return Cut(at * size, not _differ(rest[:half], rest[half:]))


def _differ(first: Float64, second: Float64) -> bool:
    """Means further apart than chance allows, by the spread of the second part and its correlation in time."""
    spread = float(second.var(ddof=1)) if len(second) > 1 else 0.0
    apart = abs(float(first.mean() - second.mean()))
    share = effective_n(second) / len(second)
    error = math.sqrt(spread * (1 / max(len(first) * share, 1.0) + 1 / max(len(second) * share, 1.0)))
    return apart > max(SCORE * error, 0.02)  # 2 %: less than that is no warm-up, however regular


def find(connection: duckdb.DuckDBPyConnection, run: Run, wanted: bool = True) -> Steady:
    """The window for the figures. `wanted` False, or a load that moves by intention: everything but the tagged
    warm-up."""
    all_of_it = whole(connection)
    rows = columns_of(connection, "select * from progress")
    watched = "ttft" if np.isfinite(rows["ttft"]).any() else "e2e"
    series = _points(rows["sent_ns"], rows[watched])
    if run.breaks:
        return _longest_stretch(rows["sent_ns"], run, all_of_it, (watched, series))
    if not wanted or run.experiment.load.law in MOVING or _levels(connection) > 1:
        why = "switched off" if not wanted else f"the load ({run.experiment.load.law}) moves by intention"
        return Steady(all_of_it.from_ns, all_of_it.until_ns, 0, 0.0, "off", why, watched, series)
    cuts = {name: mser_of(rows["sent_ns"], rows[name]) for name in ("ttft", "tpot", "e2e")}
    least_ns = STAYS * _stay_ns(rows["e2e"])
    until_ns, drain_s = _without_drain(connection, all_of_it, least_ns)
    moving = [name for name, (_, steady) in cuts.items() if not steady]
    name, (from_ns, _) = max(cuts.items(), key=lambda cut: cut[1][0])
    if moving:
        why = f"{', '.join(moving)} still moved in the second half of the run; nothing was cut"
        return Steady(all_of_it.from_ns, all_of_it.until_ns, 0, 0.0, "not steady", why, watched, series)
    count = int(np.sum(rows["sent_ns"] < from_ns))
    if count and until_ns - from_ns < max(least_ns, (until_ns - all_of_it.from_ns) / 2):
        why = (
            f"the first {count} requests had another {name}, but too little would be left without them: nothing was cut"
        )
        return Steady(all_of_it.from_ns, until_ns, 0, drain_s, "too short", why, watched, series)
    if not count:
        state = "steady" if len(rows["sent_ns"]) >= FEWEST else "too short"
        why = "no warm-up seen" if state == "steady" else f"under {FEWEST} answers: warm-up can't be told from chance"
        return Steady(all_of_it.from_ns, until_ns, 0, drain_s, state, why, watched, series)
    why = f"the first {count} requests had another {name} than the rest"
    return Steady(from_ns, until_ns, count, drain_s, "cut", why, watched, series)


def _longest_stretch(
    sent_ns: Float64, run: Run, all_of_it: Span, seen: tuple[str, tuple[tuple[float, float], ...]]
) -> Steady:
    """The window of a run that was interrupted and resumed: from the first request of its longest stretch to the last.

    A stretch ends where the first request was sent that had no answer when it broke off: those are asked again later,
    so from there on the rows show less load than there was.
    """
    starts = [all_of_it.from_ns, *(at for _, at in run.breaks)]
    ends = [*(until for until, _ in run.breaks), all_of_it.until_ns]
    stretches = []
    for start, end in zip(starts, ends, strict=True):
        inside = sent_ns[(sent_ns >= start) & (sent_ns <= end)]
        if len(inside):
            last = end if end < all_of_it.until_ns else inside.max()
            stretches.append((int(last) - int(inside.min()), int(inside.min()), len(inside)))
    length, from_ns, count = max(stretches, default=(0, all_of_it.from_ns, 0))
    why = (
        f"interrupted and resumed: rates are those of its longest stretch, {count} of {len(sent_ns)} answers; "
        "latencies are those of all"
    )
    return Steady(from_ns, from_ns + length, 0, 0.0, "resumed", why, *seen)


def mser_of(sent_ns: Float64, values: Float64) -> tuple[int, bool]:
    """(time of the first request to keep, steady); time 0: keep all."""
    known = np.isfinite(values)
    cut = mser(values[known])
    return (int(sent_ns[known][cut.index]) if cut.index else 0), cut.steady


def _stay_ns(e2e_ms: Float64) -> float:
    """Mean time from sent to the last token."""
    known = e2e_ms[np.isfinite(e2e_ms)]
    return float(known.mean()) * 1e6 if len(known) else 0.0


def _without_drain(connection: duckdb.DuckDBPyConnection, span: Span, least_ns: float) -> tuple[int, float]:
    """Rates end with the last request sent: later the load only falls; in a run that was interrupted with the first
    request that has no answer, for its part is missing from then on. Kept whole where that would drop half of the run,
    or leave less than `least_ns`."""
    row = connection.execute(
        "select least(max(sent_ns), min(sent_ns) filter (outcome = 'cancelled' and reason = 'interrupt'))"
        " from answers where phase = 'load'"
    ).fetchone()
    last = int(row[0]) if row and row[0] is not None else span.until_ns
    if last - span.from_ns < max(least_ns, (span.until_ns - span.from_ns) / 2):
        return span.until_ns, 0.0
    return last, (span.until_ns - last) / 1e9


def _levels(connection: duckdb.DuckDBPyConnection) -> int:
    row = connection.execute("select count(distinct level) from requests where phase = 'load'").fetchone()
    return int(row[0]) if row else 0


def _points(sent_ns: Float64, values: Float64) -> tuple[tuple[float, float], ...]:
    known = np.isfinite(values)
    times, kept = sent_ns[known] / 1e9, values[known]
    if not len(kept):
        return ()
    size = max(1, math.ceil(len(kept) / POINTS))
    starts = np.arange(0, len(kept), size)
    counts = np.diff(np.append(starts, len(kept)))
    at, mean = np.add.reduceat(times, starts) / counts, np.add.reduceat(kept, starts) / counts
    return tuple((round(float(t), 3), round(float(v), 3)) for t, v in zip(at, mean, strict=True))
