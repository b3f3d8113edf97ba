"""Runs at several loads in; families of curves fitted, judged on levels left out and put in order, out.

What a throughput fit and a latency fit have in common. A family is judged by the root mean square of its relative
errors on levels it did not see; a simpler one wins when it is nearly as good.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist

import msgspec
import numpy as np

from dynamometer.errors import Refused, UsageError
from dynamometer.metrics.intervals import student
from dynamometer.models.forms import Form
from dynamometer.models.leastsq import solve
from dynamometer.types import Estimate, Fit, Float64

FEWEST_LEVELS = 4
_SIMPLER = 1.15  # a simpler family wins when its held-out error is at most this many times the least,
_NOISE = 0.003  # or below this: no engine repeats a run so well that smaller errors tell one curve from another


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


class Units(msgspec.Struct, frozen=True):
    """Units of x and y as printed."""

    x: str
    y: str

    def of(self, kind: str) -> str:
        """The unit of a parameter of this kind (`Form.units`). Steps of x/y and 1/y are times where y is a rate."""
        return {"y": self.y, "x": self.x, "1": "", "x/y": "s", "1/y": "s", "y/x": self.y}[kind]


def choose(
    x: Float64, y: Float64, families: Sequence[Form], units: Units, level: float, resamples: int, seed: int
) -> tuple[Candidate, ...]:
    """The candidates, the chosen first, the others in order of held-out error. `x`, `y` [n]: a value a run, above 0.

    Intervals of parameters at `level` come from a bootstrap: of runs where every level has four, else of residuals;
    both are widened by Student's t for the few levels.
    """
    _check(x, y)
    chance = np.random.default_rng([seed, 0x5A7])
    found = [_candidate(form, x, y, units, level, resamples, chance) for form in families if form.affordable(x)]
    least = min(candidate.spread for candidate in found)
    first = next(
        candidate for candidate in found if candidate.spread <= max(_SIMPLER * least, _NOISE)
    )  # simplest first
    return (first, *sorted((c for c in found if c is not first), key=lambda c: c.spread))


def half_width(candidate: Candidate, x: Float64, level: float) -> float:
    """Half of the interval, in log y, that holds a new run inside the measured range."""
    return student(candidate.form.freedom(x), level) * candidate.spread


def residuals(candidate: Candidate, x: Float64, y: Float64) -> tuple[Residual, ...]:
    """A row a run, in order of x."""
    at = np.argsort(x, kind="stable")
    fitted = np.exp(candidate.form.curve(candidate.theta, x))
    return tuple(
        Residual(
            float(x[i]),
            float(y[i]),
            float(fitted[i]),
            float(y[i] / fitted[i] - 1),
            float(math.expm1(-candidate.left_out[i])) if np.isfinite(candidate.left_out[i]) else None,
        )
        for i in at
    )


def _check(x: Float64, y: Float64) -> None:
    if len(x) != len(y) or not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise UsageError("a fit needs a finite load and a finite value for each run")
    if len(x) and not ((x > 0).all() and (y > 0).all()):
        raise UsageError("a fit needs loads and values above 0; drop runs without an answer")
    levels = len(np.unique(x))
    if levels < FEWEST_LEVELS:
        raise Refused(
            f"{levels} load levels are too few to tell a curve from a line; measure at least {FEWEST_LEVELS}, "
            "such as 1, 4, 16 and 64"
        )


def _candidate(
    form: Form, x: Float64, y: Float64, units: Units, level: float, resamples: int, chance: np.random.Generator
) -> Candidate:
    starts, bounds, log_y = form.starts(x, y), form.box(x, y), np.log(y)
    theta = solve(form.curve, x, log_y[None], starts, bounds).theta[0]
    fitted = form.curve(theta, x)
    levels = np.unique(x)
    keep = (x[None] != levels[1:, None]).astype(np.float64)  # one row a level left out; the lowest always stays
    alone = form.curve(solve(form.curve, x, np.tile(log_y, (len(keep), 1)), starts, bounds, keep).theta, x)
    left_out = np.where(keep == 0, alone - log_y, 0).sum(axis=0)
    left_out[x == levels[0]] = np.nan
    draws = _bootstrap(form, x, log_y, theta, resamples, chance)
    ratio = student(form.freedom(x), level) / NormalDist().inv_cdf(0.5 + level / 2)
    draws = theta + (draws - theta) * ratio
    misfit = float(np.median(np.abs(np.expm1(fitted - log_y))))
    held = float(np.median(np.abs(np.expm1(left_out[np.isfinite(left_out)]))))
    parameters = _parameters(form, theta, draws, units, len(y), level)
    described = Fit(form.name, parameters, (float(levels[0]), float(levels[-1])), misfit, held, (form.formula,))
    return Candidate(form, theta, draws, left_out, described)


def _bootstrap(
    form: Form, x: Float64, log_y: Float64, theta: Float64, resamples: int, chance: np.random.Generator
) -> Float64:
    """Log parameters of refits: runs drawn again within each level, or residuals drawn again over all levels."""
    n = len(x)
    levels, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
    starts, bounds = theta[None], form.box(x, np.exp(log_y))
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


def _parameters(
    form: Form, theta: Float64, draws: Float64, units: Units, n: int, level: float
) -> Mapping[str, Estimate]:
    values, spread = np.exp(theta), np.exp(draws)
    return {
        name: bounded(float(values[i]), spread[:, i], n, units.of(form.units[i]), level, "bootstrap")
        for i, name in enumerate(form.names)
    }


def bounded(value: float, draws: Float64, n: int, unit: str, level: float, method: str) -> Estimate:
    """A value with the quantiles of its resamples as interval."""
    low, high = np.quantile(draws, ((1 - level) / 2, (1 + level) / 2))
    return Estimate(value, min(float(low), value), max(float(high), value), n, unit, level, method)
