"""One simulated engine: conservation under any settings, and small cases whose times are known by arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sim_bench import one_engine

from dynamometer.errors import UsageError
from dynamometer.hardware.stepcost import Host, StepCost
from dynamometer.policies.admission import Admission
from dynamometer.policies.batching import Batching
from dynamometer.policies.speculation import Speculation
from dynamometer.sim.paged import Contiguous, Memory, Paged
from dynamometer.sim.rules import Rules
from dynamometer.sim.sequence import Sequence

COST = StepCost(
    (1, 8, 64),
    (0.001, 0.0015, 0.009),
    context_s=1e-5,
    sequence_s=1e-5,
    pair_s=1e-6,
    host=Host(
        decode_s=0.002,
        graph_s=(0.003,),
        eager_s=(0.01, 0.014),
        graph_tokens=16,
        prepare_s=0.001,
        accept_s=0.002,
        arrive_s=0.001,
        reply_s=0.001,
        reply_per_sequence_s=0.0001,
    ),
)


class Watched(Paged):
    """A cache that fails the test when its account is wrong at any moment."""

    def _check(self) -> None:
        assert 0 <= self.used <= self.total
        assert 0 <= self.cached <= self.total - self.used

    def admit(self, sequence: Sequence, tokens: int) -> bool:
        came = super().admit(sequence, tokens)
        self._check()
        return came

    def grow(self, tick: int, ticks: int) -> None:
        super().grow(tick, ticks)
        self._check()

    def release(self, sequence: Sequence) -> None:
        super().release(sequence)
        self._check()


@st.composite
def cases(draw: st.DrawFn) -> tuple[StepCost, list[Sequence], Rules, Memory]:
    depth = draw(st.sampled_from([1, 2]))
    window = draw(st.sampled_from([0, 0, 24]))
    cost = StepCost(
        COST.tokens,
        COST.linear_s,
        context_s=0.0 if window else COST.context_s,
        window_s=1e-5 if window else 0.0,
        window=window,
        sequence_s=COST.sequence_s,
        pair_s=COST.pair_s,
        host=COST.host if draw(st.booleans()) else Host(),
        depth=depth,
    )
    rules = Rules(
        batching=Batching(
            draw(st.sampled_from(["static", "dynamic", "continuous", "chunked"])),
            draw(st.sampled_from([1, 2, 4, 8])),
            draw(st.sampled_from([8, 16, 64, 300])),
            0.05,
        ),
        admission=Admission(draw(st.sampled_from([0, 0, 3])), draw(st.sampled_from(["fcfs", "priority", "shortest"]))),
        speculation=Speculation(draw(st.sampled_from([0, 0, 3])), 0.6, 0.1),
        preemption=draw(st.sampled_from(["recompute", "swap"])),
        swap_s=1e-5,
    )
    share = draw(st.booleans())
    block = draw(st.sampled_from([1, 4, 16]))
    memory: Memory
    if draw(st.booleans()):
        memory = Watched(draw(st.sampled_from([8, 20, 60])), block, window, share)
    else:
        memory = Contiguous(400, draw(st.sampled_from([50, 100, 200])))
    gaps = draw(st.lists(st.floats(0, 0.1), min_size=1, max_size=25))
    asked = []
    for i, at_s in enumerate(np.cumsum(gaps)):
        sequence = Sequence(i, float(at_s), draw(st.integers(1, 60)), draw(st.integers(1, 40)))
        sequence.priority = draw(st.integers(0, 2))
        sequence.prefix = draw(st.integers(-1, 2)) if share else -1
        sequence.prefix_tokens = draw(st.integers(0, 60)) if sequence.prefix >= 0 else 0
        asked.append(sequence)
    return cost, asked, rules, memory


@given(cases())
@settings(max_examples=300, deadline=None)
def test_tokens_in_are_tokens_out_and_no_block_leaks(case: tuple[StepCost, list[Sequence], Rules, Memory]) -> None:
    cost, asked, rules, memory = case
    kept, engine, _ = one_engine(cost, asked, rules, memory)
    assert sorted(s.index for s in kept.done + kept.failed) == [s.index for s in asked]
    assert all(s.error for s in kept.failed)
    for s in kept.done:
        tokens = 1 + (sum(s.yields) if s.yields else len(s.token_s))
        assert tokens == s.output
        times = [s.at_s, s.visible_s, s.admitted_s, s.first_s, *s.token_s]
        assert times == sorted(times)
        assert times[-1] == pytest.approx(s.last_s, abs=1e-12)
    assert memory.used == 0
    assert engine.batch.n == 0
    assert engine.batch.context == pytest.approx(0, abs=1e-6)
    assert engine.loads == [0]
    if isinstance(memory, Paged):
        assert sum(memory._phase) == memory._growing == len(memory._held) == 0


@given(cases())
@settings(max_examples=60, deadline=None)
def test_the_same_seed_gives_the_same_times(case: tuple[StepCost, list[Sequence], Rules, Memory]) -> None:
    cost, asked, rules, _ = case
    again = [Sequence(s.index, s.at_s, s.prompt, s.output) for s in asked]
    plain = [Sequence(s.index, s.at_s, s.prompt, s.output) for s in asked]
    first, _, _ = one_engine(cost, again, rules, Paged(60, 4))
    second, _, _ = one_engine(cost, plain, rules, Paged(60, 4))
    assert [(s.first_s, s.last_s) for s in first.done] == [(s.first_s, s.last_s) for s in second.done]


def test_one_request_on_a_plain_engine_takes_its_prompt_and_its_steps() -> None:
    cost = StepCost((1, 100), (0.010, 0.109), context_s=1e-4)  # 10 ms + 1 ms a token beyond the first
    kept, _, _ = one_engine(cost, [Sequence(0, 1.0, 100, 4)])
    (s,) = kept.done
    assert s.first_s == pytest.approx(1.0 + 0.109)
    steps = [0.010 + 1e-4 * context for context in (100, 101, 102)]
    assert s.token_s == pytest.approx(s.first_s + np.cumsum(steps))
    assert s.last_s == s.token_s[-1]


def test_an_engine_that_schedules_ahead_lets_a_newcomer_wait_for_two_steps() -> None:
    cost = StepCost((1, 2), (0.010, 0.010), depth=2)
    kept, _, _ = one_engine(cost, [Sequence(0, 0.0, 1, 50), Sequence(1, 0.105, 1, 2)])
    late = next(s for s in kept.done if s.index == 1)
    # it came in the 11th step; that one and the 12th, already queued, come first; its own is the 13th
    assert late.first_s == pytest.approx(0.13)
    plain = StepCost((1, 2), (0.010, 0.010), depth=1)
    kept, _, _ = one_engine(plain, [Sequence(0, 0.0, 1, 50), Sequence(1, 0.105, 1, 2)])
    assert next(s for s in kept.done if s.index == 1).first_s == pytest.approx(0.12)


def test_a_slow_launch_holds_back_the_result_of_the_step_before() -> None:
    host = Host(decode_s=0.001, graph_s=(0.030,), eager_s=(0.030,), graph_tokens=8)
    cost = StepCost((1, 2), (0.010, 0.010), host=host, depth=2)
    kept, _, _ = one_engine(cost, [Sequence(0, 0.0, 1, 12), Sequence(1, 0.066, 1, 1)])
    gaps = np.diff(next(s for s in kept.done if s.index == 0).token_s)
    assert gaps.max() == pytest.approx(0.030, abs=0.001)  # one gap is the launch, all others are steps
    assert np.median(gaps) == pytest.approx(0.010)


def test_static_batching_waits_for_a_full_batch_and_dynamic_only_for_its_timeout() -> None:
    cost = StepCost((1, 64), (0.010, 0.010))
    asked = [(0.0, 5), (0.02, 5), (0.5, 5), (0.59, 5)]

    def first_tokens(name: str) -> list[float]:
        rules = Rules(batching=Batching(name, 4, 64, 0.1))
        kept, _, _ = one_engine(cost, [Sequence(i, at_s, 1, n) for i, (at_s, n) in enumerate(asked)], rules)
        return [s.first_s for s in sorted(kept.done, key=lambda s: s.index)]

    assert first_tokens("static") == pytest.approx([0.60] * 4)
    assert first_tokens("dynamic") == pytest.approx([0.11, 0.11, 0.60, 0.60])  # no third will come: no reason to wait
    assert first_tokens("chunked") == pytest.approx([0.01, 0.03, 0.51, 0.60])


def test_a_static_batch_costs_its_full_width_until_its_last_answer_ends() -> None:
    cost = StepCost((1, 2), (0.010, 0.020))  # a step is as long as the batch is wide
    rules = Rules(batching=Batching("static", 2, 64))
    kept, _, _ = one_engine(cost, [Sequence(0, 0.0, 1, 2), Sequence(1, 0.0, 1, 11)], rules)
    ends = {s.index: s.last_s for s in kept.done}
    assert ends[0] == pytest.approx(0.04)
    assert ends[1] == pytest.approx(0.02 * 11)  # with continuous batching the nine last steps would take 10 ms each


def test_whole_prompts_stall_decoding_and_chunks_do_not() -> None:
    cost = StepCost((1, 1000), (0.001, 1.0))
    asked = lambda: [Sequence(0, 0.0, 1, 400), Sequence(1, 0.1, 1000, 1)]  # noqa: E731
    whole, _, _ = one_engine(cost, asked(), Rules(batching=Batching("continuous", 8, 2000)))
    cut, _, _ = one_engine(cost, asked(), Rules(batching=Batching("chunked", 8, 50)))
    worst = lambda kept: max(np.diff(next(s for s in kept.done if s.index == 0).token_s))  # noqa: E731
    assert worst(whole) > 0.99
    assert worst(cut) < 0.06


def test_a_preempted_sequence_computes_its_tokens_again_and_loses_none() -> None:
    cost = StepCost((1, 64), (0.001, 0.002))
    asked = [Sequence(i, 0.001 * i, 16, 40) for i in range(4)]
    kept, _, outcome = one_engine(cost, asked, Rules(batching=Batching("chunked", 8, 64)), Paged(10, 16))
    assert outcome.preemptions > 0
    assert {len(s.token_s) for s in kept.done} == {39}
    evicted = [s for s in kept.done if s.evictions]
    assert max(s.index for s in kept.done if s.evictions) == 3  # the last to come goes first
    assert all(s.last_s > min(o.last_s for o in kept.done) for s in evicted)


def test_swapping_out_costs_the_link_and_computes_nothing_again() -> None:
    cost = StepCost((1, 64), (0.001, 0.064))
    asked = lambda: [Sequence(i, 0.001 * i, 16, 40) for i in range(4)]  # noqa: E731
    rule = Batching("chunked", 8, 64)
    again, _, computed = one_engine(cost, asked(), Rules(batching=rule), Paged(10, 16))
    moved, _, swapped = one_engine(cost, asked(), Rules(batching=rule, preemption="swap", swap_s=1e-6), Paged(10, 16))
    assert computed.preemptions > 0
    assert swapped.preemptions > 0
    assert swapped.prefill_steps < computed.prefill_steps
    assert max(s.last_s for s in moved.done) < max(s.last_s for s in again.done)


def test_speculation_gives_the_expected_number_of_tokens_a_step() -> None:
    guess = Speculation(3, 0.7)
    rules = Rules(batching=Batching("chunked", 4, 64), speculation=guess)
    kept, engine, _ = one_engine(StepCost((1, 8), (0.01, 0.01)), [Sequence(0, 0.0, 1, 20_000)], rules)
    expected = (1 - 0.7**4) / (1 - 0.7)
    assert 19_999 / engine.decode_steps == pytest.approx(expected, rel=0.03)
    assert sum(kept.done[0].yields) == 19_999


def test_what_can_never_fit_is_refused_and_a_full_queue_turns_away() -> None:
    kept, _, _ = one_engine(COST, [Sequence(0, 0.0, 100, 100)], memory=Paged(4, 16))
    assert "KV cache" in kept.failed[0].error
    rules = Rules(batching=Batching("chunked", 1, 8), admission=Admission(queue=2))
    kept, _, _ = one_engine(COST, [Sequence(i, 0.0, 8, 50) for i in range(6)], rules)
    assert any(s.error.startswith("rate-limited") for s in kept.failed)


def test_priority_and_shortest_first_reorder_the_queue() -> None:
    cost = StepCost((1, 100), (0.01, 0.02))

    def order(rule: str) -> list[int]:
        asked = [Sequence(0, 0.0, 10, 20), Sequence(1, 0.01, 50, 1), Sequence(2, 0.02, 10, 1), Sequence(3, 0.03, 30, 1)]
        asked[3].priority = 5
        rules = Rules(batching=Batching("continuous", 1, 100), admission=Admission(order=rule))
        kept, _, _ = one_engine(cost, asked, rules)
        return [s.index for s in sorted(kept.done, key=lambda s: s.first_s)][1:]

    assert order("fcfs") == [1, 2, 3]
    assert order("priority") == [3, 1, 2]
    assert order("shortest") == [2, 3, 1]


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(UsageError, match="batching is 'eager'"):
        Batching("eager")
    with pytest.raises(UsageError, match="preemption is 'drop'"):
        Rules(preemption="drop")
    with pytest.raises(UsageError, match="ascend"):
        StepCost((8, 1), (1.0, 2.0))
    with pytest.raises(UsageError, match="queue order"):
        Admission(order="random")
