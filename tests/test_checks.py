"""Each doubt: a run that deserves it has it, a sound run has none."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from answer_rows import Answer, connect, plain, run

from dynamometer.metrics.summary import summarize
from dynamometer.types import Doubt, Load, Run, Workload


def doubts(
    answers: Sequence[Answer], manifest: Run | None = None, samples: Sequence[tuple[str, float, float]] = ()
) -> dict[str, Doubt]:
    found = summarize(connect(answers, samples), manifest or run()).doubts
    assert all(doubt.message and doubt.remedy for doubt in found)
    return {doubt.kind: doubt for doubt in found}


def sent_at(times_ms: Sequence[float] | np.ndarray, due_ms: Sequence[float] | np.ndarray | None = None) -> list[Answer]:
    due = times_ms if due_ms is None else due_ms
    return [
        Answer(sent=float(t), due=float(d), chunks=[50, 60, 70], usage={"output": 3, "prompt": 7})
        for t, d in zip(times_ms, due, strict=True)
    ]


def test_a_sound_run_has_no_doubt() -> None:
    assert doubts(plain(200)) == {}
    even = run(Load("constant", rate=10))
    assert doubts(plain(200), even, [("cpu_foreign_cores", i * 1000.0, 0.02) for i in range(20)]) == {}


def test_a_poisson_schedule_that_is_poisson_has_no_doubt() -> None:
    times = np.cumsum(np.random.default_rng(1).exponential(20.0, 2000))
    assert doubts(sent_at(times), run(Load("poisson", rate=50))) == {}


def test_a_late_client_is_doubted_and_a_very_late_one_is_fatal() -> None:
    due = np.arange(200) * 100.0
    constant = run(Load("constant", rate=10))
    late = doubts(sent_at(due + np.linspace(0, 20, 200), due), constant)["late-client"]
    assert not late.fatal
    assert doubts(sent_at(due + 60.0, due), constant)["late-client"].fatal
    assert not doubts(sent_at(due + 60.0, due), run(Load("closed", concurrency=1)))["late-client"].fatal
    assert "late-client" not in doubts(sent_at(due + 1.0, due), constant)


def test_relative_sleeping_loses_eight_per_cent_of_the_rate() -> None:
    """5.45 ms between requests where 5 ms are due: 183.5 of 200 requests/s."""
    found = doubts(sent_at(np.arange(1000) * 5.45, np.arange(1000) * 5.0), run(Load("constant", rate=200)))
    assert found["rate-not-reached"].message == "sent 183 requests/s where 200 were due (-8 %)"
    due = np.arange(1000) * 5.45
    assert "rate-not-asked" in doubts(sent_at(due), run(Load("constant", rate=200)))


def test_exponential_gaps_are_not_constant_and_constant_gaps_are_not_poisson() -> None:
    random = np.cumsum(np.random.default_rng(2).exponential(100.0, 500))
    assert "gap CV 0.9" in doubts(sent_at(random), run(Load("constant", rate=10)))["arrival-law"].message
    assert "arrival-law" in doubts(plain(500), run(Load("poisson", rate=10)))


def test_workers_that_share_a_seed_are_no_poisson_process() -> None:
    """Ten workers with the same generator send ten requests at once: dispersion 10 where 1 is right."""
    times = np.sort(np.repeat(np.cumsum(np.random.default_rng(3).exponential(200.0, 100)), 10))
    found = doubts(sent_at(times), run(Load("poisson", rate=50)))
    assert "arrival-law" in found


@pytest.mark.parametrize("shape", [0.25, 1.0, 4.0])
def test_gamma_gaps_are_held_against_their_own_burstiness(shape: float) -> None:
    times = np.cumsum(np.random.default_rng(5).gamma(shape, 20.0 / shape, 2000))
    right = run(Load("gamma", rate=50, options={"burstiness": str(shape)}))
    assert "arrival-law" not in doubts(sent_at(times), right)
    wrong = run(Load("gamma", rate=50, options={"burstiness": str(16 * shape)}))
    assert "arrival-law" in doubts(sent_at(times), wrong)


def test_a_busy_neighbour_is_seen() -> None:
    found = doubts(plain(100), None, [("cpu_foreign_cores", i * 1000.0, 0.9) for i in range(10)])
    assert found["noisy-machine"].message.startswith("other processes used 0.90 of 2 cores on average")
    outside = [("cpu_foreign_cores", 1e6 + i, 0.9) for i in range(10)]
    assert "noisy-machine" not in doubts(plain(100), None, outside)
    large = run(machine={"cores": 128})
    assert "noisy-machine" not in doubts(plain(100), large, [("cpu_foreign_cores", 5000.0, 0.9)])


def test_answers_shorter_than_requested_under_ignore_eos_are_counted() -> None:
    def asked(sent: float, n: int, finish: str) -> Answer:
        chunks = [50.0 + 10 * i for i in range(min(n, 50))]
        done = None if n else 60.0
        return Answer(
            sent=sent, chunks=chunks, usage={"output": n}, finish=finish, asked=512, ignore_eos=True, done=done
        )

    summary = summarize(connect([asked(0, 512, "length"), asked(1000, 37, "stop"), asked(2000, 0, "stop")]), run())
    found = {doubt.kind: doubt for doubt in summary.doubts}["short-answers"]
    assert found.message == "2 of 3 answers are shorter than requested under ignore_eos (mean 183 tokens)"
    assert summary.metrics.output_tokens == 549
    assert summary.metrics.ttft_ms.n == 2
    assert summary.finishes == {"length": 1, "stop": 2}


def test_prompts_from_a_warm_cache_are_doubted_on_synthetic_workloads_only() -> None:
    warm = [
        Answer(sent=i * 100.0, chunks=[50, 60], usage={"output": 2, "prompt": 1000, "cached": 930}) for i in range(50)
    ]
    assert doubts(warm)["warm-cache"].message.startswith("93 % of the prompt tokens")
    assert "warm-cache" not in doubts(warm, run(workload=Workload("session")))
    template = [msgspec.structs.replace(a, usage={"output": 2, "prompt": 1000, "cached": 30}) for a in warm]
    assert "warm-cache" not in doubts(template)


def test_cache_hits_are_the_rise_inside_the_run_and_not_the_servers_life_time() -> None:
    samples = [
        ("prefix_cache_queries", 0.0, 100_000.0),
        ("prefix_cache_hits", 0.0, 0.0),
        ("prefix_cache_queries", 5000.0, 200_000.0),
        ("prefix_cache_hits", 5000.0, 93_000.0),
    ]
    assert doubts(plain(100), None, samples)["warm-cache"].message.startswith("93 %")


def test_a_servers_absurd_durations_are_reported_and_not_used() -> None:
    """42 tokens in 1.5 µs by the server's word, while this client watched them come for 1.5 s."""
    clone = [
        Answer(sent=i * 2000.0, chunks=[400, 450, 1900], usage={"output": 42}, timing={"decode": 2}) for i in range(10)
    ]
    assert "100 % of the answers" in doubts(clone)["odd-server-timings"].message
    right = [msgspec.structs.replace(a, timing={"decode": 1_500_000}) for a in clone]
    assert "odd-server-timings" not in doubts(right)


