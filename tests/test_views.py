"""The rules of counting, on rows small enough to work out by hand; the public faults of group A and B that concern
them."""

from __future__ import annotations

import math
from importlib.metadata import EntryPoint
from pathlib import Path

import duckdb
import msgspec
import numpy as np
import pytest
from answer_rows import MS, Answer, connect, plain, run

from dynamometer import plugins
from dynamometer.errors import RecordError, UsageError
from dynamometer.metrics import views
from dynamometer.metrics.summary import Metrics, Summary, summarize
from dynamometer.types import Load, Objective

GLOSSARY = Path(__file__).parent.parent / "docs" / "glossary.md"


def metrics(*answers: Answer, steady: bool = False) -> Metrics:
    return summarize(connect(answers), run(), steady=steady).metrics


def test_a_role_frame_is_not_the_first_token() -> None:
    found = metrics(Answer(frames=[(5.0, "role")], chunks=[214, 240], usage={"output": 2}, finish_at=241, done=242))
    assert found.ttft_ms.mean == 214
    assert (found.itl_ms.mean, found.itl_ms.n) == (26, 1)
    assert found.tpot_ms.mean == 26
    assert (found.e2e_ms.mean, found.stream_end_ms.mean) == (240, 242)


def test_a_chunk_of_several_tokens_is_so_many_intervals() -> None:
    found = metrics(Answer(chunks=[200, 300, 400], usage={"output": 9, "prompt": 7}, usage_at=402, done=403))
    assert found.tpot_ms.mean == 25
    assert (found.itl_ms.mean, found.itl_ms.n) == (25, 8)
    assert (found.icl_ms.mean, found.icl_ms.n) == (100, 2)
    assert found.output_tokens == 9


def test_the_servers_own_counts_of_each_chunk_are_used() -> None:
    """Tokens 1 + 1 + 4: gaps of 100 ms for one token, and of 100 ms for four."""
    found = metrics(Answer(chunks=[(200, "content", 1), (300, "content", 1), (400, "content", 4)], usage={"output": 6}))
    assert found.itl_ms.n == 5
    assert found.itl_ms.mean == pytest.approx((100 + 4 * 25) / 5)


def test_the_wait_for_the_usage_chunk_enters_no_latency_of_tokens() -> None:
    found = metrics(Answer(chunks=[90, 110], usage={"output": 2, "prompt": 11}, usage_at=180, done=180))
    assert (found.tpot_ms.mean, found.itl_ms.mean, found.itl_ms.n) == (20, 20, 1)
    assert (found.input_tokens, found.output_tokens) == (11, 2)


def test_without_usage_the_count_is_marked_as_estimated_and_never_the_asked_maximum() -> None:
    summary = summarize(connect([Answer(chunks=[90, 110], asked=64)]), run())
    assert summary.metrics.output_tokens == 2
    assert [row["source"] for row in summary.counting] == ["chunks (estimated)"]
    assert "estimated-tokens" in {doubt.kind for doubt in summary.doubts}


def test_reasoning_is_the_first_token_and_the_answer_has_a_time_of_its_own() -> None:
    found = metrics(
        Answer(chunks=[(100, "reasoning"), (120, "reasoning"), (140, "content")], usage={"output": 3, "reasoning": 2})
    )
    assert (found.ttft_ms.mean, found.ttfa_ms.mean) == (100, 140)
    assert (found.tpot_ms.mean, found.output_tokens, found.reasoning_tokens) == (20, 3, 2)


def test_reasoning_alone_has_no_time_to_the_answer() -> None:
    found = metrics(Answer(chunks=[(100, "reasoning"), (120, "reasoning")], usage={"output": 2}, finish="length"))
    assert (found.ttft_ms.mean, found.ttfa_ms.mean, found.ttfa_ms.n) == (100, None, 0)
    assert found.requests_ok == 1


def test_a_tool_call_is_an_answer() -> None:
    found = metrics(Answer(chunks=[(300, "tool"), (330, "tool"), (360, "tool 1")], usage={"output": 12}, done=362))
    assert (found.requests_ok, found.ttft_ms.mean, found.output_tokens) == (1, 300, 12)
    assert found.tpot_ms.mean == pytest.approx(60 / 11)


