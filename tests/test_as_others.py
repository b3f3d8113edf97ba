"""One stream, thirteen answers: what thirteen tools print for the same bytes, worked out by hand from their rules."""

from __future__ import annotations

import pytest
from answer_rows import Answer, connect, run

from dynamometer.errors import UsageError
from dynamometer.metrics import as_others, views
from dynamometer.metrics.summary import summarize
from dynamometer.report.other_tools import other_table

TABLE = {  # tool: TTFT, TPOT, ITL mean, ITL p99, E2E in ms, tokens
    "vllm-reasoning-content": (960, 18.2, 86.3, 470, 2600, 91),
    "vllm": (300, 25.6, 76.7, 415, 2600, 91),
    "sglang": (300, 26.0, 76.7, 415, 2640, 91),
    "sglang-spec": (300, 26.0, 25.6, 187, 2640, 91),
    "guidellm": (300, 28.6, 25.6, None, 2600, 91),
    "aiperf": (300, None, 25.6, None, 2600, 91),
    "inference-perf": (960, 27.8, 27.8, 270, 2640, 60),
    "evalscope": (300, 26.0, 76.7, 415, 2640, 91),
    "genai-bench": (300, 25.9, None, None, 2630, 91),
    "llmperf": (960, None, 78.8, None, 2640, 60),
    "hf": (960, None, 27.8, None, 2640, 60),
    "fw-ai": (300, 25.7, None, None, 2640, 91),
    "loadgen": (500, 26.0, None, None, 2840, 91),
}


def stream() -> Answer:
    """31 reasoning and 60 answer tokens, 3 a chunk after the first; a stall of 500 ms; 200 ms in the client's queue."""
    reasoning = [(300.0, "reasoning")] + [(300.0 + 60 * i, "reasoning") for i in range(1, 11)]
    content = [(900.0 + 60 * (i + 1) + (500 if i >= 10 else 0), "content") for i in range(20)]
    return Answer(
        sent=200.0,
        due=0.0,
        frames=[(50.0, "role")],
        chunks=[*reasoning, *content],
        usage={"output": 91, "reasoning": 31, "prompt": 512},
        usage_at=2630.0,
        finish_at=2602.0,
        done=2640.0,
    )


@pytest.mark.parametrize("tool", TABLE)
def test_one_stream_is_counted_as_each_tool_counts_it(tool: str) -> None:
    connection = connect([stream()])
    views.install(connection, run())
    found = as_others.count_as(connection, tool)
    ttft, tpot, itl, itl_p99, e2e, tokens = TABLE[tool]
    assert found.ttft_ms.mean == pytest.approx(ttft)
    assert found.tpot_ms.mean == (None if tpot is None else pytest.approx(tpot, abs=0.051))
    assert found.itl_ms.mean == (None if itl is None else pytest.approx(itl, abs=0.051))
    if itl_p99 is not None:
        assert found.itl_ms.p99 == pytest.approx(itl_p99, abs=0.6)
    assert found.e2e_ms.mean == pytest.approx(e2e)
    assert found.output_tokens == tokens


def test_aiperf_shows_the_gaps_under_a_name_of_their_own() -> None:
    connection = connect([stream()])
    views.install(connection, run())
    icl = as_others.count_as(connection, "aiperf").icl_ms
    assert (icl.mean, icl.p99) == (pytest.approx(76.7, abs=0.05), pytest.approx(415, abs=0.6))


def test_our_own_figures_for_that_stream_follow_the_glossary() -> None:
    metrics = summarize(connect([stream()]), run()).metrics
    assert metrics.ttft_ms.mean == pytest.approx(300)
    assert metrics.ttft_due_ms.mean == pytest.approx(500)
    assert metrics.ttfa_ms.mean == pytest.approx(960)
    assert metrics.tpot_ms.mean == pytest.approx(2300 / 90)
    assert metrics.itl_ms.mean == pytest.approx(2300 / 90)
    assert metrics.icl_ms.mean == pytest.approx(2300 / 30)
    assert metrics.e2e_ms.mean == pytest.approx(2600)
    assert metrics.stream_end_ms.mean == pytest.approx(2640)
    assert metrics.output_tokens == 91


def test_every_tool_says_in_one_line_why_it_differs() -> None:
    assert set(as_others.names()) == set(TABLE)
    assert all(rule.why and "\n" not in rule.why for rule in as_others.TOOLS.values())


def test_an_unknown_tool_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match="known: vllm, "):
        as_others.count_as(connect([stream()]), "wrk")


def test_a_run_without_answers_gives_no_figure() -> None:
    connection = connect([Answer(error="http 500: no", done=5.0)])
    views.install(connection, run())
    for tool in as_others.names():
        found = as_others.count_as(connection, tool)
        assert (found.ttft_ms.mean, found.itl_ms.mean, found.output_tokens) == (None, None, 0)


def test_both_ways_of_counting_stand_side_by_side() -> None:
    connection = connect([stream()])
    views.install(connection, run())
    table = other_table(as_others.count_as(connection, "llmperf"), as_others.ours(connection))
    cells = {row[0]: row[1:] for row in table.rows}
    assert cells["TTFT (ms)"] == ("960", "960", "960", "300", "300", "300")
    assert cells["TPOT (ms)"][:4] == ("–", "–", "–", "25.6")
    assert cells["output tokens"] == ("60", "", "", "91", "", "")
