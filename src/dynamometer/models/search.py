"""What has been measured so far in; what to measure next, or the answer, out. Pure: a sweep that was stopped goes on.

`next_level` finds the range of a saturation curve: doubling until throughput stops growing, then levels around the knee
until its interval is narrow. `next_rate` finds the highest rate that meets an objective: doubling, then bisection, then
confirmation of the answer with runs of its own, because the best of many noisy passes is a lucky one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import NormalDist

import msgspec
import numpy as np

from dynamometer.errors import Refused, UsageError
from dynamometer.models import saturation
from dynamometer.models.choose import FEWEST_LEVELS
from dynamometer.types import Estimate


class Level(msgspec.Struct, frozen=True):
    """One run of a sweep. `usable` False: failed, or its client was late; it ends the doubling. `low`, `high`: the
    rate's 90 % interval within the run, where it is known."""

    concurrency: int
    tokens_per_s: float
    usable: bool = True
    low: float | None = None
    high: float | None = None


class SweepRules(msgspec.Struct, frozen=True):
    """How far and how finely to look."""

    first: int = 1
    last: int = 1024
    runs: int = 16  # the most runs
    flat: float = 0.10  # a doubling that gains less than this share has saturated
    width: float = 0.25  # the knee is known when its interval is narrower than this share of it
    repeats: int = 3  # runs at a level whose gain is open, before its point estimate decides


class Next(msgspec.Struct, frozen=True):
    """What to do. `at`: the next concurrency or rate; None: stop, for the `reason`. `left`: a guess of runs to come."""

    at: float | None
    reason: str
    left: int = 0


class Trial(msgspec.Struct, frozen=True):
    """One run against an objective: `good` of `total` requests met it. Requests of a run are not independent: a
    `design_effect` of 3 makes 300 of them count as 100."""

    rate: float
    good: int
    total: int
    design_effect: float = 1.0


class RateRules(msgspec.Struct, frozen=True):
    """What the answer must satisfy."""

    first: float = 1.0  # requests per second
    last: float = 1e5
    attainment: float = 0.99  # share of requests that must meet the objective
    tolerance: float = 0.05  # of the rate
    confirmations: int = 2
    repeats: int = 3  # runs at a rate whose verdict is open, before its point estimate decides
    runs: int = 30
    level: float = 0.9


class Capacity(msgspec.Struct, frozen=True):
    """`rate.value` passed and was confirmed; `rate.high` is the lowest rate that failed."""

    rate: Estimate
    attainment: Estimate  # pooled over all runs at that rate
    confirmed: bool
    runs: int


def next_level(done: Sequence[Level], rules: SweepRules = SweepRules()) -> Next:  # noqa: B008 - frozen
    """The next concurrency of a sweep."""
    if not 1 <= rules.first <= rules.last:
        raise UsageError(f"the sweep goes from {rules.first} to {rules.last}; give 1 <= first <= last")
    if not done:
        return Next(rules.first, "the lowest level", 6)
    if len(done) >= rules.runs:
        return Next(None, f"{rules.runs} runs are made, the most that were asked for")
    highest = max(done, key=lambda level: level.concurrency)
    saturated, again = _flat(done, rules)
    spare = rules.runs - len(done) - max(0, FEWEST_LEVELS - len({one.concurrency for one in done if one.usable}))
    if again is not None and spare > 0:
        return Next(again, "a repeat: the runs' intervals leave open whether throughput still grows", 5)
    if highest.usable and not saturated and highest.concurrency < rules.last:
        return Next(min(2 * highest.concurrency, rules.last), "throughput still grows", 5)
    usable = [level for level in done if level.usable]
    levels = sorted({level.concurrency for level in usable})
    if len(levels) < FEWEST_LEVELS:
        between = _widest_gap(levels)
        return Next(between, "too few levels for a curve", 3) if between else Next(None, "no room for more levels")
    return _refine(usable, levels, rules)


