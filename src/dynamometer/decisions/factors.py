"""A table of a factorial experiment (a column a factor, on or off, and one of results) in; its effects out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from dynamometer.decisions import columns
from dynamometer.errors import UsageError
from dynamometer.models import effects
from dynamometer.models.effects import Ablation, Design, Effects
from dynamometer.types import Estimate, Float64

ON, OFF = ("1", "+1", "+", "on", "yes", "true", "high"), ("0", "-1", "-", "−1", "off", "no", "false", "low", "")
WORKED = (((-1.0, -1.0), 1842.0), ((1.0, -1.0), 2157.0), ((-1.0, 1.0), 2396.0), ((1.0, 1.0), 2834.0))
"""The worked example: baseline, A, B, both, in tokens/s, one run of each."""


class Findings(msgspec.Struct, frozen=True):
    """`ablation` for two factors. `cells`: each row of the design with its mean response and its number of runs."""

    response: str
    effects: Effects
    ablation: Ablation | None
    cells: tuple[tuple[tuple[bool, ...], float, int], ...]


def worked_example() -> Findings:
    rows = np.array([row for row, _ in WORKED])
    return _findings(("A", "B"), rows, [[value] for _, value in WORKED], "tokens/s")


def from_csv(path: Path, response: str = "", level: float = 0.9) -> Findings:
    """Factors are the columns with two settings (on/off, 1/0, +/−, yes/no); `response` is the column of results, the
    last one without a name. Rows with the same settings are repeats."""
    table = columns.read(path)
    names = list(table)
    response = response.strip().lower() or names[-1]
    if response not in table:
        raise UsageError(f"{path} has no column {response!r}; it has {', '.join(names)}")
    factors = [name for name in names if name != response]
    if not factors:
        raise UsageError(f"{path} has no column of a factor; give one of on and off for each, and one of results")
    values = columns.numbers(table, (response,), path)
    settings = np.array([[_setting(table[name][i], name, i + 2, path) for name in factors] for i in range(len(values))])
    rows = np.unique(settings, axis=0)
    rows = rows[np.lexsort(tuple(rows[:, i] for i in range(len(factors))))]  # standard order
    measured = [[v for v, s in zip(values, settings, strict=True) if (s == row).all()] for row in rows]
    return _findings(tuple(factors), rows, measured, response, level)


def _setting(text: str, factor: str, row: int, path: Path) -> float:
    word = text.lower()
    if word in ON:
        return 1.0
    if word in OFF:
        return -1.0
    raise UsageError(f"{path}, row {row}: {factor} is {text!r}; give on or off (1 or 0, + or -, yes or no)")


def _findings(
    factors: tuple[str, ...], rows: Float64, measured: Sequence[Sequence[float]], unit: str, level: float = 0.9
) -> Findings:
    design = Design(factors, rows)
    _check(design)
    found = effects.analyse(design, measured, unit, level)
    two = len(factors) == 2 and len(rows) == 4
    alone = None
    if two:
        baseline, a, b, both = measured
        alone = effects.ablation(baseline, a, b, both, unit, level)
    cells = tuple(
        (tuple(bool(s > 0) for s in row), float(np.mean(values)), len(values))
        for row, values in zip(rows, measured, strict=True)
    )
    return Findings(unit, found, alone, cells)


def _check(design: Design) -> None:
    """Each factor as often on as off, and at each setting of every other: else its effect cannot be told apart."""
    effects.full(design.factors)  # refuses names that are too many
    rows, n = design.rows, len(design.rows)
    for i, name in enumerate(design.factors):
        if rows[:, i].sum() != 0:
            on = int((rows[:, i] > 0).sum())
            raise UsageError(f"{name} is on in {on} of the {n} combinations; a factorial design has it on in half")
        for j in range(i):
            if rows[:, i] @ rows[:, j] != 0:
                raise UsageError(
                    f"{name} and {design.factors[j]} are not varied independently: some combinations are missing; "
                    f"measure all {2 ** len(design.factors)}, or a regular fraction of them"
                )


def sure(effect: Estimate, nothing: float) -> bool | None:
    """Whether the interval leaves out no effect; None without an interval."""
    if effect.low is None or effect.high is None:
        return None
    return not effect.low <= nothing <= effect.high
