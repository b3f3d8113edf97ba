"""A curve family, targets and starts in; least-squares parameters out, for a thousand resamples at once.

A bootstrap refits the same small curve a thousand times. Solving all of them side by side as arrays takes milliseconds
where a general optimizer, called a thousand times, takes seconds.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np

from dynamometer.types import Float64

Curve = Callable[[Float64, Float64], Float64]
"""(parameters [..., p], x [n]) -> values [..., n]."""

_STEPS = 60
_NUDGE = 1e-6


class Solution(msgspec.Struct, frozen=True):
    """`theta` [batch, p]; `cost` [batch]: the weighted sum of squares at it."""

    theta: Float64
    cost: Float64


def solve(
    curve: Curve, x: Float64, y: Float64, starts: Float64, box: Float64, weight: Float64 | None = None
) -> Solution:
    """Levenberg-Marquardt on sum of weight · (curve(theta, x) − y)², from each start, the best kept.

    `x` [n]; `y` and `weight` [batch, n]; `starts` [s, p]; `box` [2, p] bounds theta. Parameters should be logarithms or
    otherwise of order one: derivatives are taken by nudging each by 1e-6.
    """
    batch, s = len(y), len(starts)
    weight = np.ones_like(y) if weight is None else weight
    theta = np.clip(np.tile(starts, (batch, 1)), box[0], box[1])
    y_all, w_all = np.repeat(y, s, axis=0), np.repeat(weight, s, axis=0)
    theta, cost = _descend(curve, x, y_all, w_all, theta, box)
    best = cost.reshape(batch, s).argmin(axis=1) + np.arange(batch) * s
    return Solution(theta[best], cost[best])


def _descend(
    curve: Curve, x: Float64, y: Float64, weight: Float64, theta: Float64, box: Float64
) -> tuple[Float64, Float64]:
    damping = np.full(len(theta), 1e-3)
    value = curve(theta, x)
    cost = (weight * (value - y) ** 2).sum(axis=1)
    going = np.arange(len(theta))  # problems that still move; the others cost nothing more
    for _ in range(_STEPS):
        here, rest, w = theta[going], value[going] - y[going], weight[going]
        slope = _jacobian(curve, x, here, value[going])
        weighted = slope * w[..., None]
        left = weighted.transpose(0, 2, 1) @ slope
        right = (weighted * rest[..., None]).sum(axis=1)
        diagonal = np.einsum("bii->bi", left) * damping[going, None] + 1e-12
        move = np.linalg.solve(left + np.eye(theta.shape[1]) * diagonal[:, None, :], right[..., None])[..., 0]
        trial = np.clip(here - move, box[0], box[1])
        trial_value = curve(trial, x)
        trial_cost = (w * (trial_value - y[going]) ** 2).sum(axis=1)
        gain = cost[going] - trial_cost
        better = gain > 0
        won = going[better]
        theta[won], value[won], cost[won] = trial[better], trial_value[better], trial_cost[better]
        damping[going] = np.clip(np.where(better, damping[going] / 5, damping[going] * 6), 1e-10, None)
        ended = (np.abs(gain) <= 1e-9 * (cost[going] + 1e-14)) | (damping[going] > 1e7)
        going = going[~ended]
        if not len(going):
            break
    return theta, cost


def _jacobian(curve: Curve, x: Float64, theta: Float64, value: Float64) -> Float64:
    """Forward differences, [batch, n, p]."""
    columns = []
    for i in range(theta.shape[1]):
        nudged = theta.copy()
        nudged[:, i] += _NUDGE
        columns.append((curve(nudged, x) - value) / _NUDGE)
    return np.stack(columns, axis=-1)
