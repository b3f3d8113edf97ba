"""Kubernetes' HPA, KEDA and Ray Serve against the worked examples of their documentation and against arithmetic."""

from __future__ import annotations

import math
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamometer.errors import UsageError
from dynamometer.policies import hpa
from dynamometer.policies.autoscale import Pod, Scaler, Seen
from dynamometer.policies.hpa import Behavior, Bounds, Direction, Hpa, Limit, Memory, Timing, Tolerance
from dynamometer.policies.keda import Rule, keda
from dynamometer.policies.rayserve import RayServe

WIDE = Bounds(1, 1000)
AT = (0.0, 300.0)


def pods(*milli: int | None) -> tuple[Pod, ...]:
    return tuple(Pod(value) for value in milli)


def wanted(current: int, target: int, fleet: tuple[Pod, ...]) -> int | None:
    return hpa.plain(current, target, hpa.group(fleet, False, Timing(), 1000.0), Tolerance())


def utilization(current: int, target: int, fleet: tuple[Pod, ...], now_s: float = 1000.0) -> int | None:
    return hpa.utilization(current, target, hpa.group(fleet, True, Timing(), now_s), Tolerance())


def down(current: int, to: int, behavior: Behavior, steps: int, every_s: float) -> list[int]:
    """The replicas after each round of a controller that is asked for `to` all the time."""
    memory, seen = Memory(), []
    for step in range(steps):
        current, _, memory = hpa.settle(current, to, memory, WIDE, behavior, (step * every_s, 300.0))
        seen.append(current)
    return seen


# ── the documentation's worked examples ──


def test_twice_the_target_doubles_the_replicas_and_half_of_it_halves_them() -> None:
    assert wanted(4, 100, pods(200, 200, 200, 200)) == 8
    assert wanted(4, 100, pods(50, 50, 50, 50)) == 2


def test_eighty_replicas_shrink_by_ten_per_cent_a_minute_and_below_forty_by_four() -> None:
    rule = Direction(0.0, (Limit("pods", 4, 60.0), Limit("percent", 10, 60.0)))
    seen = down(80, 10, Behavior(down=rule), 15, 60.0)
    assert seen[:2] == [72, 64]  # 8 of 80; 7.2 of 72 is rounded up to 8
    below = [value for value in [80, *seen] if value <= 40]
    assert [a - b for a, b in pairwise(below)][:5] == [4, 4, 4, 4, 4]
    assert seen[-1] == 10


def test_the_smallest_change_is_chosen_where_select_policy_is_min() -> None:
    rule = Direction(0.0, (Limit("percent", 10, 60.0), Limit("pods", 5, 60.0)), "min")
    assert down(100, 1, Behavior(down=rule), 3, 60.0) == [95, 90, 85]
    assert down(30, 1, Behavior(down=rule), 1, 60.0) == [27]


def test_disabled_keeps_a_fleet_from_shrinking() -> None:
    assert down(10, 1, Behavior(down=Direction(0.0, (), "disabled")), 5, 60.0) == [10] * 5


def test_a_window_of_a_minute_holds_the_highest_recommendation_of_that_minute() -> None:
    behavior = Behavior(down=Direction(60.0, (Limit("percent", 100, 15.0),)))
    memory, current, seen = Memory(), 10, []
    for step, asked in enumerate([10, 4, 4, 4, 4, 4]):
        current, _, memory = hpa.settle(current, asked, memory, WIDE, behavior, (15.0 * step, 300.0))
        seen.append(current)
    assert seen == [10, 10, 10, 10, 4, 4]  # at 60 s the recommendation of 0 s is a minute old


def test_by_default_a_fleet_doubles_or_grows_by_four_in_fifteen_seconds() -> None:
    memory, current, seen = Memory(), 1, []
    for step in range(5):
        current, because, memory = hpa.settle(current, 100, memory, WIDE, Behavior(), (15.0 * step, 300.0))
        seen.append(current)
        assert because == "rate limit"
    assert seen == [5, 10, 20, 40, 80]


def test_without_a_behavior_the_limit_is_twice_the_present_or_four() -> None:
    assert hpa.settle(1, 100, Memory(), WIDE, None, AT)[0] == 4
    assert hpa.settle(10, 100, Memory(), WIDE, None, AT)[0] == 20


def test_without_a_behavior_the_fleet_shrinks_only_after_five_minutes() -> None:
    memory = Memory(((0.0, 9),))
    assert hpa.settle(9, 2, memory, WIDE, None, (300.0, 300.0))[0] == 9
    assert hpa.settle(9, 2, memory, WIDE, None, (300.5, 300.0))[0] == 2


