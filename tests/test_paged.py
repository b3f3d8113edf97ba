"""The block account against counting by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamometer.errors import UsageError
from dynamometer.sim.paged import Contiguous, Paged
from dynamometer.sim.sequence import Sequence


def joined(memory: Paged, index: int, context: int, tick: int) -> Sequence:
    sequence = Sequence(index, 0.0, context, 10_000)
    assert memory.admit(sequence, context)
    sequence.context, sequence.start_tick = context, tick
    memory.join(sequence, tick)
    return sequence


@given(st.lists(st.integers(1, 70), min_size=1, max_size=6), st.sampled_from([1, 4, 16]), st.integers(0, 60))
def test_growth_by_arithmetic_is_growth_by_counting(contexts: list[int], block: int, ticks: int) -> None:
    memory = Paged(10_000, block)
    for i, context in enumerate(contexts):
        joined(memory, i, context, tick=7)
    memory.grow(7, ticks)
    assert memory.used == sum(-(-(context + ticks) // block) for context in contexts)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=5), st.integers(1, 60), st.integers(1, 80))
def test_the_ticks_that_fit_are_exactly_those_whose_blocks_are_free(contexts: list[int], spare: int, most: int) -> None:
    need = sum(-(-context // 4) for context in contexts)
    memory = Paged(need + spare, 4)
    for i, context in enumerate(contexts):
        joined(memory, i, context, tick=3)
    counted = 0
    while counted < most and sum(-(-(c + counted + 1) // 4) for c in contexts) <= memory.total:
        counted += 1
    assert memory.ticks(3, most) == counted


def test_a_released_sequence_gives_back_what_it_grew_to() -> None:
    memory = Paged(100, 16)
    sequence = joined(memory, 0, 20, tick=0)
    memory.grow(0, 30)
    assert memory.used == 4  # 50 tokens
    memory.part(sequence, 30)
    memory.grow(30, 500)  # nobody grows any more
    assert memory.used == 4
    memory.release(sequence)
    assert memory.used == 0


def test_a_window_bounds_what_a_sequence_holds() -> None:
    memory = Paged(100, 16, window=64)
    assert memory.fits(1_000_000)
    sequence = joined(memory, 0, 1000, tick=0)
    memory.grow(0, 500)
    assert memory.used == 4
    memory.part(sequence, 500)
    memory.release(sequence)
    assert memory.used == 0


def test_a_shared_opening_is_held_once_and_computed_once() -> None:
    memory = Paged(100, 16, share_prefixes=True)
    asked = []
    for i in range(3):
        sequence = Sequence(i, 0.0, 100, 10)
        sequence.prefix, sequence.prefix_tokens = 5, 64
        assert memory.admit(sequence, 100)
        asked.append(sequence)
    assert [s.cached for s in asked] == [0, 64, 64]
    assert memory.used == 4 + 3 * 3  # the opening's four blocks, and three of each one's own
    for sequence in asked:
        memory.release(sequence)
    assert (memory.used, memory.cached) == (0, 4)


def test_an_idle_opening_is_dropped_when_room_is_wanted_the_oldest_first() -> None:
    memory = Paged(12, 16, share_prefixes=True)
    for i, key in enumerate((1, 2)):
        sequence = Sequence(i, 0.0, 65, 1)
        sequence.prefix, sequence.prefix_tokens = key, 64
        assert memory.admit(sequence, 65)
        memory.release(sequence)
    assert memory.cached == 8
    large = Sequence(9, 0.0, 100, 1)
    assert memory.admit(large, 100)  # seven blocks: four are empty, one opening must go
    assert memory.cached == 4
    again = Sequence(10, 0.0, 65, 1)
    again.prefix, again.prefix_tokens = 2, 64
    assert memory.admit(again, 65)
    assert again.cached == 64  # the younger one stayed


def test_a_contiguous_cache_holds_as_many_sequences_as_slabs_whatever_they_need() -> None:
    memory = Contiguous(8192, 2048)
    assert memory.total == 4
    assert [memory.admit(Sequence(i, 0.0, 10, 10), 10) for i in range(5)] == [True] * 4 + [False]
    assert not memory.fits(3000)
    assert Paged(8192 // 16, 16).total * 16 // 32 == 256  # the same bytes in pages: 256 such sequences


def test_caches_without_room_say_so() -> None:
    with pytest.raises(UsageError, match="nothing fits"):
        Paged(0)
    with pytest.raises(UsageError, match="holds no sequence"):
        Contiguous(100, 200)
