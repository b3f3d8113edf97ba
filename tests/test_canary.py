"""The sequential test keeps its stated rates of error: by simulation with known truth, and by its own mathematics."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dynamometer.decisions.canary import Design, Pair, Sums, judge, log_ratio, simulate
from dynamometer.errors import UsageError

TESTS = 3
DESIGN = Design(false_alarm=0.05, miss=0.05, most=10_000)


def sums(values: np.ndarray) -> Sums:
    return Sums(len(values), float(values.sum()), float((values * values).sum()))


@pytest.mark.parametrize(
    ("metric", "margin", "base"),
    [
        ("errors", 0.02, 0.01),
        ("errors", 0.05, 0.1),
        ("text", 0.1, 0.0),
        ("text", 0.1, 0.3),
        ("ttft", 0.2, 0.5),
        ("tpot", 0.1, 0.1),
    ],
)
def test_false_alarms_and_misses_stay_within_what_is_stated(metric: str, margin: float, base: float) -> None:
    trials = 400
    found = simulate(metric, margin, base, DESIGN, TESTS, trials, seed=11)
    noise = 3 * math.sqrt(0.05 * 0.95 / trials)
    assert found.false_alarm <= DESIGN.false_alarm / TESTS + noise
    assert found.miss <= DESIGN.miss + noise
    assert DESIGN.least <= found.samples_to_go < DESIGN.most
    assert DESIGN.least <= found.samples_to_back < DESIGN.most


def test_a_test_that_peeks_with_a_fixed_limit_would_not_keep_its_rate() -> None:
    """The reason for all this: the same data looked at again and again with z > 1.64 alarm far more often."""
    rng = np.random.default_rng(5)
    alarms = sequential = 0
    for _ in range(300):
        steps = rng.standard_normal(2000).cumsum()
        n = np.arange(1, 2001)
        z = steps / np.sqrt(n)
        alarms += bool((z[50:] > 1.645).any())
        at = [log_ratio(steps[i] / n[i], 1 / n[i], 0.1) for i in range(50, 2000, 10)]
        sequential += max(at) >= math.log(20)
    assert alarms / 300 > 0.15
    assert sequential / 300 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 300)


def test_the_mixture_is_the_integral_it_claims_to_be() -> None:
    difference, variance, scale = 0.03, 0.0004, 0.05
    theta = np.linspace(0, 1, 400_001)
    prior = 2 / (scale * math.sqrt(2 * math.pi)) * np.exp(-0.5 * (theta / scale) ** 2)
    ratio = np.exp(theta * difference / variance - 0.5 * theta**2 / variance)
    assert log_ratio(difference, variance, scale) == pytest.approx(
        math.log(np.trapezoid(prior * ratio, theta)), rel=1e-6
    )


def test_too_few_samples_decide_nothing_and_give_no_number() -> None:
    found = judge("errors", Pair(Sums(49, 49.0, 49.0), Sums(500, 0.0, 0.0)), 0.02, DESIGN, TESTS)
    assert found.answer == "wait"
    assert found.harm.value is None


def test_a_better_canary_goes_on_and_a_worse_one_goes_back() -> None:
    rng = np.random.default_rng(3)
    slow, quick = rng.normal(0.4, 0.3, 2000), rng.normal(0.0, 0.3, 2000)
    assert judge("ttft", Pair(sums(quick), sums(slow)), 0.2, DESIGN, TESTS).answer == "go"
    worse = judge("ttft", Pair(sums(slow), sums(quick)), 0.2, DESIGN, TESTS)
    assert worse.answer == "back"
    assert worse.harm.value == pytest.approx(math.exp(0.4) - 1, rel=0.1)


def test_a_rollout_that_cannot_be_decided_goes_back_at_its_limit() -> None:
    half_margin = Pair(Sums(10_000, 200.0, 200.0), Sums(100_000, 1000.0, 1000.0))
    found = judge("errors", half_margin, 0.02, Design(most=10_000, false_alarm=1e-30, miss=1e-30), TESTS)
    assert found.answer == "back"
    assert "undecided" in found.because


def test_rates_that_are_no_chances_are_refused() -> None:
    with pytest.raises(UsageError):
        Design(false_alarm=0)
    with pytest.raises(UsageError):
        Design(least=100, most=50)
