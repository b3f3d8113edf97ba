"""Samples in time order in; figures with intervals out, or the reason why the sample can't carry them.

Neighbouring requests share batches, so they are not independent. The number of independent samples that would say as
much is estimated from the autocorrelation: Geyer's initial monotone sequence (Statistical Science 7, 1992), which
needs no tuning. Quantiles: exact binomial order statistics at that number, for the indicator series value <= quantile
(Woodruff 1952 for the pooled ones). Means: Student's t at that number. A quantile is given only if a two-sided
interval can exist for n independent samples: n >= log(alpha / 2) / log(q), that is 6 for the median, 36 for P90, 72
for P95, 368 for P99, 3,688 for P99.9.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np

from dynamometer.metrics.quantiles import Survival, Weighted
from dynamometer.types import Estimate, Float64

LEVEL = 0.95
NEAR = 32  # lags that are summed one by one; even


def needed(q: float, level: float = LEVEL) -> int:
    """The fewest independent samples that bound the q-quantile from both sides."""
    tail = max(q, 1 - q)
    return math.ceil(math.log((1 - level) / 2) / math.log(tail)) if 0 < q < 1 else 0


def effective_n(series: Float64) -> float:
    """How many independent samples carry as much about the mean as this series does; between 1 and its length."""
    n = len(series)
    spread = series - series.mean() if n else series
    variance = float(np.sum(spread**2))
    if n < 4 or variance <= 1e-18 * max(float(np.sum(series**2)), 1e-300):
        return float(n)
    # most series lose their memory within a few neighbours: the transform over all lags is for the others
    pairs = _pairs(_near_lags(spread, min(NEAR, n // 2 * 2)) / variance)
    if not (pairs <= 0).any():
        pairs = _pairs(_all_lags(spread)[: n // 2 * 2] / variance)
    negative = np.nonzero(pairs <= 0)[0]
    pairs = np.minimum.accumulate(pairs[: negative[0]] if len(negative) else pairs)
    return float(min(n, max(1.0, n / max(2 * float(pairs.sum()) - 1, 1.0))))


def _near_lags(spread: Float64, lags: int) -> Float64:
    # not `@`: its threads would wait for one another on a machine that an engine keeps busy
    return np.array([np.einsum("i,i->", spread[lag:], spread[: len(spread) - lag]) for lag in range(lags)])


def _all_lags(spread: Float64) -> Float64:
    size = 1 << (2 * len(spread) - 1).bit_length()
    transform = np.fft.rfft(spread, size)
    return np.fft.irfft(transform * np.conj(transform), size)


def _pairs(correlation: Float64) -> Float64:
    """Sums of two neighbouring lags, which are positive for a reversible process."""
    found: Float64 = correlation[0::2] + correlation[1::2]
    return found


def ranks(n: int, q: float, level: float = LEVEL) -> tuple[int | None, int | None]:
    """1-based ranks of the order statistics that hold the q-quantile with at least `level`, equal tails; None: no
    such rank."""
    alpha = (1 - level) / 2
    reach = int(12 * math.sqrt(n * q * (1 - q))) + 40
    mode = min(n, int((n + 1) * q))
    k = np.arange(max(0, mode - reach), min(n, mode + reach) + 1, dtype=np.float64)
    steps = np.log((n - k[:-1]) / (k[:-1] + 1)) + math.log(q / (1 - q))
    logs = np.concatenate(([0.0], np.cumsum(steps)))
    mass = np.exp(logs - logs.max())
    upto = np.cumsum(mass / mass.sum())
    low = int(k[0]) + int(np.searchsorted(upto, alpha, side="right"))  # largest l with P(B <= l - 1) <= alpha
    high = int(k[0]) + int(np.searchsorted(upto, 1 - alpha - 1e-12, side="left")) + 1  # least u with P(B >= u) <= alpha
    return (low if low >= 1 else None), (high if high <= n else None)


def student(df: float, level: float = LEVEL) -> float:
    """Student's t quantile, two-sided; expansion of Hill (CACM 396) in 1/df, within 0.1 % from 3 degrees on, exact at
    1 and 2."""
    p = 0.5 + level / 2
    if df < 2:
        return math.tan(math.pi * (p - 0.5))
    if df < 3:
        return (2 * p - 1) / math.sqrt(2 * p * (1 - p))
    z = NormalDist().inv_cdf(p)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / df ** (i + 1) for i, term in enumerate(terms))


def mean(series: Float64, unit: str) -> Estimate:
    """The mean of values in time order."""
    n = len(series)
    if n == 0:
        return Estimate(None, None, None, 0, unit, method="no sample")
    value = float(series.mean())
    effective = effective_n(series)
    if n < 2 or effective < 2:
        return Estimate(value, None, None, n, unit, method=_few(n, effective))
    half = student(effective - 1) * float(series.std(ddof=1)) / math.sqrt(effective)
    low = max(0.0, value - half) if series.min() >= 0 else value - half  # nothing seen was negative: nor is the mean
    return Estimate(value, low, value + half, n, unit, method=f"t, {effective:,.0f} independent of {n:,}")


def ratio(over: Float64, under: Float64, unit: str, n: int) -> Estimate:
    """sum(over) / sum(under), both a value a request in time order: a pooled mean, by the ratio estimator's
    linearization."""
    total = float(under.sum())
    if not total > 0:
        return Estimate(None, None, None, 0, unit, method="no sample")
    value = float(over.sum()) / total
    residual = over - value * under
    clusters, effective = len(over), effective_n(residual)
    if clusters < 2 or effective < 2:
        return Estimate(value, None, None, n, unit, method=_few(clusters, effective))
    half = student(effective - 1) * float(residual.std(ddof=1)) / math.sqrt(effective) / float(under.mean())
    low = max(0.0, value - half) if over.min() >= 0 else value - half
    return Estimate(value, low, value + half, n, unit, method=f"ratio, {clusters:,} requests")


def order(sorted_values: Weighted, q: float, effective: float, unit: str, n: int) -> Estimate:
    """The q-quantile with an order-statistic interval for `effective` independent samples out of `n`."""
    if n < needed(q):
        return refused(q, n, unit)
    value = sorted_values.quantile(q)
    count = max(1, math.floor(effective + 1e-9))
    low, high = ranks(count, q)
    step = sorted_values.total / count
    at_low = None if low is None else sorted_values.at(max(math.floor(low * step + 1e-9) - 1, 0))
    at_high = None if high is None else sorted_values.at(min(math.ceil(high * step - 1e-9), sorted_values.total) - 1)
    bounded = at_low is not None and at_high is not None
    why = f"order statistics, {count:,} independent of {n:,}"
    return Estimate(value, at_low, at_high, n, unit, method=why if bounded else f"{why}: too few to bound both sides")


def refused(q: float, n: int, unit: str) -> Estimate:
    """No number, and how many samples one would take."""
    return Estimate(
        None, None, None, n, unit, method=f"{n:,} samples; P{100 * q:g} needs {needed(q):,}" if n else "no sample"
    )


def censored(curve: Survival, q: float, effective: float, unit: str, n: int) -> Estimate:
    """The q-quantile of censored samples; interval of Brookmeyer and Crowley on the log(-log) scale, Greenwood's
    variance multiplied by n / effective."""
    if n < needed(q):
        return refused(q, n, unit)
    value = curve.quantile(q)
    if value is None:
        return Estimate(
            None, _last(curve), None, n, unit, method=f"more than {1 - q:.3g} of the requests were still unfinished"
        )
    with np.errstate(divide="ignore", invalid="ignore"):
        share = curve.share
        error = np.sqrt(curve.variance_sum * n / effective) / np.abs(np.log(share))
        score = (np.log(-np.log(share)) - math.log(-math.log(1 - q))) / error
    inside = np.isfinite(score) & (np.abs(score) <= NormalDist().inv_cdf(0.5 + LEVEL / 2))
    above = np.nonzero(score > NormalDist().inv_cdf(0.5 + LEVEL / 2))[0]
    low = float(curve.at[inside].min()) if inside.any() else value
    high = float(curve.at[above[0]]) if len(above) else None
    return Estimate(value, min(low, value), high, n, unit, method="Kaplan-Meier: unfinished requests are censored")


def censored_mean(curve: Survival, effective: float, unit: str, n: int) -> Estimate:
    """The restricted mean; its variance by Greenwood's formula, multiplied by n / effective."""
    value = curve.mean()
    if value is None:
        return Estimate(None, None, None, n, unit, method="every request was still unfinished" if n else "no sample")
    method = "Kaplan-Meier, restricted to the largest value seen: a lower bound where requests were unfinished"
    if len(curve.at) < 2 or effective < 2:
        return Estimate(value, None, None, n, unit, method=method)
    beyond = np.cumsum((np.diff(curve.at) * curve.share[:-1])[::-1])[::-1]  # area under S after each value but the last
    step = np.diff(np.concatenate(([0.0], curve.variance_sum)))[:-1]
    half = student(effective - 1) * math.sqrt(float(np.sum(beyond**2 * step)) * n / effective)
    return Estimate(value, value - half, value + half, n, unit, method=method)


def _last(curve: Survival) -> float | None:
    return float(curve.at[-1]) if len(curve.at) else None


def _few(n: int, effective: float) -> str:
    return "one sample: no interval" if n < 2 else f"{n:,} samples that go together (as {effective:.1f}): no interval"


def share(series: Float64, unit: str) -> Estimate:
    """The share of ones in a series of 0 and 1 in time order; Wilson's interval at the effective number of samples."""
    n = len(series)
    if not n:
        return Estimate(None, None, None, 0, unit, method="no request ended")
    value, effective = float(series.mean()), effective_n(series)
    z = NormalDist().inv_cdf(0.5 + LEVEL / 2)
    middle = (value + z * z / (2 * effective)) / (1 + z * z / effective)
    half = z / (1 + z * z / effective) * math.sqrt(value * (1 - value) / effective + (z / (2 * effective)) ** 2)
    low, high = max(0.0, middle - half), min(1.0, middle + half)
    return Estimate(
        value, min(low, value), max(high, value), n, unit, method=f"Wilson, {effective:,.0f} independent of {n:,}"
    )