def next_rate(done: Sequence[Trial], rules: RateRules = RateRules()) -> Next:  # noqa: B008 - frozen
    """The next rate of a search for the highest that meets the objective."""
    if not (0 < rules.first <= rules.last and 0 < rules.attainment < 1 and rules.tolerance > 0):
        raise UsageError("give 0 < first <= last, an attainment between 0 and 1 and a tolerance above 0")
    if len(done) >= rules.runs:
        return Next(None, f"{rules.runs} runs are made, the most that were asked for")
    verdicts = _verdicts(done, rules)
    for rate, verdict in verdicts.items():
        if verdict is None:
            return Next(rate, "the verdict at this rate is open", 3)
    passed = max((rate for rate, good in verdicts.items() if good), default=None)
    failed = min((rate for rate, good in verdicts.items() if not good and rate > (passed or 0)), default=None)
    if passed is None:
        if failed is None:
            return Next(rules.first, "the first rate", 8)
        below = failed / 2
        if below < rules.first / 1024:
            return Next(None, f"no rate meets the objective: even {failed:.3g}/s fails")
        return Next(below, "lower, until one passes", 6)
    if failed is None:
        if passed >= rules.last:
            return _confirm(done, passed, rules, f"the highest rate allowed, {rules.last:.3g}/s, passes")
        return Next(min(2 * passed, rules.last), "higher, until one fails", 6)
    if failed / passed > 1 + rules.tolerance:
        left = math.ceil(math.log2(math.log(failed / passed) / math.log1p(rules.tolerance))) + rules.confirmations
        return Next(math.sqrt(passed * failed), "between the highest pass and the lowest failure", max(1, left))
    return _confirm(done, passed, rules, f"known to {rules.tolerance:.0%}")


def capacity(done: Sequence[Trial], rules: RateRules = RateRules()) -> Capacity:  # noqa: B008 - frozen
    """The answer that the trials give so far; refused when no rate has passed."""
    verdicts = _verdicts(done, rules)
    passed = max((rate for rate, good in verdicts.items() if good), default=None)
    if passed is None:
        raise Refused("no rate has met the objective so far; search lower, or relax the objective")
    failed = min((rate for rate, good in verdicts.items() if good is False and rate > passed), default=None)
    confirming = _confirming(done, passed, rules)
    counted = confirming if len(confirming) >= rules.confirmations > 0 else [t for t in done if t.rate == passed]
    pooled = _pooled(counted, passed)
    low, high = wilson(pooled.good, pooled.total, pooled.design_effect, rules.level)
    which = "confirming runs" if counted is confirming else "runs"
    share = Estimate(pooled.good / pooled.total, low, high, pooled.total, "", rules.level, f"Wilson, {which} pooled")
    method = "highest rate that passed, lowest that failed" if failed else "no rate failed"
    rate = Estimate(passed, passed, failed, len(done), "1/s", rules.level, method)
    return Capacity(rate, share, len(confirming) >= rules.confirmations, len(done))


def wilson(good: int, total: int, design_effect: float = 1.0, level: float = 0.9) -> tuple[float, float]:
    """Interval of a share (Wilson 1927): it stays inside [0, 1] and has a width even when all or none are good."""
    if not 0 <= good <= total or total < 1 or design_effect < 1:
        raise UsageError(f"{good} of {total} with a design effect of {design_effect:g} is no share")
    n, p, z = total / design_effect, good / total, NormalDist().inv_cdf(0.5 + level / 2)
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return (max(0.0, centre - half) if good else 0.0), (min(1.0, centre + half) if good < total else 1.0)


def _flat(done: Sequence[Level], rules: SweepRules) -> tuple[bool, int | None]:
    """Whether the last doubling of usable levels gained less than `flat`; two doublings must have been tried.

    Where the interval of the gain holds `flat`, the level to repeat comes too: the one of the two that ran less often.
    """
    runs: dict[int, list[Level]] = {}
    for level in done:
        if level.usable:
            runs.setdefault(level.concurrency, []).append(level)
    if len(runs) < 3:
        return False, None
    top = max(runs)
    before = max((x for x in runs if x <= top / 1.9), default=None)
    if before is None:
        return False, None
    gain, half = _gain(runs[before], runs[top])
    fewest = min(before, top, key=lambda at: (len(runs[at]), -at))
    if abs(gain - rules.flat) < half and len(runs[fewest]) < rules.repeats:
        return gain < rules.flat, fewest
    return gain < rules.flat, None


def _gain(before: Sequence[Level], after: Sequence[Level]) -> tuple[float, float]:
    """Relative gain from one level to another, and half the width of its 90 % interval: 0 where no run has one."""
    ratio = _mean(after) / max(_mean(before), 1e-9)
    spread = math.hypot(*(_half(runs) / max(_mean(runs), 1e-9) for runs in (before, after)))
    return ratio - 1, ratio * spread


