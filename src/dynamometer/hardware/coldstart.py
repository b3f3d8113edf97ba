"""How long a new replica takes until it answers: a law's name in, a distribution to draw seconds from out.

A start is drawn for each replica. Profiles are assumptions and say so; `dyno serve` and `dyno bench` measure the start
of a real engine, and a list of such times is a law too (each is drawn with equal chance).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from dynamometer.errors import UsageError
from dynamometer.units import seconds


class ColdStart(msgspec.Struct, frozen=True):
    """`kind`: fixed (a), uniform (a…b), lognormal (median a, two thirds within a/b…a·b) or seen (`times_s`)."""

    kind: str
    a_s: float = 0.0
    b: float = 0.0
    times_s: tuple[float, ...] = ()
    source: str = ""

    def __post_init__(self) -> None:
        good = {
            "fixed": self.a_s >= 0,
            "uniform": 0 <= self.a_s <= self.b,
            "lognormal": self.a_s > 0 and self.b >= 1,
            "seen": bool(self.times_s) and min(self.times_s, default=-1) >= 0,
        }
        finite = all(map(math.isfinite, (self.a_s, self.b, *self.times_s)))
        if not good.get(self.kind, False) or not finite:
            raise UsageError(f"cold start {self.kind} with {self.a_s:g} and {self.b:g} is no distribution; {WANTED}")

    def draw(self, chance: np.random.Generator) -> float:
        """Seconds of one start."""
        if self.kind == "uniform":
            return float(chance.uniform(self.a_s, self.b))
        if self.kind == "lognormal":
            return float(self.a_s * math.exp(math.log(self.b) * chance.standard_normal()))
        return float(chance.choice(self.times_s)) if self.kind == "seen" else self.a_s

    @property
    def median_s(self) -> float:
        if self.kind == "seen":
            return float(np.median(self.times_s))
        return (self.a_s + self.b) / 2 if self.kind == "uniform" else self.a_s

    def times(self, factor: float) -> ColdStart:
        """The same law, so many times slower."""
        b = self.b * factor if self.kind == "uniform" else self.b
        return ColdStart(self.kind, self.a_s * factor, b, tuple(t * factor for t in self.times_s), self.source)


WANTED: Final = (
    "give 45s, uniform:20s:60s, lognormal:45s:1.4 (median and factor), an engine (vllm, triton, llama.cpp), or "
    "runs that hold a measured start"
)
_ASSUMED: Final = "an assumption, measure your own with dyno serve"
PROFILES: Final[dict[str, ColdStart]] = {
    "vllm": ColdStart("lognormal", 60.0, 1.35, source=f"8B in bf16 from local disk, compile cache warm: {_ASSUMED}"),
    "triton": ColdStart("lognormal", 40.0, 1.35, source=f"a prebuilt engine from local disk: {_ASSUMED}"),
    "llama.cpp": ColdStart("lognormal", 4.0, 1.35, source=f"a small GGUF file from the page cache: {_ASSUMED}"),
}


def parse(text: str) -> ColdStart:
    """A law by its words; raises UsageError for what is none."""
    if text in PROFILES:
        return PROFILES[text]
    kind, colon, rest = text.partition(":")
    if not colon:
        try:
            return ColdStart("fixed", seconds(text, "--cold-start"), source="stated")
        except UsageError:
            raise UsageError(f"--cold-start is {text!r}; {WANTED}") from None
    parts = rest.split(":")
    if kind not in ("uniform", "lognormal") or len(parts) != 2:
        raise UsageError(f"--cold-start is {text!r}; {WANTED}")
    a_s = seconds(parts[0], "--cold-start")
    if kind == "uniform":
        return ColdStart("uniform", a_s, seconds(parts[1], "--cold-start"), source="stated")
    try:
        return ColdStart("lognormal", a_s, float(parts[1]), source="stated")
    except ValueError:
        raise UsageError(f"--cold-start is {text!r}; {WANTED}") from None


def seen(times_s: Sequence[float], source: str) -> ColdStart:
    """The law of starts that were measured."""
    return ColdStart("seen", times_s=tuple(times_s), source=source)
