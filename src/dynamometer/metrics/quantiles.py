"""Arrays of samples in; exact quantiles out: plain, weighted, of censored samples, and from a server's histogram.

One rule: linear interpolation between order statistics (type 7 of Hyndman and Fan, numpy's and R's default). A weight
k means k equal samples. Samples with censored values go by Kaplan-Meier, whose quantiles are observed values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import msgspec
import numpy as np
import numpy.typing as npt

from dynamometer.errors import UsageError
from dynamometer.types import Estimate, Float64


def quantile(values: Float64, q: float) -> float | None:
    """The q-quantile of unweighted values; None of none, the value itself of one."""
    return quantiles(values, (q,))[0]


def quantiles(values: Float64, qs: Sequence[float]) -> list[float | None]:
    _check(qs)
    if len(values) == 0:
        return [None] * len(qs)
    return [float(value) for value in np.quantile(values, list(qs))]


class Weighted(msgspec.Struct, frozen=True):
    """Sorted values with running weights: one sort serves every quantile."""

    values: Float64
    upto: Float64  # sum of weights up to and with each value

    @property
    def total(self) -> float:
        return float(self.upto[-1]) if len(self.upto) else 0.0

    def at(self, place: float) -> float:
        """The value at a 0-based place in the list in which every value stands as often as its weight says."""
        at = int(np.searchsorted(self.upto, place * (1 + 1e-12), side="right"))
        return float(self.values[min(at, len(self.values) - 1)])

    def quantile(self, q: float) -> float | None:
        """Type 7 over that list; with whole weights exactly the quantile of the repeated values."""
        if self.total <= 0:
            return None
        place = max(self.total - 1, 0.0) * q
        below = math.floor(place)
        low, high = self.at(below), self.at(min(below + 1, self.total - 1))
        return low + (high - low) * (place - below)


def weighted(values: Float64, weights: Float64 | None = None) -> Weighted:
    """Sorts once. Weights must not be negative; None is 1 each."""
    if weights is None:
        return Weighted(np.sort(values), np.arange(1, len(values) + 1, dtype=np.float64))
    if len(weights) and float(weights.min()) < 0:
        raise UsageError("a weight is negative; weights count samples")
    order = np.argsort(values)
    return Weighted(values[order], np.cumsum(weights[order]))


class Survival(msgspec.Struct, frozen=True):
    """Kaplan-Meier: at each distinct observed value, the share of samples that are larger."""

    at: Float64  # distinct observed values, ascending
    share: Float64  # S just after each
    variance_sum: Float64  # Greenwood's sum of d / (r (r - d)); inf once nothing is left

    def quantile(self, q: float) -> float | None:
        """The smallest observed value with S <= 1 - q; None if more than 1 - q of them are censored beyond it."""
        found = np.nonzero(self.share <= 1 - q + 1e-12)[0]
        return float(self.at[found[0]]) if len(found) else None

    def mean(self) -> float | None:
        """The area under S up to the largest observed value: a lower bound of the mean where the largest samples are
        censored."""
        if not len(self.at):
            return None
        steps = np.diff(np.concatenate(([0.0], self.at)))
        return float(np.sum(steps * np.concatenate(([1.0], self.share[:-1]))))


def survival(values: Float64, censored: npt.NDArray[np.bool_]) -> Survival:
    """A value is censored where the truth is only known to be larger. At a tie the observed come first."""
    order = np.lexsort((censored, values))
    ordered, seen = values[order], ~censored[order]
    at, first = (
        np.unique(ordered[seen], return_index=True) if seen.any() else (np.empty(0), np.empty(0, dtype=np.int64))
    )
    ended = np.diff(np.append(first, int(seen.sum()))).astype(np.float64)
    at_risk = (len(values) - np.searchsorted(ordered, at, side="left")).astype(np.float64)
    with np.errstate(divide="ignore"):
        greenwood = np.cumsum(ended / (at_risk * (at_risk - ended)))
    return Survival(at.astype(np.float64), np.cumprod(1 - ended / at_risk).astype(np.float64), greenwood)


def from_histogram(buckets: Mapping[str, float], q: float, unit: str) -> Estimate:
    """A quantile of cumulative buckets by upper bound, as a Prometheus server exports them: linear within the bucket.

    An empty, cut or broken histogram gives no number and the reason, never 0. "0.1" and "0.10" are the same bound.
    """
    _check((q,))
    bounds: dict[float, float] = {}
    for label, count in buckets.items():
        bounds[float(label)] = bounds.get(float(label), 0.0) + count
    total = bounds.get(math.inf, 0.0)
    ordered = sorted(bounds.items())
    reason = _no_histogram(ordered, total)
    if reason:
        return Estimate(None, None, None, round(total), unit, method=f"no data: {reason}")
    rank, below, edge = q * total, 0.0, 0.0
    for bound, count in ordered:
        if count >= rank and count > below:
            break
        below, edge = count, bound
    if bound == math.inf:
        return Estimate(None, edge, None, round(total), unit, method="above the largest finite bucket")
    low = min(edge, bound) if edge else min(0.0, bound)
    value = low + (bound - low) * (rank - below) / (count - below)
    return Estimate(value, low, bound, round(total), unit, 1.0, "between the bounds of its bucket")


def _no_histogram(ordered: list[tuple[float, float]], total: float) -> str:
    if not ordered:
        return "no bucket; a sum over the series must keep `le`"
    if ordered[-1][0] != math.inf:
        return "no +Inf bucket"
    if len(ordered) == 1:
        return "only the +Inf bucket"
    if not total > 0:
        return "no observation in the window"
    if any(later < earlier for (_, earlier), (_, later) in pairwise(ordered)):
        return "bucket counts fall with rising bounds; the counter was reset in the window"
    return ""


def _check(qs: Sequence[float]) -> None:
    if not all(0 <= q <= 1 for q in qs):
        raise UsageError(f"quantile is {', '.join(map(str, qs))}; give shares from 0 to 1, such as 0.99")
