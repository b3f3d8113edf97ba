"""One option of a decision, judged: where it stands, by which constraints, with which objective."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from dynamometer.decisions.constraints import Held, Permission
from dynamometer.decisions.evidence import Evidence, Figure

Standing = Literal["holds", "open", "out"]
HIGHER_IS_BETTER: Final = ("output_tokens_per_s", "requests_per_s", "goodput", "attainment", "input_tokens_per_s")


class Row(msgspec.Struct, frozen=True):
    """An option judged. `objective`: the figure to make small (or large, where more is better)."""

    name: str
    standing: Standing
    held: tuple[Held, ...]
    objective: Figure | None
    evidence: Evidence
    permission: Permission | None
    on_front: bool = False

    @property
    def lacking(self) -> tuple[Held, ...]:
        """What rules it out; if nothing does, what is open."""
        missed = tuple(one for one in self.held if one.met is False)
        return missed or tuple(one for one in self.held if one.met is None)


def sign(name: str, quality: str = "") -> float:
    """-1 where more of the figure is better; `quality`: the metric with a floor."""
    return -1.0 if name in HIGHER_IS_BETTER or name == quality else 1.0


def better(one: Row, other: Row, minimize: str) -> bool:
    """By the objective alone."""
    a = one.objective.estimate.value if one.objective else None
    b = other.objective.estimate.value if other.objective else None
    return a is not None and b is not None and sign(minimize) * a < sign(minimize) * b
