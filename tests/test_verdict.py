"""One plain sentence: what was measured, whether it meets the objective, what limits it, or why not to believe it."""

from __future__ import annotations

import msgspec
from answer_rows import Answer, connect, plain, run

from dynamometer.decisions.gate import judge, objectives
from dynamometer.decisions.verdict import decide
from dynamometer.metrics.summary import summarize
from dynamometer.types import Decision, Load, Provenance, Run


def decided(answers: list[Answer], limits: str = "", manifest: Run | None = None) -> Decision:
    connection = connect(answers)
    slo = objectives(limits) if limits else ()
    summary = summarize(connection, manifest or run(slo=slo))
    return decide(summary, judge(connection, summary, slo))


def test_a_run_without_an_objective_says_what_was_measured() -> None:
    found = decided(plain(100))
    assert found.question == "What was measured?"
    assert found.answer.startswith("Measured: 30 output tokens/s, ")
    assert "half of the answers begin within 50 ms, then come at 100 tokens/s each." in found.answer


def test_a_simulated_run_is_never_called_measured() -> None:
    found = decided(plain(100), manifest=run(driver=Provenance.SIMULATED))
    assert found.answer.startswith("Simulated: ")
    assert found.evidence == ("simulated: run-1",)
    assert "easured" not in found.answer


def test_an_objective_is_met_for_sure_or_in_a_small_sample() -> None:
    sure = decided([*plain(400)], "ttft_p99<500ms,tpot_p99<50ms")
    assert sure.answer.endswith("It meets the objective.")
    small = decided(plain(60), "ttft_p99<500ms")
    assert "It meets the objective in this sample, which is too small to be sure of ttft_p99<500ms." in small.answer


def test_a_missed_objective_says_what_limits_it() -> None:
    slow_decode = decided(plain(100, step=80.0), "tpot_p50<50ms")
    assert "It misses the objective: tpot_p50<50ms. The limit is decoding" in slow_decode.answer
    queue = [Answer(sent=i * 100.0, chunks=[2000.0 if i % 8 == 0 else 50.0], usage={"output": 1}) for i in range(200)]
    assert "The limit is a queue or stalls: half begin within 50 ms" in decided(queue, "ttft_p95<500ms").answer
    assert "wait that all requests share" in decided(plain(100, ttft=900), "ttft_p50<500ms").answer
    refusing = [*plain(80), *(Answer(sent=8000 + i, done=5, error="http 429: slow down") for i in range(20))]
    assert "The limit is refusal" in decided(refusing, "error_rate<1%").answer


def test_an_objective_that_was_not_seen_is_not_met() -> None:
    whole = [Answer(sent=i * 100.0, frames=[(90, "whole")], chunks=[90], usage={"output": 9}) for i in range(50)]
    assert "can't be said: ttft_p99<500ms was not seen" in decided(whole, "ttft_p99<500ms").answer


def test_a_run_that_is_not_to_be_believed_says_so_first_and_how_to_mend_it() -> None:
    late = [msgspec.structs.replace(a, due=a.sent - 500) for a in plain(100)]
    slo = objectives("ttft_p99<500ms")
    found = decided(late, "ttft_p99<500ms", run(Load("constant", rate=10), slo=slo))
    assert found.answer.startswith("Do not use this run: the client sent late")
    assert "To mend it: use more workers" in found.answer


def test_the_first_doubt_is_in_the_sentence_and_all_are_among_the_reasons() -> None:
    found = decided([*plain(90), *(Answer(sent=9000 + i, done=5) for i in range(5))])
    assert "Mind: " in found.answer
    assert any("held no token" in reason for reason in found.because)


def test_how_far_the_answer_is_from_turning_is_told() -> None:
    found = decided(plain(400), "ttft_p50<100ms")
    assert found.flips == ("ttft_p50<100ms turns if the figure changes by +100 %",)


def test_a_run_without_any_answer_is_told_in_one_sentence() -> None:
    assert decided([]).answer.startswith("Do not use this run: no request was sent")
    assert "no request was answered" in decided([Answer(done=3, error="http 500: no")]).answer
