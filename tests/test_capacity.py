"""Fleets against counting by hand and by brute force; the chance of an objective against the normal law."""

from __future__ import annotations

from itertools import product
from statistics import NormalDist

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynamometer.decisions.capacity import (
    Conditions,
    Level,
    Option,
    capacity,
    cheapest_mix,
    fewest,
    fleet,
    lost,
    stands,
)
from dynamometer.decisions.front import Choice, front
from dynamometer.decisions.gate import Met, objectives
from dynamometer.decisions.levels import fell_behind, met_chance, usable
from dynamometer.decisions.plan import Context, plan
from dynamometer.errors import UsageError
from dynamometer.types import Estimate, Provenance


def option(name: str, rate: float, usd: float, per_node: int = 8, chance: float | None = 0.99) -> Option:
    levels = (Level(rate, chance, "seen"),)
    return Option(name, 1, usd, (usd, usd), levels, Provenance.MEASURED, "run", per_node)


PLAIN = Conditions(100, headroom=0.0, lose="none")


# ── one kind ──


def test_without_conditions_the_fewest_is_a_division() -> None:
    found = fewest(option("a", 10, 2), PLAIN)
    assert found is not None
    assert (found.replicas, found.usd_per_hour, found.binds) == (10, 20, "peak with headroom")


def test_headroom_is_a_share_of_the_peak() -> None:
    found = fewest(option("a", 10, 2), Conditions(100, headroom=0.25, lose="none"))
    assert found is not None
    assert found.replicas == 13


def test_the_loss_of_a_zone_leaves_the_peak() -> None:
    """15 over three zones lose 5 and leave 10 × 10; 14 also lose 5 and leave 90."""
    found = fewest(option("a", 10, 2), Conditions(100, headroom=0.2, lose="zone", zones=3))
    assert found is not None
    assert (found.replicas, found.after_loss_per_s, found.binds) == (15, 100, "loss of a zone")


def test_the_loss_of_a_node_takes_what_stands_on_it() -> None:
    """16 replicas of 8 a node stand on two and lose 8: 8 are left. 17 stand on three, lose 6 and leave 11."""
    one, conditions = option("a", 10, 2, per_node=8), Conditions(100, headroom=0.2, lose="node")
    assert [lost(count, one, conditions) for count in (12, 16, 17)] == [6, 8, 6]
    found = fewest(one, conditions)
    assert found is not None
    assert (found.replicas, found.after_loss_per_s, found.binds) == (17, 110, "loss of a node")


def test_one_replica_alone_never_stands_a_loss() -> None:
    found = fewest(option("a", 1000, 2), Conditions(1, lose="node"))
    assert found is not None
    assert found.replicas == 2


def test_no_load_that_meets_the_objective_is_no_fleet() -> None:
    assert fewest(option("a", 10, 2, chance=0.5), PLAIN) is None
    assert fewest(option("a", 10, 2, chance=None), PLAIN) is None


def test_capacity_stops_at_the_first_level_that_fails() -> None:
    levels = tuple(Level(rate, chance, "") for rate, chance in ((5, 0.99), (10, 0.95), (15, 0.2), (20, 0.99)))
    one = Option("a", 1, 1, (1, 1), levels, Provenance.MEASURED, "")
    found = capacity(one, 0.9)
    assert found is not None
    assert found.rate_per_s == 10


def test_traffic_in_the_wrong_unit_is_noticed() -> None:
    with pytest.raises(UsageError, match="requests a second"):
        fewest(option("a", 10, 2), Conditions(1e9))


# ── mixes ──


def test_a_mix_can_be_cheaper_than_either_kind() -> None:
    """110 requests/s: two of 100 cost 20, eleven of 10 cost 16.5, one of each 11.5."""
    found = cheapest_mix([option("big", 100, 10), option("small", 10, 1.5)], Conditions(110, headroom=0, lose="none"))
    assert found is not None
    assert found.counts == {"big": 1, "small": 1}
    assert found.usd_per_hour == 11.5


@settings(max_examples=60, deadline=None)
@given(
    rates=st.tuples(st.integers(3, 40), st.integers(3, 40)),
    prices=st.tuples(st.integers(1, 20), st.integers(1, 20)),
    nodes=st.tuples(st.integers(1, 8), st.integers(1, 8)),
    lose=st.sampled_from(["none", "node", "zone"]),
)
def test_the_cheapest_mix_is_that_of_brute_force(
    rates: tuple[int, int], prices: tuple[int, int], nodes: tuple[int, int], lose: str
) -> None:
    kinds = [option(name, r, p, n) for name, r, p, n in zip("ab", rates, prices, nodes, strict=True)]
    conditions = Conditions(50, headroom=0.2, lose=lose)
    named = {one.name: one for one in kinds}
    best = min(
        found.usd_per_hour
        for a, b in product(range(45), range(45))
        if stands(found := fleet({"a": a, "b": b}, named, conditions), conditions)
    )
    found = cheapest_mix(kinds, conditions)
    assert found is not None
    assert found.usd_per_hour == best
    assert stands(found, conditions)


