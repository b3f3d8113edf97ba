"""Searches driven by a known response of an engine: how near they come, how many runs they take, when they stop."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from dynamometer.errors import Refused, UsageError
from dynamometer.models import saturation
from dynamometer.models.search import (
    Capacity,
    Level,
    RateRules,
    SweepRules,
    Trial,
    capacity,
    next_level,
    next_rate,
    wilson,
)


def sweep(a: float, b: float, seed: int, rules: SweepRules, sigma: float = 0.03) -> tuple[list[Level], str]:
    """A whole sweep of an engine whose throughput is a·x/(b + x), each run with its own noise."""
    chance = np.random.default_rng(seed)
    done: list[Level] = []
    while (step := next_level(done, rules)).at is not None:
        x = step.at
        assert x == int(x)
        done.append(Level(int(x), a * x / (b + x) * math.exp(sigma * chance.standard_normal())))
    return done, step.reason


@pytest.mark.parametrize("b", [3.0, 20.0, 74.0])
def test_a_sweep_finds_the_knee_of_engines_that_saturate_at_different_loads(b: float) -> None:
    for seed in range(4):
        done, _ = sweep(5000, b, seed, SweepRules(runs=20))
        assert len(done) <= 20
        found = saturation.fit(np.array([d.concurrency for d in done], float), np.array([d.tokens_per_s for d in done]))
        assert found.knee.value == pytest.approx(b, rel=0.35)


def test_a_sweep_stops_early_when_the_knee_is_known() -> None:
    done, reason = sweep(5000, 20, 0, SweepRules(runs=40), sigma=0.005)
    assert "the knee is known" in reason
    assert len(done) <= 16


def test_it_doubles_from_the_first_level_until_throughput_is_flat() -> None:
    done, _ = sweep(5000, 20, 0, SweepRules())
    levels = [d.concurrency for d in done]
    steps = [q == 2 * p for p, q in pairwise(levels)]
    doubled = levels[: (steps.index(False) if False in steps else len(steps)) + 1]
    assert doubled == [2**i for i in range(len(doubled))]
    assert 64 <= doubled[-1] <= 512


def test_levels_are_added_around_the_knee() -> None:
    done, _ = sweep(5000, 20, 1, SweepRules(runs=20), sigma=0.1)
    added = [d.concurrency for d in done if d.concurrency & (d.concurrency - 1)]
    assert added
    assert all(5 <= level <= 80 for level in added)


def test_a_gain_that_the_intervals_leave_open_is_measured_again_before_the_doubling_ends() -> None:
    flat = [Level(1, 100, low=99, high=101), Level(2, 190, low=188, high=192), Level(4, 195, low=165, high=225)]
    step = next_level(flat, SweepRules())
    assert (step.at, "open" in step.reason) == (4, True)
    grew = [*flat, Level(4, 240, low=235, high=245), Level(4, 238, low=236, high=240), Level(2, 190), Level(2, 191)]
    assert next_level(grew, SweepRules()).at == 8
    sure = [*flat[:2], Level(4, 195, low=193, high=197)]
    assert next_level(sure, SweepRules()).reason != step.reason
    tight = next_level(flat, SweepRules(runs=4))
    assert tight.at == 3  # the runs that are left are needed for a curve


def test_a_level_that_is_not_usable_ends_the_doubling() -> None:
    done = [Level(2**i, 100.0 * 2**i) for i in range(5)] + [Level(32, 50.0, usable=False)]
    step = next_level(done, SweepRules())
    assert step.at is None or step.at < 32


def test_an_engine_with_one_slot_is_swept_without_harm() -> None:
    done, reason = sweep(130, 0.001, 0, SweepRules())
    assert len(done) <= 16
    assert reason


def test_a_stopped_sweep_goes_on_where_it_was() -> None:
    done, _ = sweep(5000, 20, 0, SweepRules())
    for n in range(len(done)):
        assert next_level(done[:n], SweepRules()).at == done[n].concurrency


def test_the_last_level_is_not_passed() -> None:
    done, _ = sweep(5000, 1e6, 0, SweepRules(last=48))
    assert max(d.concurrency for d in done) == 48


def test_a_sweep_of_nonsense_is_refused() -> None:
    with pytest.raises(UsageError, match="first <= last"):
        next_level([], SweepRules(first=8, last=4))


def attainment(rate: float, limit: float, width: float = 0.06) -> float:
    """The share of good answers falls from 1 to 0 around the limit, in a band of some percent."""
    return 1 / (1 + math.exp(math.log(rate / limit) / width - math.log(99)))  # 0.99 at the limit


def search(limit: float, seed: int, rules: RateRules, total: int = 800) -> tuple[list[Trial], Capacity]:
    chance = np.random.default_rng(seed)
    done: list[Trial] = []
    while (step := next_rate(done, rules)).at is not None:
        good = int(chance.binomial(total, min(1.0, max(0.0, attainment(step.at, limit)))))
        done.append(Trial(step.at, good, total))
    return done, capacity(done, rules)


@pytest.mark.parametrize("limit", [0.3, 7.0, 90.0])
def test_the_highest_rate_within_the_objective_is_found_and_confirmed(limit: float) -> None:
    for seed in range(10):
        done, found = search(limit, seed, RateRules())
        assert found.rate.value == pytest.approx(limit, rel=0.12)
        assert found.confirmed
        assert len(done) <= 30


def test_the_interval_holds_the_limit_most_of_the_time() -> None:
    held = 0
    for seed in range(60):
        _, found = search(7.0, seed, RateRules(), total=3000)
        assert found.rate.low is not None
        assert found.rate.high is not None
        held += found.rate.low * 0.99 <= 7.0 <= found.rate.high * 1.01
    assert held / 60 > 0.75


def test_a_lucky_pass_does_not_survive_its_confirmation() -> None:
    rules = RateRules(first=8, last=8, attainment=0.9, repeats=1, confirmations=2)
    lucky = [Trial(8, 93, 100)]
    assert next_rate(lucky, rules).at == 8
    assert "confirmation" in next_rate(lucky, rules).reason
    unlucky = [*lucky, Trial(8, 60, 100)]
    assert next_rate(unlucky, rules).at == 4


def test_the_runs_that_gave_a_verdict_do_not_confirm_it() -> None:
    rules = RateRules(first=8, last=8, attainment=0.9, repeats=3, confirmations=2)
    open_at_first = [Trial(8, 91, 100), Trial(8, 91, 100), Trial(8, 91, 100)]
    assert next_rate(open_at_first, rules).reason == "confirmation"
    assert not capacity(open_at_first, rules).confirmed
    done = [*open_at_first, Trial(8, 92, 100), Trial(8, 94, 100)]
    found = capacity(done, rules)
    assert found.confirmed
    assert found.attainment.value == pytest.approx(0.93)  # of the confirming runs alone: the finders were chosen
    assert "confirmed by 2 more runs" in next_rate(done, rules).reason


def test_an_open_verdict_is_repeated_before_it_is_decided() -> None:
    rules = RateRules(attainment=0.9, repeats=3)
    assert next_rate([Trial(4, 89, 100)], rules).reason == "the verdict at this rate is open"
    assert next_rate([Trial(4, 89, 100)] * 3, rules).at == 2  # 0.89 fails by its point estimate


def test_no_rate_at_all_is_said_and_refused() -> None:
    done: list[Trial] = []
    while (step := next_rate(done, RateRules())).at is not None:
        done.append(Trial(step.at, 0, 50))
    assert "no rate meets the objective" in step.reason
    with pytest.raises(Refused, match="no rate has met"):
        capacity(done, RateRules())


def test_an_engine_that_never_fails_is_capped_by_the_last_rate() -> None:
    done: list[Trial] = []
    while (step := next_rate(done, RateRules(last=100))).at is not None:
        done.append(Trial(step.at, 500, 500))
    assert capacity(done, RateRules(last=100)).rate.value == 100
    assert capacity(done, RateRules(last=100)).rate.high is None


class TestWilson:
    def test_known_values(self) -> None:
        low, high = wilson(8, 10, level=0.95)  # Newcombe 1998, table
        assert (low, high) == (pytest.approx(0.490, abs=0.001), pytest.approx(0.943, abs=0.001))

    def test_all_good_still_has_a_width(self) -> None:
        low, high = wilson(50, 50)
        assert low < 0.96
        assert high == 1

    def test_a_design_effect_widens_it(self) -> None:
        assert wilson(270, 300, 3) == wilson(90, 100)

    @pytest.mark.parametrize(("good", "total", "effect"), [(5, 4, 1), (-1, 4, 1), (0, 0, 1), (1, 2, 0.5)])
    def test_nonsense_is_refused(self, good: int, total: int, effect: float) -> None:
        with pytest.raises(UsageError, match="is no share"):
            wilson(good, total, effect)


def test_a_rate_search_of_nonsense_is_refused() -> None:
    with pytest.raises(UsageError, match="attainment between 0 and 1"):
        next_rate([], RateRules(attainment=1.0))