def test_two_events_of_one_read_keep_their_gap_of_zero() -> None:
    found = metrics(Answer(chunks=[60, 61, 61, 90], usage={"output": 4}))
    assert found.icl_ms.n == 3
    assert found.icl_ms.mean == pytest.approx(10)


def test_a_failure_after_some_tokens_is_no_fast_success() -> None:
    mid = Answer(chunks=[90, 110], done=130, error="InternalServerError: engine stopped")
    others = [
        Answer(done=30, error="invalid_request_error: prompt too long"),
        Answer(done=30, error="overloaded: full"),
    ]
    summary = summarize(connect([mid, *others]), run())
    found = summary.metrics
    assert (found.requests_ok, found.requests_failed) == (0, 3)
    assert (found.ttft_ms.mean, found.e2e_ms.mean, found.e2e_ms.p50) == (None, None, None)
    assert found.output_tokens_per_s in (None, 0)
    assert {row["class"] for row in summary.errors} == {"InternalServerError", "invalid_request_error", "overloaded"}
    assert b"NaN" not in msgspec.json.encode(summary)


def test_an_end_marker_without_a_token_is_an_empty_answer() -> None:
    found = metrics(Answer(frames=[(10, "role")], done=60), Answer(sent=100, chunks=[50, 60], usage={"output": 2}))
    assert (found.requests_ok, found.requests_empty) == (1, 1)
    assert (found.ttft_ms.n, found.e2e_ms.n, found.ttft_ms.eligible_of) == (1, 1, 2)


def test_a_one_token_answer_has_no_tpot() -> None:
    answers = [
        Answer(chunks=[300], usage={"output": 1}),
        Answer(sent=1000, chunks=[200, 300, 400, 500, 600], usage={"output": 5}),
        Answer(sent=2000, chunks=[310], usage={"output": 1}),
        Answer(sent=3000, usage={"output": 0}, done=120),
    ]
    found = metrics(*answers)
    assert (found.tpot_ms.mean, found.tpot_ms.n, found.tpot_ms.eligible_of) == (100, 1, 4)
    assert (found.ttft_ms.mean, found.ttft_ms.n) == (270, 3)


def test_all_tokens_in_one_chunk_show_no_decode_phase() -> None:
    """A gateway that holds an answer back: a TPOT of 0 ms would be the fastest engine in the world."""
    found = metrics(Answer(chunks=[500], usage={"output": 64}))
    assert (found.tpot_ms.mean, found.itl_ms.mean, found.output_tokens) == (None, None, 64)


def test_mean_tpot_weighs_requests_and_mean_itl_weighs_tokens() -> None:
    slow = Answer(chunks=[1000 + 100 * i for i in range(11)], usage={"output": 11})
    quick = Answer(sent=5000, chunks=[500 + 20 * i for i in range(101)], usage={"output": 101})
    found = metrics(slow, quick)
    assert found.itl_ms.n == 110
    assert found.tpot_ms.mean == 60
    assert found.itl_ms.mean == pytest.approx(3000 / 110)
    assert found.itl_ms.p50 == 20


def test_missing_measurements_are_left_out_and_not_averaged_as_zero() -> None:
    answers = [
        Answer(chunks=[100], usage={"output": 1}),
        Answer(sent=500, chunks=[120], usage={"output": 1}),
        Answer(sent=1000, done=50),
        Answer(sent=1500, done=50, error="http 500: no"),
    ]
    found = metrics(*answers)
    assert (found.ttft_ms.mean, found.ttft_ms.n, found.ttft_ms.eligible_of) == (110, 2, 4)


def test_an_answer_that_came_whole_has_no_token_times() -> None:
    whole = Answer(frames=[(900, "whole")], chunks=[900], usage={"output": 51, "prompt": 9})
    summary = summarize(connect([whole]), run())
    for name in ("ttft_ms", "ttft_due_ms", "ttfa_ms", "tpot_ms", "itl_ms", "icl_ms"):
        one = getattr(summary.metrics, name)
        assert (one.mean, one.n) == (None, 0)
        assert "came whole" in one.estimates["mean"].method
    assert (summary.metrics.e2e_ms.mean, summary.metrics.output_tokens) == (900, 51)