def test_a_policy_counts_what_changed_within_its_period() -> None:
    rule = Behavior(up=Direction(0.0, (Limit("pods", 4, 60.0),)))
    memory, current, seen = Memory(), 10, []
    for step in range(6):
        current, _, memory = hpa.settle(current, 100, memory, WIDE, rule, (15.0 * step, 300.0))
        seen.append(current)
    assert seen == [14, 14, 14, 14, 18, 18]


# ── the arithmetic ──


def test_a_ratio_within_a_tenth_changes_nothing() -> None:
    assert wanted(3, 1000, pods(1100, 1100, 1100)) == 3
    assert wanted(3, 1000, pods(900, 900, 900)) == 3
    assert wanted(3, 1000, pods(1101, 1101, 1101)) == 4
    assert wanted(10, 1000, pods(*[899] * 10)) == 9


def test_the_mean_is_cut_to_whole_thousandths() -> None:
    assert wanted(3, 1000, pods(1100, 1100, 1102)) == 3  # 3302 / 3 = 1100.67, which is cut to 1100


def test_utilization_is_cut_to_a_whole_per_cent() -> None:
    fleet = tuple(Pod(milli, started_s=-1e6, changed_s=-1e6, request_milli=1000) for milli in (559, 559, 559))
    assert utilization(3, 50, fleet) == 3  # 55.9 % is cut to 55 %, and 55 / 50 lies within the tolerance


def test_a_pod_without_a_sample_uses_nothing_where_the_fleet_would_grow_and_the_target_where_it_would_shrink() -> None:
    assert wanted(3, 100, pods(250, 250, None)) == 5  # 500 / 3 = 166 → ceil(1.66 · 3)
    assert wanted(3, 100, pods(30, 30, None)) == 2  # 160 / 3 = 53 → ceil(0.53 · 3)
    assert wanted(3, 100, pods(100, 100, None)) == 3


def test_a_change_of_direction_after_the_second_look_is_no_change() -> None:
    assert wanted(4, 100, pods(130, None, None, None)) == 4  # 1.3 without, 0.32 with the three that say nothing


def test_a_pending_pod_damps_growth_and_is_no_reason_to_shrink() -> None:
    starting = Pod(None, ready=False, phase="pending", started_s=None)
    assert wanted(3, 100, (*pods(250, 250), starting)) == 5
    assert wanted(3, 100, (*pods(30, 30), starting)) == 1  # only what runs is counted: ceil(0.3 · 2)


def test_failed_and_deleted_pods_are_in_no_mean() -> None:
    gone = (Pod(10_000, deleting=True), Pod(10_000, phase="failed"))
    assert wanted(2, 100, (*pods(100, 100), *gone)) == 2


def test_without_any_sample_there_is_no_answer() -> None:
    assert wanted(2, 100, pods(None, None)) is None
    choice, _ = Hpa(100).step("sync", Seen(0.0, 2, pods(None, None)))
    assert choice.replicas == 2
    assert choice.because == "no sample"


def test_cpu_of_a_pod_that_has_just_started_is_not_load() -> None:
    old = Pod(600, started_s=-1e6, changed_s=-1e6)
    young = Pod(3000, started_s=980.0, changed_s=995.0, sampled_s=1000.0, window_s=30.0)
    assert utilization(2, 30, (old, young)) == 2  # ratio 2 with the old one alone; (600 + 0) / 2000 = 30 %
    warm = msgspec.structs.replace(young, changed_s=960.0)
    assert utilization(2, 30, (old, warm)) == 12  # (600 + 3000) / 2000 = 180 % → 6 · 2


def test_an_unready_pod_counts_once_it_has_been_ready_after_the_initial_delay() -> None:
    never = Pod(900, ready=False, started_s=0.0, changed_s=10.0)
    once = Pod(900, ready=False, started_s=0.0, changed_s=500.0)
    groups = hpa.group((never, once), True, Timing(), 1000.0)
    assert groups.unready == (never,)
    assert groups.ready == (once,)


def test_a_number_of_the_whole_fleet_is_a_ratio_or_is_shared_out() -> None:
    tolerance = Tolerance()
    assert hpa.value(3, 100, 250, 3, tolerance) == 8  # ceil(2.5 · 3)
    assert hpa.value(3, 100, 250, 2, tolerance) == 5  # only the ready ones
    assert hpa.value(0, 100, 250, 0, tolerance) == 3
    assert hpa.average_value(3, 100, 330, tolerance) == 3  # 1.1, within
    assert hpa.average_value(3, 100, 331, tolerance) == 4
    assert hpa.average_value(0, 100, 1, tolerance) == 1


