"""Options and a simulator for some of them in, a plan whose fleets were simulated as a whole out.

Arithmetic sizes a fleet as if every replica had its own share of the traffic. Behind a router that knows who is busy
they even each other out, so fleets of one simulated kind that could win are tried together, and shrunk while they
stand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from dynamometer.carry import Ask, pooled, slower
from dynamometer.decisions.capacity import Conditions, Fleet, Option, fewest, fleet, lost
from dynamometer.decisions.plan import Context, Planned, choose, plan
from dynamometer.sim.setup import Setup
from dynamometer.units import significant

NEAR: Final = 1.3  # times the cheapest fleet's cost, within which another may still win when simulated together
TOGETHER: Final = 32  # replicas that are simulated at once; a larger fleet is tried in parts of this size


class Twin(msgspec.Struct, frozen=True):
    """The simulated setup behind an option, and how far its step times may be wrong."""

    setup: Setup
    spread: float


def provision(
    options: Sequence[Option], twins: Mapping[str, Twin], ask: Ask, conditions: Conditions, context: Context
) -> Planned:
    """The plan, its fleets checked by simulation where one stands behind them."""
    best, second = choose(options, conditions)
    if best is None:
        return plan(options, conditions, context)
    named = {option.name: option for option in options}
    checks: list[str] = []
    found = {tuple(one.counts): one for one in (best, second) if one is not None}
    for option in options:
        alone = fewest(option, conditions)
        if option.name in twins and alone is not None and alone.usd_per_hour <= NEAR * best.usd_per_hour:
            setup = slower(twins[option.name].setup, twins[option.name].spread, conditions.probability)
            count = _shrink(setup, ask, option, alone.replicas, conditions, checks)
            if count < alone.replicas:
                alone = _fleet(option.name, count, alone.replicas, named, conditions)
            found[option.name,] = alone
    ranked = sorted(found.values(), key=lambda one: one.usd_per_hour)
    context = msgspec.structs.replace(context, checks=tuple(checks))
    return plan(options, conditions, context, (ranked[0], ranked[1] if len(ranked) > 1 else None))


def _shrink(setup: Setup, ask: Ask, option: Option, count: int, conditions: Conditions, checks: list[str]) -> int:
    """The fewest replicas that still stand when simulated together; what was seen goes into `checks`."""
    good, seen = count, _stands(setup, ask, option, count, conditions)
    checks.append(f"{count} × {option.name} together, simulated: {seen or 'it stands'}")
    if seen or count > TOGETHER:
        return count
    while good > 1:
        fails = _stands(setup, ask, option, good - 1, conditions)
        if fails:
            checks.append(f"{good - 1} × {option.name} together, simulated: {fails}")
            break
        good -= 1
    if good < count:
        checks.append(f"a least-loaded router saves {count - good} of {count} replicas against single shares")
    return good


def _stands(setup: Setup, ask: Ask, option: Option, count: int, conditions: Conditions) -> str:
    """What fails, or "" when the fleet holds the peak with headroom, and after the loss without it."""
    peak = conditions.peak_per_s
    trials = [("whole, with headroom", count, peak * (1 + conditions.headroom))]
    left = count - lost(count, option, conditions)
    if left < 1:
        return f"the loss of a {conditions.lose} takes all of them"
    if left < count:
        trials.append((f"after the loss of a {conditions.lose}", left, peak))
    for words, replicas, rate in trials:
        part = min(replicas, TOGETHER)
        seen = pooled(setup, ask, part, rate * part / replicas)
        if not seen.met:
            return f"{words} {seen.failed}"
    return ""


def _fleet(name: str, count: int, before: int, named: Mapping[str, Option], conditions: Conditions) -> Fleet:
    """The shrunk fleet; its capacity is what was shown together, at least the peak with headroom."""
    found = fleet({name: count}, named, conditions)
    shown = conditions.peak_per_s * (1 + conditions.headroom)
    return msgspec.structs.replace(
        found,
        capacity_per_s=max(found.capacity_per_s, shown),
        after_loss_per_s=max(found.after_loss_per_s, conditions.peak_per_s),
        binds=f"the whole fleet simulated together; single shares would need {before}",
    )


def describe(setup: Setup, spread: float) -> str:
    """How sure a simulated capacity is, in words."""
    return f"{setup.cost.source or 'step times fitted to runs'}, step times ±{significant(100 * spread)} %"