def test_tagged_warm_up_counts_neither_in_tokens_nor_in_time() -> None:
    cold = Answer(chunks=[42_000, 43_000], usage={"output": 100}, phase="warmup")
    warm = [Answer(sent=43_000 + i * 200, chunks=[50, 150], usage={"output": 100}) for i in range(199)]
    warm[-1] = msgspec.structs.replace(warm[-1], chunks=[50, 83_000 - warm[-1].sent])
    summary = summarize(connect([cold, *warm]), run(), steady=False)
    assert (summary.metrics.ttft_ms.n, summary.metrics.ttft_ms.mean) == (199, 50)
    assert summary.window_s == 40
    assert summary.metrics.output_tokens_per_s == pytest.approx(497.5)


def test_latencies_are_counted_from_due_as_well_as_from_sent() -> None:
    found = metrics(Answer(sent=200, due=0, chunks=[300, 310], usage={"output": 2}))
    assert (found.ttft_ms.mean, found.ttft_due_ms.mean, found.lateness_ms.mean) == (300, 500, 200)
    assert (found.e2e_ms.mean, found.e2e_due_ms.mean) == (310, 510)


def test_a_retry_counts_from_the_first_try() -> None:
    connection = connect([Answer(chunks=[201, 211], usage={"output": 2}, retries=1)])
    connection.execute(f"insert into events values (0, 'sent', {MS}, 2, 100, 'new')")
    found = summarize(connection, run()).metrics
    assert (found.ttft_ms.mean, found.requests_retried, found.requests_ok) == (201, 1, 1)


def test_client_and_server_figures_of_one_name_stand_side_by_side() -> None:
    """The server's clock starts 4 ms later and its prefill 50 ms after that; the usage chunk is no token."""
    one = Answer(
        frames=[(60, "role")],
        chunks=[262 + 20 * i for i in range(51)],
        usage={"output": 51},
        usage_at=1320,
        done=1320,
        timing={"queue": 50_000, "prompt": 200_000},
    )
    connection = connect([one])
    found = summarize(connection, run()).metrics
    assert (found.ttft_ms.mean, found.tpot_ms.mean) == (262, 20)
    server = views.rows(connection, "select * from server")[0]
    assert (server["queue_ms"], server["prompt_ms"], server["client_decode_ms"]) == (50, 200, 1000)


def test_good_answers_meet_all_limits_at_once_and_failures_are_misses() -> None:
    def timed(ttft: float, tpot: float, i: int) -> Answer:
        return Answer(sent=i * 10, chunks=[ttft + tpot * k for k in range(3)], usage={"output": 3})

    answers = [timed(300, 40, i) for i in range(5)]
    answers += [timed(500, 50, 5), timed(900, 30, 6), timed(200, 80, 7)]
    answers += [Answer(sent=80, done=100, error="http 500: no"), Answer(sent=90, done=4910, cancel="deadline")]
    slo = (Objective("ttft", "p99", "<", 500, "ms"), Objective("tpot", "p99", "<", 50, "ms"))
    summary = summarize(connect(answers), run(slo=slo), steady=False)
    assert summary.window_s == pytest.approx(5)
    assert summary.metrics.goodput == pytest.approx(1.2)
    assert summary.metrics.attainment == pytest.approx(6 / 9)


def test_goodput_is_not_guessed_for_a_limit_that_the_run_cannot_show() -> None:
    whole = Answer(frames=[(900, "whole")], chunks=[900], usage={"output": 51})
    summary = summarize(connect([whole]), run(slo=(Objective("ttft", "p99", "<", 500, "ms"),)))
    assert (summary.metrics.goodput, summary.metrics.attainment) == (None, None)
    assert summarize(connect(plain(3)), run()).metrics.goodput is None


