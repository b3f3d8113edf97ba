"""A length as text ("512", "uniform:128:512", "lognormal:400:0.8", "histogram:FILE") in, a distribution out."""

from __future__ import annotations

import csv
from pathlib import Path

import msgspec
import numpy as np

from dynamometer import units
from dynamometer.errors import MissingPath, UsageError

MOST_TOKENS = 10_000_000

GRAMMAR = (
    "give tokens such as 512, uniform:LOW:HIGH, normal:MEAN:SD, lognormal:MEDIAN:SIGMA "
    "(either with :LOW:HIGH to bound it) or histogram:FILE"
)


class Lengths(msgspec.Struct, frozen=True):
    """A distribution of token counts, all at least 1.

    `fixed`: a. `uniform`: a to b, both included. `normal`: mean a, standard deviation b. `lognormal`: median a,
    standard deviation b of the natural logarithm. Both are redrawn until inside [low, high]; cutting moves the mean.
    `histogram`: bin i holds the whole numbers from lows[i] to highs[i] and is drawn with probability shares[i].
    """

    kind: str
    a: float = 0.0
    b: float = 0.0
    low: int = 1
    high: int = MOST_TOKENS
    lows: tuple[int, ...] = ()
    highs: tuple[int, ...] = ()
    shares: tuple[float, ...] = ()

    @property
    def fixed(self) -> int | None:
        """The one length, or None for a spread."""
        return int(self.a) if self.kind == "fixed" else None

    def draw(self, chance: np.random.Generator) -> int:
        """One length in tokens."""
        if self.kind == "fixed":
            return int(self.a)
        if self.kind == "uniform":
            return int(chance.integers(int(self.a), int(self.b), endpoint=True))
        if self.kind == "histogram":
            i = int(chance.choice(len(self.shares), p=self.shares))
            return int(chance.integers(self.lows[i], self.highs[i], endpoint=True))
        for _ in range(1000):
            normal = chance.standard_normal()
            value = self.a + self.b * normal if self.kind == "normal" else self.a * np.exp(self.b * normal)
            if self.low <= (length := round(float(min(value, 1e18)))) <= self.high:
                return length
        return int(min(max(self.a, self.low), self.high))  # nearly all of the distribution lies outside the bounds


def parse(text: str, what: str) -> Lengths | None:
    """The distribution that the text names; "" is None: as it comes."""
    kind, *rest = text.strip().split(":")
    if not kind:
        return None
    if kind == "histogram":
        return _histogram(Path(text.partition(":")[2]), what)
    if kind == "uniform" and len(rest) == 2:
        low, high = (_tokens(part, what) for part in rest)
        if low > high:
            raise UsageError(f"{what} is {text!r}; the lower end comes first")
        return Lengths("uniform", low, high)
    if kind in ("normal", "lognormal") and len(rest) in (2, 4):
        return _bell(kind, rest, text, what)
    if rest or not kind[:1].isdigit():
        raise UsageError(f"{what} is {text!r}; {GRAMMAR}")
    return Lengths("fixed", _tokens(kind, what))


def _bell(kind: str, rest: list[str], text: str, what: str) -> Lengths:
    try:
        spread = float(rest[1])
    except ValueError:
        spread = -1.0
    if not 0 <= spread < 1e9:
        raise UsageError(f"{what} is {text!r}; the spread must be a number of at least 0")
    low, high = (_tokens(part, what) for part in rest[2:]) if len(rest) == 4 else (1, MOST_TOKENS)
    if low > high:
        raise UsageError(f"{what} is {text!r}; the lower bound comes first")
    return Lengths(kind, _tokens(rest[0], what), spread, low, high)


def _tokens(text: str, what: str) -> int:
    value = units.count(text, what)
    if not 1 <= value <= MOST_TOKENS:
        raise UsageError(f"{what} is {text!r}; give a length from 1 to {MOST_TOKENS:,} tokens")
    return value


def _histogram(path: Path, what: str) -> Lengths:
    """A CSV file with a header: `tokens,weight`, or `low,high,weight` for bins with both ends included."""
    if not path.is_file():
        raise MissingPath(f"{what}: there is no histogram file {path}")
    bins: list[tuple[int, int, float]] = []
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.DictReader(file)
        names = set(rows.fieldnames or ())
        if not ({"tokens", "weight"} <= names or {"low", "high", "weight"} <= names):
            raise UsageError(f"{path}:1: the header must be tokens,weight or low,high,weight")
        for row in rows:
            try:
                low, high = (int(row["tokens"]),) * 2 if "tokens" in names else (int(row["low"]), int(row["high"]))
                weight = float(row["weight"])
            except (TypeError, ValueError):
                raise UsageError(f"{path}:{rows.line_num}: give whole token counts and a number as weight") from None
            if not (1 <= low <= high <= MOST_TOKENS and 0 <= weight < 1e300):
                raise UsageError(f"{path}:{rows.line_num}: give 1 <= low <= high and a weight of at least 0")
            bins.append((low, high, weight))
    total = sum(weight for _, _, weight in bins)
    if not total:
        raise UsageError(f"{path}: no bin has a weight above 0")
    lows, highs, weights = zip(*bins, strict=True)
    return Lengths("histogram", lows=lows, highs=highs, shares=tuple(weight / total for weight in weights))
