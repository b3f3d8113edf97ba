"""Warm-up truncation and the drain: known transients are cut, chance is not."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from answer_rows import Answer, connect, plain, run
from scipy import signal

from dynamometer.metrics.steady import mser
from dynamometer.metrics.summary import summarize
from dynamometer.types import Load


def test_a_cold_start_is_cut_where_it_ends() -> None:
    chance = np.random.default_rng(1)
    values = 50 * np.exp(0.2 * chance.standard_normal(500))
    values[:40] *= np.linspace(6, 1.2, 40)
    cut = mser(values)
    assert cut.steady
    assert 25 <= cut.index <= 50


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.8])
def test_chance_is_seldom_taken_for_a_warm_up(phi: float) -> None:
    chance, cuts = np.random.default_rng(4), 0
    for _ in range(200):
        noise = signal.lfilter([1], [1, -phi], chance.standard_normal(500))[100:]
        cuts += mser(50 * np.exp(0.3 * noise)).index > 0
    assert cuts <= 6


def test_equal_values_are_steady_and_one_cold_request_is_seen_among_them() -> None:
    values = np.full(200, 50.0)
    assert (mser(values).index, mser(values).steady) == (0, True)
    values[0] = 42_000.0
    assert mser(values).index == 5


def test_a_queue_that_grows_is_no_steady_state() -> None:
    values = np.linspace(50, 500, 400) * np.exp(0.1 * np.random.default_rng(2).standard_normal(400))
    assert not mser(values).steady


def test_one_late_outlier_does_not_decide() -> None:
    values = 50 * np.exp(0.1 * np.random.default_rng(3).standard_normal(400))
    values[390] = 20_000
    assert (mser(values).index, mser(values).steady) == (0, True)


@pytest.mark.parametrize("count", [0, 1, 5, 19, 20, 21, 49, 50, 51])
def test_never_more_than_half_is_cut(count: int) -> None:
    values = np.full(count, 50.0)
    values[: count // 2] = 5000.0
    assert mser(values).index <= (count + 1) // 2


def with_warm_up() -> list[Answer]:
    cold = [Answer(sent=i * 400.0, chunks=[300, 400], usage={"output": 2}) for i in range(10)]
    return cold + [msgspec.structs.replace(a, sent=a.sent + 4000) for a in plain(100, tokens=11)]


def test_an_untagged_warm_up_is_cut_from_figures_and_shown() -> None:
    summary = summarize(connect(with_warm_up()), run())
    assert (summary.window.state, summary.window.cut_requests) == ("cut", 10)
    assert (summary.metrics.ttft_ms.mean, summary.metrics.ttft_ms.n) == (50, 100)
    assert summary.metrics.requests_ok == 110  # counts are over the whole load
    assert summary.window.series[0] == (0.0, 300.0)


def test_the_cut_can_be_switched_off() -> None:
    summary = summarize(connect(with_warm_up()), run(), steady=False)
    assert (summary.window.state, summary.metrics.ttft_ms.n) == ("off", 110)


@pytest.mark.parametrize("law", ["ramp", "step", "burst", "trace"])
def test_a_load_that_moves_by_intention_is_not_cut(law: str) -> None:
    summary = summarize(connect(with_warm_up()), run(Load(law, rate=10)))
    assert (summary.window.state, summary.metrics.ttft_ms.n) == ("off", 110)
    assert law in summary.window.reason


def test_a_sweep_over_levels_is_not_cut() -> None:
    answers = [msgspec.structs.replace(a, level=float(i // 60)) for i, a in enumerate(with_warm_up())]
    assert summarize(connect(answers), run()).window.state == "off"


def test_a_run_that_never_settles_is_kept_whole_and_doubted() -> None:
    answers = [Answer(sent=i * 10.0, chunks=[50 + i * 5, 60 + i * 5], usage={"output": 2}) for i in range(300)]
    summary = summarize(connect(answers), run())
    assert (summary.window.state, summary.metrics.ttft_ms.n) == ("not steady", 300)
    assert "not-steady" in {doubt.kind for doubt in summary.doubts}


def test_a_few_requests_are_too_few_to_tell() -> None:
    assert summarize(connect(plain(10)), run()).window.state == "too short"
