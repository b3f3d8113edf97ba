"""Sums of what a canary and its baseline did in, go on, roll back or wait out, with stated rates of error. Pure.

The test is a mixture sequential probability ratio test (mSPRT): the likelihood ratio of harm, averaged over effects
that are half-normal with the gate's margin as scale. It may be looked at after every request. By Ville's inequality the
chance that it ever crosses 1/alpha when the null holds is at most alpha; that holds for the normal score of a
difference of means, so `least` samples come first, and `simulate` says what the rates really are for small counts.

Two nulls are tested at once: "no harm" (to roll back) and "harm of the margin or more" (to go on).
Source: Robbins 1970; Johari, Pekelis, Walsh 2015 (always valid inference); Jennison and Turnbull 2000, ch. 11 (scores).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import erf, exp, inf, log, log1p, sqrt

import msgspec
import numpy as np
import numpy.typing as npt

from dynamometer.errors import UsageError
from dynamometer.types import Estimate

SHARES = ("errors", "text", "length")  # values from 0 to 1; the margin is a difference
RATIOS = ("ttft", "tpot")  # logarithms of seconds; the margin is a relative increase
METRICS = SHARES + RATIOS


class Sums(msgspec.Struct, frozen=True):
    """Sufficient statistics of one metric on one side."""

    n: int = 0
    total: float = 0.0
    squares: float = 0.0

    def add(self, value: float) -> Sums:
        return Sums(self.n + 1, self.total + value, self.squares + value * value)


class Pair(msgspec.Struct, frozen=True):
    """Both sides of one metric."""

    canary: Sums = Sums()
    baseline: Sums = Sums()


class Design(msgspec.Struct, frozen=True):
    """`false_alarm`: chance that a harmless canary is rolled back, over all gates and stages; `miss`: chance that a
    stage passes a canary which is worse by a margin. `least`, `most`: canary samples of each gate at each stage."""

    false_alarm: float = 0.05
    miss: float = 0.05
    least: int = 50
    most: int = 20_000

    def __post_init__(self) -> None:
        if not (0 < self.false_alarm < 0.5 and 0 < self.miss < 0.5):
            raise UsageError("false_alarm and miss are chances; give more than 0 and less than 0.5, e.g. 0.05")
        if not 10 <= self.least <= self.most:
            raise UsageError(f"least is {self.least} and most {self.most}; give 10 <= least <= most")


class Finding(msgspec.Struct, frozen=True):
    """One gate. `harm`: canary minus baseline (relative for latencies). `answer`: go, back or wait."""

    metric: str
    margin: float
    harm: Estimate
    answer: str
    because: str


class Simulated(msgspec.Struct, frozen=True):
    """What a simulation of one gate gave. Shares of `trials`; `undecided` is part of `false_alarm`."""

    metric: str
    trials: int
    false_alarm: float
    undecided: float
    miss: float
    samples_to_go: float  # median canary samples until a harmless one may go on
    samples_to_back: float  # median until one that is worse by the margin is rolled back


def judge(metric: str, pair: Pair, margin: float, design: Design, tests: int) -> Finding:
    """`tests`: gates times stages, among which the false alarms are shared out."""
    if metric not in METRICS:
        raise UsageError(f"gate is {metric!r}; one of {', '.join(METRICS)}")
    few = min(pair.canary.n, pair.baseline.n)
    if few < design.least:
        nothing = Estimate(None, None, None, few, unit(metric), method=f"{few} samples; {design.least} are wanted")
        return Finding(metric, margin, nothing, "wait", nothing.method)
    difference, variance = score(metric, pair)
    limit = scale(metric, margin)
    harm = log_ratio(difference, variance, limit)
    safe = log_ratio(limit - difference, variance, limit)
    estimate = _estimate(metric, difference, variance, few)
    if harm >= log(tests / design.false_alarm):
        return Finding(
            metric,
            margin,
            estimate,
            "back",
            f"odds of harm {_odds(harm)}, limit {_odds(log(tests / design.false_alarm))}",
        )
    if safe >= -log(design.miss):
        return Finding(metric, margin, estimate, "go", f"odds of less harm than the margin {_odds(safe)}")
    if pair.canary.n >= design.most:
        return Finding(metric, margin, estimate, "back", f"undecided after {pair.canary.n:,} samples, the most allowed")
    return Finding(
        metric, margin, estimate, "wait", f"odds of harm {_odds(harm)}, of less than the margin {_odds(safe)}"
    )


def score(metric: str, pair: Pair) -> tuple[float, float]:
    """Difference of means and its variance. Shares get one 0 and one 1 more on each side (Agresti and Caffo 2000), so
    that a side without any error is not taken for certain."""
    means, variance = [], 0.0
    for side in (pair.canary, pair.baseline):
        more = 2 if metric in SHARES else 0
        n, total, squares = side.n + more, side.total + more / 2, side.squares + more / 2
        mean = total / n
        means.append(mean)
        variance += max(squares / n - mean * mean, 1e-12) / max(n - 1, 1)
    return means[0] - means[1], variance


def log_ratio(difference: float, variance: float, scale_: float) -> float:
    """log of the half-normal mixture's likelihood ratio against a difference of 0 or less."""
    info = 1.0 / variance
    spread = 1.0 + info * scale_ * scale_
    z = scale_ * difference * info / sqrt(spread)
    return log(2.0) - 0.5 * log(spread) + 0.5 * z * z + _log_phi(z)


