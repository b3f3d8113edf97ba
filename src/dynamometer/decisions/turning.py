"""The chosen option and the others in, what would turn the choice out: inputs of the bill, limits, licences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from dynamometer.decisions.case import Input
from dynamometer.decisions.constraints import Held
from dynamometer.decisions.cost import SHARES, VARIABLES, Values, bill
from dynamometer.decisions.flip import Flip, flips, plain
from dynamometer.decisions.row import Row, better
from dynamometer.decisions.sensitivity import Factor, draw
from dynamometer.decisions.wish import Wish
from dynamometer.types import Float64
from dynamometer.units import significant

CHANCE_DRAWS: Final = 4000


def chances(holding: Sequence[Row], wish: Wish) -> dict[str, float]:
    """How often each option is the best over the ranges of the bill's inputs; shared inputs move together."""
    priced = [row for row in holding if row.evidence.case and row.objective]
    if len(priced) < 2 or len(priced) < len(holding) or not wish.minimize.startswith("usd_per_million"):
        return {}
    common = _shared(priced)
    first = priced[0].evidence.case
    assert first is not None
    together = draw([one.factor for one in first.inputs if one.name in common], CHANCE_DRAWS, wish.seed)
    costs = []
    for at, row in enumerate(priced):
        assert row.evidence.case is not None
        own = draw(
            [one.factor for one in row.evidence.case.inputs if one.name not in common], CHANCE_DRAWS, wish.seed + 1 + at
        )
        costs.append(getattr(bill({**together, **own}), wish.minimize))
    winner = np.argmin(np.array(costs), axis=0)
    return {row.name: float(np.mean(winner == at)) for at, row in enumerate(priced)}


def turns(chosen: Row, rows: Sequence[Row], wish: Wish) -> tuple[str, ...]:
    """What would turn the choice: inputs of its bill, what keeps others out, its tightest limits, its licence."""
    found: list[str] = []
    for other in rows:
        if other is chosen or other.objective is None:
            continue
        if other.standing == "holds":
            found += [f"{other.name} instead, at {_at(flip)}" for flip in _against(chosen, other, wish)[:3]]
        elif better(other, chosen, wish.minimize) and len(other.lacking) == 1:
            (lack,) = other.lacking
            near = f"with its limit at {lack.slack}" if lack.slack else "once it is met or given up"
            found.append(f"{other.name} instead, {near}: {lack.constraint} ({lack.why})")
    for one in chosen.held:
        if one.slack and one.met:
            unsure = (
                ""
                if one.sure
                else "; no interval excludes that today"
                if _bare(one)
                else "; its interval allows that today"
            )
            found.append(f"{chosen.name} falls out if {one.constraint} is tightened to {one.slack}{unsure}")
    found += [f"licence of {chosen.name}: {flip}" for flip in (chosen.permission.flips if chosen.permission else ())]
    return tuple(found)


def _bare(held: Held) -> bool:
    """The figure came without an interval."""
    return "[" not in held.why


def _at(flip: Flip) -> str:
    """One input's turning point in words; another option's inputs carry its name."""
    owner, _, name = flip.name.rpartition(": ")
    mark = "inside" if flip.inside else "outside"
    whose = f" of {owner}" if owner else ""
    unit = f" {VARIABLES[name][0]}" if VARIABLES[name][0] else ""
    return f"{plain(name)}{whose} {significant(flip.at)}{unit} instead of {significant(flip.base)} ({mark} its range)"


def _against(chosen: Row, other: Row, wish: Wish) -> tuple[Flip, ...]:
    """Single inputs of the bills at which the other becomes the better one."""
    mine, theirs = chosen.evidence.case, other.evidence.case
    if mine is None or theirs is None or not wish.minimize.startswith("usd_per_million"):
        return ()
    common = _shared([chosen, other])
    own = {one.name: one for one in mine.inputs}
    factors = list(mine.factors) + [
        Factor(f"{other.name}: {one.name}", one.low, one.base, one.high, one.law)
        for one in theirs.inputs
        if one.name not in common
    ]

    def ratio(values: Values) -> Float64:
        size = len(next(iter(values.values())))
        left = {name: values[name] for name in own}
        right = {
            one.name: values[one.name]
            if one.name in common
            else values.get(f"{other.name}: {one.name}", np.full(size, one.base))
            for one in theirs.inputs
        }
        found: Float64 = getattr(bill(left), wish.minimize) / getattr(bill(right), wish.minimize)
        return found

    turned = flips(ratio, factors, 1.0, most=99)
    return tuple(one for one in turned if _possible(one))


def _possible(flip: Flip) -> bool:
    """A share above 1 is no share."""
    name = flip.name.split(": ")[-1]
    return name in VARIABLES and name != "gpus" and (name not in SHARES or flip.at <= 1.0)


def _shared(rows: Sequence[Row]) -> set[str]:
    """Inputs of the bill that are one and the same for all: they move together, so they alone turn little."""
    cases = [row.evidence.case for row in rows if row.evidence.case]
    if len(cases) < 2:
        return set()
    first = {one.name: one for one in cases[0].inputs}
    return {
        name
        for name, one in first.items()
        if all(_same(one, next((other for other in built.inputs if other.name == name), None)) for built in cases[1:])
    }


def _same(one: Input, other: Input | None) -> bool:
    if other is None:
        return False
    return (one.low, one.base, one.high, one.source) == (other.low, other.base, other.high, other.source)
