"""Readings of an engine's page beside a load in; its figures over the window, and its gaps, in the report out."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
import pytest
from rich.console import Console
from slow_engine import Asked
from slow_engine import run as load

from dynamometer.decisions.account import account
from dynamometer.record.manifest import read, write
from dynamometer.report.brief import show
from dynamometer.report.html import write_derived
from dynamometer.types import Sample

S = 1_000_000_000
STEP_S = 0.5


def reading(at_s: float) -> list[Sample]:
    """By the clock: 10 answers a second since long before the run, with 20 ms to the first token before second 1 and 30
    ms after it. A histogram's quantile lies in its bucket."""
    at_ns, count = round(at_s * S), 1000 + 10 * at_s
    total = 20.0 + 0.2 * min(at_s, 1.0) + 0.3 * max(at_s - 1.0, 0.0)
    values = {
        ("server_ttft_s_sum", ""): total,
        ("server_ttft_s_count", ""): count,
        ("server_ttft_s_bucket", "le=0.02"): 1000 + 10 * min(at_s, 1.0),
        ("server_ttft_s_bucket", "le=0.04"): count,
        ("server_ttft_s_bucket", "le=inf"): count,
        ("prefix_cache_queries_total", ""): 100 * at_s,
        ("prefix_cache_hits_total", ""): 25 * at_s,
        ("kv_cache_usage_ratio", ""): at_s / 100,
    }
    return [Sample("prometheus", name, device, at_ns, value) for (name, device), value in values.items()]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    load(tmp_path, lambda number, random: Asked())
    rows = [row for at in range(20) for row in reading(at * STEP_S)]
    lines = b"".join(msgspec.json.encode(row) + b"\n" for row in rows)
    (tmp_path / "samples.jsonl").write_bytes(lines)
    about = read(tmp_path)
    missing = {"sensors_missing": "nvml (no driver)"}
    write(tmp_path, msgspec.structs.replace(about, engine={**about.engine, **missing}))
    return tmp_path


def test_the_engines_figures_are_those_of_the_window(run: Path) -> None:
    """From the last reading before the window to the first one after it: what the counters held before is out."""
    summary = account(run).summary
    low_s = summary.window.from_ns // (STEP_S * S) * STEP_S
    high_s = -(-summary.window.until_ns // (STEP_S * S)) * STEP_S
    mean = summary.server["server_ttft_s_mean"]
    early, late = max(0.0, 1.0 - low_s), high_s - max(1.0, low_s)
    assert mean.value == pytest.approx((early * 0.020 + late * 0.030) / (early + late))
    assert mean.n == round(10 * (high_s - low_s))
    assert summary.server["prefix_hit_ratio"].value == pytest.approx(0.25)
    assert summary.server["kv_cache_usage_ratio"].value == pytest.approx(high_s / 100)
    assert 0.02 < (summary.server["server_ttft_s_p99"].value or 0) <= 0.04


def test_the_report_shows_them_and_names_what_was_not_measured(run: Path) -> None:
    stream = io.StringIO()
    show(Console(file=stream, width=200), account(run))
    write_derived(run)
    for text in (stream.getvalue(), (run / "report.html").read_text()):
        assert "By the engine's own page" in text.replace("&#39;", "'")
        assert "TTFT mean (ms)" in text
        assert "Not measured: nvml (no driver)." in text


def test_without_a_page_there_is_no_figure_and_no_table(run: Path) -> None:
    (run / "samples.jsonl").unlink()
    about = read(run)
    write(run, msgspec.structs.replace(about, engine={}))
    found = account(run)
    assert not any(name.startswith("server_ttft") for name in found.summary.server)
    stream = io.StringIO()
    show(Console(file=stream, width=200), found)
    assert "own page" not in stream.getvalue()
    assert "Not measured" not in stream.getvalue()
