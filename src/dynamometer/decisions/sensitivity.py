"""A result as a function of uncertain factors in; what moves it, how far, and what would flip it out.

The function takes arrays, so thousands of cases are one call. Factors vary independently: a pair that goes together (a
dear place with a dear machine) is wider in truth than the interval says. Tornado, curves, heat table, Monte Carlo and
break-even need numpy alone; Sobol's indices come from SALib (extra `fit`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import NormalDist
from typing import Final

import msgspec
import numpy as np

from dynamometer.errors import UsageError
from dynamometer.plugins import optional
from dynamometer.types import Float64

Model = Callable[[Mapping[str, Float64]], Float64]
TINY: Final = 1e-9  # of the result: rounding, no swing
_Z: Final = NormalDist().inv_cdf(0.975)
_GRID: Final = np.linspace(1e-6, 1 - 1e-6, 4001)
_NORMAL: Final = np.array([NormalDist().inv_cdf(float(p)) for p in _GRID])


class Factor(msgspec.Struct, frozen=True):
    """One uncertain input. `law` "triangle": never outside low…high, most likely at base; "interval": low…high is a
    95 % interval, each side half a normal law (on logs where all three are above 0)."""

    name: str
    low: float
    base: float
    high: float
    law: str = "triangle"

    @property
    def moves(self) -> bool:
        return self.high > self.low


class Swing(msgspec.Struct, frozen=True):
    """The result at both ends of one factor, all others at base; `elasticity` = d ln result / d ln factor at base."""

    name: str
    factor_low: float
    factor_high: float
    low: float | None  # the result at factor_low
    high: float | None
    elasticity: float | None

    @property
    def width(self) -> float:
        return abs(self.high - self.low) if self.low is not None and self.high is not None else 0.0


class Index(msgspec.Struct, frozen=True):
    """Sobol's indices of one factor: the share of the result's variance that it makes alone, and with all its
    interactions; `±` is SALib's 95 % bootstrap half-width."""

    name: str
    first: float
    first_half: float
    total: float
    total_half: float


def at_base(factors: Sequence[Factor], size: int = 1) -> dict[str, Float64]:
    return {factor.name: np.full(size, factor.base) for factor in factors}


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def tornado(model: Model, factors: Sequence[Factor]) -> tuple[Swing, ...]:
    """Each factor to both its ends, one at a time; the widest swing first, without those that move nothing."""
    swings = []
    for factor in factors:
        if not factor.moves:
            continue
        nudge = 1e-4 * abs(factor.base) or 1e-6
        points = np.array([factor.low, factor.high, factor.base - nudge, factor.base + nudge])
        values = at_base(factors, 4) | {factor.name: points}
        low, high, before, after = (float(v) for v in model(values))
        slope = None
        if before > 0 and after > 0 and points[2] > 0:
            slope = _finite(math.log(after / before) / math.log(points[3] / points[2]))
        swings.append(Swing(factor.name, factor.low, factor.high, _finite(low), _finite(high), slope))
    felt = [s for s in swings if s.low is None or s.high is None or s.width > TINY * max(abs(s.low), abs(s.high))]
    return tuple(sorted(felt, key=lambda swing: -swing.width))


def curve(
    model: Model, factors: Sequence[Factor], name: str, points: int = 25
) -> tuple[tuple[float, float | None], ...]:
    """(factor, result) along one factor's range, all others at base."""
    factor = _named(factors, name)
    across = np.linspace(factor.low, factor.high, points)
    found = model(at_base(factors, points) | {name: across})
    return tuple((float(x), _finite(float(y))) for x, y in zip(across, found, strict=True))


class Cell(msgspec.Struct, frozen=True):
    x: float
    y: float
    result: float | None


def heat(model: Model, factors: Sequence[Factor], x: str, y: str, side: int = 7) -> tuple[Cell, ...]:
    """The result over two factors' ranges, all others at base; `side`² cells."""
    across, along = (np.linspace(f.low, f.high, side) for f in (_named(factors, x), _named(factors, y)))
    grid_x, grid_y = (axis.ravel() for axis in np.meshgrid(across, along))
    found = model(at_base(factors, side * side) | {x: grid_x, y: grid_y})
    return tuple(Cell(float(a), float(b), _finite(float(z))) for a, b, z in zip(grid_x, grid_y, found, strict=True))


