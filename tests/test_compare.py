"""Two runs side by side: known differences are found, equal things are not told apart, intervals hold their level."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from answer_rows import Answer, connect, plain, run
from scipy import signal

from dynamometer.decisions.compare import NONE, Change, Comparison, block_length, compare, latency_changes, measure
from dynamometer.errors import UsageError
from dynamometer.types import Load, Workload


def timed(ttft_ms: np.ndarray, step: float = 10.0, tokens: int = 6) -> list[Answer]:
    return [
        Answer(
            sent=i * 100.0, chunks=[float(t) + k * step for k in range(tokens)], usage={"output": tokens}, asked=tokens
        )
        for i, t in enumerate(ttft_ms)
    ]


def change(found: Comparison, metric: str, statistic: str) -> Change:
    return next(one for one in found.changes if (one.metric, one.statistic) == (metric, statistic))


def against(before: np.ndarray, after: np.ndarray) -> Comparison:
    sides = [measure(connect(timed(values)), run(), steady=False) for values in (before, after)]
    return compare(sides[:1], sides[1:])


def test_a_run_against_itself_shows_no_difference_in_any_figure() -> None:
    one = measure(connect(timed(np.random.default_rng(1).lognormal(4, 0.4, 400))), run())
    found = compare([one], [one])
    assert found.paired == 400
    assert {one.verdict for one in found.changes} == {NONE}
    assert change(found, "ttft", "p99").difference.value == 0


def test_pairs_find_a_small_gain_that_the_prompts_own_spread_would_hide() -> None:
    chance = np.random.default_rng(2)
    prompts = chance.lognormal(4, 1.0, 400)
    found = against(prompts, prompts * 0.98 + chance.normal(0, 0.3, 400))
    assert found.paired == 400
    assert change(found, "ttft", "p50").ratio.value == pytest.approx(0.98, abs=0.01)
    mean = change(found, "ttft", "mean")
    assert mean.difference.high is not None
    assert mean.difference.high < 0


def test_without_pairs_the_same_gain_is_not_shown() -> None:
    chance = np.random.default_rng(2)
    prompts = chance.lognormal(4, 1.0, 400)
    one = measure(connect(timed(prompts)), run(), steady=False)
    other = measure(connect(timed(prompts * 0.98)), run(workload=Workload("sql")), steady=False)
    found = compare([one], [other])
    assert (found.paired, change(found, "ttft", "mean").verdict) == (0, NONE)
    assert "unpaired" in found.notes[0]


def test_a_slower_engine_is_called_slower_in_latency_and_in_rate() -> None:
    chance = np.random.default_rng(3)
    sides = [
        measure(connect(timed(50 + chance.uniform(0, 5, 400), step)), run(), steady=False) for step in (10.0, 15.0)
    ]
    found = compare(sides[:1], sides[1:])
    assert change(found, "tpot", "mean").verdict == "slower"
    assert change(found, "itl", "p99").verdict == "slower"
    assert change(found, "tpot", "mean").ratio.value == pytest.approx(1.5)
    assert change(compare(sides[1:], sides[:1]), "e2e", "p50").verdict == "faster"


def test_too_few_requests_for_a_tail_give_no_interval_and_no_verdict() -> None:
    found = change(against(np.full(60, 50.0), np.full(60, 90.0)), "ttft", "p99")
    assert (found.before, found.after, found.difference.value, found.verdict) == (50, 90, None, NONE)
    assert "needs 368" in found.difference.method


def test_only_requests_that_both_runs_answered_are_paired() -> None:
    before = plain(60)
    after = [msgspec.structs.replace(a, error="http 500: no") if i % 2 else a for i, a in enumerate(plain(60))]
    found = compare([measure(connect(before), run())], [measure(connect(after), run())])
    assert found.paired == 30
    assert change(found, "error_rate", "").after == 0.5
    assert change(found, "error_rate", "").verdict == "worse"


def test_repeats_set_the_noise_floor() -> None:
    """Runs of one thing differ by 10 %; a gain of 5 % between two sets is then no gain, however many requests there
    are."""
    chance = np.random.default_rng(4)

    def repeat(scale: float) -> list[Answer]:
        return timed(scale * (50 + chance.uniform(0, 1, 200)))

    before = [measure(connect(repeat(s)), run(), steady=False) for s in (0.9, 1.0, 1.1)]
    after = [measure(connect(repeat(s)), run(), steady=False) for s in (0.85, 0.95, 1.05)]
    mean = change(compare(before, after), "ttft", "mean")
    assert mean.difference.high is not None
    assert mean.difference.high < 0  # within the runs the difference is plain
    assert mean.noise is not None
    assert mean.noise > 5
    assert mean.verdict == NONE


def test_the_interval_of_a_difference_holds_its_level_on_correlated_requests() -> None:
    """Two independent AR(1) runs without a difference, phi 0.6: 0 lies inside in about 95 of 100."""
    chance, inside = np.random.default_rng(6), {"mean": 0, "p50": 0, "p90": 0}
    for _ in range(150):
        runs = [
            200 + 20 * np.asarray(signal.lfilter([1], [1, -0.6], chance.standard_normal(500))[100:]) for _ in range(2)
        ]
        for one in latency_changes("ttft", runs[:1], runs[1:], False, chance):
            low, high = one.difference.low, one.difference.high
            if one.statistic in inside and low is not None and high is not None:
                inside[one.statistic] += low <= 0 <= high
    assert all(count >= 0.88 * 150 for count in inside.values()), inside


def test_blocks_are_longer_where_neighbours_are_alike() -> None:
    chance = np.random.default_rng(7)
    noise = chance.standard_normal(2000)
    assert block_length(noise) <= 8
    assert block_length(np.asarray(signal.lfilter([1], [1, -0.9], noise))) > 20
    assert block_length(np.full(10, 3.0)) == 1


def test_a_comparison_names_what_else_differs() -> None:
    one = measure(connect(plain(30)), run(machine={"cores": 2, "cpu": "a"}))
    other = measure(connect(plain(30)), run(Load("closed", 2), machine={"cores": 4, "cpu": "a"}, status="complete"))
    notes = " ".join(compare([one], [other]).notes)
    assert "machine differs in cores" in notes
    assert "load differs" in notes


def test_nothing_to_compare_is_said() -> None:
    with pytest.raises(UsageError, match="nothing to compare"):
        compare([], [])


def test_empty_runs_compare_to_nothing_and_do_not_break() -> None:
    one = measure(connect([]), run())
    found = compare([one], [one])
    assert all(change.verdict == NONE for change in found.changes)
    assert msgspec.json.decode(msgspec.json.encode(found), type=Comparison) == found


def test_a_run_that_is_not_to_be_believed_is_named() -> None:
    good = measure(connect(timed(np.full(30, 20.0))), run())
    bad = measure(connect([Answer(error="http 500: no", done=5.0) for _ in range(30)]), run())
    assert compare([good], [bad]).unbelievable == (bad.run.id,)
    assert compare([good], [good]).unbelievable == ()
