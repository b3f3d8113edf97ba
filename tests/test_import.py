"""Files that other load generators wrote in; rows that give the same figures again, marked as quoted, out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from sample_run import write_sample

from dynamometer.cli.export import command as export
from dynamometer.cli.import_file import command
from dynamometer.decisions.account import account
from dynamometer.record.foreign import read
from dynamometer.record.manifest import read as read_run
from dynamometer.types import Provenance

DATA = Path(__file__).parent / "data" / "foreign"


def taken(tmp_path: Path, name: str) -> Path:
    out = tmp_path / name
    done = CliRunner().invoke(command, [str(DATA / name), "-o", str(out), "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert json.loads(done.output) == [str(out)]
    return out


@pytest.mark.parametrize("name", ["vllm_bench.json", "guidellm_benchmarks.json", "aiperf_profile_export.jsonl"])
def test_requests_become_rows_that_are_quoted_and_not_measured(tmp_path: Path, name: str) -> None:
    """The server's own schedule is the truth: 20 ms to the first token, 12 tokens, 4 ms between them."""
    out = taken(tmp_path, name)
    run, metrics = read_run(out), account(out, steady=False).summary.metrics
    assert run.driver is Provenance.QUOTED
    assert "not measured by dyno" in run.notes[0]
    assert account(out).decision.answer.startswith("Quoted:")
    assert (metrics.requests_ok, metrics.output_tokens) == (12, 144)
    assert 20 <= (metrics.ttft_ms.mean or 0) < 60
    assert metrics.tpot_ms.mean == pytest.approx(4.0, rel=0.15)


def test_vllms_own_means_come_out_again(tmp_path: Path) -> None:
    theirs = json.loads((DATA / "vllm_bench.json").read_text())
    metrics = account(taken(tmp_path, "vllm_bench.json"), steady=False).summary.metrics
    assert metrics.ttft_ms.mean == pytest.approx(theirs["mean_ttft_ms"], rel=1e-3)
    assert metrics.tpot_ms.mean == pytest.approx(theirs["mean_tpot_ms"], rel=1e-3)
    assert metrics.output_tokens_per_s == pytest.approx(theirs["output_throughput"], rel=0.02)


def test_guidellms_own_mean_comes_out_again_and_what_lies_between_is_said_to_be_unknown(tmp_path: Path) -> None:
    theirs = json.loads((DATA / "guidellm_benchmarks.json").read_text())["benchmarks"][0]["metrics"]
    out = taken(tmp_path, "guidellm_benchmarks.json")
    mean = theirs["time_to_first_token_ms"]["successful"]["mean"]
    assert account(out, steady=False).summary.metrics.ttft_ms.mean == pytest.approx(mean, rel=1e-3)
    assert any("first and the last token" in note for note in read_run(out).notes)


def test_aiperfs_own_mean_comes_out_again(tmp_path: Path) -> None:
    records = [json.loads(line)["metrics"] for line in (DATA / "aiperf_profile_export.jsonl").read_text().splitlines()]
    mean = sum(one["time_to_first_token"]["value"] for one in records) / len(records)
    metrics = account(taken(tmp_path, "aiperf_profile_export.jsonl"), steady=False).summary.metrics
    assert metrics.ttft_ms.mean == pytest.approx(mean, rel=1e-3)
    assert metrics.itl_ms.n == 12 * 11  # the file has each gap


def test_a_file_of_figures_only_says_so_and_is_not_to_be_used(tmp_path: Path) -> None:
    out = taken(tmp_path, "aiperf_profile_export_aiperf.json")
    theirs = json.loads((DATA / "aiperf_profile_export_aiperf.json").read_text())
    held = json.loads((out / "imported.json").read_text())
    assert held["time_to_first_token mean (ms)"] == theirs["time_to_first_token"]["avg"]
    assert account(out).invalid
    assert "holds no single request" in account(out).decision.answer
    assert read_run(out).experiment.load.concurrency == 2


def test_failed_requests_stay_failed(tmp_path: Path) -> None:
    content = json.loads((DATA / "vllm_bench.json").read_text())
    content["errors"][3], content["ttfts"][3], content["itls"][3], content["output_lens"][3] = (
        "Traceback\nboom",
        0,
        [],
        0,
    )
    path = tmp_path / "failed.json"
    path.write_text(json.dumps(content))
    CliRunner().invoke(command, [str(path), "-o", str(tmp_path / "run")], catch_exceptions=False)
    metrics = account(tmp_path / "run", steady=False).summary.metrics
    assert (metrics.requests_ok, metrics.requests_failed) == (11, 1)


def test_several_benchmarks_become_several_runs(tmp_path: Path) -> None:
    content = json.loads((DATA / "guidellm_benchmarks.json").read_text())
    content["benchmarks"] *= 2
    path = tmp_path / "two.json"
    path.write_text(json.dumps(content))
    done = CliRunner().invoke(command, [str(path), "-o", str(tmp_path / "runs"), "--json"], catch_exceptions=False)
    assert [Path(one).name for one in json.loads(done.output)] == ["benchmark-1", "benchmark-2"]


@pytest.mark.parametrize("text", ["", "{}", "[]", "not json", "[1, 2]", '{"benchmarks": []}', "\x00\xff"])
def test_a_file_of_nobody_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "what.json"
    path.write_text(text)
    done = CliRunner().invoke(command, [str(path)])
    assert getattr(done.exception, "exit_code", 0) == 2
    assert "\n" not in str(done.exception)


def test_a_damaged_file_names_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "damaged.json"
    path.write_text(json.dumps({"backend": "openai", "request_throughput": 1, "mean_ttft_ms": 1, "ttfts": ["x"]}))
    done = CliRunner().invoke(command, [str(path), "-o", str(tmp_path / "run")])
    assert "damaged or of an unknown version" in str(done.exception)


def test_what_is_exported_for_llm_d_comes_back_as_the_same_figures(tmp_path: Path) -> None:
    run = write_sample(tmp_path / "sample")
    done = CliRunner().invoke(export, [str(run), "--format", "llmd", "-o", str(tmp_path)], catch_exceptions=False)
    path = Path(done.output.strip())
    (found,) = read(path)
    summary = account(run).summary
    assert found.figures["time_to_first_token p50 (ms)"] == summary.metrics.ttft_ms.p50
    assert found.figures["total"] == 400
    assert "time_to_first_token p99p9 (ms)" not in found.figures  # 400 requests can't carry it
    report = json.loads(path.read_text())
    assert "simulated" in report["run"]["description"]
    assert set(report) <= {"version", "run", "scenario", "results"}  # the schema forbids fields of one's own
    assert (
        report["results"]["request_performance"]["aggregate"]["latency"]["inter_token_latency"]["units"] == "ms/token"
    )
