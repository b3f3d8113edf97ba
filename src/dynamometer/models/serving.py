"""Time per token of a serving point that nobody measured, from points that somebody did: physics first, then a
Gaussian process. Pure.

The first part is a sum of times with non-negative coefficients (weights, cache, compute, layers, collectives), by
least relative error. The second learns, in the logarithm, what the first misses: by device, model, engine, and by
nearness in batch, lengths and split, among points of one engine, version or model more than among others. A point's
error variance grows with how badly the others foretell it, so that one odd series bends its neighbours less.
Predictions carry an interval.
"""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from dynamometer.errors import MissingExtra, UsageError
from dynamometer.types import Float64

Codes = npt.NDArray[np.int64]
Places = npt.NDArray[np.intp]


class Points(msgspec.Struct, frozen=True):
    """n points. `causes`: n × k seconds; `nearness`: n × d coordinates, the batch first; labels as whole numbers;
    `seconds`: measured time per token."""

    causes: Float64
    nearness: Float64
    device: Codes
    model: Codes
    engine: Codes
    version: Codes  # of the engine
    series: Codes  # what is left out together
    seconds: Float64


class Shares(msgspec.Struct, frozen=True):
    """Variances of log time by what points have in common; `reach`: standard deviation of nearness; `noise`: of a
    repeat.

    Chosen by random search for the least error on series left out, on the public points of benchmarks/data.
    """

    device: float = 0.06
    model_engine: float = 0.044
    model_version: float = 0.034
    near: float = 0.016
    near_engine: float = 0.044
    near_version: float = 0.022
    near_model: float = 0.017
    near_series: float = 0.004
    reach: float = 2.75
    noise: float = 0.0009
    oddness: float = 1.0  # standard errors beyond which a point's own variance grows


SHARES: Final = Shares()
_FLOOR, _SHRINK, _MOST_V = 0.03, 0.58, 0.38


class Foretold(msgspec.Struct, frozen=True):
    """Predicted seconds per token, the standard deviation of its logarithm, and which points were predicted at all."""

    seconds: Float64
    spread: Float64
    known: npt.NDArray[np.bool_]


def coefficients(points: Points, rows: Places) -> Float64:
    """Non-negative coefficients of the causes, by least absolute relative error."""
    try:
        from scipy.optimize import nnls
    except ModuleNotFoundError as missing:
        raise MissingExtra("scipy", "fit") from missing
    design = points.causes[rows] / points.seconds[rows][:, None]
    size = np.linalg.norm(design, axis=0) + 1e-30
    weight = np.ones(len(rows))
    found = np.zeros(design.shape[1])
    for _ in range(10):
        found = nnls(design / size * weight[:, None], weight, maxiter=1000)[0] / size
        weight = 1 / np.sqrt(np.maximum(np.abs(design @ found - 1), _FLOOR))
    return np.asarray(found, dtype=np.float64)


def likeness(points: Points, shares: Shares = SHARES) -> Float64:
    """n × n covariance of log time beyond the physics."""
    d, m, e, v = (np.equal.outer(code, code) for code in (points.device, points.model, points.engine, points.version))
    z = points.nearness
    squares = (z**2).sum(axis=1)
    near = np.exp(-0.5 * np.maximum(0, squares[:, None] + squares[None] - 2 * z @ z.T) / shares.reach**2)
    k = shares.device * d + shares.model_engine * (m & e) + shares.model_version * (m & v)
    alike = shares.near + shares.near_engine * e + shares.near_version * v + shares.near_model * m
    whole: Float64 = k + near * (alike + shares.near_series * (d & m & e))
    return whole


def leave_series_out(points: Points, shares: Shares = SHARES, own: int = 0) -> Foretold:
    """Every series predicted from all others, and from `own` of its own points if asked.

    One inverse serves all series: the predictive mean and covariance of a left-out block follow from its block of the
    inverse.
    """
    n = len(points.seconds)
    if n < 10:
        raise UsageError(f"{n} points are too few to learn from; give at least 10")
    blocks = _series(points)
    bases = [points.causes @ coefficients(points, np.setdiff1d(np.arange(n), rows)) for rows in blocks]
    like = likeness(points, shares)
    plain = np.asarray(np.linalg.inv(like + shares.noise * np.eye(n)), dtype=np.float64)
    surprise = np.zeros(n)
    for rows, base in zip(blocks, bases, strict=True):
        mean, cover = _block(plain, points, rows, base)
        surprise[rows] = (np.log(points.seconds[rows] / base[rows]) - mean) / np.sqrt(np.diag(cover))
    inverse = np.asarray(
        np.linalg.inv(like + np.diag(shares.noise * np.maximum(1, (surprise / shares.oddness) ** 2))), dtype=np.float64
    )
    seconds, spread, known = np.zeros(n), np.zeros(n), np.zeros(n, dtype=bool)
    for rows, base in zip(blocks, bases, strict=True):
        mean, cover = _block(inverse, points, rows, base)
        if own:
            mean, cover, rest = _with_own(mean, cover, points, rows, base, own)
        else:
            rest = np.arange(len(rows))
        variance = np.diag(cover)[rest]
        seconds[rows[rest]] = base[rows[rest]] * np.exp(mean[rest] - _SHRINK * np.minimum(variance, _MOST_V))
        spread[rows[rest]], known[rows[rest]] = np.sqrt(variance), True
    return Foretold(seconds, spread, known)


def _series(points: Points) -> list[Places]:
    return [np.flatnonzero(points.series == label) for label in np.unique(points.series)]


def _block(inverse: Float64, points: Points, rows: Places, base: Float64) -> tuple[Float64, Float64]:
    """(mean, covariance) of a block's log residuals given all other points."""
    residual = np.clip(np.log(points.seconds / base), -1, 1)
    cover = np.asarray(np.linalg.inv(inverse[np.ix_(rows, rows)]), dtype=np.float64)
    mean = np.asarray(residual[rows] - cover @ (inverse[rows] @ residual), dtype=np.float64)
    return mean, cover


def _with_own(
    mean: Float64, cover: Float64, points: Points, rows: Places, base: Float64, own: int
) -> tuple[Float64, Float64, Places]:
    """The same given also a few of the block's own points, spread over its batches; and the places that are left."""
    if len(rows) <= 2 * own:
        return mean, cover, np.arange(0)
    order = np.lexsort((points.nearness[rows, 1], points.nearness[rows, 0]))
    picked = order[np.round(np.linspace(0.1, 0.9, own) * (len(rows) - 1)).astype(int)]
    rest = np.setdiff1d(np.arange(len(rows)), picked)
    seen = np.log(points.seconds[rows] / base[rows])[picked] - mean[picked]
    gain = np.linalg.solve(cover[np.ix_(picked, picked)], cover[picked]).T
    return mean + gain @ seen, cover - gain @ cover[picked], rest
