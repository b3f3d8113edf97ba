"""What one replica of each option can carry, and what it costs, in; the cheapest fleet that holds the peak with
headroom and after a loss out.

Everything here is exact counting. A fleet of one kind is the fewest replicas that pass all conditions; a mix is
searched over all pairs of kinds and all their counts, which a person can check by hand. Nothing is sampled.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Final

import msgspec

from dynamometer.errors import UsageError
from dynamometer.types import Provenance
from dynamometer.units import significant

LOSSES: Final = ("none", "node", "zone")
MOST: Final = 20_000  # replicas of one kind


class Level(msgspec.Struct, frozen=True):
    """One load of one replica. `chance`: probability that the objective is met there; None: the sample can't say."""

    rate_per_s: float  # requests, answered
    chance: float | None
    why: str
    latency_ms: float | None = None  # of the objective's first limit
    output_tokens_per_s: float | None = None


class Option(msgspec.Struct, frozen=True):
    """A kind of replica. `levels` ascend in rate. `per_node`: replicas that one node holds."""

    name: str
    gpus: int
    usd_per_hour: float  # of one replica
    usd_range: tuple[float, float]
    levels: tuple[Level, ...]
    provenance: Provenance
    source: str
    per_node: int = 1
    power_w: float | None = None  # of one replica under load; by the same kind of meter in all options


class Conditions(msgspec.Struct, frozen=True):
    """What the fleet has to stand. `probability`: that a replica meets the objective at its share of the load."""

    peak_per_s: float
    probability: float = 0.9
    headroom: float = 0.2
    lose: str = "node"
    zones: int = 3

    def __post_init__(self) -> None:
        if not (math.isfinite(self.peak_per_s) and self.peak_per_s > 0):
            raise UsageError(f"the peak is {self.peak_per_s:g} requests/s; give more than 0")
        if not 0.5 <= self.probability < 1:
            raise UsageError(f"the probability is {self.probability:g}; give 0.5 or more, and less than 1")
        if not 0 <= self.headroom <= 10:
            raise UsageError(f"the headroom is {self.headroom:g}; give 0.2 for a fifth more than the peak")
        if self.lose not in LOSSES:
            raise UsageError(f"the loss is {self.lose!r}; one of {', '.join(LOSSES)}")
        if self.zones < 2:
            raise UsageError(f"{self.zones} zones; the loss of a zone needs at least 2")


class Fleet(msgspec.Struct, frozen=True):
    """Replicas by kind. `after_loss_per_s`: what is left when the worst node or zone is gone."""

    counts: Mapping[str, int]
    usd_per_hour: float
    usd_range: tuple[float, float]
    gpus: int
    capacity_per_s: float
    after_loss_per_s: float
    power_w: float | None
    binds: str  # the condition that makes it as large as it is

    @property
    def replicas(self) -> int:
        return sum(self.counts.values())

    @property
    def text(self) -> str:
        return " + ".join(f"{count} × {name}" for name, count in self.counts.items())


def capacity(option: Option, probability: float) -> Level | None:
    """The highest level with the wanted chance below which every level has it too; None when the lowest fails."""
    found = None
    for level in option.levels:
        if level.chance is None or level.chance < probability:
            break
        found = level
    return found


def ends(option: Option, probability: float) -> str:
    """Why the capacity is no higher: the first level beyond it, or that none was tried."""
    for level in option.levels:
        if level.chance is None:
            return f"at {significant(level.rate_per_s)} requests/s the sample can't say; run longer ({level.why})"
        if level.chance < probability:
            return f"at {significant(level.rate_per_s)} requests/s its chance is {level.chance:.0%}"
    return "no higher load was tried, so it may carry more"


def lost(count: int, option: Option, conditions: Conditions) -> int:
    """Replicas of one kind that the loss takes. They are spread evenly over the zones, or over as few nodes as hold
    them, two at least."""
    if conditions.lose == "none" or count == 0:
        return 0
    if conditions.lose == "zone":
        return math.ceil(count / conditions.zones)
    return math.ceil(count / max(2, math.ceil(count / option.per_node)))


