"""Formats with what each costs and what each loses in, the one to choose and what would flip it out."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dynamometer.decisions.front import Choice, front
from dynamometer.errors import UsageError
from dynamometer.types import Decision, Estimate
from dynamometer.units import show, show_bytes, significant


class Format(msgspec.Struct, frozen=True):
    """One way to hold weights and cache. `agreement`: percent of tokens where the most likely one is the baseline's."""

    name: str
    file_bytes: int
    resident_bytes: int | None
    prefill: Estimate | None  # tokens/s
    decode: Estimate | None
    kl: Estimate | None  # nat/token; None: the baseline itself
    agreement: Estimate | None


def beaten_by_none(formats: Sequence[Format]) -> tuple[str, ...]:
    """Names of the formats that no other beats in divergence, memory and decode speed together."""
    choices = [Choice(one.name, _figures(one)) for one in formats]
    over = [name for name in ("kl", "bytes", "s_per_token") if all(name in one.figures for one in choices)]
    return tuple(one.name for one in front(choices, over))


def choose(formats: Sequence[Format], agreement: float) -> Decision:
    """The format with the fastest decode among those whose agreement is at least `agreement` percent for sure: the
    lower end of its interval decides. Without speeds the smallest file."""
    if not formats:
        raise UsageError("no format was measured; there is nothing to choose from")
    question = f"Which format, when the most likely token must stay the same in {agreement:g} % of the places?"
    able = [one for one in formats if _sure(one) >= agreement]
    if not able:
        closest = max(formats, key=_sure)
        return Decision(question, "none", (f"{closest.name} comes closest, with {_sure(closest):.1f} %",))
    best = min(able, key=_cost)
    because = [_told(best)]
    because += [f"kept out: {_told(one)}" for one in formats if one not in able]
    flips = [
        f"if {_sure(one):.1f} % were enough, {one.name} would be it: {_gain(one, best)}"
        for one in sorted(formats, key=_sure, reverse=True)
        if _sure(one) < agreement and one is min((x for x in formats if _sure(x) >= _sure(one)), key=_cost)
    ]
    smallest = min(able, key=_memory)
    if _memory(smallest) < _memory(best):
        flips.append(f"if memory mattered more than speed, {smallest.name}: {_gain(smallest, best)}")
    return Decision(question, best.name, tuple(because), tuple(flips), ("measured: on this machine",))


def _sure(one: Format) -> float:
    if one.agreement is None:
        return 100.0
    value = one.agreement.low if one.agreement.low is not None else one.agreement.value
    return float(value or 0.0)


def _cost(one: Format) -> tuple[float, float]:
    rate = one.decode.value if one.decode else None
    return (1 / rate if rate else 0.0, _memory(one))


def _memory(one: Format) -> float:
    return float(one.resident_bytes or one.file_bytes)


def _figures(one: Format) -> dict[str, float]:
    found = {"bytes": _memory(one), "kl": 0.0 if one.kl is None else float(one.kl.value or 0.0)}
    if one.decode and one.decode.value:
        found["s_per_token"] = 1 / one.decode.value
    return found


def _told(one: Format) -> str:
    loss = "the baseline" if one.agreement is None else f"agreement {show(one.agreement)}"
    rate = f", decode {show(one.decode)}" if one.decode else ""
    return f"{one.name}: {loss}{rate}, {show_bytes(_memory(one))}"


def _gain(one: Format, other: Format) -> str:
    said = f"{show_bytes(_memory(one))} in place of {show_bytes(_memory(other))}"
    a, b = (x.decode.value if x.decode else None for x in (one, other))
    return said + (f", decode × {significant(a / b)}" if a and b else "")
