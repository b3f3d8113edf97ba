"""Throughput at several concurrencies in; a curve chosen by held-out error, its knee and its predictions out.

The knee is where throughput grows half as fast as the load: d ln y / d ln x = 1/2. There throughput over latency
(Kleinrock's power, y²/x by Little's law) is largest. It depends neither on the range sampled nor on the family of the
curve; for the hyperbola it is b, the concurrency at half of the limit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import msgspec
import numpy as np

from dynamometer.errors import Refused, UsageError
from dynamometer.models.choose import Candidate, Residual, Units, bounded, choose, half_width, residuals
from dynamometer.models.forms import THROUGHPUT, Form
from dynamometer.types import Estimate, Float64

_FORECAST = (
    0.08  # log error a doubling beyond the data adds; see benchmarks/curves.py, where it is measured and checked
)
_GRID = 400


class Saturation(msgspec.Struct, frozen=True):
    """What `fit` found. `chosen` is the first of `candidates`, which are in order of held-out error."""

    unit: str
    level: float
    x: Float64
    y: Float64
    candidates: tuple[Candidate, ...]
    knee: Estimate
    top: Estimate  # highest throughput inside the measured range
    limit: Estimate  # where the curve would end: an extrapolation by nature

    @property
    def chosen(self) -> Candidate:
        return self.candidates[0]

    @property
    def levels(self) -> int:
        return len(np.unique(self.x))

    def residuals(self) -> tuple[Residual, ...]:
        """A row a run, in order of concurrency."""
        return residuals(self.chosen, self.x, self.y)


def fit(
    x: Float64,
    y: Float64,
    unit: str = "tokens/s",
    level: float = 0.9,
    resamples: int = 400,
    seed: int = 0,
    families: Sequence[Form] = THROUGHPUT,
) -> Saturation:
    """Fits every family and orders them by held-out error.

    `x` [n]: concurrency (measured mean, or asked); `y` [n]: throughput of the run. Several runs may share an x. At
    least four different x. Intervals of parameters, knee and limit are at `level`, from a bootstrap of runs where every
    level has four, else of residuals, widened by Student's t for the few levels.
    """
    found = choose(x, y, families, Units("requests in flight", unit), level, resamples, seed)
    first = found[0]
    knee, top = _knee(first, x, level), _top(first, x, unit, level)
    return Saturation(unit, level, x, y, found, knee, top, _limit(first, x, unit, level))


def predict(found: Saturation, x: float, extrapolate: bool = False) -> Estimate:
    """Throughput of a run at concurrency x, with the interval that would hold such a run.

    Inside the measured range: the chosen curve, and held-out errors for the width. Outside: refused, unless asked; then
    the average of all families weighted by held-out error, and an interval that also holds their disagreement and the
    error that each doubling beyond the data has added on public curves.
    """
    low, high = float(found.x.min()), float(found.x.max())
    if not (math.isfinite(x) and x > 0):
        raise UsageError(f"concurrency is {x:g}; give a number above 0")
    if low <= x <= high:
        chosen = found.chosen
        centre = float(chosen.form.curve(chosen.theta, np.array([x]))[0])
        half = half_width(chosen, found.x, found.level)
        how = f"{chosen.form.name}, held-out error"
    elif not extrapolate:
        raise Refused(
            f"concurrency {x:g} lies outside the measured range {low:g} to {high:g}; measure there, "
            "or ask for an extrapolation with its wider interval"
        )
    else:
        centre, half = _forecast(found, x, math.log2(x / high) if x > high else math.log2(low / x))
        how = f"extrapolated from {low:g} to {high:g}, average of {len(found.candidates)} families"
    return Estimate(
        math.exp(centre), math.exp(centre - half), math.exp(centre + half), len(found.x), found.unit, found.level, how
    )


def _forecast(found: Saturation, x: float, doublings: float) -> tuple[float, float]:
    """Log throughput and half-width beyond the data."""
    at = np.array([x])
    logs = np.array([float(c.form.curve(c.theta, at)[0]) for c in found.candidates])
    weights = np.array([max(c.spread, 1e-6) ** -4 for c in found.candidates])
    weights /= weights.sum()
    centre = float(weights @ logs)
    between = float(weights @ (logs - centre) ** 2)
    z = NormalDist().inv_cdf(0.5 + found.level / 2)
    return centre, math.hypot(
        half_width(found.chosen, found.x, found.level), z * math.sqrt(between), z * _FORECAST * doublings
    )


def elasticity(form: Form, theta: Float64, x: Float64) -> Float64:
    """d ln y / d ln x, by central differences. `theta` [..., p]; result [..., n]."""
    step = 1e-4
    return (form.curve(theta, x * math.exp(step)) - form.curve(theta, x * math.exp(-step))) / (2 * step)


def _knee(chosen: Candidate, x: Float64, level: float) -> Estimate:
    """Where the elasticity falls to 1/2 inside the measured range; None when it does not."""
    grid = np.geomspace(x.min(), x.max(), _GRID)
    value = float(_crossings(chosen.form, chosen.theta[None], grid)[0])
    unit = "requests in flight"
    if not 0 < value < math.inf:
        where = "beyond the highest" if value else "below the lowest"
        return Estimate(None, None, None, len(x), unit, level, f"the knee lies {where} level measured")
    found = _crossings(chosen.form, chosen.draws, grid)
    low, high = np.quantile(found, ((1 - level) / 2, (1 + level) / 2), method="nearest")
    ends = [float(min(low, value)) if low else None, float(max(high, value)) if math.isfinite(high) else None]
    open_end = "" if None not in ends else "; the open end lies outside the measured range"
    return Estimate(value, ends[0], ends[1], len(x), unit, level, f"throughput grows half as fast as load{open_end}")


def _crossings(form: Form, theta: Float64, grid: Float64) -> Float64:
    """First grid point with an elasticity of at most 1/2; 0 when even the first has less, inf when none has."""
    below = elasticity(form, theta, grid) <= 0.5
    first = np.where(below.any(axis=1), grid[below.argmax(axis=1)], np.inf)
    return np.where(below[:, 0], 0.0, first)


def _top(chosen: Candidate, x: Float64, unit: str, level: float) -> Estimate:
    """The highest point of the curve inside the measured range."""
    grid = np.geomspace(x.min(), x.max(), _GRID)
    value = float(np.exp(chosen.form.curve(chosen.theta, grid).max()))
    draws = np.exp(chosen.form.curve(chosen.draws, grid).max(axis=1))
    return bounded(value, draws, len(x), unit, level, "highest inside the measured range")


def _limit(chosen: Candidate, x: Float64, unit: str, level: float) -> Estimate:
    """What the curve would reach at any load, from its parameters."""
    method = "limit of the curve, beyond the measured range"

    def top(theta: Float64) -> Float64:
        natural = np.exp(theta)
        if chosen.form.name == "usl":
            gamma, sigma, kappa = (natural[..., i] for i in range(3))
            peak = np.sqrt(np.maximum(1 - sigma, 1e-9) / kappa)
            return np.asarray(gamma * peak / (1 + sigma * (peak - 1) + kappa * peak * (peak - 1)))
        if chosen.form.name == "two regimes":
            return np.asarray(1 / natural[..., 2])
        return np.asarray(natural[..., 0])

    value, draws = float(top(chosen.theta)), top(chosen.draws)
    if not math.isfinite(value) or value > 20 * math.exp(
        float(chosen.form.curve(chosen.theta, np.array([x.max()]))[0])
    ):
        return Estimate(None, None, None, len(x), unit, level, "the curve has not begun to bend: no limit can be told")
    return bounded(value, draws, len(x), unit, level, method)
