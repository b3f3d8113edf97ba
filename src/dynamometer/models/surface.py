"""Decode throughput over batch × context in; a roofline-shaped surface, its regime change and its held-out errors out.

A decode step of b sequences with s tokens of context each takes

    T(b, s) = (w^q + (c·b)^q)^(1/q) + k·b·s + h·b

w: reading the weights once, c: computing one sequence, k: reading one cached token, h: work on the host or the device
that each sequence adds in every regime, q: how sharply the first two change over. Throughput is b / T. The regime
changes at b* = w / c: below it a step costs what its bytes cost, beyond it what its arithmetic costs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import NormalDist

import msgspec
import numpy as np

from dynamometer.errors import MissingExtra, Refused, UsageError
from dynamometer.metrics.intervals import student
from dynamometer.models.leastsq import solve
from dynamometer.types import Estimate, Fit, Float64

try:
    from scipy.optimize import minimize
except ModuleNotFoundError as missing:
    raise MissingExtra("scipy", "fit") from missing

NAMES = ("w", "c", "k", "q", "h")
MEANING = {
    "w": "reading the weights, a step",
    "c": "computing, a sequence",
    "k": "reading one cached token",
    "q": "sharpness of the change of regime",
    "h": "other work, a sequence",
}
PRINTED_ROWS = ((32.0, 128.0, 8853.0, 8920.0), (64.0, 256.0, 11310.0, 11240.0))
"""Batch, length, what its authors say the printed form predicts there, and what they say they measured (tokens/s)."""

Step = Callable[[Float64, Float64, Float64], Float64]


class Cell(msgspec.Struct, frozen=True):
    """One measured point. Errors are relative; `left_out` is predicted without this point."""

    batch: float
    context: float
    measured: float
    predicted: float
    error: float
    left_out: float
    regime: str


class Surface(msgspec.Struct, frozen=True):
    """`theta`: logarithms of NAMES, times in seconds. `rate_unit` is that of the throughput."""

    theta: Float64
    draws: Float64
    cells: tuple[Cell, ...]
    fit: Fit  # its domain is that of the batch
    context: tuple[float, float]  # the domain of the context
    change: Estimate  # b*, where the regime changes
    unit: str
    level: float


def step_s(theta: Float64, batch: Float64, context: Float64) -> Float64:
    """Seconds a step; `theta` holds the logarithms of w, c, k, q, h."""
    w, c, k, q, h = np.exp(theta)
    # through logarithms, so that a large q does not overflow
    roof = np.exp(np.logaddexp(q * np.log(w), q * np.log(c * batch)) / q)
    return np.asarray(roof + k * batch * context + h * batch)


def fit(
    batch: Float64, context: Float64, rate: Float64, level: float = 0.9, resamples: int = 400, seed: int = 0
) -> Surface:
    """Fits the surface by L-BFGS-B on relative errors; from there, again without each point and to resampled residuals.

    `batch`, `context` (mean tokens a sequence holds while it decodes) and `rate` (tokens/s) [n]; at least eight points
    over at least three batches and two contexts. Intervals: residual bootstrap, widened by Student's t.
    """
    _check(batch, context, rate)
    log_rate = np.log(rate)
    theta = _fit_once(batch, context, log_rate, _starts(batch, context, rate))
    alone = _refit(theta, batch, context, np.tile(log_rate, (len(rate), 1)), 1 - np.eye(len(rate)))
    left_out = np.diag(_log_rates(alone, batch, context)) - log_rate
    fitted = _log_rate(theta, batch, context)
    freedom = max(1, len(rate) - len(NAMES))
    rest = (log_rate - fitted) * math.sqrt(len(rate) / freedom)
    chance = np.random.default_rng([seed, 0x5F])
    drawn = rest[chance.integers(0, len(rest), (resamples, len(rest)))]
    again = _refit(theta, batch, context, fitted + drawn, np.ones_like(drawn))
    draws = theta + (again - theta) * student(freedom, level) / NormalDist().inv_cdf(0.5 + level / 2)
    return Surface(
        theta,
        draws,
        _cells(theta, batch, context, rate, left_out),
        Fit(
            "roofline surface",
            _parameters(theta, draws, len(rate), level),
            (float(batch.min()), float(batch.max())),
            float(np.median(np.abs(np.expm1(fitted - log_rate)))),
            float(np.median(np.abs(np.expm1(left_out)))),
            ("b / ((w^q + (c·b)^q)^(1/q) + k·b·s + h·b)",),
        ),
        (float(context.min()), float(context.max())),
        _change(theta, draws, batch, level),
        "tokens/s",
        level,
    )


def predict(surface: Surface, batch: float, context: float, extrapolate: bool = False) -> Estimate:
    """Tokens/s at one point, with the interval of a new measurement there. Outside the grid: refused unless asked.

    An extrapolation adds the spread that the resampled surfaces have there.
    """
    (b_low, b_high), (s_low, s_high) = surface.fit.domain, surface.context
    outside = not (b_low <= batch <= b_high and s_low <= context <= s_high)
    if outside and not extrapolate:
        raise Refused(
            f"batch {batch:g} at context {context:g} lies outside the measured grid (batch {b_low:g} to {b_high:g}, "
            f"context {s_low:g} to {s_high:g}); measure there, or ask for an extrapolation"
        )
    at, length = np.array([batch]), np.array([context])
    centre = float(_log_rate(surface.theta, at, length)[0])
    n = len(surface.cells)
    errors = np.log1p([cell.left_out for cell in surface.cells])
    spread = math.sqrt(float(np.mean(errors**2)))
    if outside:
        drawn = np.array([_log_rate(theta, at, length)[0] for theta in surface.draws])
        spread = math.hypot(spread, float(np.sqrt(np.mean((drawn - centre) ** 2))))
    half = student(max(1, n - len(NAMES)), surface.level) * spread
    how = "extrapolated" if outside else "held-out error"
    low, high = math.exp(centre - half), math.exp(centre + half)
    return Estimate(math.exp(centre), low, high, n, surface.unit, surface.level, how)


def printed_form(batch: Float64, context: Float64) -> Float64:
    """12500 / (1 + 0.0043 · b^0.82 · s^1.37) tokens/s, as it was published.

    It contradicts its own table (PRINTED_ROWS): at batch 32 and length 128 it gives 216 tokens/s, not 8,853, and it
    falls with the batch where the table rises. It is here to be shown beside a surface that was fitted.
    """
    return np.asarray(12500 / (1 + 0.0043 * batch**0.82 * context**1.37))


def refit_printed_form(batch: Float64, context: Float64, rate: Float64) -> tuple[Float64, float]:
    """The printed form with its four constants free: (a, g, β, σ of a/(1 + g·b^β·s^σ)), and its median relative error.

    The exponents may be negative, so that the form gets every chance the data can give it.
    """

    def loss(p: Float64) -> tuple[float, Float64]:
        inner = p[1] + p[2] * np.log(batch) + p[3] * np.log(context)
        share = 1 / (1 + np.exp(-inner))
        rest = p[0] - np.logaddexp(0, inner) - target
        slope = np.stack([np.ones_like(share), -share, -share * np.log(batch), -share * np.log(context)])
        return float(rest @ rest), np.asarray(2 * slope @ rest)

    bounds = [(0.0, 30.0), (-40.0, 40.0), (-4.0, 4.0), (-4.0, 4.0)]
    starts = np.array([[math.log(12500), math.log(0.0043), 0.82, 1.37], [math.log(2 * rate.max()), 4.0, -1.0, 0.3]])
    target = np.log(rate)
    best = _minimum(loss, starts, bounds)
    constants = np.array([*np.exp(best[:2]), *best[2:]])
    again = constants[0] / (1 + constants[1] * batch ** constants[2] * context ** constants[3])
    return constants, float(np.median(np.abs(again / rate - 1)))


def _check(batch: Float64, context: Float64, rate: Float64) -> None:
    if not len(batch) == len(context) == len(rate):
        raise UsageError("a surface needs a batch, a context and a rate for each point")
    values = np.concatenate([batch, context, rate])
    if not (np.isfinite(values).all() and (values > 0).all()):
        raise UsageError("batches, contexts and rates of a surface must be finite and above 0")
    if len(rate) < 8 or len(np.unique(batch)) < 3 or len(np.unique(context)) < 2:
        raise Refused(
            f"{len(rate)} points over {len(np.unique(batch))} batches and {len(np.unique(context))} contexts do not "
            "show a surface; measure at least 8 over 3 batches and 2 contexts"
        )


def _log_rate(theta: Float64, batch: Float64, context: Float64) -> Float64:
    return np.asarray(np.log(batch) - np.log(step_s(theta, batch, context)))


def _starts(batch: Float64, context: Float64, rate: Float64) -> Float64:
    """From the smallest step (all weights) and the largest (arithmetic, cache or host in turn)."""
    step = batch / rate
    w = math.log(step.min())
    each = step.max() / batch.max()
    token = math.log(each / context.max())
    return np.array([[w, math.log(each * a), token + math.log(d), q, math.log(each * 0.1)]
                     for a, d, q in ((0.5, 0.3, 0.7), (0.3, 0.6, 1.2), (0.8, 0.05, 0.3))])  # fmt: skip


def _log_rates(theta: Float64, batch: Float64, context: Float64) -> Float64:
    """As `_log_rate` for many parameters at once: [m, 5] -> [m, n]."""
    log_w, log_c, log_k, log_q, log_h = (theta[:, i : i + 1] for i in range(len(NAMES)))
    q = np.exp(log_q)
    roof = np.exp(np.logaddexp(q * log_w, q * (log_c + np.log(batch))) / q)
    step = roof + np.exp(log_k) * batch * context + np.exp(log_h) * batch
    return np.asarray(np.log(batch) - np.log(step))


def _refit(theta: Float64, batch: Float64, context: Float64, log_rate: Float64, weight: Float64) -> Float64:
    """Refits near a solution, all side by side. `log_rate` and `weight` [m, n]; result [m, 5]."""
    low, high = np.array(_span(theta)).T

    def curve(trial: Float64, _: Float64) -> Float64:
        return _log_rates(trial, batch, context)

    return solve(curve, batch, log_rate, theta[None], np.array([low, high]), weight).theta


def _span(theta: Float64) -> list[tuple[float, float]]:
    """Where a solution may lie: a part that the data do not show may shrink to nothing, the sharpness is 1 to 12."""
    span = [(float(value) - 12, float(value) + 4) for value in theta]
    span[NAMES.index("q")] = (0.0, math.log(12.0))
    return span


def _fit_once(batch: Float64, context: Float64, log_rate: Float64, starts: Float64) -> Float64:
    def loss(theta: Float64) -> tuple[float, Float64]:
        rest = _log_rate(theta, batch, context) - log_rate
        return float(rest @ rest), np.asarray(-2 * _slope(theta, batch, context) @ rest)

    return _minimum(loss, starts, _span(starts[0]))


def _minimum(
    loss: Callable[[Float64], tuple[float, Float64]], starts: Float64, bounds: Sequence[tuple[float, float]]
) -> Float64:
    """The best that L-BFGS-B finds from the starts; `loss` gives value and gradient."""
    found = [
        minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 500, "ftol": 1e-13})
        for start in starts
    ]
    return np.asarray(min(found, key=lambda one: float(one.fun)).x, dtype=np.float64)


def _slope(theta: Float64, batch: Float64, context: Float64) -> Float64:
    """Derivative of the logarithm of the step time by each parameter, [5, n]."""
    _, _, k, q, h = np.exp(theta)
    log_w, log_c = theta[0] + 0 * batch, theta[1] + np.log(batch)
    both = np.logaddexp(q * log_w, q * log_c)
    of_w = np.exp(q * log_w - both)
    roof = np.exp(both / q)
    of_q = roof * (of_w * log_w + (1 - of_w) * log_c - both / q)
    parts = np.stack([roof * of_w, roof * (1 - of_w), k * batch * context, of_q, h * batch])
    return np.asarray(parts / (roof + k * batch * context + h * batch))


def _regime(theta: Float64, batch: float, context: float) -> str:
    w, c, k, _, h = np.exp(theta)
    parts = {"weights": w, "compute": c * batch, "KV cache": k * batch * context, "per-sequence work": h * batch}
    return max(parts, key=lambda name: parts[name])


def _cells(theta: Float64, batch: Float64, context: Float64, rate: Float64, left_out: Float64) -> tuple[Cell, ...]:
    fitted = np.exp(_log_rate(theta, batch, context))
    regime = partial(_regime, theta)
    return tuple(
        Cell(b, s, y, p, p / y - 1, math.expm1(e), regime(b, s))
        for b, s, y, p, e in zip(*(v.tolist() for v in (batch, context, rate, fitted, left_out)), strict=True)
    )


def _parameters(theta: Float64, draws: Float64, n: int, level: float) -> Mapping[str, Estimate]:
    ends = np.exp(np.quantile(draws, ((1 - level) / 2, (1 + level) / 2), axis=0))
    values = np.exp(theta)
    return {
        name: Estimate(
            float(values[i]),
            float(min(ends[0, i], values[i])),
            float(max(ends[1, i], values[i])),
            n,
            "" if name == "q" else "s",
            level,
            MEANING[name],
        )
        for i, name in enumerate(NAMES)
    }


def _change(theta: Float64, draws: Float64, batch: Float64, level: float) -> Estimate:
    value = math.exp(theta[0] - theta[1])
    n, unit = len(batch), "sequences"
    if value > batch.max():
        return Estimate(None, None, None, n, unit, level, f"no change of regime up to batch {batch.max():g}")
    ends = np.exp(np.quantile(draws[:, 0] - draws[:, 1], ((1 - level) / 2, (1 + level) / 2)))
    return Estimate(
        value,
        float(min(ends[0], value)),
        float(max(ends[1], value)),
        n,
        unit,
        level,
        "b* = w / c: weight bytes below, arithmetic beyond",
    )