def test_throughput_counts_tokens_by_when_they_came() -> None:
    """Answers of 11 tokens, 100 ms apart each; the window ends with the last request sent where it then holds three
    answers' time."""
    answers = [Answer(sent=at, chunks=[100 * k for k in range(1, 12)], usage={"output": 11}) for at in (0, 600)]
    summary = summarize(connect(answers), run())
    assert (summary.window_s, summary.window.drain_s) == (1.7, 0)  # the drain is over half: the run is kept whole
    assert summary.metrics.output_tokens_per_s == pytest.approx(22 / 1.7)
    answers = [Answer(sent=at, chunks=[100 * k for k in range(1, 12)], usage={"output": 11}) for at in (0, 3500)]
    summary = summarize(connect(answers), run())
    assert (summary.window_s, summary.window.drain_s) == (3.5, pytest.approx(1.1))
    assert summary.metrics.output_tokens_per_s == pytest.approx(11 / 3.5)
    assert summary.metrics.requests_per_s == pytest.approx(1 / 3.5)


def waves(count: int, streams: int = 16, stay: float = 15_000.0, sigma: float = 0.01) -> list[Answer]:
    """A closed loop whose streams move together: all begin and end within milliseconds."""
    chance = np.random.default_rng(4)
    found = []
    for wave in range(count):
        for stream in range(streams):
            sent = wave * (stay + 20) + stream
            whole = stay * (0.9 if wave == 0 else 1) * (1 + sigma * float(chance.standard_normal()) / 100)
            found.append(Answer(sent=sent, chunks=[whole / 2, whole], usage={"output": 64}))
    return found


@pytest.mark.parametrize("count", [2, 3, 6, 12])
def test_the_rates_of_a_closed_loop_that_moves_in_waves_do_not_hang_on_where_it_stops(count: int) -> None:
    """Case seen on a real sweep: two waves of 16 answers in 15 s each gave 1,220, 69 and 31 tokens/s."""
    summary = summarize(connect(waves(count)), run(Load("closed", concurrency=16)))
    found = summary.metrics
    assert found.requests_per_s == pytest.approx(16 / 15, rel=0.1)
    assert found.output_tokens_per_s == pytest.approx(16 * 64 / 15, rel=0.2)
    rate = found.estimates["requests_per_s"]
    assert rate.low is None or 0.4 < rate.low < 16 / 15 * 1.1
    assert ("short-run" in {doubt.kind for doubt in summary.doubts}) == (count < 3)


def test_an_answer_counts_with_the_share_of_its_stay_inside_the_window() -> None:
    """One answer after another, 1 s each; of the last, sent when the window ends, nothing is inside."""
    answers = [Answer(sent=at * 1000, chunks=[500, 1000], usage={"output": 2}) for at in range(11)]
    summary = summarize(connect(answers), run(Load("closed", concurrency=1)))
    assert summary.window_s == 10
    assert summary.metrics.requests_per_s == pytest.approx(1.0)
    two = [
        Answer(sent=at * 1000 + 500 * k, chunks=[500, 1000], usage={"output": 2}) for at in range(11) for k in (0, 1)
    ]
    summary = summarize(connect(two), run(Load("closed", concurrency=2)))
    assert summary.metrics.requests_per_s == pytest.approx((2 * 10 + 0.5) / 10.5)  # the one before is half inside


def test_unfinished_requests_are_censored_and_not_dropped() -> None:
    """Every second request is still running when the load stops; their times are longer than those seen."""
    quick = [Answer(sent=i, chunks=[100 + i, 200 + i], usage={"output": 2}) for i in range(40)]
    stuck = [Answer(sent=i, chunks=[150 + i], done=1000 - i, cancel="deadline") for i in range(20)]
    never = [Answer(sent=i, done=900, cancel="deadline") for i in range(20)]
    found = metrics(*quick, *stuck, *never)
    assert (found.e2e_ms.n, found.e2e_ms.censored, found.requests_cancelled) == (80, 40, 40)
    assert found.ttft_ms.censored == 20
    assert found.e2e_ms.p50 == 239
    assert found.e2e_ms.estimates["p90"].method.startswith("more than 0.1 of the requests were still unfinished")


