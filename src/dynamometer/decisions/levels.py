"""Runs of one kind of replica at several loads, with an objective, in; the chance that each load meets it out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Final

from dynamometer.decisions.account import Account, account
from dynamometer.decisions.capacity import Level
from dynamometer.decisions.gate import Met, holds, limit_of
from dynamometer.errors import Refused, UsageError
from dynamometer.types import Estimate, Objective, Provenance
from dynamometer.units import significant

KEPT_UP: Final = 0.95  # of an open loop's rate that must have been answered
METRICS: Final = ("ttft", "ttft_due", "tpot", "itl", "e2e", "e2e_due", "error_rate")


def usable(slo: Sequence[Objective]) -> None:
    """Refuses an objective that does not get worse with load, for then no largest load meets it."""
    for one in slo:
        if one.metric not in METRICS or one.op not in ("<", "<="):
            raise UsageError(
                f"{one.metric}{one.op} is no limit that load runs into; a plan needs upper limits on "
                f"{', '.join(METRICS)}"
            )


def measured(directories: Sequence[Path], slo: Sequence[Objective]) -> tuple[tuple[Level, ...], Provenance, str]:
    """(levels in ascending rate, how the rows came about, run ids). One run is one level."""
    usable(slo)
    found = [account(directory, slo) for directory in directories]
    drivers = {one.run.driver for one in found}
    if len(drivers) != 1:
        raise Refused("runs of one option are partly measured and partly simulated; name them as two options")
    levels = sorted((_level(one) for one in found), key=lambda level: level.rate_per_s)
    return tuple(levels), drivers.pop(), ", ".join(one.run.id for one in found)


def _level(found: Account) -> Level:
    metrics, load = found.summary.metrics, found.run.experiment.load
    rate = metrics.requests_per_s or 0.0
    latency = next((one.observed.value for one in found.judged if one.observed.unit == "ms"), None)
    fatal = [doubt.message for doubt in found.summary.doubts if doubt.fatal]
    chance: float | None
    if fatal:
        chance, why = None, f"the run can't be believed: {fatal[0]}"
    elif load.law != "closed" and fell_behind(rate, load.rate, found.summary.window_s, metrics.concurrency_mean or 0.0):
        chance = 0.0
        why = f"{significant(rate)} of {significant(load.rate)} requests/s were answered: overloaded"
    else:
        chance, why = _joint(found.judged)
    return Level(rate, chance, f"{found.run.id}: {why}", latency, metrics.output_tokens_per_s)


def fell_behind(rate: float, asked: float, window_s: float, in_flight: float) -> bool:
    """Fewer answers than 95 % of what was asked, and by more than chance (two standard deviations of a Poisson count)
    and the requests in flight at the end explain."""
    due = asked * window_s
    return rate < KEPT_UP * asked and due - rate * window_s > 2 * math.sqrt(due) + in_flight


def _joint(judged: Sequence[Met]) -> tuple[float | None, str]:
    """The chance that all limits hold, as if they were independent: they rise and fall together, so it is higher."""
    chances = [met_chance(one) for one in judged]
    why = "; ".join(one.why for one in judged) or "no objective"
    if None in chances:
        return None, why
    return math.prod(chance for chance in chances if chance is not None), why


def met_chance(one: Met) -> float | None:
    """From the observed figure and its interval, taken as a normal law on logs (on the figure itself at 0)."""
    seen, limit = one.observed, limit_of(one.objective)
    if seen.value is None:
        return 0.0 if one.met is False else None
    spread = _spread(seen)
    if spread is None:
        return 0.0 if one.met is False else None
    if spread == 0:
        return 1.0 if holds(seen.value, one.objective.op, limit) else 0.0
    if seen.value <= 0 or limit <= 0:
        return 1.0 if holds(seen.value, one.objective.op, limit) else 0.0
    return NormalDist().cdf(math.log(limit / seen.value) / spread)


def _spread(seen: Estimate) -> float | None:
    """Standard deviation of the log, from the upper half of the interval, which is the one that matters."""
    if seen.value is None or seen.high is None:
        return None
    if seen.value <= 0 or seen.high <= seen.value:
        return 0.0
    return math.log(seen.high / seen.value) / NormalDist().inv_cdf(0.5 + seen.level / 2)
