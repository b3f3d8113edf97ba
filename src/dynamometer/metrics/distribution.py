"""`Samples` of one metric in; its mean and quantiles with intervals out. Plain, pooled over requests, or censored."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np

from dynamometer.metrics import intervals
from dynamometer.metrics.quantiles import survival, weighted
from dynamometer.metrics.views import Int64, Samples
from dynamometer.types import Estimate, Float64

STATISTICS: Mapping[str, float] = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}


class Distribution(msgspec.Struct, frozen=True):
    """One metric of a run. The flat figures are those of `estimates`; None where the sample can't carry one."""

    unit: str
    n: int  # samples; for a pooled metric the sum of the weights
    mean: float | None
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    p999: float | None
    low: float | None  # 95 % interval of the mean
    high: float | None
    eligible_of: int  # requests that were looked at
    censored: int  # samples that are only a lower bound
    estimates: Mapping[str, Estimate]  # mean, p50, …, p999


def distribution(samples: Samples, unit: str, eligible_of: int) -> Distribution:
    """All statistics of one metric. `eligible_of`: how many requests could have given a sample."""
    if samples.group is not None:
        found, n = _pooled(samples, samples.group, unit)
    elif samples.censored is not None:
        found, n = _censored(samples, unit), len(samples.value)
    else:
        found, n = _plain(samples.value, unit), len(samples.value)
    found = _in_order(found)
    mean = found["mean"]
    return Distribution(
        unit=unit,
        n=n,
        mean=mean.value,
        p50=found["p50"].value,
        p90=found["p90"].value,
        p95=found["p95"].value,
        p99=found["p99"].value,
        p999=found["p999"].value,
        low=mean.low,
        high=mean.high,
        eligible_of=eligible_of,
        censored=0 if samples.censored is None else int(samples.censored.sum()),
        estimates=found,
    )


def _in_order(found: dict[str, Estimate]) -> dict[str, Estimate]:
    """Bounds that do not contradict each other: a lower quantile is at most what bounds a higher one from above."""
    names = [name for name in STATISTICS if found[name].value is not None]
    low: float | None = None
    for name in names:
        low = found[name].low if low is None else max(low, found[name].low or low)
        found[name] = msgspec.structs.replace(found[name], low=low)
    high: float | None = None
    for name in reversed(names):
        own = found[name].high
        high = own if high is None else min(high, high if own is None else own)
        found[name] = msgspec.structs.replace(found[name], high=high)
    return found


def absent(unit: str, eligible_of: int, reason: str) -> Distribution:
    """A metric that this run cannot have."""
    none = {name: Estimate(None, None, None, 0, unit, method=reason) for name in ("mean", *STATISTICS)}
    return Distribution(unit, 0, None, None, None, None, None, None, None, None, eligible_of, 0, none)


def _plain(values: Float64, unit: str) -> dict[str, Estimate]:
    ordered = weighted(values)
    found = {"mean": intervals.mean(values, unit)}
    for name, q in STATISTICS.items():
        if len(values) < intervals.needed(q):
            found[name] = intervals.refused(q, len(values), unit)
            continue
        below = (values <= ordered.at((len(values) - 1) * q)).astype(np.float64)
        found[name] = intervals.order(ordered, q, intervals.effective_n(below), unit, len(values))
    return found


def _censored(samples: Samples, unit: str) -> dict[str, Estimate]:
    assert samples.censored is not None
    n, curve = len(samples.value), survival(samples.value, samples.censored)
    effective = intervals.effective_n(samples.value)
    found = {"mean": intervals.censored_mean(curve, effective, unit, n)}
    for name, q in STATISTICS.items():
        found[name] = intervals.censored(curve, q, effective, unit, n)
    return found


def _pooled(samples: Samples, group: Int64, unit: str) -> tuple[dict[str, Estimate], int]:
    """Each token weighs the same; the intervals know that the tokens of one request go together (Woodruff's method)."""
    size = int(group.max(initial=-1)) + 1
    total = _sums(group, samples.weight, size)
    seen = total > 0
    total = total[seen]
    ordered = weighted(samples.value, samples.weight)
    n = round(ordered.total)
    times = samples.value if samples.weight is None else samples.value * samples.weight
    found = {"mean": intervals.ratio(_sums(group, times, size)[seen], total, unit, n)}
    for name, q in STATISTICS.items():
        if n < intervals.needed(q):
            found[name] = intervals.refused(q, n, unit)
            continue
        # the few above a high quantile are counted, not the many below
        above = np.flatnonzero(samples.value > ordered.at(max(ordered.total - 1, 0.0) * q))
        over = _sums(group[above], None if samples.weight is None else samples.weight[above], size)[seen]
        found[name] = intervals.order(ordered, q, _independent(total - over, total, q), unit, n)
    return found, n


def _sums(group: Int64, values: Float64 | None, size: int) -> Float64:
    """Sums, or counts, of the values of each request."""
    return np.bincount(group, values, size).astype(np.float64, copy=False)


def _independent(below: Float64, total: Float64, q: float) -> float:
    """How many independent values would give the share sum(below) / sum(total) the variance that it has here."""
    if len(total) < 2:
        return 1.0
    residual = below - total * (below.sum() / total.sum())
    variance = float(residual.var(ddof=1)) / intervals.effective_n(residual) / float(total.mean()) ** 2
    return min(float(total.sum()), q * (1 - q) / variance) if variance > 0 else float(total.sum())
