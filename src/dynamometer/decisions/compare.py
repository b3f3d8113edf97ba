"""Two runs, or two sets of repeats, in; for each figure the change with an interval, the noise floor and a verdict
out.

Requests of the same experiment and seed are compared in pairs, so that the prompts' own differences cancel. Intervals
come from a circular block bootstrap over requests in the order of sending; the block length follows Carlstein (1986)
for the AR(1) series with the same effective sample size. Pooled figures (ITL) and rates: the square-and-add interval
of Zou and Donner (2008) from the two runs' own intervals.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import duckdb
import msgspec
import numpy as np

from dynamometer.errors import UsageError
from dynamometer.metrics import intervals, views
from dynamometer.metrics.distribution import STATISTICS
from dynamometer.metrics.summary import Summary, summarize
from dynamometer.types import Estimate, Float64, Run

PER_REQUEST = ("ttft", "ttft_due", "tpot", "e2e")
RATES = {
    "output_tokens_per_s": 1,
    "requests_per_s": 1,
    "goodput": 1,
    "attainment": 1,
    "error_rate": -1,
}  # 1: more is better
PACED = ("output_tokens_per_s", "requests_per_s", "goodput")  # rates that are known slice by slice
SPEEDS = frozenset(
    {*PER_REQUEST, "itl", "output_tokens_per_s", "requests_per_s"}
)  # faster or slower; others better or worse
RESAMPLES = 1000
CELLS = 20_000_000  # resampled values for one figure at most
BATCH_CELLS = 1_000_000  # of them in memory at once
NONE = "no difference that this sample can show"


class Measured(msgspec.Struct, frozen=True):
    """A run whose figures were made: its views are on the connection, with its window set."""

    connection: duckdb.DuckDBPyConnection
    run: Run
    summary: Summary


class Change(msgspec.Struct, frozen=True):
    """One figure of both sides. `before` and `after` are sample values; whether the sample can carry them says
    `difference`."""

    metric: str
    statistic: str
    before: float | None
    after: float | None
    difference: Estimate  # after - before
    ratio: Estimate  # after / before
    noise: float | None  # a difference that the same thing measured twice may show, in the figure's unit
    verdict: str  # faster | slower | better | worse | no difference that this sample can show


class Comparison(msgspec.Struct, frozen=True):
    baseline: tuple[str, ...]
    candidate: tuple[str, ...]
    paired: int  # requests compared in pairs; 0: unpaired
    changes: tuple[Change, ...]
    notes: tuple[str, ...]
    unbelievable: tuple[str, ...] = ()  # runs with a fatal doubt


def measure(connection: duckdb.DuckDBPyConnection, run: Run, *, steady: bool = True) -> Measured:
    return Measured(connection, run, summarize(connection, run, steady=steady))


def compare(baseline: Sequence[Measured], candidate: Sequence[Measured], *, seed: int = 0) -> Comparison:
    """Each side: one run or several repeats of one. `seed`: of the bootstrap."""
    if not baseline or not candidate:
        raise UsageError("nothing to compare; give two runs, or two sets of repeats")
    chance = np.random.default_rng(seed)
    paired = len(baseline) == len(candidate) and all(_same_plan(a, b) for a, b in zip(baseline, candidate, strict=True))
    changes: list[Change] = []
    pairs = 0
    for metric in PER_REQUEST:
        if paired:
            before, after = _pairs(baseline, candidate, metric)
            pairs = max(pairs, sum(map(len, before)))
        else:
            before, after = ([_values(side, metric) for side in sides] for sides in (baseline, candidate))
        changes += latency_changes(metric, before, after, paired, chance)
    for statistic in ("mean", *STATISTICS):
        changes.append(_from_intervals("itl", statistic, baseline, candidate))
    changes += [_from_intervals(rate, "", baseline, candidate) for rate in RATES]
    seen = tuple(change for change in changes if change.before is not None or change.after is not None)
    notes = _notes(baseline, candidate, paired)
    return Comparison(_ids(baseline), _ids(candidate), pairs, seen, notes, _unbelievable(baseline, candidate))


def _unbelievable(baseline: Sequence[Measured], candidate: Sequence[Measured]) -> tuple[str, ...]:
    """Runs with a fatal doubt."""
    both = (*baseline, *candidate)
    return tuple(one.run.id for one in both if any(doubt.fatal for doubt in one.summary.doubts))


def _ids(side: Sequence[Measured]) -> tuple[str, ...]:
    return tuple(measured.run.id for measured in side)


def _same_plan(a: Measured, b: Measured) -> bool:
    """The same requests in the same order: one workload and seed, and each request of one family and length in both."""
    if a.run.experiment.workload != b.run.experiment.workload or a.run.experiment.seed != b.run.experiment.seed:
        return False
    query = "select family, turn, asked_tokens from answers where phase = 'load' order by request"
    plans = [side.connection.execute(query).fetchall() for side in (a, b)]
    common = min(map(len, plans))
    return common > 0 and plans[0][:common] == plans[1][:common]


def _by_request(measured: Measured, metric: str) -> tuple[views.Int64, Float64]:
    columns = measured.connection.execute(f"select request, value from {metric} where not censored").fetchnumpy()
    return columns["request"].astype(np.int64), columns["value"].astype(np.float64)


def _values(measured: Measured, metric: str) -> Float64:
    return _by_request(measured, metric)[1]


def _pairs(
    baseline: Sequence[Measured], candidate: Sequence[Measured], metric: str
) -> tuple[list[Float64], list[Float64]]:
    """Values of the requests that both runs have, in the baseline's order of sending, run by run."""
    before, after = [], []
    for a, b in zip(baseline, candidate, strict=True):
        (left, left_value), (right, right_value) = _by_request(a, metric), _by_request(b, metric)
        _, in_left, in_right = np.intersect1d(left, right, assume_unique=True, return_indices=True)
        order = np.argsort(in_left)
        before.append(left_value[in_left[order]])
        after.append(right_value[in_right[order]])
    return before, after