# ── the plan ──


def test_the_plan_explains_the_runner_up_and_what_would_flip_it() -> None:
    found = plan([option("a", 10, 2), option("b", 10, 2.2)], PLAIN, Context("ttft_p99<1s"))
    assert found.fleet is not None
    assert found.runner_up is not None
    assert (found.fleet.counts, found.runner_up.counts) == ({"a": 10}, {"b": 10})
    assert "Runner-up: 10 × b (measured), +10%" in found.decision.answer
    assert any("9.09 % cheaper" in text for text in found.decision.flips)
    assert found.provenance == {"a": "measured"}


def test_a_choice_that_rests_on_a_simulation_names_the_measured_fleet_beside_it() -> None:
    twin = msgspec.structs.replace(option("twin", 10, 1), provenance=Provenance.SIMULATED)
    found = plan([twin, option("seen", 10, 2)], PLAIN, Context("x"))
    assert "capacity simulated" in found.decision.answer
    assert "measured, not simulated: 10 × seen for 20 USD an hour (+100%)" in found.decision.because


def test_what_can_not_meet_the_objective_is_left_out_with_its_reason() -> None:
    found = plan([option("a", 10, 2, chance=0.3)], PLAIN, Context("ttft_p99<1s"))
    assert found.fleet is None
    assert "30%" in found.excluded[0].why


def test_easier_conditions_are_told_only_when_they_save() -> None:
    found = plan([option("a", 10, 2)], Conditions(100, lose="zone"), Context("x"))
    assert any(text.startswith("without a loss: 12 × a, 6 USD") for text in found.decision.flips)
    assert not any(text.startswith("at even odds") for text in found.decision.flips)


def test_the_days_mean_carries_the_bill_of_the_peak() -> None:
    """10 replicas at 2 USD for a peak of 100/s that is half used: 20 USD an hour for 180,000 requests."""
    found = plan([option("a", 10, 2)], PLAIN, Context("x", mean_over_peak=0.5, duty_hours=12))
    assert found.usd_per_thousand_requests == pytest.approx(1000 * 20 / 180_000)
    assert found.usd_per_day == 240


# ── the chance ──


def met(value: float | None, low: float | None, high: float | None, limits: str = "ttft_p99<500ms") -> Met:
    (objective,) = objectives(limits)
    return Met(objective, Estimate(value, low, high, 999, "ms"), True, True, "")


def test_the_chance_is_that_of_a_normal_law_on_logs() -> None:
    """An interval up to 484 at 95 % puts 500 at ln(500/400) / (ln(484/400) / 1.96) = 2.295 standard deviations."""
    found = met_chance(met(400, 331, 484))
    assert found == pytest.approx(NormalDist().cdf(2.2945), abs=1e-3)
    assert met_chance(met(500, 450, 560)) == pytest.approx(0.5)


def test_a_figure_without_an_interval_has_no_chance() -> None:
    assert met_chance(met(400, None, None)) is None
    assert met_chance(met(None, None, None)) is None


def test_an_exact_figure_is_sure_either_way() -> None:
    assert met_chance(met(0.0, 0.0, 0.0, "error_rate<1%")) == 1
    assert met_chance(met(600, 600, 600)) == 0


@pytest.mark.parametrize("limits", ["goodput>5", "ttft_p99>1ms", "output_tokens_per_s>5"])
def test_an_objective_that_load_does_not_run_into_is_refused(limits: str) -> None:
    with pytest.raises(UsageError, match="upper limits"):
        usable(objectives(limits))


@pytest.mark.parametrize(
    ("rate", "asked", "window_s", "in_flight", "behind"),
    [
        (0.27, 0.3, 30.0, 1.0, False),  # 8 of 9: chance
        (100.0, 150.0, 15.0, 60.0, True),  # 750 short of 2,250
        (9.4, 10.0, 20.0, 4.0, False),  # 12 short, 28 + 4 are explained
        (9.4, 10.0, 2000.0, 4.0, True),  # 1,200 short
    ],
)
def test_an_open_loopfell_behind_when_neither_chance_nor_the_last_requests_explain_it(
    rate: float, asked: float, window_s: float, in_flight: float, behind: bool
) -> None:
    assert fell_behind(rate, asked, window_s, in_flight) is behind


# ── the front ──


def test_the_front_of_three_figures_keeps_what_nothing_beats() -> None:
    made = [
        Choice("cheap", {"usd": 1, "ms": 9, "w": 5}),
        Choice("fast", {"usd": 5, "ms": 1, "w": 5}),
        Choice("cool", {"usd": 5, "ms": 9, "w": 1}),
        Choice("beaten", {"usd": 5, "ms": 9, "w": 5}),
        Choice("unknown", {"usd": 0.1}),
    ]
    assert [one.name for one in front(made, ("usd", "ms", "w"))] == ["cheap", "fast", "cool"]
    assert [one.name for one in front([made[0], made[0]], ("usd",))] == ["cheap", "cheap"]
