"""Throughput, power and batch in; energy per token as a law, a joint score and a Pareto front out.

Power is that of a named meter: "gpu" (boards alone), "cpu" (processor packages alone) or "wall" (the whole machine).
They are never mixed: at the same load a wall meter reads 20 to 100 % more than the boards.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from dynamometer.errors import Refused, UsageError
from dynamometer.metrics.intervals import student
from dynamometer.types import Estimate, Fit, Float64

METERS = ("gpu", "cpu", "wall")


class Operating(msgspec.Struct, frozen=True):
    """One operating point. `idle_w`: the same meter's reading without load, None when it was not taken."""

    name: str
    tokens_per_s: float
    power_w: float
    meter: str
    idle_w: float | None = None


class Energy(msgspec.Struct, frozen=True):
    """Joules a token. `gross` charges all power to the load, `net` only what it adds to idling (None: idle unknown)."""

    gross_j: float
    net_j: float | None
    idle_share: float | None
    meter: str


def energy(point: Operating) -> Energy:
    """What one token costs at an operating point."""
    _check([point])
    gross_j = point.power_w / point.tokens_per_s
    if point.idle_w is None:
        return Energy(gross_j, None, None, point.meter)
    if not 0 <= point.idle_w <= point.power_w:
        raise UsageError(
            f"{point.name}: idle {point.idle_w:g} W is not between 0 and the {point.power_w:g} W under load"
        )
    share = point.idle_w / point.power_w
    return Energy(gross_j, gross_j * (1 - share), share, point.meter)


def fit_energy(batch: Float64, joules: Float64, level: float = 0.9) -> Fit:
    """J/token = e0 + e1 / B: what each token costs, and what a step costs that all its sequences share.

    `batch` [n] sequences (mean in flight), `joules` [n] per output token. Least squares on relative errors, both
    parameters at least 0; intervals by Student's t (delta method); `held_out` leaves one batch out.
    """
    if len(batch) != len(joules) or not (np.isfinite(batch).all() and np.isfinite(joules).all()):
        raise UsageError("an energy fit needs a finite batch and a finite energy for each point")
    if len(batch) and not ((batch > 0).all() and (joules > 0).all()):
        raise UsageError("an energy fit needs batches and energies above 0; a missing reading is no reading of 0")
    if len(np.unique(batch)) < 3:
        raise Refused(f"{len(np.unique(batch))} batches are too few to tell two parameters; measure at least 3")
    e0, e1, covariance = _energy_line(batch, joules)
    errors = (e0 + e1 / batch) / joules - 1
    left_out = []
    for value in np.unique(batch):
        stay = batch != value
        if len(np.unique(batch[stay])) >= 2:
            a, b, _ = _energy_line(batch[stay], joules[stay])
            left_out += list((a + b / value) / joules[~stay] - 1)
    half = (student(max(1, len(batch) - 2), level) * np.sqrt(np.maximum(np.diag(covariance), 0))).tolist()
    n = len(batch)
    parameters = {
        "e0": Estimate(e0, max(0.0, e0 - half[0]), e0 + half[0], n, "J/token", level, "t; each token by itself"),
        "e1": Estimate(e1, max(0.0, e1 - half[1]), e1 + half[1], n, "J/step", level, "t; shared by the batch"),
    }
    domain = (float(batch.min()), float(batch.max()))
    misfit, held = (float(np.median(np.abs(e))) for e in (errors, left_out))
    return Fit("energy", parameters, domain, misfit, held, ("e0 + e1 / B",))


def predict_energy(fitted: Fit, batch: float, extrapolate: bool = False) -> float:
    """J/token at a batch; refused outside the measured range unless asked."""
    low, high = fitted.domain
    if not low <= batch <= high and not extrapolate:
        raise Refused(
            f"batch {batch:g} lies outside the measured range {low:g} to {high:g}; measure there, or ask for it"
        )
    e0, e1 = (fitted.parameters[name].value for name in ("e0", "e1"))
    assert e0 is not None
    assert e1 is not None
    return e0 + e1 / batch


def score(point: Operating, reference: Operating, alpha: float = 0.5, beta: float = 0.5) -> float:
    """J = α·(T/Tref)^-1 + β·(P/Pref), lower is better; 1 at the reference when α + β = 1.

    The weights are a choice, not a fact: they say how much a percent of power is worth in throughput. A front of points
    that nobody beats in both (`pareto`) needs no weights.
    """
    _check([point, reference])
    if not (alpha >= 0 and beta >= 0 and alpha + beta > 0):
        raise UsageError(f"the weights are {alpha:g} and {beta:g}; give two of at least 0, not both 0")
    return alpha * reference.tokens_per_s / point.tokens_per_s + beta * point.power_w / reference.power_w


def pareto(points: Sequence[Operating]) -> tuple[Operating, ...]:
    """The points that no other beats in both throughput and power, in order of power; of equal ones the first."""
    _check(points)
    best = -math.inf
    front = []
    for point in sorted(points, key=lambda p: (p.power_w, -p.tokens_per_s)):
        if point.tokens_per_s > best:
            front.append(point)
            best = point.tokens_per_s
    return tuple(front)


def _energy_line(batch: Float64, joules: Float64) -> tuple[float, float, Float64]:
    """Non-negative least squares of 1 = (e0 + e1 / B) / J, and the covariance of the two."""
    design = np.stack([1 / joules, 1 / (batch * joules)], axis=1)
    target = np.ones(len(batch))
    e, *_ = np.linalg.lstsq(design, target, rcond=None)
    if e.min() < 0:  # two parameters: one of them is 0 and the other alone fits best
        alone = [float(column @ target / (column @ column)) for column in design.T]
        trials = [np.array([alone[0], 0.0]), np.array([0.0, alone[1]])]
        e = min(trials, key=lambda trial: float(((design @ trial - target) ** 2).sum()))
    variance = float(((design @ e - target) ** 2).sum()) / max(1, len(batch) - 2)
    covariance: Float64 = np.asarray(variance * np.linalg.pinv(design.T @ design), dtype=np.float64)
    return float(e[0]), float(e[1]), covariance


def _check(points: Sequence[Operating]) -> None:
    for point in points:
        if point.meter not in METERS:
            raise UsageError(f"{point.name}: meter is {point.meter!r}; one of {', '.join(METERS)}")
        if not (point.tokens_per_s > 0 and point.power_w > 0):
            raise UsageError(
                f"{point.name}: {point.tokens_per_s:g} tokens/s at {point.power_w:g} W; both must be above 0"
            )
    if len({point.meter for point in points}) > 1:
        raise UsageError("the points are of different meters (gpu, cpu, wall); compare those of one")