def _named(factors: Sequence[Factor], name: str) -> Factor:
    for factor in factors:
        if factor.name == name:
            return factor
    raise UsageError(f"{name!r} is no factor here; one of {', '.join(factor.name for factor in factors)}")


def quantile(factor: Factor, share: Float64) -> Float64:
    """The factor's value below which it lies with the given probability. `share` in 0…1."""
    low, base, high = factor.low, factor.base, factor.high
    if not factor.moves:
        return np.full(len(share), base)
    if factor.law == "interval":
        z = np.interp(share, _GRID, _NORMAL) / _Z
        if low > 0:
            down, up = math.log(base / low), math.log(high / base)
            return np.asarray(base * np.exp(np.where(z < 0, z * down, z * up)))
        return np.asarray(base + np.where(z < 0, z * (base - low), z * (high - base)))
    width = high - low
    turn = (base - low) / width
    rising = low + np.sqrt(share * width * (base - low))
    falling = high - np.sqrt((1 - share) * width * (high - base))
    return np.where(share < turn, rising, falling)


def draw(factors: Sequence[Factor], count: int, seed: int = 0) -> dict[str, Float64]:
    """`count` random cases, by Latin hypercube: each factor's range is covered evenly, whatever the seed."""
    chance = np.random.default_rng(seed)
    cases = {}
    for factor in factors:
        share = (chance.permutation(count) + chance.random(count)) / count
        cases[factor.name] = quantile(factor, share)
    return cases


def sobol(model: Model, factors: Sequence[Factor], size: int = 1024, seed: int = 0) -> tuple[Index, ...]:
    """First-order and total indices (Saltelli 2010) of the factors that move, the largest total first.

    `size`: a power of two; `size` × (factors + 2) cases are computed. Needs SALib (extra `fit`).
    """
    from types import ModuleType

    moving = [factor for factor in factors if factor.moves]
    if not moving:
        return ()
    sampler, analyzer = optional("SALib.sample.sobol", "fit"), optional("SALib.analyze.sobol", "fit")
    assert isinstance(sampler, ModuleType)
    assert isinstance(analyzer, ModuleType)
    problem = {
        "num_vars": len(moving),
        "names": [factor.name for factor in moving],
        "bounds": [[0.0, 1.0]] * len(moving),
    }
    shares = sampler.sample(problem, size, calc_second_order=False, seed=seed)
    fixed = at_base(factors, len(shares))
    result = model(fixed | {factor.name: quantile(factor, shares[:, i]) for i, factor in enumerate(moving)})
    if not np.isfinite(result).all() or float(np.ptp(result)) == 0:
        return ()
    found = analyzer.analyze(problem, result, calc_second_order=False, seed=seed)
    rows = zip(moving, found["S1"], found["S1_conf"], found["ST"], found["ST_conf"], strict=True)
    indices = (Index(f.name, float(s1), float(c1), float(st), float(ct)) for f, s1, c1, st, ct in rows)
    return tuple(sorted(indices, key=lambda index: -index.total))


def break_even(
    model: Model, factors: Sequence[Factor], name: str, target: float, within: tuple[float, float]
) -> float | None:
    """The value of one factor inside `within` at which the result is `target`; None if it never is.

    Of several the one nearest to the base. Found on a grid (log-spaced above 0), then by bisection.
    """
    low, high = within
    grid = np.geomspace(low, high, 400) if low > 0 else np.linspace(low, high, 400)
    gap = model(at_base(factors, len(grid)) | {name: grid}) - target
    turns = [i for i in range(len(grid) - 1) if np.isfinite(gap[i : i + 2]).all() and gap[i] * gap[i + 1] <= 0]
    if not turns:
        return None
    base = _named(factors, name).base
    start = min(turns, key=lambda i: abs(math.log(max(float(grid[i]), 1e-12) / max(base, 1e-12))))
    left, right, sign = float(grid[start]), float(grid[start + 1]), float(gap[start])
    for _ in range(60):
        middle = (left + right) / 2
        here = float(model(at_base(factors) | {name: np.array([middle])})[0]) - target
        left, right = (middle, right) if here * sign > 0 else (left, middle)
    return (left + right) / 2
