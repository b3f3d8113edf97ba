"""The simulator against queueing theory. Service is a number of steps: M/G/1 with a geometric or fixed one is exact."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sim_bench import one_engine, poisson, sojourn_s

from dynamometer.hardware.stepcost import StepCost
from dynamometer.policies.batching import Batching
from dynamometer.sim.rules import Rules

STEP_S = 1e-3
FLAT = StepCost((1,), (STEP_S,))  # a step takes a millisecond whatever is in it
RUNS = 12
REQUESTS = 4000


def mean_and_error(rule: Rules, cost: StepCost, rate: float, outputs: str, seed: int) -> tuple[float, float]:
    """Mean sojourn time over independent runs, and its standard error."""
    found = []
    for run in range(RUNS):
        chance = np.random.default_rng([seed, run])
        lengths = chance.geometric(1 / 100, REQUESTS) if outputs == "geometric" else np.full(REQUESTS, 100)
        kept, _, _ = one_engine(cost, poisson(chance, rate, lengths), rule)
        found.append(float(sojourn_s(kept)[400:].mean()))
    return float(np.mean(found)), float(np.std(found, ddof=1) / math.sqrt(RUNS))


def slots(size: int) -> Rules:
    return Rules(batching=Batching("chunked", size, 4 * size + 8), keep_tokens=False)


def inside(theory: float, mean: float, error: float) -> bool:
    """Within 3.5 standard errors and a step: arrivals wait for the boundary, half a step on average."""
    return abs(mean - theory) < 3.5 * error + STEP_S


def test_one_slot_with_geometric_service_is_m_m_1() -> None:
    mean, error = mean_and_error(slots(1), FLAT, 6.0, "geometric", 1)
    assert inside(1 / (10 - 6), mean, error)


def test_one_slot_with_fixed_service_is_m_d_1() -> None:
    rate, service = 7.0, 0.1
    theory = service + rate * service**2 / (2 * (1 - rate * service))  # Pollaczek–Khinchine
    mean, error = mean_and_error(slots(1), FLAT, rate, "fixed", 2)
    assert inside(theory, mean, error)


def test_steps_as_long_as_the_batch_is_large_are_processor_sharing_for_any_service() -> None:
    sharing = StepCost((1, 2), (STEP_S, 2 * STEP_S))
    for outputs, seed in (("geometric", 3), ("fixed", 4)):
        mean, error = mean_and_error(slots(5000), sharing, 6.0, outputs, seed)
        theory = 0.1 / (1 - 0.6)
        assert abs(mean - theory) < 3.5 * error + 0.03 * theory, outputs  # a newcomer's first step is a whole round


@pytest.mark.parametrize(("servers", "rate"), [(2, 15.0), (5, 42.0)])
def test_several_slots_are_erlang_c(servers: int, rate: float) -> None:
    load = rate * 0.1
    full = load**servers / math.factorial(servers) * servers / (servers - load)
    waits = full / (sum(load**k / math.factorial(k) for k in range(servers)) + full)
    mean, error = mean_and_error(slots(servers), FLAT, rate, "geometric", 5)
    assert inside(0.1 + waits / (servers * 10 - rate), mean, error)


def test_littles_law_holds_exactly_over_a_run_that_starts_and_ends_empty() -> None:
    chance = np.random.default_rng(6)
    kept, _, _ = one_engine(FLAT, poisson(chance, 20, chance.geometric(1 / 100, 2000)), slots(4))
    begins = np.array([s.at_s for s in kept.done])
    ends = np.array([s.last_s for s in kept.done])
    moments = np.sort(np.concatenate([begins, ends]))
    inside_now = np.searchsorted(np.sort(begins), moments, "right") - np.searchsorted(np.sort(ends), moments, "right")
    area = float(np.sum(inside_now[:-1] * np.diff(moments)))
    span = moments[-1] - moments[0]
    rate = len(kept.done) / span
    assert area / span == pytest.approx(rate * float(np.mean(ends - begins)), rel=1e-9)


def test_the_waiting_time_of_a_saturated_engine_grows_by_the_surplus() -> None:
    """At twice the capacity the n-th request waits about n · (service − gap): a fluid limit."""
    kept, _, _ = one_engine(FLAT, poisson(np.random.default_rng(7), 20, np.full(3000, 100)), slots(1))
    assert sojourn_s(kept)[-1] == pytest.approx(3000 * (0.1 - 0.05), rel=0.05)