def test_of_several_metrics_the_largest_wins_and_a_silent_one_forbids_shrinking() -> None:
    assert hpa.largest(5, [3, 7, 4]) == 7
    assert hpa.largest(5, [3, None]) is None
    assert hpa.largest(5, [7, None]) == 7


def test_a_tolerance_may_differ_by_direction() -> None:
    eager = Tolerance(up=0.0, down=0.5)
    groups = hpa.group(pods(101, 101), False, Timing(), 0.0)
    assert hpa.plain(2, 100, groups, eager) == 3
    assert hpa.plain(2, 100, hpa.group(pods(51, 51), False, Timing(), 0.0), eager) == 2


@given(
    milli=st.lists(st.integers(0, 10**6), min_size=1, max_size=50),
    target=st.integers(1, 10**5),
    up=st.floats(0, 0.5),
)
def test_with_every_pod_heard_the_answer_is_the_formula_of_the_documentation(
    milli: list[int], target: int, up: float
) -> None:
    ratio = (sum(milli) // len(milli)) / target
    tolerance = Tolerance(up, up)
    found = hpa.plain(len(milli), target, hpa.group(pods(*milli), False, Timing(), 0.0), tolerance)
    expected = len(milli) if (1 - up) <= ratio <= (1 + up) else math.ceil(ratio * len(milli))
    assert found == expected


@given(st.lists(st.integers(0, 60), min_size=1, max_size=60), st.integers(0, 600), st.integers(0, 600))
def test_whatever_is_asked_the_replicas_stay_within_their_bounds_and_limits(
    asked: list[int], up_s: int, down_s: int
) -> None:
    behavior = Behavior(
        Direction(float(up_s), (Limit("pods", 3, 60.0),)), Direction(float(down_s), (Limit("pods", 2, 30.0),))
    )
    bounds, memory, current = Bounds(2, 40), Memory(), 10
    history = [(0.0, current)]
    for step, wish in enumerate(asked):
        now_s = 15.0 * (step + 1)
        current, _, memory = hpa.settle(current, wish, memory, bounds, behavior, (now_s, 300.0))
        history.append((now_s, current))
        before = [n for at_s, n in history[:-1] if at_s <= now_s - 60] or [10]
        assert 2 <= current <= 40
        if current > history[-2][1]:
            assert current <= before[-1] + 3  # no more than 3 above what there was a minute ago
        recent = [n for at_s, n in history[:-1] if at_s <= now_s - 30] or [10]
        if current < history[-2][1]:
            assert current >= recent[-1] - 2


# ── signals that mislead (published faults) ──


def test_a_gauge_that_stops_at_the_slots_can_never_reach_a_target_above_them() -> None:
    scaler: Scaler = Hpa(2000, bounds=Bounds(1, 10))
    for step in range(40):
        choice, scaler = scaler.step("sync", Seen(15.0 * step, 1, pods(1000)))
        assert choice.replicas == 1


def test_utilization_near_full_climbs_to_the_maximum_with_one_request_a_pod() -> None:
    groups = hpa.group(pods(970, 970, 970), False, Timing(), 0.0)
    assert hpa.plain(3, 600, groups, Tolerance()) == 5
    scaler: Scaler = Hpa(600, bounds=Bounds(1, 12))
    current = 3
    for step in range(40):
        choice, scaler = scaler.step("sync", Seen(15.0 * step, current, pods(*[970] * current)))
        current = choice.replicas
    assert current == 12


def test_a_counter_read_as_a_gauge_runs_to_the_maximum_and_stays() -> None:
    rule = Hpa(1_000_000, bounds=Bounds(1, 10))
    assert rule.wanted(Seen(0.0, 1, pods(9_000_000_000))) == 9000
    scaler: Scaler = rule
    current = 1
    for step in range(10):
        choice, scaler = scaler.step("sync", Seen(15.0 * step, current, pods(*[9_000_000_000] * current)))
        current = choice.replicas
    assert current == 10


# ── KEDA ──


def test_keda_wakes_a_fleet_from_nothing_only_above_the_activation_value() -> None:
    scaler = keda(Rule(5000, activation_milli=10_000))
    choice, scaler = scaler.step("poll", Seen(0.0, 0, (), 10_000))
    assert choice.replicas == 0  # equal is not above
    choice, scaler = scaler.step("poll", Seen(30.0, 0, (), 10_001))
    assert choice.replicas == 1
    choice, scaler = scaler.step("sync", Seen(31.0, 1, pods(0), 60_000))
    assert choice.wanted == 12
    assert choice.replicas == 4  # twice the present or four


def test_keda_puts_a_fleet_to_sleep_once_the_cooldown_is_over() -> None:
    scaler = keda(Rule(5000, cooldown_s=300.0))
    _, scaler = scaler.step("poll", Seen(0.0, 1, pods(0), 100))
    for at_s, replicas in ((30.0, 1), (300.0, 1), (330.0, 0)):
        choice, scaler = scaler.step("poll", Seen(at_s, 1, pods(0), 0))
        assert choice.replicas == replicas


def test_keda_goes_to_the_idle_number_and_back_to_the_minimum() -> None:
    scaler = keda(Rule(5000, least=3, idle=1, cooldown_s=60.0))
    _, scaler = scaler.step("poll", Seen(0.0, 3, pods(0, 0, 0), 100))
    choice, scaler = scaler.step("poll", Seen(90.0, 3, pods(0, 0, 0), 0))
    assert choice.replicas == 1
    choice, scaler = scaler.step("sync", Seen(91.0, 1, pods(0), 0))
    assert choice.replicas == 1  # the HPA, whose minimum is 3, leaves an idle fleet alone
    choice, scaler = scaler.step("poll", Seen(120.0, 1, pods(0), 1))
    assert choice.replicas == 3


def test_with_a_minimum_keda_never_goes_to_nothing() -> None:
    scaler = keda(Rule(5000, least=2))
    choice, _ = scaler.step("poll", Seen(1e6, 2, pods(0, 0), 0))
    assert choice.replicas == 2


# ── Ray Serve ──


def test_ray_serve_asks_for_requests_in_flight_over_target() -> None:
    rule = RayServe(target=2.0, most=10)
    assert rule.wanted(40.0, 4) == 20
    assert rule.wanted(4.0, 4) == 2
    assert msgspec.structs.replace(rule, upscaling=0.5).wanted(40.0, 4) == 12  # half the way from 4 to 20
    assert msgspec.structs.replace(rule, downscaling=0.1).wanted(6.0, 4) == 3  # 3.9 would round up to 4 for ever


def test_ray_serve_waits_until_it_has_wanted_more_for_the_whole_delay() -> None:
    scaler: Scaler = RayServe(target=2.0, most=10, upscale_delay_s=30.0)
    grown_s = None
    for tick in range(450):
        load = 0.0 if tick == 100 else 12_000  # one quiet moment at 10 s starts the delay again
        choice, scaler = scaler.step("control", Seen(tick / 10, 1, pods(0), int(load)))
        if choice.replicas > 1:
            grown_s = tick / 10
            assert choice.replicas == 6
            break
    assert grown_s == pytest.approx(10.1 + 30.0 - 0.0, abs=0.11)


def test_ray_serve_starts_from_nothing_at_once() -> None:
    choice, _ = RayServe(least=0, most=5).step("control", Seen(0.0, 0, (), 1000))
    assert choice.replicas == 1
    choice, _ = RayServe(least=0, most=5).step("control", Seen(0.0, 0, (), 0))
    assert choice.replicas == 0


def test_ray_serve_goes_to_zero_only_from_one() -> None:
    scaler: Scaler = RayServe(least=0, most=5, downscale_delay_s=0.0)
    choice, scaler = scaler.step("control", Seen(0.0, 4, pods(0, 0, 0, 0), 0))
    assert choice.replicas == 1
    choice, scaler = scaler.step("control", Seen(1.0, 1, pods(0), 0))
    assert choice.replicas == 0


# ── settings that are none ──


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Bounds(5, 2),
        lambda: Limit("pods", 0, 15.0),
        lambda: Limit("percent", 10, 3600.0),
        lambda: Direction(-1.0, (Limit("pods", 1, 15.0),)),
        lambda: Direction(0.0, ()),
        lambda: Direction(0.0, (), "most"),
        lambda: Hpa(0),
        lambda: Hpa(100, kind="guess"),
        lambda: Rule(100, least=2, idle=2),
        lambda: RayServe(target=0.0),
    ],
)
def test_a_setting_that_means_nothing_is_refused(wrong: object) -> None:
    assert callable(wrong)
    with pytest.raises(UsageError):
        wrong()
