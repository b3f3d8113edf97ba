"""A result's factors in; the one that matters most in words, what would flip the answer, and the curves behind it
out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from dynamometer.decisions.cost import SHARES, VARIABLES
from dynamometer.decisions.sensitivity import Cell, Factor, Index, Model, Swing, break_even, curve, heat, sobol, tornado
from dynamometer.errors import MissingExtra
from dynamometer.units import significant

WIDE: Final = 20.0  # times its base within which a flip is looked for
CURVES: Final = 4


class Table(msgspec.Struct, frozen=True):
    """The result over the two factors that move it most."""

    x: str
    y: str
    cells: tuple[Cell, ...]


class Sensitivity(msgspec.Struct, frozen=True):
    """`of`: the figure that is moved. `sobol` is empty, with `sobol_note`, where SALib is not installed."""

    of: str
    matters_most: str | None
    words: str
    tornado: tuple[Swing, ...]
    sobol: tuple[Index, ...]
    sobol_note: str
    curves: Mapping[str, tuple[tuple[float, float | None], ...]]
    table: Table | None


class Flip(msgspec.Struct, frozen=True):
    """At this value of one factor, all others at base, the answer turns."""

    name: str
    base: float
    at: float
    unit: str
    inside: bool  # the range of the factor holds it

    @property
    def text(self) -> str:
        mark = "inside" if self.inside else "outside"
        unit = f" {self.unit}" if self.unit else ""
        return f"{plain(self.name)} {significant(self.at)}{unit} instead of {significant(self.base)} ({mark} its range)"


def plain(name: str) -> str:
    """A variable's name as a person says it."""
    words = {"usd_per_gpu_hour": "price of a GPU hour", "power_w": "power", "pue": "PUE", "usd_per_kwh": "electricity"}
    return words.get(name, name.replace("_tokens_per_s", " rate").replace("_usd", " price").replace("_", " "))


def _said(of: str) -> str:
    """`usd_per_million_output_tokens` as `price of a million output tokens`."""
    return "price of a " + of.removeprefix("usd_per_").replace("_", " ")


def sensitivity(model: Model, factors: Sequence[Factor], of: str, size: int = 1024, seed: int = 0) -> Sensitivity:
    """All views of one result. `size`: of Sobol's sample, a power of two; 0: none."""
    swings = tornado(model, factors)
    note, indices = "", tuple[Index, ...]()
    try:
        indices = sobol(model, factors, size, seed) if size else ()
    except MissingExtra as missing:
        note = str(missing)
    leading = [swing.name for swing in swings[:CURVES]]
    curves = {name: curve(model, factors, name) for name in leading}
    table = Table(leading[0], leading[1], heat(model, factors, leading[0], leading[1])) if len(leading) > 1 else None
    first = indices[0].name if indices else leading[0] if leading else None
    return Sensitivity(of, first, _words(first, swings, indices, of), swings, indices, note, curves, table)


def _words(first: str | None, swings: Sequence[Swing], indices: Sequence[Index], of: str) -> str:
    if first is None:
        return "No input has a range, so nothing can be said of what matters."
    swing = next((one for one in swings if one.name == first), None)
    text = f"{plain(first)[0].upper()}{plain(first)[1:]} matters most"
    if swing is not None and swing.low is not None and swing.high is not None:
        unit = VARIABLES[first][0] if first in VARIABLES else ""
        ends = f"{significant(swing.factor_low)} to {significant(swing.factor_high)}{' ' + unit if unit else ''}"
        text += f": from {ends} the {_said(of)} goes from {significant(swing.low)} to {significant(swing.high)}"
    share = next((one.total for one in indices if one.name == first), None)
    if share is not None:
        text += f"; it makes {min(1.0, share):.0%} of the variance"
    felt = [one.name for one in indices if one.total > 0.01] or [one.name for one in swings]
    others = [plain(name) for name in felt if name != first][:1]
    return text + (f", then {others[0]}." if others else ".")


def flips(model: Model, factors: Sequence[Factor], target: float, most: int = 6) -> tuple[Flip, ...]:
    """Values of single factors at which the result equals the target, the smallest change first."""
    found = []
    for factor in factors:
        if factor.base <= 0 or factor.name == "gpus":
            continue
        top = factor.base * WIDE
        if factor.name in SHARES:
            top = min(1.0, top)
        if factor.name == "duty_hours":
            top = 24.0
        bottom = 1.0 if factor.name == "pue" else factor.base / WIDE
        at = break_even(model, factors, factor.name, target, (bottom, top))
        if at is not None and at > 0:
            unit = VARIABLES[factor.name][0] if factor.name in VARIABLES else ""
            found.append(Flip(factor.name, factor.base, at, unit, factor.low <= at <= factor.high))
    return tuple(sorted(found, key=lambda flip: max(flip.at / flip.base, flip.base / flip.at))[:most])
