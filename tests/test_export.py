"""Whole runs as Parquet, CSV and JSON lines."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import duckdb
import pytest
from wire_run import record

from dynamometer.errors import UsageError
from dynamometer.record.export import export
from dynamometer.record.log import SampleLog
from dynamometer.types import Sample

NOTE = 'bad, "quoted"\nwords'
STREAMS = {
    "ok": [[5, 'data: {"choices":[{"index":0,"delta":{"content":"é"}}]}\n\n'], [9, "data: [DONE]\n\n"]],
    "bad": [[5, "data: " + json.dumps({"error": {"type": "t", "message": NOTE}}) + "\n\n"]],
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    directory = record(tmp_path / "run", STREAMS)
    samples = SampleLog(directory / "samples.jsonl")
    samples.append([Sample("host", "x", "", 5, 0.25)])
    samples.close()
    return directory


def read(path: Path, kind: str) -> list[tuple[str, int, int, str]]:
    """(kind, at_ns, bytes, note) of events, by a reader that is not the writer where there is one."""
    if kind == "parquet":
        return duckdb.read_parquet(str(path)).project("kind, at_ns, bytes, note").fetchall()
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file)) if kind == "csv" else [json.loads(line) for line in file]
    return [(row["kind"], int(row["at_ns"]), int(row["bytes"]), row["note"]) for row in rows]


@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
def test_every_row_comes_back(run: Path, tmp_path: Path, kind: str) -> None:
    written = export(run, tmp_path / "new" / "it's out", kind)
    assert [path.name for path in written] == [f"requests.{kind}", f"events.{kind}", f"samples.{kind}", "run.json"]
    assert sorted(path.name for path in written[0].parent.iterdir()) == sorted(path.name for path in written)
    events = read(written[1], kind)
    assert len(events) == 9
    assert ("chunk", 5_000_000, 2, "content") in events
    assert [note for name, _, _, note in events if name == "error"] == ['t: bad, "quoted" words']
    assert json.loads(written[3].read_bytes())["id"] == "run-1"


def test_an_unknown_format_and_the_run_itself_are_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="parquet, csv, jsonl"):
        export(run, tmp_path / "out", "xlsx")
    with pytest.raises(UsageError, match="the run itself"):
        export(run, run, "parquet")