def fleet(counts: Mapping[str, int], options: Mapping[str, Option], conditions: Conditions) -> Fleet:
    """A fleet's figures."""
    kinds = {name: count for name, count in counts.items() if count > 0}
    each = {name: _rate(options[name], conditions) for name in kinds}
    whole = sum(each[name] * count for name, count in kinds.items())
    gone = {name: each[name] * lost(count, options[name], conditions) for name, count in kinds.items()}
    left = whole - (sum(gone.values()) if conditions.lose == "zone" else max(gone.values(), default=0.0))
    powers = [options[name].power_w for name in kinds]
    return Fleet(
        kinds,
        sum(options[name].usd_per_hour * count for name, count in kinds.items()),
        (
            sum(options[name].usd_range[0] * count for name, count in kinds.items()),
            sum(options[name].usd_range[1] * count for name, count in kinds.items()),
        ),
        sum(options[name].gpus * count for name, count in kinds.items()),
        whole,
        left,
        None if None in powers else sum((options[name].power_w or 0.0) * count for name, count in kinds.items()),
        "",
    )


def _rate(option: Option, conditions: Conditions) -> float:
    level = capacity(option, conditions.probability)
    return level.rate_per_s if level is not None else 0.0


def stands(found: Fleet, conditions: Conditions) -> bool:
    """It holds the peak with headroom when whole, and the bare peak after the loss."""
    tiny = 1e-9 * conditions.peak_per_s
    whole = found.capacity_per_s + tiny >= conditions.peak_per_s * (1 + conditions.headroom)
    return whole and found.after_loss_per_s + tiny >= conditions.peak_per_s


def fewest(option: Option, conditions: Conditions) -> Fleet | None:
    """The smallest fleet of one kind; None when no load of it meets the objective."""
    rate = _rate(option, conditions)
    if rate <= 0:
        return None
    options = {option.name: option}
    count = max(1, math.ceil(conditions.peak_per_s * (1 + conditions.headroom) / rate - 1e-9))
    if count > MOST:
        raise UsageError(f"{option.name} would need {count:,} replicas; is the traffic in requests a second?")
    needed = count
    while not stands(fleet({option.name: count}, options, conditions), conditions):
        count += 1
    binds = f"loss of a {conditions.lose}" if count > needed else "peak with headroom"
    return msgspec.structs.replace(fleet({option.name: count}, options, conditions), binds=binds)


def cheapest_mix(options: Sequence[Option], conditions: Conditions) -> Fleet | None:
    """The cheapest fleet of one kind or of two. For every pair and every count of its first kind the fewest of the
    second; None when no option meets the objective."""
    alone = {option.name: found for option in options if (found := fewest(option, conditions)) is not None}
    if not alone:
        return None
    best = min(alone.values(), key=lambda found: (found.usd_per_hour, found.gpus))
    named = {option.name: option for option in options if option.name in alone}
    for first, second in combinations(named, 2):
        for count in range(1, alone[first].replicas):
            found = _completed(first, count, second, named, conditions, best.usd_per_hour)
            if found is not None and found.usd_per_hour < best.usd_per_hour * (1 - 1e-9):
                best = found
    return best


def _completed(
    first: str,
    count: int,
    second: str,
    named: Mapping[str, Option],
    conditions: Conditions,
    most_usd: float,
) -> Fleet | None:
    """So many of the first kind and the fewest of the second; None when that is dearer than what is known."""
    rest = conditions.peak_per_s * (1 + conditions.headroom) - count * _rate(named[first], conditions)
    other = max(1, math.ceil(rest / _rate(named[second], conditions) - 1e-9))
    while True:
        spent = count * named[first].usd_per_hour + other * named[second].usd_per_hour
        if spent >= most_usd:
            return None
        found = fleet({first: count, second: other}, named, conditions)
        if stands(found, conditions):
            return msgspec.structs.replace(found, binds="peak with headroom and loss, over both kinds")
        other += 1


def price_that_flips(winner: Fleet, loser: Fleet) -> str:
    """By how much the runner-up would have to be cheaper, or the winner dearer, in words."""
    down = 1 - winner.usd_per_hour / loser.usd_per_hour
    up = loser.usd_per_hour / winner.usd_per_hour - 1
    return (
        f"{loser.text} {significant(100 * down)} % cheaper an hour, or {winner.text} {significant(100 * up)} % dearer"
    )