def latency_changes(
    metric: str, before: list[Float64], after: list[Float64], paired: bool, chance: np.random.Generator
) -> list[Change]:
    """Mean and quantiles of one latency in ms; each side has one array a run, in the order of sending."""
    one, two = np.concatenate(before), np.concatenate(after)
    names = {"mean": math.nan, **STATISTICS}
    if len(one) < 2 or len(two) < 2:
        return []
    drawn = _bootstrap(one, two, paired, chance)
    found = []
    for place, (name, q) in enumerate(names.items()):
        first, second = _statistic(one, q), _statistic(two, q)
        n = min(len(one), len(two))
        enough = n >= (2 if name == "mean" else intervals.needed(q))
        why = f"{'paired ' if paired else ''}block bootstrap" if enough else intervals.refused(q, n, "ms").method
        a, b = drawn[0][:, place], drawn[1][:, place]
        difference = _interval(second - first, b - a, "ms", n, why, enough)
        ratio = _interval(second / first if first > 0 else None, b / np.maximum(a, 1e-12), "", n, why, enough)
        noise = _noise([_statistic(v, q) for v in before], [_statistic(v, q) for v in after])
        noise = max(_halves(before, q), _halves(after, q)) if noise is None else noise
        found.append(Change(metric, name, first, second, difference, ratio, noise, _verdict(metric, difference, noise)))
    return found


def _statistic(values: Float64, q: float) -> float:
    return float(values.mean() if math.isnan(q) else np.quantile(values, q))


def _interval(value: float | None, drawn: Float64, unit: str, n: int, why: str, enough: bool) -> Estimate:
    if not enough or value is None:
        return Estimate(None, None, None, n, unit, method=why)
    low, high = np.quantile(drawn, [(1 - intervals.LEVEL) / 2, (1 + intervals.LEVEL) / 2])
    return Estimate(value, min(float(low), value), max(float(high), value), n, unit, method=why)


