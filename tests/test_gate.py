"""Limits as text: what is read, what is refused, and how a run or a change is judged."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest
from answer_rows import Answer, connect, plain, run
from hypothesis import given
from hypothesis import strategies as st

from dynamometer.decisions import gate
from dynamometer.decisions.compare import compare, measure
from dynamometer.errors import DynoError, GateFailed, UsageError
from dynamometer.metrics.summary import summarize
from dynamometer.types import Objective, Run


def judged(answers: list[Answer], limits: str, manifest: Run | None = None) -> tuple[gate.Met, ...]:
    connection = connect(answers)
    summary = summarize(connection, manifest or run(), steady=False)
    return gate.judge(connection, summary, gate.objectives(limits))


def test_objectives_are_read() -> None:
    assert gate.objectives("ttft_p99<500ms, tpot_p99<=50ms,e2e_mean<1.5s,error_rate<1%,output_tokens_per_s>100") == (
        Objective("ttft", "p99", "<", 500, "ms"),
        Objective("tpot", "p99", "<=", 50, "ms"),
        Objective("e2e", "mean", "<", 1.5, "s"),
        Objective("error_rate", "", "<", 1, "%"),
        Objective("output_tokens_per_s", "", ">", 100, ""),
    )
    assert gate.objectives("itl_p99.9<50ms") == gate.objectives("ITL_P999<50ms")
    assert gate.objectives("tpot_p50<900µs") == gate.objectives("tpot_p50<900us")
    assert gate.objectives("ttft_due_p50<50ms")[0].metric == "ttft_due"


def test_gates_are_read() -> None:
    assert gate.gates("ttft_p99<+5%,output_tokens_per_s>-3%,tpot_mean<+2ms") == (
        gate.Gate("ttft", "p99", "<", 5, "%"),
        gate.Gate("output_tokens_per_s", "", ">", -3, "%"),
        gate.Gate("tpot", "mean", "<", 2, "ms"),
    )


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ("", "is empty; give limits such as"),
        ("ttft_p99", "can't be read"),
        ("ttft_p99<abc", "can't be read"),
        ("ttft_p99==5ms", "can't be read"),
        ("ttft<500ms", "names no statistic; give for example ttft_p99"),
        ("ttft_p98<500ms", "statistics: mean, p50, p90, p95, p99, p999"),
        ("speed_p99<500ms", "names nothing known; metrics: ttft, "),
        ("ttft_p99<500", "has the unit ''; ttft takes us or ms or s"),
        ("ttft_p99<5%", "has the unit '%'"),
        ("goodput>5ms", "has the unit 'ms'; goodput takes no unit"),
        ("ttft_p99<+5ms", "is a change; give a limit such as"),
    ],
)
def test_an_objective_that_cannot_be_meant_says_what_is_wanted(limits: str, said: str) -> None:
    with pytest.raises(UsageError) as wrong:
        gate.objectives(limits)
    assert said in str(wrong.value)


def test_a_gate_without_a_sign_is_refused() -> None:
    with pytest.raises(UsageError, match="has no sign"):
        gate.gates("ttft_p99<5%")


@given(st.text(max_size=30))
def test_no_text_gives_anything_but_limits_or_a_plain_error(limits: str) -> None:
    for read in (gate.objectives, gate.gates):
        with suppress(DynoError):
            assert read(limits)


def test_an_objective_is_met_for_sure_missed_for_sure_or_left_open() -> None:
    chance = np.random.default_rng(1)
    answers = [
        Answer(sent=i * 100.0, chunks=[float(t), float(t) + 10], usage={"output": 2})
        for i, t in enumerate(chance.uniform(10, 90, 1000))
    ]
    verdicts = judged(answers, "ttft_p99<100ms,ttft_p99<80ms,ttft_p50<51ms")
    assert [(one.met, one.sure) for one in verdicts[:2]] == [(True, True), (False, True)]
    assert not verdicts[2].sure


def test_a_small_sample_is_judged_but_never_for_sure() -> None:
    found = judged(plain(60), "ttft_p99<500ms")[0]
    assert (found.met, found.sure, found.observed.value) == (True, False, None)
    assert found.why == "ttft_p99<500ms: met, 50 ms in a sample too small; 60 samples; P99 needs 368"
    assert judged(plain(60), "ttft_p99<10ms")[0].met is False


def test_a_strict_limit_is_strict_and_a_loose_one_is_not() -> None:
    assert [one.met for one in judged(plain(60), "ttft_p50<50ms,ttft_p50<=50ms")] == [False, True]


def test_unfinished_requests_count_against_a_limit() -> None:
    stuck = [Answer(sent=9000 + i, done=400, cancel="deadline") for i in range(60)]
    assert judged([*plain(60), *stuck], "e2e_p95<500ms")[0].met is None
    assert judged(plain(60), "e2e_p95<500ms")[0].met is True


def test_failures_are_seen_by_the_error_rate() -> None:
    answers = [*plain(90), *(Answer(sent=9000 + i, done=1, error="http 503: busy") for i in range(10))]
    assert judged(answers, "error_rate<5%")[0].met is False
    assert judged(answers, "error_rate<=10%")[0].met is True


def test_what_was_not_seen_is_not_met() -> None:
    whole = [Answer(frames=[(90, "whole")], chunks=[90], usage={"output": 9})]
    found = judged(whole, "ttft_p99<500ms")
    assert found[0].met is None
    with pytest.raises(GateFailed, match="not seen"):
        gate.require(found)


def test_require_names_every_limit_that_was_missed_and_only_those() -> None:
    verdicts = judged(plain(60), "ttft_p99<10ms,e2e_p50<1s,tpot_mean<1ms")
    with pytest.raises(GateFailed) as failed:
        gate.require(verdicts)
    assert "ttft_p99<10ms" in str(failed.value)
    assert "tpot_mean<1ms" in str(failed.value)
    assert "e2e_p50" not in str(failed.value)
    gate.require(judged(plain(60), "ttft_p99<500ms"))


def test_a_gate_on_the_same_run_passes_and_on_a_slower_one_fails() -> None:
    one = measure(connect(plain(60)), run())
    slower = measure(connect(plain(60, ttft=60)), run())
    wanted = gate.gates("ttft_p99<+5%,ttft_mean<+5%,output_tokens_per_s>-3%")
    gate.require(gate.judge_change(compare([one], [one]), wanted))
    verdicts = gate.judge_change(compare([one], [slower]), wanted)
    assert [one.passed for one in verdicts[:2]] == [False, False]
    assert "50 to 60 ms (+20.0 %)" in verdicts[0].why
    with pytest.raises(GateFailed):
        gate.require(verdicts)


def test_a_gate_that_noise_explains_passes_but_is_not_sure() -> None:
    chance = np.random.default_rng(9)

    def noisy(scale: float) -> list[Answer]:
        times = scale * np.exp(chance.standard_normal(120))
        return [
            Answer(sent=i * 100.0, chunks=[float(t), float(t) + 9], usage={"output": 2}) for i, t in enumerate(times)
        ]

    repeats = [measure(connect(noisy(50)), run(), steady=False) for _ in range(3)]
    again = [measure(connect(noisy(51)), run(), steady=False) for _ in range(3)]
    found = gate.judge_change(compare(repeats, again), gate.gates("ttft_p95<+0.001%"))[0]
    assert not found.sure
    assert found.passed or "failed" in found.why


def test_a_share_changes_by_points() -> None:
    failing = [*plain(90), *(Answer(sent=9000 + i, done=1, error="http 503: busy") for i in range(10))]
    before, after = measure(connect(plain(100)), run()), measure(connect(failing), run())
    verdicts = gate.judge_change(compare([before], [after]), gate.gates("error_rate<+5%,error_rate<+11%"))
    assert [one.passed for one in verdicts] == [False, True]


def test_a_gate_on_a_tail_that_the_candidate_does_not_have_is_closed() -> None:
    good = measure(connect([Answer(sent=i * 100.0, chunks=[20.0, 30.0]) for i in range(40)]), run())
    shed = [Answer(sent=i * 100.0, **({"chunks": [5.0, 6.0]} if i % 4 else {"error": "http 500"})) for i in range(40)]  # type: ignore[arg-type]
    found = compare([good], [measure(connect(shed), run())])
    (tail, middle) = gate.judge_change(found, gate.gates("ttft_p90<+500%,ttft_p50<+500%"))
    assert tail.passed is False
    assert "25 % of the candidate's requests failed" in tail.why
    assert middle.passed