def test_a_process_that_died_leaves_its_open_requests_censored() -> None:
    found = metrics(*plain(5), Answer(sent=100, chunks=[20], ends=False))
    assert (found.requests_ok, found.requests_cancelled, found.ttft_ms.n) == (5, 1, 6)


def test_a_request_that_was_never_sent_is_in_no_figure() -> None:
    connection = connect(plain(3))
    connection.execute("insert into requests select 9, 'load', '', '', 0, -1, 0, 0, 8, false, ''")
    summary = summarize(connection, run())
    assert (summary.metrics.requests_ok, summary.metrics.requests_cancelled) == (3, 0)
    assert views.rows(connection, "select outcome from answers where request = 9") == [{"outcome": "not sent"}]


def test_concurrency_counts_what_is_in_flight() -> None:
    answers = [Answer(sent=0, chunks=[100, 200]), Answer(sent=50, chunks=[100, 200])]
    connection = connect(answers)
    found = summarize(connection, run(), steady=False).metrics
    assert found.concurrency_mean == pytest.approx((200 + 200) / 250)
    steps = connection.execute("select at_ns, in_flight from concurrency order by at_ns").fetchall()
    assert steps == [(0, 1), (50 * MS, 2), (200 * MS, 1), (250 * MS, 0)]


def test_families_have_figures_of_their_own() -> None:
    answers = [
        Answer(sent=10.0 * i, chunks=[50.0 * (1 + i % 2), 200], usage={"output": 2}, family="ab"[i % 2])
        for i in range(40)
    ]
    summary = summarize(connect(answers), run(), steady=False)
    assert {name: family.ttft_ms.mean for name, family in summary.families.items()} == {"a": 50, "b": 100}
    assert [row["requests"] for row in summary.groups] == [20, 20]


def test_an_empty_record_gives_nulls_and_a_doubt_and_no_error() -> None:
    summary = summarize(connect([]), run())
    assert [doubt.kind for doubt in summary.doubts] == ["no-requests"]
    for name in views.LATENCIES:
        assert getattr(summary.metrics, f"{name}_ms").mean is None
    assert summary.metrics.output_tokens_per_s is None
    assert msgspec.json.decode(msgspec.json.encode(summary), type=Summary).metrics.goodput is None


def test_a_record_without_its_tables_is_named() -> None:
    with pytest.raises(RecordError, match="lacks a table"):
        views.install(duckdb.connect(), run())


def test_summary_survives_json_both_ways() -> None:
    summary = summarize(connect(plain(100)), run())
    assert msgspec.json.decode(msgspec.json.encode(summary), type=Summary) == summary
    flat = msgspec.json.decode(msgspec.json.encode(summary))["metrics"]["ttft_ms"]
    assert {"mean", "p50", "p90", "p95", "p99", "p999", "low", "high", "n"} <= set(flat)
    assert flat["p999"] is None