def _mean(runs: Sequence[Level]) -> float:
    return float(np.mean([run.tokens_per_s for run in runs]))


def _half(runs: Sequence[Level]) -> float:
    """Half the width of the mean's interval: by the runs' own intervals, or by how they differ where that is more."""
    own = [(run.high - run.low) / 2 for run in runs if run.low is not None and run.high is not None]
    within = math.hypot(*own) / len(runs) if own else 0.0
    if len(runs) < 2:
        return within
    z = NormalDist().inv_cdf(0.95)
    return max(within, z * float(np.std([run.tokens_per_s for run in runs], ddof=1)) / math.sqrt(len(runs)))


def _widest_gap(levels: Sequence[int]) -> int | None:
    """A whole number in the middle of the widest gap, on the logarithmic scale."""
    gaps = [(b / a, a, b) for a, b in pairwise(levels) if b - a > 1]
    if not gaps:
        return None
    _, a, b = max(gaps)
    return min(max(round(math.sqrt(a * b)), a + 1), b - 1)


def _refine(usable: Sequence[Level], levels: Sequence[int], rules: SweepRules) -> Next:
    x = np.array([level.concurrency for level in usable], dtype=np.float64)
    found = saturation.fit(x, np.array([level.tokens_per_s for level in usable]), resamples=200)
    knee = found.knee
    if knee.value is None:
        return Next(None, f"the curve is known from {levels[0]} to {levels[-1]}; {knee.method}")
    if knee.low is not None and knee.high is not None and knee.high - knee.low <= rules.width * knee.value:
        return Next(None, f"the knee is known: {knee.value:.3g} [{knee.low:.3g}, {knee.high:.3g}]")
    below = max(level for level in levels if level <= knee.value)
    above = min((level for level in levels if level > knee.value), default=below)
    if above / below > 1.3 and (middle := _widest_gap([below, above])):
        return Next(middle, "between the levels around the knee", 3)
    counts = {level: sum(run.concurrency == level for run in usable) for level in levels}
    again = min(
        (level for level in levels if below / 2 <= level <= above * 2), key=lambda level: (counts[level], -level)
    )
    return Next(again, "a repeat near the knee, to narrow its interval", 3)


def _pooled(done: Sequence[Trial], rate: float) -> Trial:
    mine = [trial for trial in done if trial.rate == rate]
    effect = max(trial.design_effect for trial in mine)
    return Trial(rate, sum(trial.good for trial in mine), sum(trial.total for trial in mine), effect)


def _verdicts(done: Sequence[Trial], rules: RateRules) -> dict[float, bool | None]:
    """Rate -> passes, fails, or None: the interval of its attainment holds the target and more runs are allowed."""
    return {
        rate: _verdict([trial for trial in done if trial.rate == rate], rules)
        for rate in sorted({trial.rate for trial in done})
    }


def _verdict(mine: Sequence[Trial], rules: RateRules) -> bool | None:
    pooled = _pooled(mine, mine[0].rate)
    low, high = wilson(pooled.good, pooled.total, pooled.design_effect, rules.level)
    if low >= rules.attainment or high < rules.attainment:
        return low >= rules.attainment
    return None if len(mine) < rules.repeats else pooled.good / pooled.total >= rules.attainment


def _confirming(done: Sequence[Trial], rate: float, rules: RateRules) -> list[Trial]:
    """The runs at a rate that were made after those that gave its verdict."""
    mine = [trial for trial in done if trial.rate == rate]
    found = next((n for n in range(1, len(mine) + 1) if _verdict(mine[:n], rules) is not None), len(mine))
    return mine[found:]


def _confirm(done: Sequence[Trial], rate: float, rules: RateRules, known: str) -> Next:
    """The runs that found the answer do not confirm it; as many more do. A failure there changes the pooled verdict."""
    times = len(_confirming(done, rate, rules))
    if times < rules.confirmations:
        return Next(rate, "confirmation", rules.confirmations - times)
    more = f", confirmed by {times} more runs" if times else ", not confirmed: no confirmation was asked for"
    return Next(None, f"{rate:.3g}/s meets the objective, {known}{more}")
