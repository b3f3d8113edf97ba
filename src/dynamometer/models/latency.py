"""Latency or goodput at several loads in; a law with intervals, and the load with the most goodput, out.

Latency against concurrency grows like a step time, t + c·x or t + c·x^p; against an arrival rate like a queue, without
bound as the rate nears a limit. Goodput rises with the load and falls again when answers come too late.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np

from dynamometer.errors import Refused, UsageError
from dynamometer.models.choose import Candidate, Residual, Units, choose, half_width, residuals
from dynamometer.models.forms import LATENCY
from dynamometer.types import Estimate, Float64

Load = Literal["concurrency", "rate"]


class Latency(msgspec.Struct, frozen=True):
    """One latency figure (say, p99 of TTFT) against load. `chosen` is the first of `candidates`."""

    load: Load
    unit: str
    level: float
    x: Float64
    y: Float64
    candidates: tuple[Candidate, ...]

    @property
    def chosen(self) -> Candidate:
        return self.candidates[0]

    @property
    def limit(self) -> Estimate | None:
        """The rate at which the queue would grow without bound; None when the chosen law has none."""
        return self.chosen.fit.parameters.get("limit")

    def residuals(self) -> tuple[Residual, ...]:
        """A row a run, in order of load."""
        return residuals(self.chosen, self.x, self.y)


class Goodput(msgspec.Struct, frozen=True):
    """`peak`: the highest goodput; `at`: its load; `as_good`: other loads whose intervals reach it."""

    peak: Estimate
    at: float
    as_good: tuple[float, ...]
    falls: bool  # a higher load gives surely less: answers come too late there


def fit(
    x: Float64, y: Float64, load: Load, unit: str = "ms", level: float = 0.9, resamples: int = 400, seed: int = 0
) -> Latency:
    """`x` [n]: mean requests in flight, or requests per second; `y` [n]: the figure of each run; four loads or more."""
    families = LATENCY if load == "rate" else tuple(form for form in LATENCY if form.name != "queue")
    units = Units("1/s" if load == "rate" else "requests in flight", unit)
    return Latency(load, unit, level, x, y, choose(x, y, families, units, level, resamples, seed))


def predict(found: Latency, x: float) -> Estimate:
    """The figure at a load, with the interval of a new run there. Outside the measured range it is always refused: a
    queue's growth beyond the data is set by the engine's limits, not by the curve."""
    low, high = float(found.x.min()), float(found.x.max())
    if not (math.isfinite(x) and low <= x <= high):
        raise Refused(f"{found.load} {x:g} lies outside the measured range {low:g} to {high:g}; measure there")
    chosen = found.chosen
    centre = float(chosen.form.curve(chosen.theta, np.array([x]))[0])
    half = half_width(chosen, found.x, found.level)
    ends = math.exp(centre - half), math.exp(centre + half)
    return Estimate(
        math.exp(centre), *ends, len(found.x), found.unit, found.level, f"{chosen.form.name}, held-out error"
    )


def load_for(found: Latency, limit: float) -> Estimate:
    """The highest load in the measured range at which the figure stays at or below `limit`, with the interval in which
    the law's uncertainty puts it. None when even the lowest load exceeds it; the highest load when none does."""
    if not limit > 0:
        raise UsageError(f"the limit is {limit:g}; give a latency above 0 {found.unit}")
    grid = np.geomspace(found.x.min(), found.x.max(), 2000)
    curve = found.chosen.form.curve(found.chosen.theta, grid)
    half = half_width(found.chosen, found.x, found.level)
    unit = "1/s" if found.load == "rate" else "requests in flight"
    value, low, high = (_last_below(grid, curve + shift, math.log(limit)) for shift in (0.0, half, -half))
    n = len(found.x)
    if value is None:
        return Estimate(None, None, high, n, unit, found.level, "even the lowest load exceeds the limit")
    reached = value < grid[-1] * (1 - 1e-9)
    method = f"{found.chosen.form.name} crosses the limit" if reached else "no load measured exceeds the limit"
    return Estimate(value, low, high if reached else None, n, unit, found.level, method)


def _last_below(grid: Float64, curve: Float64, log_limit: float) -> float | None:
    below = np.flatnonzero(curve <= log_limit)
    return float(grid[below[-1]]) if len(below) else None


def goodput_peak(loads: Sequence[float], goodput: Sequence[Estimate]) -> Goodput:
    """Where goodput is highest. Loads whose goodput is unknown are left out; at least one must be known."""
    known = [(x, g, g.value) for x, g in zip(loads, goodput, strict=True) if g.value is not None]
    if not known:
        raise Refused("no run has a goodput; give an objective, such as --slo 'ttft_p99<500ms'")
    at, peak, most = max(known, key=lambda one: one[2])
    least = most if peak.low is None else peak.low
    others = tuple(x for x, g, value in known if x != at and (value if g.high is None else g.high) >= least)
    falls = any(x > at and (value if g.high is None else g.high) < least for x, g, value in known)
    return Goodput(peak, at, others, falls)
