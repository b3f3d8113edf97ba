"""A two-level factorial design and its measurements in; main effects and interactions with intervals out.

Each factor is on (+1) or off (−1). On the ratio scale (logarithms) an effect is how many times the response changes
when the factor is switched on, and two gains that do not disturb each other multiply: their interaction is 1. On the
rate scale effects are differences and independent gains add.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations, product

import msgspec
import numpy as np

from dynamometer.errors import UsageError
from dynamometer.metrics.intervals import student
from dynamometer.types import Estimate, Float64

_MOST_FACTORS = 12


class Design(msgspec.Struct, frozen=True):
    """`rows` [runs, factors] of −1 and +1, in standard order: the first factor changes fastest."""

    factors: tuple[str, ...]
    rows: Float64
    generators: tuple[str, ...] = ()  # "D=ABC" by letter of the factor; empty: full

    def aliases(self) -> Mapping[str, tuple[str, ...]]:
        """Effects up to two factors that this design cannot tell from each other: name -> the others."""
        columns = {name: column for name, column in _columns(self, 2).items() if name}
        found: dict[str, tuple[str, ...]] = {}
        for name, column in columns.items():
            same = [other for other, its in columns.items() if other != name and abs(its @ column) == len(column)]
            if same:
                found[name] = tuple(same)
        return found


class Effects(msgspec.Struct, frozen=True):
    """`ratio`: times (1.17 = +17 %); `difference`: in the response's unit. Keys: "A", "A:B". "" is the middle."""

    design: Design
    ratio: Mapping[str, Estimate]
    difference: Mapping[str, Estimate]
    aliases: Mapping[str, tuple[str, ...]]


class Ablation(msgspec.Struct, frozen=True):
    """Baseline, A alone, B alone, both. Gains are ratios to the baseline."""

    gain_a: Estimate
    gain_b: Estimate
    gain_both: Estimate
    expected: Estimate  # gain_a · gain_b: what both would give if they did not disturb each other
    interaction: Estimate  # gain_both / expected, ratio scale: 1 = orthogonal
    interaction_rate: Estimate  # both − A − B + baseline, rate scale: 0 = additive


def full(factors: Sequence[str]) -> Design:
    """All 2^k combinations."""
    _check_names(factors)
    rows = np.array([row[::-1] for row in product((-1.0, 1.0), repeat=len(factors))])
    return Design(tuple(factors), rows)


def fractional(factors: Sequence[str], generators: Sequence[str]) -> Design:
    """A 2^(k−p) fraction: p generators such as "D=ABC" say which product of the first factors sets a later one.

    Letters stand for the factors in order: A is the first. The last p factors must be those that are generated.
    """
    _check_names(factors)
    basic = len(factors) - len(generators)
    if basic < 1:
        raise UsageError(f"{len(generators)} generators leave no factor free; give fewer")
    rows = full(factors[:basic]).rows
    letters = "ABCDEFGHIJKL"[: len(factors)]
    for i, generator in enumerate(generators):
        made, _, word = generator.replace(" ", "").partition("=")
        if (
            made != letters[basic + i]
            or len(word) < 2
            or len(set(word)) < len(word)
            or set(word) - set(letters[:basic])
        ):
            raise UsageError(
                f"generator {generator!r}; give {letters[basic + i]}= and at least two different letters of "
                f"{letters[:basic]}, such as {letters[basic + i]}={letters[:basic]}"
            )
        rows = np.column_stack([rows, np.prod([rows[:, letters.index(letter)] for letter in word], axis=0)])
    return Design(tuple(factors), rows, tuple(generators))


def order_of(design: Design, repeats: int, chance: np.random.Generator) -> list[tuple[int, int]]:
    """(row of the design, repeat) in an order to measure in: each repeat complete and shuffled by itself, so that a
    machine that slowly warms or fills does not look like an effect."""
    return [(int(row), repeat) for repeat in range(repeats) for row in chance.permutation(len(design.rows))]