def test_a_prompt_that_the_server_cut_is_seen() -> None:
    answers = [
        Answer(sent=0, chunks=[50], usage={"output": 1, "prompt": 103}, input_tokens=100),
        Answer(sent=100, chunks=[50], usage={"output": 1, "prompt": 8103}, input_tokens=8100),
        Answer(sent=200, chunks=[50], usage={"output": 1, "prompt": 8192}, input_tokens=30_000),
    ]
    summary = summarize(connect(answers), run())
    message = {doubt.kind: doubt.message for doubt in summary.doubts}["prompt-truncated"]
    assert message == "prompt truncated by server in 1 requests: up to 30,000 tokens planned, at most 8,192 counted"
    assert summary.metrics.input_tokens == 103 + 8103 + 8192


def test_failures_empties_and_unfinished_requests_are_told() -> None:
    answers = plain(90)
    answers += [Answer(sent=9000 + i, done=5, error="http 503: busy") for i in range(5)]
    answers += [Answer(sent=9100 + i, done=5) for i in range(5)]
    answers += [Answer(sent=9200 + i, done=500, cancel="deadline") for i in range(10)]
    found = doubts(answers)
    assert {"failed", "empty-answers", "censored"} <= set(found)
    assert found["failed"].message.startswith("4.5 % of the requests failed")
    assert doubts([Answer(done=5, error="http 500: no")])["no-answers"].fatal


def test_retries_are_told() -> None:
    assert "retries" in doubts([msgspec.structs.replace(a, retries=1) for a in plain(5)] + plain(20))


def test_times_in_the_wrong_order_are_reported_and_not_clipped() -> None:
    answers = [*plain(30), Answer(sent=4000, chunks=[-800, 200], usage={"output": 11})]
    summary = summarize(connect(answers), run(), steady=False)
    assert {doubt.kind: doubt.fatal for doubt in summary.doubts}["negative-time"]
    assert summary.metrics.ttft_ms.estimates["mean"].value == pytest.approx((30 * 50 - 800) / 31)


def test_chunks_that_share_a_read_are_told() -> None:
    assert "coalesced-reads" in doubts([Answer(chunks=[50, 60, 60, 60, 70], usage={"output": 5})])


def test_counts_that_disagree_are_told() -> None:
    one = Answer(chunks=[(50, "content", 2), (60, "content", 3)], usage={"output": 2})
    assert "token-count-mismatch" in doubts([one])


def test_a_limit_that_the_server_ignores_is_told() -> None:
    assert "long-answers" in doubts([Answer(chunks=[50, 60, 70], usage={"output": 3}, asked=2)])


def test_an_interrupted_run_says_how_to_go_on() -> None:
    assert "--resume" in doubts(plain(5), run(status="interrupted"))["interrupted"].remedy


def test_a_closed_loop_that_does_not_keep_its_streams_is_told() -> None:
    """Eight streams asked for, one kept: the client waits between requests."""
    assert "concurrency-not-reached" in doubts(plain(100, every=71), run(Load("closed", 8)))
    assert "concurrency-not-reached" not in doubts(plain(100, every=71), run(Load("closed", 1)))


def test_littles_law_fails_where_requests_hang() -> None:
    """20 requests/s of 60 ms each, until the server stalls: the last 60 are in flight at the end of the window."""
    quick = [Answer(sent=i * 50.0, chunks=[50.0, 60.0], usage={"output": 2}) for i in range(140)]
    stuck = [Answer(sent=7000 + i * 50.0, chunks=[50.0, 5000.0], usage={"output": 2}) for i in range(60)]
    assert "requests in flight on average; rate times stay gives" in doubts([*quick, *stuck])["little-law"].message


def test_doubts_of_the_manifest_are_kept() -> None:
    assert "own" in doubts(plain(30), run(doubts=(Doubt("own", "seen by the client", "look"),)))
