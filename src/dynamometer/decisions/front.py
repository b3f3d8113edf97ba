"""Choices with several figures each in, those that no other beats in all of them out. Lower is better throughout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from dynamometer.errors import UsageError


class Choice(msgspec.Struct, frozen=True):
    """A name and its figures, e.g. {"usd": 0.3, "ms": 412, "w": 560}; a figure that is not known is left out."""

    name: str
    figures: Mapping[str, float]


def front(choices: Sequence[Choice], over: Sequence[str]) -> tuple[Choice, ...]:
    """The choices that no other beats: as good in every figure of `over` and better in one. Choices that lack a figure
    are left out, for nothing can be said of them."""
    if not over:
        raise UsageError("a front needs at least one figure")
    known = [choice for choice in choices if all(name in choice.figures for name in over)]
    return tuple(one for one in known if not any(_beats(other, one, over) for other in known))


def _beats(a: Choice, b: Choice, over: Sequence[str]) -> bool:
    pairs = [(a.figures[name], b.figures[name]) for name in over]
    return all(x <= y for x, y in pairs) and any(x < y for x, y in pairs)