def analyse(design: Design, measured: Sequence[Sequence[float]], unit: str, level: float = 0.9) -> Effects:
    """`measured`: for each row of the design, one value a repeat, all above 0.

    Intervals come from the spread of repeats within rows (pooled); with one run a row there is none, and the estimates
    say so.
    """
    if len(measured) != len(design.rows):
        raise UsageError(f"the design has {len(design.rows)} rows, {len(measured)} are measured")
    for row, values in enumerate(measured):
        if not len(values) or not all(math.isfinite(value) and value > 0 for value in values):
            raise UsageError(f"row {row + 1} of the design has {list(values)!r}; give values above 0")
    columns = _columns(design, 2)
    ratio = _effects(columns, [np.log(np.asarray(values)) for values in measured], level)
    plain = _effects(columns, [np.asarray(values, dtype=np.float64) for values in measured], level)
    return Effects(
        design,
        {name: _exponential(effect) for name, effect in ratio.items()},
        {name: msgspec.structs.replace(effect, unit=unit) for name, effect in plain.items()},
        design.aliases(),
    )


def ablation(
    baseline: Sequence[float],
    a: Sequence[float],
    b: Sequence[float],
    both: Sequence[float],
    unit: str,
    level: float = 0.9,
) -> Ablation:
    """Orthogonal ablation; one value a repeat. With one run of each there are no intervals."""
    cells = (baseline, a, b, both)
    for name, values in zip(("baseline", "A", "B", "both"), cells, strict=True):
        if not len(values) or not all(math.isfinite(value) and value > 0 for value in values):
            raise UsageError(f"{name} has {list(values)!r}; give values above 0")
    logs = [np.log(np.asarray(values)) for values in cells]
    plain = [np.asarray(values, dtype=np.float64) for values in cells]

    def ratio(*weights: float) -> Estimate:
        return _exponential(_contrast(np.array(weights), logs, level))

    return Ablation(
        ratio(-1, 1, 0, 0),
        ratio(-1, 0, 1, 0),
        ratio(-1, 0, 0, 1),
        ratio(-2, 1, 1, 0),
        ratio(1, -1, -1, 1),
        msgspec.structs.replace(_contrast(np.array([1.0, -1, -1, 1]), plain, level), unit=unit),
    )


def _check_names(factors: Sequence[str]) -> None:
    if not 1 <= len(factors) <= _MOST_FACTORS or len(set(factors)) < len(factors):
        raise UsageError(f"factors are {', '.join(factors) or 'none'}; give 1 to {_MOST_FACTORS} different names")


def _columns(design: Design, most: int) -> dict[str, Float64]:
    """The column of each effect: "" (the mean), factors, products of up to `most` factors."""
    found = {"": np.ones(len(design.rows))}
    for size in range(1, most + 1):
        for chosen in combinations(range(len(design.factors)), size):
            found[":".join(design.factors[i] for i in chosen)] = np.prod(design.rows[:, chosen], axis=1)
    return found


def _effects(columns: Mapping[str, Float64], cells: Sequence[Float64], level: float) -> dict[str, Estimate]:
    """An effect is the mean where the column is +1 less the mean where it is −1; for "" the mean over rows."""
    n = len(cells)
    return {name: _contrast(column * (2 if name else 1) / n, cells, level) for name, column in columns.items()}


def _contrast(weights: Float64, cells: Sequence[Float64], level: float) -> Estimate:
    """Σ w·mean(cell), with Student's t on the spread of repeats pooled over cells."""
    means = np.array([cell.mean() for cell in cells])
    value = float(weights @ means)
    n = sum(len(cell) for cell in cells)
    freedom = n - len(cells)
    if freedom < 1:
        return Estimate(value, None, None, n, "", level, "one run of each: no interval; repeat the runs")
    pooled = sum(float(((cell - cell.mean()) ** 2).sum()) for cell in cells) / freedom
    half = student(freedom, level) * math.sqrt(
        pooled * sum(w**2 / len(cell) for w, cell in zip(weights, cells, strict=True))
    )
    return Estimate(value, value - half, value + half, n, "", level, f"t, {freedom} degrees, pooled over cells")


def _exponential(effect: Estimate) -> Estimate:
    assert effect.value is not None
    low, high = (None if end is None else math.exp(end) for end in (effect.low, effect.high))
    return msgspec.structs.replace(effect, value=math.exp(effect.value), low=low, high=high, unit="×")
