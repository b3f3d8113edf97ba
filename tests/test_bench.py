"""The main job on the real engine: `dyno bench` with no target, and the verbs that read its record."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.real

DYNO = [sys.executable, "-m", "dynamometer"]


def dyno(*args: str, where: Path, code: int = 0) -> str:
    done = subprocess.run([*DYNO, *args], cwd=where, capture_output=True, text=True, timeout=240)
    assert done.returncode == code, f"dyno {' '.join(args)} gave {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One short run of the packaged model, with its folder."""
    where = tmp_path_factory.mktemp("bench")
    dyno("bench", "-n", "12", "-c", "2", "--output-tokens", "24", "-o", "run", "--seed", "3", where=where)
    return where


def test_bench_without_a_target_measures_the_packaged_model(bench: Path) -> None:
    summary = json.loads((bench / "run" / "summary.json").read_text())
    metrics = summary["metrics"]
    assert (metrics["requests_ok"], metrics["requests_failed"]) == (12, 0)
    assert metrics["output_tokens"] == 12 * 24
    for name in ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms"):
        found = metrics[name]
        assert set(found) >= {"mean", "p50", "p90", "p95", "p99", "p999", "low", "high", "n"}
        assert found["low"] <= found["mean"] <= found["high"]
        assert found["p999"] is None or found["n"] >= 3688
    assert set(metrics) >= {"output_tokens_per_s", "requests_per_s", "goodput", "lateness_ms"}
    assert summary["driver"] == "measured"


def test_the_manifest_tells_how_to_repeat_the_run(bench: Path) -> None:
    run = json.loads((bench / "run" / "run.json").read_text())
    assert run["status"] == "complete"
    assert run["experiment"]["seed"] == 3
    assert "-n 12 -c 2" in run["command"]
    assert {"dynamometer", "python", "xllamacpp"} <= set(run["versions"])
    assert run["client"]["lateness_p99_ms"] >= 0
    assert run["engine"]["served_engine"] == "llamacpp"


def test_three_families_of_coding_prompts_are_asked(bench: Path) -> None:
    summary = json.loads((bench / "run" / "summary.json").read_text())
    assert set(summary["families"]) == {"python-completion", "sql-five-lines", "javascript-async"}


def test_the_page_needs_nothing_else(bench: Path) -> None:
    page = (bench / "run" / "report.html").read_text()
    assert "output tokens/s" in page
    assert len(page) < 3_000_000
    for remote in ('src="http', "src='http", 'href="http', "@import", "url(http"):
        assert remote not in page


def test_derived_files_come_again_from_the_log_alone(bench: Path) -> None:
    before = json.loads(dyno("show", "run", "--json", where=bench))
    for name in ("events.parquet", "requests.parquet", "summary.json", "report.html"):
        (bench / "run" / name).unlink()
    assert json.loads(dyno("show", "run", "--json", where=bench)) == before
    dyno("report", "run", where=bench)
    assert (bench / "run" / "report.html").exists()


def test_runs_lists_it_and_export_writes_its_rows(bench: Path) -> None:
    listed = json.loads(dyno("runs", ".", "--json", where=bench))
    assert [run["status"] for run in listed] == ["complete"]
    for kind in ("parquet", "csv", "jsonl"):
        files = json.loads(dyno("export", "run", "--format", kind, "-o", f"out-{kind}", "--json", where=bench))
        assert all((bench / name).stat().st_size for name in files)


def test_a_run_compared_with_itself_shows_no_difference(bench: Path) -> None:
    said = json.loads(dyno("compare", "run", "run", "--gate", "ttft_p50<+5%", "--json", where=bench))
    assert all(c["verdict"].startswith("no difference") for c in said["comparison"]["changes"])


def test_a_missed_objective_sets_the_exit_code(bench: Path) -> None:
    dyno("show", "run", "--slo", "ttft_p50<0.001ms", where=bench, code=1)
    dyno("show", "run", "--slo", "ttft_p50<600s", where=bench)


def test_a_second_run_into_the_same_directory_is_refused(bench: Path) -> None:
    dyno("bench", "-o", "run", "-n", "2", "-q", where=bench, code=2)


def test_a_killed_run_keeps_its_answers_and_goes_on(tmp_path: Path) -> None:
    args = ["bench", "-n", "30", "-c", "2", "--output-tokens", "16", "-o", "run", "--warmup", "1"]
    process = subprocess.Popen([*DYNO, *args], cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    log = tmp_path / "run" / "wire.log"
    deadline = time.monotonic() + 120
    while (not log.exists() or log.read_bytes().count(b"data: [DONE]") < 6) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    half = json.loads(dyno("show", "run", "--json", where=tmp_path))["metrics"]
    assert 4 <= half["requests_ok"] < 30
    dyno("bench", "--resume", "run", where=tmp_path)
    whole = json.loads((tmp_path / "run" / "summary.json").read_text())["metrics"]
    assert (whole["requests_ok"], whole["requests_failed"]) == (30, 0)


def test_ctrl_c_leaves_an_interrupted_run(tmp_path: Path) -> None:
    args = ["bench", "-n", "500", "-c", "2", "--output-tokens", "16", "-o", "run", "--warmup", "1"]
    process = subprocess.Popen([*DYNO, *args], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    log = tmp_path / "run" / "wire.log"
    deadline = time.monotonic() + 120
    while (not log.exists() or log.read_bytes().count(b"data: [DONE]") < 4) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"output tokens/s" in said
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert run["status"] == "interrupted"
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["metrics"]["requests_ok"] >= 2
    assert summary["metrics"]["requests_cancelled"] >= 1


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--rate", "5", "--concurrency", "2"], "exclude each other"),
        (["--arrivals", "poisson"], "needs --rate"),
        (["--arrivals", "trace", "--warmup", "3"], "would use up the first rows of the trace"),
        (["--url", "127.0.0.1:8000"], "http://HOST:PORT/v1"),
        (["--slo", "ttft_p99=5"], "ttft_p99=5"),
        (["--workload", "nonsense", "-n", "1"], "unknown workload 'nonsense'"),
        (["--duration", "5 parsecs"], "--duration"),
        (["--header", "novalue", "--url", "http://127.0.0.1:1/v1"], "NAME=VALUE"),
        (["--resume", "nowhere"], "nowhere"),
    ],
)
def test_bad_usage_is_one_clear_line(tmp_path: Path, args: list[str], said: str) -> None:
    done = subprocess.run([*DYNO, "bench", *args], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_nobody_at_the_address_is_said_at_once(tmp_path: Path) -> None:
    done = subprocess.run(
        [*DYNO, "bench", "--url", "http://127.0.0.1:9/v1"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 3
    assert "127.0.0.1:9 did not answer" in done.stderr
    assert not (tmp_path / "runs").exists()
