"""What a simulated replica carries, against queueing theory and against its own speed."""

from __future__ import annotations

import math

import pytest

from dynamometer.carry import Ask, carry, largest, most, pooled, slower, trial
from dynamometer.decisions.capacity import Conditions, Level, Option
from dynamometer.decisions.gate import objectives
from dynamometer.decisions.plan import Context
from dynamometer.hardware.stepcost import StepCost
from dynamometer.policies.batching import Batching
from dynamometer.provision import Twin, provision
from dynamometer.sim.rules import Rules
from dynamometer.sim.setup import Cache, Setup
from dynamometer.types import Provenance, Workload

STEP_S = 0.01
# one request at a time, one step of 10 ms each: an M/D/1 queue
SINGLE = Setup(StepCost((1,), (STEP_S,)), Cache(100_000), Rules(Batching("continuous", 1, 64)))
ONE_STEP = Workload("synthetic", input_tokens="8", output_tokens="1")


def ask(limits: str) -> Ask:
    return Ask(ONE_STEP, objectives(limits))


def test_a_replica_that_is_never_idle_answers_one_request_a_step() -> None:
    assert most(SINGLE, ask("e2e_mean<1s")) == pytest.approx(1 / STEP_S, rel=0.02)


def test_the_largest_rate_is_that_of_the_queue() -> None:
    """M/D/1: the mean time is D + ρD / 2(1 - ρ). Within 20 ms for D = 10 ms means ρ = 2/3, 66.7 requests/s."""
    passed, failed = largest(SINGLE, ask("e2e_mean<20ms"), 100.0)
    assert passed is not None
    assert failed is not None
    assert passed.rate_per_s == pytest.approx(66.7, rel=0.06)
    assert passed.rate_per_s < failed.rate_per_s


def test_an_engine_that_does_not_keep_up_fails_whatever_its_limit() -> None:
    seen = trial(SINGLE, ask("e2e_mean<1000s"), 150.0)
    assert not seen.met
    assert "it answers" in seen.failed


def test_a_limit_that_no_load_meets_says_which_and_by_what() -> None:
    found = carry(SINGLE, 0.0, ask("e2e_mean<5ms"), 0.9)
    assert found.levels == ()
    assert "e2e_mean<5ms fails with 10" in found.why


def test_an_uncertain_model_has_to_meet_the_objective_slower() -> None:
    """90 % of a step time that may be wrong by 20 %: e^(1.2816 × 0.2) = 1.292 times as slow."""
    found = slower(SINGLE, 0.2, 0.9)
    assert found.cost.linear_s[0] / STEP_S == pytest.approx(math.exp(1.2816 * 0.2), rel=1e-4)
    unsure = carry(SINGLE, 0.2, ask("e2e_mean<20ms"), 0.9)
    assert [level.chance for level in unsure.levels] == [0.9, 0.5]
    assert unsure.levels[0].rate_per_s < unsure.levels[1].rate_per_s
    assert unsure.levels[1].rate_per_s == pytest.approx(66.7, rel=0.06)


def test_a_router_evens_out_what_single_replicas_can_not() -> None:
    """Four servers behind one queue of 80 % hold a tail that one at 80 % misses."""
    limits = ask("e2e_p95<30ms")
    assert not trial(SINGLE, limits, 80.0).met
    assert pooled(SINGLE, limits, 4, 320.0).met


def option(name: str, rate: float, usd: float, provenance: Provenance) -> Option:
    return Option(name, 1, usd, (usd, usd), (Level(rate, 0.95, "seen"),), provenance, "source")


def test_a_simulated_fleet_is_tried_together_and_shrunk() -> None:
    found = provision(
        [option("twin", 40.0, 1.0, Provenance.SIMULATED)],
        {"twin": Twin(SINGLE, 0.0)},
        ask("e2e_p95<30ms"),
        Conditions(320, headroom=0.0, lose="none"),
        Context("e2e_p95<30ms"),
    )
    assert found.fleet is not None
    assert found.fleet.replicas < 8
    assert any("together, simulated: it stands" in text for text in found.checks)
    assert any("saves" in text for text in found.checks)


def test_a_measured_fleet_is_left_to_its_measurements() -> None:
    found = provision(
        [option("seen", 40.0, 1.0, Provenance.MEASURED)],
        {},
        ask("e2e_p95<30ms"),
        Conditions(320, headroom=0.0, lose="none"),
        Context("e2e_p95<30ms"),
    )
    assert found.fleet is not None
    assert found.fleet.replicas == 8
    assert found.checks == ()
    assert found.provenance == {"seen": "measured"}
