"""Several engines: routing, closed loops, conversations, and prompts computed elsewhere."""

from __future__ import annotations

import numpy as np
import pytest
from sim_bench import Kept, poisson

from dynamometer.errors import UsageError
from dynamometer.hardware.stepcost import StepCost
from dynamometer.policies.batching import Batching
from dynamometer.policies.routing import RULES, affinity, least_loaded, round_robin, two_choices
from dynamometer.sim.cluster import Cluster, Link
from dynamometer.sim.feed import Streams
from dynamometer.sim.paged import Paged
from dynamometer.sim.replica import Replica
from dynamometer.sim.rules import Rules, Sink
from dynamometer.sim.sequence import Sequence

COST = StepCost((1, 1000), (0.001, 0.1))


def engine(sink: Sink, place: int) -> Replica:
    return Replica(COST, Rules(batching=Batching("chunked", 4, 512)), Paged(10_000), sink, place)


def mean_e2e_s(route: str, replicas: int = 8, seed: int = 1) -> float:
    chance = np.random.default_rng(seed)
    kept = Kept()
    asked = poisson(chance, 280, chance.geometric(1 / 60, 4000), prompt=10)
    for sequence in asked:
        sequence.key = sequence.index % 97
    Cluster(engine, replicas, route, kept).run_open(iter(asked))
    assert len(kept.done) == 4000
    return float(np.mean([s.last_s - s.at_s for s in kept.done]))


def test_looking_at_loads_beats_taking_turns_and_two_looks_are_nearly_as_good_as_all() -> None:
    turns, two, all_loads = (mean_e2e_s(r) for r in ("round-robin", "two-choices", "least-loaded"))
    assert all_loads < turns
    assert two < turns * 1.02
    assert abs(two - all_loads) < abs(turns - all_loads)


def test_engines_that_run_on_their_own_give_the_same_times_as_on_one_time_line() -> None:
    chance = np.random.default_rng(3)
    lengths = chance.geometric(1 / 60, 500)
    ends = []
    for conversations in (False, True):  # True keeps all engines on the common time line
        kept = Kept()
        asked = poisson(np.random.default_rng(4), 100, lengths, prompt=10)
        Cluster(engine, 4, "round-robin", kept).run_open(iter(asked), conversations)
        ends.append({s.index: (s.first_s, s.last_s) for s in kept.done})
    assert ends[0] == ends[1]


def test_routing_rules_choose_as_they_say() -> None:
    assert [round_robin(t, -1, [5, 0, 0]) for t in range(4)] == [0, 1, 2, 0]
    assert least_loaded(0, -1, [3, 1, 1]) == 1
    assert {affinity(t, 42, [0] * 7) for t in range(50)} == {affinity(0, 42, [0] * 7)}
    assert affinity(0, -1, [2, 1]) == 1
    seen = {two_choices(t, -1, [9, 9, 0, 9]) for t in range(200)}
    assert seen == {0, 1, 2, 3}
    hits = sum(two_choices(t, -1, [9, 9, 0, 9]) == 2 for t in range(4000)) / 4000
    assert hits == pytest.approx(1 - (3 / 4) ** 2, abs=0.03)  # one of two looks finds the idle one
    with pytest.raises(UsageError, match="routing is 'random'"):
        Cluster(engine, 1, "random", Kept())
    assert set(RULES) == {"round-robin", "least-loaded", "two-choices", "affinity"}


def test_a_closed_loop_never_has_more_in_flight_than_streams() -> None:
    kept = Kept()
    asked = (Sequence(i, 0.0, 10, 20) for i in range(200))
    Cluster(engine, 2, "least-loaded", kept).run_closed(asked, Streams(6))
    assert len(kept.done) == 200
    begins, ends = np.sort([s.sent_s for s in kept.done]), np.sort([s.last_s for s in kept.done])
    moments = np.concatenate([begins, ends])
    inside = np.searchsorted(begins, moments, "right") - np.searchsorted(ends, moments, "right")
    assert inside.max() == 6
    assert [s.sent_s for s in kept.done].count(0.0) == 6


def test_a_closed_loop_stops_by_time_and_starts_when_it_is_told() -> None:
    kept = Kept()
    asked = (Sequence(i, 0.0, 10, 20) for i in range(10_000))
    Cluster(engine, 1, "round-robin", kept).run_closed(asked, Streams(2, until_s=1.0, starts_s=(0.25, 0.5)))
    assert min(s.sent_s for s in kept.done) == 0.25
    assert max(s.sent_s for s in kept.done) <= 1.0
    with pytest.raises(UsageError, match="3 start times for 2 streams"):
        Streams(2, starts_s=(0.0, 0.0, 0.0))


def test_a_turn_waits_for_the_answer_before_it_and_for_the_pause() -> None:
    first, second = Sequence(0, 0.0, 10, 50), Sequence(1, 0.01, 20, 5)
    for sequence in (first, second):
        sequence.session = "talk"
    second.after, second.think_s = 0, 2.0
    kept = Kept()
    Cluster(engine, 2, "affinity", kept).run_open(iter([first, second]), conversations=True)
    assert second.sent_s == pytest.approx(first.last_s + 2.0)
    assert second.first_s > second.sent_s


def test_disaggregated_prompts_do_not_disturb_decoding_and_the_cache_takes_its_time() -> None:
    kept = Kept()
    asked = [Sequence(i, 0.2 * i, 500, 30) for i in range(20)]
    cluster = Cluster(engine, 1, "round-robin", kept, (engine, 1), Link(0.010, 1e-4))
    cluster.run_open(iter(asked))
    assert len(kept.done) == 20
    for s in kept.done:
        assert s.output == 30
        assert len(s.token_s) == 29
        assert s.token_s[0] - s.first_s >= 0.010 + 1e-4 * 500  # the transfer stands between first and second token
        assert max(np.diff(s.token_s)) < 0.0025  # no prompt ever stalls a decode step
    together = Kept()
    Cluster(engine, 1, "round-robin", together).run_open(iter([Sequence(i, 0.2 * i, 500, 300) for i in range(20)]))
    assert max(max(np.diff(s.token_s)) for s in together.done) > 0.04


def test_a_cluster_without_engines_is_refused() -> None:
    with pytest.raises(UsageError, match="number of replicas is 0"):
        Cluster(engine, 0, "round-robin", Kept())
