"""Two systems' outcomes on the same questions in; the drop with its interval, McNemar's test and the number of
questions that would show a drop out.

Sources: McNemar 1947 (exact form: a binomial test on the pairs that differ); Connor 1987 for the sample size; Efron's
percentile bootstrap over pairs. No verdict is given inside the noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Final

import msgspec
import numpy as np

from dynamometer.errors import UsageError
from dynamometer.models.search import wilson
from dynamometer.types import Estimate

DRAWS: Final = 10_000
SHOWN_DROPS: Final = (1.0, 2.0, 4.6, 6.8)  # points; the last two are drops that reports of quantized models print
POWER: Final = 0.8


class Paired(msgspec.Struct, frozen=True):
    """Counts of pairs, and what follows. Drops are points of a hundred, positive when the candidate is worse."""

    n: int
    both: int  # right in both
    lost: int  # right in the baseline alone: flipped to wrong
    won: int  # right in the candidate alone: flipped to right
    neither: int
    baseline: Estimate
    candidate: Estimate
    drop: Estimate
    chance: float  # exact McNemar, two-sided
    smallest: float  # points: the smallest drop that so many questions show in four of five trials
    needed: Mapping[str, int]  # drop in points -> questions that show it in four of five trials
    verdict: str


def paired(baseline: Sequence[bool], candidate: Sequence[bool], margin: float = 0.0, seed: int = 0) -> Paired:
    """`margin`: points that may be lost; with one, "not worse by more than the margin" can be a verdict."""
    if len(baseline) != len(candidate) or not baseline:
        raise UsageError(f"{len(baseline)} and {len(candidate)} answers are no pairs; both need the same questions")
    a, b = np.asarray(baseline, dtype=bool), np.asarray(candidate, dtype=bool)
    n, lost, won = len(a), int((a & ~b).sum()), int((~a & b).sum())
    both, neither = int((a & b).sum()), int((~a & ~b).sum())
    drop = drop_of(n, lost, won, seed)
    # nobody knows the share of pairs that differ before the run; what was seen is the best guess, never below one pair
    differing = max(lost + won, 1) / n
    said = Paired(
        n, both, lost, won, neither, _share(int(a.sum()), n), _share(int(b.sum()), n), drop, mcnemar(lost, won),
        100 * smallest_drop(n, differing),
        {f"{d:g}": questions_for(d / 100, max(differing, d / 100)) for d in SHOWN_DROPS},
        "",
    )  # fmt: skip
    return msgspec.structs.replace(said, verdict=_verdict(said, margin))


def mcnemar(lost: int, won: int) -> float:
    """Exact two-sided chance of a split at least as uneven, were both directions alike. 1 when no pair differs."""
    n, k = lost + won, min(lost, won)
    if not n:
        return 1.0
    logs = [math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1) for i in range(k + 1)]
    return min(1.0, 2 * math.fsum(math.exp(log - n * math.log(2)) for log in logs))


def drop_of(n: int, lost: int, won: int, seed: int = 0, level: float = 0.95) -> Estimate:
    """The drop in points with a paired bootstrap interval: pairs are drawn anew with replacement.

    Where no pair differs every draw is the same, which is no proof: the interval is then the largest share of pairs
    that would go unseen with chance 1 - level (Clopper and Pearson).
    """
    value = 100 * (lost - won) / n
    if not lost + won:
        edge = 100 * (1 - ((1 - level) / 2) ** (1 / n))
        return Estimate(0.0, -edge, edge, n, "points", level, "no pair differs; bound of what could go unseen")
    shares = [lost / n, won / n, 1 - (lost + won) / n]
    drawn = np.random.default_rng(seed).multinomial(n, shares, DRAWS)
    low, high = np.quantile(100 * (drawn[:, 0] - drawn[:, 1]) / n, [(1 - level) / 2, (1 + level) / 2])
    return Estimate(value, float(low), float(high), n, "points", level, f"paired bootstrap, {DRAWS:,} draws")


def questions_for(drop: float, differing: float, power: float = POWER, level: float = 0.95) -> int:
    """Questions that show a drop (a share, e.g. 0.046) with the given power, when `differing` of the pairs differ."""
    if not 0 < drop <= differing <= 1:
        raise UsageError(f"a drop of {drop:g} needs a share of differing pairs from {drop:g} to 1, not {differing:g}")
    z_level, z_power = NormalDist().inv_cdf(0.5 + level / 2), NormalDist().inv_cdf(power)
    root = z_level * math.sqrt(differing) + z_power * math.sqrt(max(0.0, differing - drop * drop))
    return math.ceil((root / drop) ** 2)


def questions_unpaired(drop: float, share: float, power: float = POWER, level: float = 0.95) -> int:
    """Questions for each of two systems that are asked different ones, around a share right: what pairing saves."""
    lower = share - drop
    if not 0 < drop < 1 or not 0 <= lower <= share <= 1:
        raise UsageError(f"a drop of {drop:g} from {share:g} is none")
    z = NormalDist().inv_cdf(0.5 + level / 2) + NormalDist().inv_cdf(power)
    return math.ceil(z * z * (share * (1 - share) + lower * (1 - lower)) / drop**2)


def smallest_drop(n: int, differing: float) -> float:
    """The smallest drop (a share) that n questions show with a power of four in five; 1 when none."""
    low, high = 1e-6, 1.0
    if questions_for(high, 1.0) > n:
        return 1.0
    for _ in range(50):
        middle = (low + high) / 2
        if questions_for(middle, max(differing, middle)) > n:
            low = middle
        else:
            high = middle
    return high


def _share(right: int, n: int) -> Estimate:
    low, high = wilson(right, n, level=0.95)
    return Estimate(100 * right / n, 100 * low, 100 * high, n, "%", 0.95, "Wilson")


def _verdict(found: Paired, margin: float) -> str:
    value, low, high = (float(x or 0.0) for x in (found.drop.value, found.drop.low, found.drop.high))
    span = f"{value:+.1f} points [{low:+.1f}, {high:+.1f}]"
    if low > 0 and found.chance < 0.05:
        return f"worse: it loses {span}, McNemar p = {found.chance:.2g}"
    if high < 0 and found.chance < 0.05:
        return f"better: its drop is {span}, McNemar p = {found.chance:.2g}"
    if margin and high < margin:
        return f"not worse by more than {margin:g} points: its drop is {span}"
    seen = f"{found.n:,} questions show a drop of {found.smallest:.1f} points or more"
    return f"no verdict: the drop of {span} is inside the noise (p = {found.chance:.2g}); {seen}"