def block_length(series: Float64) -> int:
    """Requests that are drawn together."""
    n = len(series)
    stretch = n / intervals.effective_n(series)
    phi = (stretch - 1) / (stretch + 1)
    return int(min(max(1, math.ceil((2 * phi / (1 - phi**2)) ** (2 / 3) * n ** (1 / 3))), max(1, n // 4)))


def _bootstrap(one: Float64, two: Float64, paired: bool, chance: np.random.Generator) -> tuple[Float64, Float64]:
    """Mean and quantiles of resampled requests, a row a resample; in pairs both sides draw the same requests."""
    longest = max(len(one), len(two))
    left = max(200, min(RESAMPLES, CELLS // longest))
    length = max(block_length(one), block_length(two))
    first, second = [], []
    while left > 0:
        count = min(left, max(1, BATCH_CELLS // longest))
        drawn = _draw(len(one), length, count, chance)
        first.append(_all_statistics(one[drawn]))
        second.append(_all_statistics(two[drawn if paired else _draw(len(two), length, count, chance)]))
        left -= count
    return np.concatenate(first), np.concatenate(second)


def _draw(n: int, length: int, count: int, chance: np.random.Generator) -> views.Int64:
    """`count` rows of n places, in blocks that wrap around the end."""
    starts = chance.integers(0, n, (count, math.ceil(n / length)))
    places = (starts[:, :, None] + np.arange(length)).reshape(count, -1)[:, :n] % n
    return places.astype(np.int64, copy=False)


def _all_statistics(rows: Float64) -> Float64:
    """Mean and type 7 quantiles of each row."""
    ordered = np.sort(rows, axis=1)
    places = np.array(list(STATISTICS.values())) * (rows.shape[1] - 1)
    below = np.floor(places).astype(np.int64)
    above = np.minimum(below + 1, rows.shape[1] - 1)
    quantiles = ordered[:, below] + (ordered[:, above] - ordered[:, below]) * (places - below)
    return np.column_stack((rows.mean(axis=1), quantiles))


def _noise(before: list[float], after: list[float]) -> float | None:
    """From repeats: the difference of two means that repeats of one thing stay under in 95 of 100 cases."""
    degrees = len(before) + len(after) - 2
    if degrees < 1:
        return None
    squares = sum(float(np.var(side)) * len(side) for side in (before, after))
    spread = math.sqrt(squares / degrees * (1 / len(before) + 1 / len(after)))
    return intervals.student(degrees) * spread


def _halves(runs: list[Float64], q: float) -> float:
    """From one run: how far its first and its second half are apart, scaled to whole runs."""
    values = runs[0]
    middle = len(values) // 2
    if middle < 2:
        return 0.0
    return abs(_statistic(values[:middle], q) - _statistic(values[middle:], q)) / math.sqrt(2)


def _from_intervals(metric: str, statistic: str, baseline: Sequence[Measured], candidate: Sequence[Measured]) -> Change:
    """A figure whose interval each run has: the mean over repeats, and the square-and-add interval."""
    before, after = ([_figure(one, metric, statistic) for one in side] for side in (baseline, candidate))
    a, b = _mean(before), _mean(after)
    unit = before[0].unit
    noise = _noise([e.value for e in before if e.value is not None], [e.value for e in after if e.value is not None])
    if noise is None and metric in PACED:
        noise = max(_halves([_pace(side[0], metric)], math.nan) for side in (baseline, candidate))
    if a.value is None or b.value is None:
        none = Estimate(None, None, None, min(a.n, b.n), unit, method=(a if a.value is None else b).method)
        return Change(metric, statistic, a.value, b.value, none, none, noise, NONE)
    gap = b.value - a.value
    method = "square-and-add of the runs' intervals"
    difference = Estimate(gap, None, None, min(a.n, b.n), unit, method=method)
    ratio = Estimate(b.value / a.value if a.value > 0 else None, None, None, min(a.n, b.n), "", method=method)
    bounds = _square_and_add(a, b)
    if bounds is not None:
        low, high = bounds
        difference = msgspec.structs.replace(difference, low=low, high=high)
        if a.value > 0 and a.value + low >= 0:
            ratio = msgspec.structs.replace(ratio, low=1 + low / a.value, high=1 + high / a.value)
    return Change(
        metric,
        statistic,
        a.value,
        b.value,
        difference,
        ratio,
        noise,
        _verdict(metric, difference, noise),
    )


def _pace(measured: Measured, metric: str) -> Float64:
    return views.columns_of(measured.connection, f"select {metric} from pace")[metric]


def _square_and_add(a: Estimate, b: Estimate) -> tuple[float, float] | None:
    """Bounds of b - a for independent a and b; None if one of them has no interval."""
    if a.value is None or b.value is None or a.low is None or a.high is None or b.low is None or b.high is None:
        return None
    gap = b.value - a.value
    return gap - math.hypot(b.value - b.low, a.high - a.value), gap + math.hypot(b.high - b.value, a.value - a.low)


def _figure(measured: Measured, metric: str, statistic: str) -> Estimate:
    metrics = measured.summary.metrics
    return metrics.itl_ms.estimates[statistic] if metric == "itl" else metrics.estimates[metric]


def _mean(side: list[Estimate]) -> Estimate:
    """Over repeats: the mean, with half-widths that shrink as independent ones do. One repeat without the figure:
    none."""
    missing = [one for one in side if one.value is None]
    if missing:
        return missing[0]
    values = [one.value for one in side if one.value is not None]
    low = [one.value - one.low for one in side if one.value is not None and one.low is not None]
    high = [one.high - one.value for one in side if one.value is not None and one.high is not None]
    mean = sum(values) / len(values)
    bounded = len(low) == len(high) == len(side)
    return Estimate(
        mean,
        mean - math.hypot(*low) / len(side) if bounded else None,
        mean + math.hypot(*high) / len(side) if bounded else None,
        sum(one.n for one in side),
        side[0].unit,
        method=side[0].method,
    )


def _verdict(metric: str, difference: Estimate, noise: float | None) -> str:
    """A difference counts if its interval leaves out 0 and it is above the noise floor."""
    value, low, high = difference.value, difference.low, difference.high
    if value is None or low is None or high is None or low <= 0 <= high or (noise is not None and abs(value) <= noise):
        return NONE
    words = ("faster", "slower") if metric in SPEEDS else ("better", "worse")
    return words[0] if value * RATES.get(metric, -1) > 0 else words[1]


def _notes(baseline: Sequence[Measured], candidate: Sequence[Measured], paired: bool) -> tuple[str, ...]:
    notes = []
    if not paired:
        notes.append("unpaired: the two sides did not send the same requests")
    if len(baseline) == len(candidate) == 1:
        notes.append(
            "one run a side: the noise floor comes from the halves of each run; --repeats 3 gives a better one"
        )
    one, two = baseline[0].run.experiment, candidate[0].run.experiment
    asked = (
        ("target", one.target != two.target),
        ("workload", one.workload != two.workload),
        ("load", one.load != two.load),
    )
    notes += [f"{name} differs" for name, differs in asked if differs]
    for name in ("machine", "engine"):
        left, right = getattr(baseline[0].run, name), getattr(candidate[0].run, name)
        changed = sorted(key for key in {*left, *right} if left.get(key) != right.get(key))
        if changed:
            notes.append(f"{name} differs in {', '.join(changed[:5])}")
    if baseline[0].run.driver != candidate[0].run.driver:
        notes.append("one side is simulated, the other measured")
    fatal = _unbelievable(baseline, candidate)
    if fatal:
        notes.append(f"not to be believed: {', '.join(fatal)} (see its doubts)")
    return tuple(notes)
