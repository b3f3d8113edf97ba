"""How the load varies over a day in, how busy a fleet that is sized for the peak is, and for how many hours, out."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from dynamometer.errors import UsageError
from dynamometer.types import Float64

# relative load in each hour of a day, from midnight. Stylized, not measured: state your own as 24 numbers or a file.
SHAPES: Final[dict[str, tuple[float, ...]]] = {
    "flat": (1.0,) * 24,
    "office": (
        *(0.05, 0.05, 0.05, 0.05, 0.05, 0.05, 0.1, 0.3, 0.7, 0.95, 1.0, 1.0),
        *(0.8, 0.9, 1.0, 1.0, 0.95, 0.7, 0.35, 0.2, 0.15, 0.1, 0.05, 0.05),
    ),
    "consumer": (
        *(0.45, 0.3, 0.22, 0.18, 0.16, 0.18, 0.25, 0.38, 0.5, 0.6, 0.65, 0.7),
        *(0.75, 0.75, 0.72, 0.72, 0.75, 0.8, 0.88, 0.96, 1.0, 1.0, 0.9, 0.65),
    ),
    "business-hours": (0.0,) * 9 + (1.0,) * 8 + (0.0,) * 7,
}


class Day(msgspec.Struct, frozen=True):
    """`hours`: relative load [24], its highest is 1. `duty_hours`: hours with any load; `mean_over_peak` over those."""

    name: str
    hours: tuple[float, ...]
    duty_hours: float
    mean_over_peak: float


def day(text: str) -> Day:
    """A shape by name, 24 numbers separated by commas, or a file with 24 numbers."""
    if text in SHAPES:
        return _day(text, np.array(SHAPES[text]))
    source = text
    if "," not in text:
        path = Path(text)
        if not path.is_file():
            known = ", ".join(SHAPES)
            raise UsageError(f"the load shape is {text!r}; one of {known}, 24 numbers with commas, or a file of them")
        source = path.read_text(encoding="utf-8", errors="replace")
    try:
        values = np.array([float(word) for word in source.replace(",", " ").split()])
    except ValueError:
        values = np.zeros(0)
    if len(values) != 24 or not np.isfinite(values).all() or (values < 0).any() or values.max() <= 0:
        raise UsageError(f"the load shape {text[:40]!r} is no list of 24 loads of 0 or more, one an hour from midnight")
    return _day("stated", values)


def _day(name: str, values: Float64) -> Day:
    relative = values / values.max()
    on = relative > 0
    return Day(name, tuple(float(v) for v in relative), float(on.sum()), float(relative[on].mean()))


def utilization(shape: Day, at_peak: float) -> float:
    """Mean share of a fixed fleet's capacity in its duty hours, when it is `at_peak` full in the highest hour."""
    if not 0 < at_peak <= 1:
        raise UsageError(f"the fleet is {at_peak:g} full at its peak; give a share above 0, 1 at most")
    return shape.mean_over_peak * at_peak