def scale(metric: str, margin: float) -> float:
    """The margin in the metric's own units."""
    return log1p(margin) if metric in RATIOS else margin


def unit(metric: str) -> str:
    return "relative" if metric in RATIOS else "share"


def _log_phi(z: float) -> float:
    share = 0.5 * (1.0 + erf(z / sqrt(2.0)))
    return log(share) if share > 1e-300 else -inf


def _odds(log_odds: float) -> str:
    return f"{exp(min(log_odds, 27.6)):.3g}:1" if log_odds > -20 else "below 1e-8:1"


def _estimate(metric: str, difference: float, variance: float, n: int) -> Estimate:
    half = 1.96 * sqrt(variance)
    ends = [difference, difference - half, difference + half]
    if metric in RATIOS:
        ends = [exp(end) - 1 for end in ends]
    return Estimate(ends[0], ends[1], ends[2], n, unit(metric), method="normal, of one look; the test is sequential")


def simulate(
    metric: str, margin: float, base: float, design: Design, tests: int, trials: int = 1000, seed: int = 1
) -> Simulated:
    """Whole stages, played with a harmless canary and with one that is worse by the margin.

    `base`: the baseline's share (errors, text, length), or the standard deviation of a latency's logarithm.
    """
    same = _played(metric, margin, base, 0.0, (design, tests), trials, seed)
    worse = _played(metric, margin, base, scale(metric, margin), (design, tests), trials, seed + 1)
    back = np.isin(same[0], (-1, 0))
    return Simulated(
        metric=metric,
        trials=trials,
        false_alarm=float(back.mean()),
        undecided=float((same[0] == 0).mean()),
        miss=float((worse[0] == 1).mean()),
        samples_to_go=float(np.median(same[1])),
        samples_to_back=float(np.median(worse[1])),
    )


def _played(
    metric: str, margin: float, base: float, shift: float, rules: tuple[Design, int], trials: int, seed: int
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.int64]]:
    """Each trial's answer (1 go, -1 back, 0 undecided) and the canary samples until then. Looks grow by 2 %."""
    design, tests = rules
    rng = np.random.default_rng(seed)
    looks = [design.least]
    while looks[-1] < design.most:
        looks.append(min(design.most, max(looks[-1] + 1, int(looks[-1] * 1.02))))
    sums = np.zeros((2, 2, trials))  # side; total, squares
    answer, when = np.zeros(trials, np.int8), np.full(trials, design.most)
    before = 0
    for n in looks:
        for side, moved in ((0, shift), (1, 0.0)):
            sums[side] += _draw(rng, metric, n - before, (base, moved), trials)
        before = n
        for i in np.flatnonzero(answer == 0):
            pair = Pair(Sums(n, *sums[0, :, i].tolist()), Sums(n, *sums[1, :, i].tolist()))
            found = judge(metric, pair, margin, design, tests)
            if found.answer != "wait" and not found.because.startswith("undecided"):
                answer[i], when[i] = (1 if found.answer == "go" else -1), n
        if answer.all():
            break
    return answer, when


def _draw(
    rng: np.random.Generator, metric: str, n: int, at: tuple[float, float], trials: int
) -> npt.NDArray[np.float64]:
    """Totals and sums of squares of n values: shares are 0 or 1, the worst case of their kind."""
    base, moved = at
    if metric in SHARES:
        ones = rng.binomial(n, min(1.0, base + moved), trials).astype(float)
        return np.stack([ones, ones])
    mean = rng.normal(moved, base / sqrt(n), trials)
    spread = base * base * rng.chisquare(n - 1, trials) if n > 1 else np.zeros(trials)
    return np.stack([n * mean, spread + n * mean * mean])


def joined(findings: Mapping[str, Finding]) -> tuple[str, str]:
    """Back if one gate says so, go if all do; with the reason."""
    for name, found in findings.items():
        if found.answer == "back":
            return "back", f"{name}: {found.because}"
    waiting = [f"{name}: {found.because}" for name, found in findings.items() if found.answer == "wait"]
    return ("wait", waiting[0]) if waiting else ("go", "every gate shows less harm than its margin")
