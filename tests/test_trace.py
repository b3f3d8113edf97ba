"""Traces of real traffic as law and as workload."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from toy_tokens import count_tokens

from dynamometer import schedule, workload
from dynamometer.cli.bench import of_trace
from dynamometer.errors import UsageError
from dynamometer.types import Load, Workload
from dynamometer.workload.plan import plan
from dynamometer.workload.trace import interval_rates, read_trace, trace_offsets

AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n"
    "2023-11-16 18:15:50.9951690,396,109\n2023-11-16 18:15:51.0000001,2,93\n"
)
BURST = (
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,400,20,420,Conversation log\n"
    "45,GPT-4,0,0,0,Conversation log\n50,ChatGPT,900,0,900,API log\n118,GPT-4,417,276,693,Conversation log\n"
)


@pytest.fixture
def azure(tmp_path: Path) -> Path:
    (tmp_path / "azure.csv").write_text(AZURE)
    return tmp_path / "azure.csv"


@pytest.fixture
def burst(tmp_path: Path) -> Path:
    (tmp_path / "burst.csv").write_text(BURST)
    return tmp_path / "burst.csv"


class TestAzure:  # case E04
    def test_seven_decimals_are_read_and_short_rows_kept(self, azure: Path) -> None:
        assert trace_offsets(azure, {}) == pytest.approx([0, 4.314579, 4.3194101], abs=1e-6)
        made = list(workload.build(Workload("trace", path=str(azure), fresh=False), 0, None))
        assert [r.input_tokens for r in made] == [374, 396, 2]
        assert [r.output_tokens for r in made] == [44, 109, 93]

    def test_a_speed_of_two_halves_the_offsets(self, azure: Path) -> None:
        assert trace_offsets(azure, {"speed": "2"}) == pytest.approx([0, 2.1572895, 2.15970505], abs=1e-6)

    def test_midnight_and_a_zone_of_utc_are_no_trouble(self, tmp_path: Path) -> None:
        rows = ["TIMESTAMP,ContextTokens,GeneratedTokens", "2024-02-29 23:59:59.9,9,9", "2024-03-01T00:00:00.1Z,9,9"]
        (tmp_path / "leap.csv").write_text("\n".join(rows))
        assert trace_offsets(tmp_path / "leap.csv", {}) == pytest.approx([0, 0.2], abs=1e-6)

    @pytest.mark.parametrize("when", ["16/11/2023 18:15", "2023-13-16 18:15:46", "", "2023-11-16 18:15:46+05:00"])
    def test_another_date_format_names_its_line(self, tmp_path: Path, when: str) -> None:
        (tmp_path / "bad.csv").write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{when},1,1\n")
        with pytest.raises(UsageError, match=r"bad\.csv:2: TIMESTAMP is"):
            trace_offsets(tmp_path / "bad.csv", {})


class TestBurstGpt:  # case E05
    def test_failed_calls_are_set_aside_and_the_clock_is_in_seconds(self, burst: Path) -> None:
        found = read_trace(burst, {})
        assert found.offsets_s.tolist() == [0, 113]
        assert (found.read, found.skipped) == (4, {"no answer (a failed call)": 2})
        assert min(r.output_tokens for r in workload.build(Workload("trace", path=str(burst)), 0, None, "r")) > 0

    def test_columns_are_found_by_name_in_the_longer_header(self, tmp_path: Path) -> None:
        head = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        (tmp_path / "v3.csv").write_text(
            head + "5,a,1.5,ChatGPT,400,20,420,API log\n118,b,2,GPT-4,417,276,693,API log\n"
        )
        found = read_trace(tmp_path / "v3.csv", {})
        assert found.offsets_s.tolist() == [0, 113]
        assert [row.input_tokens for row in found.rows] == [400, 417]

    def test_mean_and_interval_rates_are_shown(self, burst: Path) -> None:
        notes = plan(Workload("trace", path=str(burst)), 0, None, "r").notes
        assert "2 calls over 113.0 s: 0.0177/s on average" in notes
        assert any("over intervals of 5.65 s" in note for note in notes)
        assert interval_rates(np.array([0.0, 1, 2, 19, 20]), 10.0).tolist() == [0.3, 0.1, 0.1]

    def test_a_window_takes_a_part_and_starts_it_at_zero(self, burst: Path) -> None:
        assert trace_offsets(burst, {"start": "100s"}).tolist() == [0]
        assert trace_offsets(burst, {"stop": "113s"}).tolist() == [0]
        with pytest.raises(UsageError, match="no call from 5 to 50 s; it spans 113 s"):
            trace_offsets(burst, {"start": "5", "stop": "50"})
        with pytest.raises(UsageError, match="stop must be later"):
            trace_offsets(burst, {"start": "5", "stop": "5"})


class TestMooncake:
    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        rows = [
            {"timestamp": 0, "input_length": 1300, "output_length": 5, "hash_ids": [10, 11, 12]},
            {"timestamp": 3000, "input_length": 1536, "output_length": 6, "hash_ids": [10, 11, 13]},
            {"timestamp": 27482, "input_length": 700, "output_length": 7, "hash_ids": [20, 21]},
            {"timestamp": 27482, "input_length": 90, "output_length": 8},
        ]
        (tmp_path / "trace.jsonl").write_text("\n".join(map(json.dumps, rows)))
        return tmp_path / "trace.jsonl"

    def test_times_are_milliseconds(self, file: Path) -> None:
        assert trace_offsets(file, {}) == pytest.approx([0, 3, 27.482, 27.482])

    def test_prompts_have_their_lengths_and_equal_blocks_are_equal_text(self, file: Path) -> None:
        made = list(workload.build(Workload("trace", path=str(file)), 0, count_tokens, "run"))
        texts = [r.messages[0].content or "" for r in made]
        assert [count_tokens(text) for text in texts] == [r.input_tokens for r in made] == [1300, 1536, 700, 90]
        same = next(i for i, (a, b) in enumerate(zip(texts[0], texts[1], strict=False)) if a != b)
        assert count_tokens(texts[0][:same]) == pytest.approx(1024, abs=2)
        assert texts[0][:14] != texts[2][:14] or texts[0][14:60] != texts[2][14:60]

    def test_another_run_shares_no_prefix(self, file: Path) -> None:
        first, second = (
            [
                r.messages[0].content or ""
                for r in workload.build(Workload("trace", path=str(file)), 0, count_tokens, salt)
            ]
            for salt in ("run 1", "run 2")
        )
        assert not {text[:10] for text in first} & {text[:10] for text in second}

    def test_bad_values_name_their_line(self, tmp_path: Path) -> None:
        for bad in ('{"timestamp": "x"}', '{"timestamp": 1, "input_length": -1}', '{"timestamp": 1, "hash_ids": 5}'):
            (tmp_path / "bad.jsonl").write_text(f"{bad}\n")
            with pytest.raises(UsageError, match=r"bad\.jsonl:1: "):
                read_trace(tmp_path / "bad.jsonl", {})


def test_law_and_workload_are_the_same_rows(azure: Path) -> None:
    load = Load("trace", options={"path": str(azure), "speed": "4"})
    built = schedule.build(load, 0)
    made = list(workload.build(Workload("trace", path=str(azure), options={"speed": "4"}), 0, None, "run"))
    assert len(built.due_s) == len(made) == 3
    assert built.due_s[-1] == pytest.approx(4.3194101 / 4, abs=1e-6)
    assert built.rate == pytest.approx(3 / built.due_s[-1])


def test_the_law_refuses_more_requests_than_the_trace_has_and_cuts_fewer(azure: Path) -> None:
    load = Load("trace", options={"path": str(azure)})
    assert len(schedule.build(load, 0, 2).due_s) == 2
    assert len(schedule.build(load, 0, duration_s=4.3).due_s) == 1
    with pytest.raises(UsageError, match="has 3 calls in its window; 4 are asked for"):
        schedule.build(load, 0, 4)
    with pytest.raises(UsageError, match="needs a file"):
        schedule.build(Load("trace"), 0, 4)


def test_rows_out_of_order_are_put_in_order(tmp_path: Path) -> None:
    (tmp_path / "b.csv").write_text("Timestamp,Request tokens,Response tokens\n9,2,2\n1,1,1\n")
    found = read_trace(tmp_path / "b.csv", {})
    assert [(row.at_s, row.input_tokens) for row in found.rows] == [(0, 1), (8, 2)]


@pytest.mark.parametrize("body", ["", "hello\n", "a,b\n1,2\n"])
def test_a_file_of_no_known_format_is_said_so(tmp_path: Path, body: str) -> None:
    (tmp_path / "odd.txt").write_text(body)
    with pytest.raises(UsageError, match="neither Mooncake"):
        read_trace(tmp_path / "odd.txt", {})


def test_a_trace_of_failures_alone_is_refused(tmp_path: Path) -> None:
    (tmp_path / "b.csv").write_text("Timestamp,Request tokens,Response tokens\n9,2,0\n")
    with pytest.raises(UsageError, match="no call that got an answer"):
        read_trace(tmp_path / "b.csv", {})


def test_law_trace_takes_the_workload_s_file_and_window_unless_told_otherwise(azure: Path) -> None:
    work = Workload("trace", path=str(azure), options={"speed": "2", "block_tokens": "256"})
    assert of_trace(Load("trace"), work).options == {"path": str(azure), "speed": "2"}
    assert of_trace(Load("trace", options={"speed": "8"}), work).options["speed"] == "8"
    assert of_trace(Load("poisson", rate=1), work) == Load("poisson", rate=1)


def test_a_prompt_shorter_than_the_chat_template_is_not_empty(azure: Path) -> None:
    made = list(workload.build(Workload("trace", path=str(azure)), 0, count_tokens, "run"))
    assert made[2].messages[0].content
    assert [r.input_tokens for r in made[:2]] == [374, 396]