def test_a_plugin_metric_is_a_sql_file_with_a_head(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    head = "-- metric: head_start\n-- unit: ms\n-- formula: headers - sent\n-- exclusions: failed answers\n"
    (tmp_path / "m.sql").write_text(
        head + "select request, (first_ns - sent_ns) / 2e6 as value from kept where outcome = 'ok'"
    )
    monkeypatch.setattr(plugins, "names", lambda kind: {"mine": "x:y"} if kind == "metric" else {})
    monkeypatch.setattr(plugins, "load", lambda kind, name: tmp_path / "m.sql")
    summary = summarize(connect(plain(10)), run())
    assert summary.added["head_start"].mean == 25
    assert summary.rules["head_start"] == "headers - sent"
    monkeypatch.setattr(plugins, "load", lambda kind, name: head.replace("head_start", "ttft") + "select 1 as value")
    with pytest.raises(UsageError, match="name of a built-in"):
        summarize(connect(plain(10)), run())
    monkeypatch.setattr(plugins, "load", lambda kind, name: head + "select nothing from nowhere")
    with pytest.raises(UsageError, match="'head_start' does not run"):
        summarize(connect(plain(10)), run())
    monkeypatch.setattr(plugins, "load", lambda kind, name: "select 1 as value")
    with pytest.raises(UsageError, match="lacks metric, unit, formula, exclusions"):
        summarize(connect(plain(10)), run())


def test_the_entry_point_group_of_metrics_is_known() -> None:
    assert plugins.names("metric") == {}
    assert EntryPoint("x", "y:z", "dynamometer.metric").group.endswith(plugins.KINDS[-1])


def test_every_view_fits_a_screen_and_says_what_it_counts() -> None:
    for metric in views.built_ins():
        lines = metric.query.splitlines()
        assert len(lines) <= 40, metric.name
        assert all(len(line) <= 150 for line in lines), metric.name
        assert metric.formula
        assert metric.exclusions


def test_the_glossary_and_the_views_say_the_same() -> None:
    text = " ".join(GLOSSARY.read_text(encoding="utf-8").split())
    for metric in views.built_ins():
        for part in (f"`{metric.name}`", metric.unit, metric.formula, metric.exclusions):
            assert " ".join(part.split()) in text, f"docs/glossary.md lacks for {metric.name}: {part}"


def test_no_figure_is_ever_not_a_number() -> None:
    summary = summarize(
        connect([*plain(10), Answer(sent=2000, done=5, error="x: y"), Answer(sent=2001, done=5)]), run()
    )
    flat = msgspec.to_builtins(summary.metrics)
    assert all(math.isfinite(value) for value in flat.values() if isinstance(value, float))


def test_speeds_by_the_servers_own_clock_leave_cached_tokens_out_and_stand_beside_ours() -> None:
    """Case A22: 900 of 1,000 prompt tokens cached, 100 computed in 50 ms; 41 tokens decoded in 1 s by the server."""
    asked = Answer(
        chunks=[62 + i * 25.025 for i in range(41)],
        usage={"output": 41, "prompt": 1000, "cached": 900},
        timing={"prompt": 50_000, "decode": 1_000_000},
    )
    found = summarize(connect([asked]), run(), steady=False)
    assert found.server["prompt_tokens_per_s"].value == pytest.approx(2000)
    assert found.server["decode_tokens_per_s"].value == pytest.approx(41)
    assert found.metrics.tpot_ms.mean == pytest.approx(25.025)


def test_a_duration_in_the_wrong_unit_is_suspected_and_gives_no_speed() -> None:
    """Case A21: 42 tokens in 1.5 s are 28 a second; a clone that says 1,500 ns is not believed."""
    usage, chunks = {"output": 42}, [400.0, 450.0, 1950.0]
    right, clone = (Answer(chunks=chunks, usage=usage, timing={"decode": us}) for us in (1_500_000, 1))
    assert summarize(connect([right]), run()).server["decode_tokens_per_s"].value == pytest.approx(28)
    odd = summarize(connect([clone]), run())
    assert odd.server == {}
    assert "odd-server-timings" in {doubt.kind for doubt in odd.doubts}


def test_bounds_of_neighbouring_quantiles_do_not_contradict_each_other() -> None:
    """Two moods in time: P95's order statistics alone reach beyond P99's, which can't be."""
    chance = np.random.default_rng(5)
    mood = np.repeat(chance.random(60) < 0.06, 60)
    ttft = np.where(mood, 3.0, 0.5) * chance.lognormal(0, 0.05, len(mood))
    found = metrics(*(Answer(sent=i * 5.0, chunks=[float(t), float(t) + 1]) for i, t in enumerate(ttft)))
    known = [
        found.ttft_ms.estimates[name] for name in ("p50", "p90", "p95", "p99") if found.ttft_ms.estimates[name].value
    ]
    highs = [one.high for one in known if one.high is not None]
    lows = [one.low for one in known if one.low is not None]
    assert len(highs) >= 2
    assert highs == sorted(highs)
    assert lows == sorted(lows)


def test_the_mean_of_what_cannot_be_negative_has_no_negative_bound() -> None:
    found = metrics(*(Answer(sent=i * 5.0, chunks=[0.01 if i else 30.0]) for i in range(12)))
    assert found.ttft_ms.low == 0
    assert found.ttft_ms.high is not None
