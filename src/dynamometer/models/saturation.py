"""Throughput at several concurrencies in; a curve chosen by held-out error, its knee and its predictions out.

The knee is where throughput grows half as fast as the load: d ln y / d ln x = 1/2. There throughput over latency
(Kleinrock's power, y²/x by Little's law) is largest. It depends neither on the range sampled nor on the family of the
curve; for the hyperbola it is b, the concurrency at half of the limit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist

import msgspec
import numpy as np

from dynamometer.errors import Refused, UsageError
from dynamometer.metrics.intervals import student
from dynamometer.models.forms import FORMS, Form, box
from dynamometer.models.leastsq import solve
from dynamometer.types import Estimate, Fit, Float64

FEWEST_LEVELS = 4
_SIMPLER = 1.15  # a simpler family wins when its held-out error is at most this many times the least
_FORECAST = (
    0.10  # log error a doubling beyond the data adds; see benchmarks/curves.py, where it is measured and checked
)
_GRID = 400


class Candidate(msgspec.Struct, frozen=True):
    """One family fitted. `left_out` [n]: log error of each run, predicted without its level (NaN where not tried)."""

    form: Form
    theta: Float64
    draws: Float64  # [resamples, p] log parameters
    left_out: Float64
    fit: Fit

    @property
    def spread(self) -> float:
        """Root mean square of the held-out log errors: what the families are compared by."""
        kept = self.left_out[np.isfinite(self.left_out)]
        return float(np.sqrt(np.mean(kept**2)))


class Residual(msgspec.Struct, frozen=True):
    """One run against the chosen curve. Errors are relative: +0.05 is 5 % above the curve."""

    x: float
    measured: float
    predicted: float
    error: float
    left_out: float | None  # predicted without this level; None for the lowest level


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
        at = np.argsort(self.x, kind="stable")
        fitted = np.exp(self.chosen.form.curve(self.chosen.theta, self.x))
        return tuple(
            Residual(
                float(self.x[i]),
                float(self.y[i]),
                float(fitted[i]),
                float(self.y[i] / fitted[i] - 1),
                float(math.expm1(-self.chosen.left_out[i])) if np.isfinite(self.chosen.left_out[i]) else None,
            )
            for i in at
        )


def fit(
    x: Float64,
    y: Float64,
    unit: str = "tokens/s",
    level: float = 0.9,
    resamples: int = 400,
    seed: int = 0,
    families: Sequence[Form] = FORMS,
) -> Saturation:
    """Fits every family and orders them by held-out error.

    `x` [n]: concurrency (measured mean, or asked); `y` [n]: throughput of the run. Several runs may share an x. At
    least four different x. Intervals of parameters, knee and limit are at `level`, from a bootstrap of runs where every
    level has four, else of residuals, widened by Student's t for the few levels.
    """
    _check(x, y)
    chance = np.random.default_rng([seed, 0x5A7])
    found = [_candidate(form, x, y, unit, level, resamples, chance) for form in families if _affordable(form, x)]
    least = min(candidate.spread for candidate in found)
    first = next(candidate for candidate in found if candidate.spread <= _SIMPLER * least)  # simplest first
    rest = sorted((c for c in found if c is not first), key=lambda c: c.spread)
    return Saturation(
        unit,
        level,
        x,
        y,
        (first, *rest),
        _knee(first, x, level),
        _top(first, x, unit, level),
        _limit(first, x, unit, level),
    )


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
        half = _half(found)
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
    return centre, math.hypot(_half(found), z * math.sqrt(between), z * _FORECAST * doublings)


def _half(found: Saturation) -> float:
    """Half-width in log throughput of the interval for a run inside the measured range."""
    return student(_freedom(found.chosen.form, found.x), found.level) * found.chosen.spread


def _check(x: Float64, y: Float64) -> None:
    if len(x) != len(y) or not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise UsageError("a saturation fit needs a finite concurrency and a finite throughput for each run")
    if len(x) and not ((x > 0).all() and (y > 0).all()):
        raise UsageError("a saturation fit needs concurrencies and throughputs above 0; drop runs without an answer")
    levels = len(np.unique(x))
    if levels < FEWEST_LEVELS:
        raise Refused(
            f"{levels} concurrency levels are too few to tell a curve from a line; measure at least {FEWEST_LEVELS}, "
            "such as 1, 4, 16 and 64"
        )


def _affordable(form: Form, x: Float64) -> bool:
    return len(np.unique(x)) > len(form.names)


def _freedom(form: Form, x: Float64) -> int:
    return max(1, len(np.unique(x)) - len(form.names))


def _candidate(
    form: Form, x: Float64, y: Float64, unit: str, level: float, resamples: int, chance: np.random.Generator
) -> Candidate:
    starts, bounds, log_y = form.starts(x, y), box(form, x, y), np.log(y)
    theta = solve(form.curve, x, log_y[None], starts, bounds).theta[0]
    fitted = form.curve(theta, x)
    levels = np.unique(x)
    keep = (x[None] != levels[1:, None]).astype(np.float64)  # one row a level left out; the lowest always stays
    alone = form.curve(solve(form.curve, x, np.tile(log_y, (len(keep), 1)), starts, bounds, keep).theta, x)
    left_out = np.where(keep == 0, alone - log_y, 0).sum(axis=0)
    left_out[x == levels[0]] = np.nan
    draws = _bootstrap(form, x, log_y, theta, resamples, chance)
    ratio = student(_freedom(form, x), level) / NormalDist().inv_cdf(0.5 + level / 2)
    draws = theta + (draws - theta) * ratio
    misfit = float(np.median(np.abs(np.expm1(fitted - log_y))))
    held = float(np.median(np.abs(np.expm1(left_out[np.isfinite(left_out)]))))
    parameters = _parameters(form, theta, draws, unit, len(y), level)
    described = Fit(form.name, parameters, (float(levels[0]), float(levels[-1])), misfit, held, (form.formula,))
    return Candidate(form, theta, draws, left_out, described)


def _bootstrap(
    form: Form, x: Float64, log_y: Float64, theta: Float64, resamples: int, chance: np.random.Generator
) -> Float64:
    """Log parameters of refits: runs drawn again within each level, or residuals drawn again over all levels."""
    n = len(x)
    levels, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
    starts, bounds = theta[None], box(form, x, np.exp(log_y))
    if counts.min() >= 4:
        weight = np.zeros((resamples, n))
        for i in range(len(levels)):
            mine = np.flatnonzero(inverse == i)
            m = len(mine)  # m − 1 drawn of m: m drawn of m would have (m − 1) / m of the variance (Rao & Wu 1988)
            drawn = chance.multinomial(m - 1, np.full(m, 1 / m), size=resamples)
            weight[:, mine] = drawn * (m / (m - 1))
        return solve(form.curve, x, np.tile(log_y, (resamples, 1)), starts, bounds, weight).theta
    fitted = form.curve(theta, x)
    rest = log_y - fitted
    rest = (rest - rest.mean()) * math.sqrt(n / max(1, n - len(theta)))
    return solve(form.curve, x, fitted + rest[chance.integers(0, n, (resamples, n))], starts, bounds).theta


def _parameters(form: Form, theta: Float64, draws: Float64, unit: str, n: int, level: float) -> Mapping[str, Estimate]:
    units = {"y": unit, "x": "requests in flight", "1": "", "x/y": "s", "1/y": "s"}
    values, spread = form.natural(theta), form.natural(draws)
    return {
        name: _estimate(float(values[i]), spread[:, i], n, units[form.units[i]], level, "bootstrap")
        for i, name in enumerate(form.names)
    }


def _estimate(value: float, draws: Float64, n: int, unit: str, level: float, method: str) -> Estimate:
    low, high = np.quantile(draws, ((1 - level) / 2, (1 + level) / 2))
    return Estimate(value, min(float(low), value), max(float(high), value), n, unit, level, method)


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
    return _estimate(value, draws, len(x), unit, level, "highest inside the measured range")


def _limit(chosen: Candidate, x: Float64, unit: str, level: float) -> Estimate:
    """What the curve would reach at any load, from its parameters."""
    method = "limit of the curve, beyond the measured range"

    def top(theta: Float64) -> Float64:
        natural = chosen.form.natural(theta)
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
    return _estimate(value, draws, len(x), unit, level, method)
