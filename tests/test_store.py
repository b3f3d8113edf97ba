"""The store: Parquet made from the log when it is missing or old, views over one run and many, damage told in words."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import numpy as np
import pytest
from wire_run import MS, body, manifest, record, start

from dynamometer.errors import MissingPath, RecordError
from dynamometer.record import log, store
from dynamometer.record.rows import KIND_CODE, Events
from dynamometer.types import Chunk, Event, Provenance, Run, Sample

STREAM = [[5, 'data: {"choices":[{"index":0,"delta":{"content":"hi"}}]}\n\n'], [9, "data: [DONE]\n\n"]]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return record(tmp_path / "it's a run", {"a": STREAM, "b": STREAM})


def columns(directory: Path, table: str) -> dict[str, str]:
    found = store.open_run(directory).execute(f"describe {table}").fetchall()
    return {str(row[0]): str(row[1]) for row in found}


def test_the_views_have_the_documented_columns(run: Path) -> None:
    assert columns(run, "requests") == store.REQUEST_COLUMNS
    assert columns(run, "events") == store.EVENT_COLUMNS
    assert columns(run, "samples") == store.SAMPLE_COLUMNS
    found = store.open_run(run).execute("select kind, at_ns, n, bytes, note from events where request = 0").fetchall()
    assert found == [
        ("due", 0, 0, 0, ""),
        ("sent", 0, 1, 100, "new"),
        ("headers", 0, 200, 0, ""),
        ("chunk", 5 * MS, 0, 2, "content"),
        ("done", 9 * MS, 0, sum(len(text) for _, text in STREAM), ""),
    ]


def test_parquet_is_made_once_and_again_only_when_the_log_has_grown(run: Path) -> None:
    store.open_run(run)
    made = (run / "events.parquet").stat().st_ino
    store.open_run(run)
    assert (run / "events.parquet").stat().st_ino == made
    wire = log.WireLog(run / "wire.log", 0)
    start(wire, 2, 50_000)
    body(wire, [(1, STREAM[1][1].encode())], 2, 2, 50_000)
    wire.close()
    assert store.open_run(run).execute("select count(*) from requests").fetchall() == [(3,)]


@pytest.mark.parametrize("damage", ["missing", "torn", "foreign"])
def test_parquet_that_is_lost_or_damaged_is_made_again(run: Path, damage: str) -> None:
    store.open_run(run)
    path = run / "events.parquet"
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:100] if damage == "torn" else b"PAR1 something else")
    assert store.open_run(run).execute("select count(*) from events").fetchall() == [(10,)]


def test_a_crash_while_parquet_is_made_leaves_the_old_one(run: Path) -> None:
    store.open_run(run)
    before = (run / "events.parquet").read_bytes()
    with pytest.raises(RuntimeError), store.Writer(run):
        raise RuntimeError
    assert (run / "events.parquet").read_bytes() == before
    assert not [path for path in run.iterdir() if path.name.startswith(".rows")]


def test_a_run_that_was_killed_reads_as_far_as_it_got(run: Path) -> None:
    with (run / "wire.log").open("r+b") as file:
        file.truncate(os.path.getsize(run / "wire.log") - 40)
    kinds = store.open_run(run).execute("select request, kind from events where kind in ('done', 'cancel')").fetchall()
    assert sorted(kinds) == [(0, "done"), (1, "cancel")]


def test_samples_are_read_and_a_torn_line_is_left_out(run: Path) -> None:
    samples = log.SampleLog(run / "samples.jsonl")
    samples.append([Sample("host", "cpu_foreign_cores", "", 5, 0.25)])
    samples.close()
    with (run / "samples.jsonl").open("ab") as file:
        file.write(b'{"source":"ho')
    assert store.open_run(run).execute("select * from samples").fetchall() == [
        ("host", "cpu_foreign_cores", "", 5, 0.25)
    ]
    (run / "samples.jsonl").write_bytes(b"")
    assert store.open_run(run).execute("select * from samples").fetchall() == []


def test_several_runs_share_the_views_and_are_told_apart(tmp_path: Path) -> None:
    first, second = record(tmp_path / "a", {"": STREAM}), record(tmp_path / "b", {"": STREAM, "x": STREAM})
    (second / "run.json").write_bytes(msgspec.json.encode(manifest(id="run-2")))
    found = store.open_runs([first, second]).execute("select run, count(*) from requests group by 1 order by 1")
    assert found.fetchall() == [("run-1", 1), ("run-2", 2)]
    (second / "run.json").write_bytes(msgspec.json.encode(manifest(id="run-1")))
    names = store.open_runs([first, second, first]).execute("select distinct run from events order by 1").fetchall()
    assert names == [(str(first),), (str(second),)]
    with pytest.raises(MissingPath):
        store.open_runs([])


def test_runs_are_listed_oldest_first_and_damaged_ones_are_not_hidden(tmp_path: Path) -> None:
    for name, wall_ns in (("late", 20), ("early", 10), ("group/inner", 15)):
        directory = record(tmp_path / name, {"": STREAM})
        (directory / "run.json").write_bytes(msgspec.json.encode(manifest(origin_wall_ns=wall_ns)))
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "run.json").write_bytes(b"{")
    found = store.list_runs(tmp_path)
    assert [path.name for path, _ in found] == ["bad", "early", "inner", "late"]
    assert isinstance(found[0][1], RecordError)
    assert all(isinstance(run, Run) for _, run in found[1:])
    with pytest.raises(MissingPath):
        store.list_runs(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not a manifest"),
        (b"[]", "not a manifest"),
        (b'{"format":99}', "record format 99"),
        (b'{"format":1}', "not a manifest.*id"),
    ],
)
def test_a_manifest_that_cannot_be_read_says_why(run: Path, content: bytes, words: str) -> None:
    (run / "run.json").write_bytes(content)
    with pytest.raises(RecordError, match=words):
        store.open_run(run)


def test_a_folder_that_is_no_run_says_so(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(MissingPath, match="no run"):
            store.open_run(path)
    (tmp_path / "run.json").write_bytes(msgspec.json.encode(manifest()))
    with pytest.raises(RecordError, match="no wire"):
        store.open_run(tmp_path)


def test_a_dialect_that_is_unknown_is_named(run: Path) -> None:
    (run / "run.json").write_bytes(msgspec.json.encode(manifest("no.such")))
    with pytest.raises(Exception, match=r"no\.such"):
        store.open_run(run)


def simulated(directory: Path, batches: list[Events], **requests: np.ndarray) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "run.json").write_bytes(msgspec.json.encode(manifest(driver=Provenance.SIMULATED)))
    store.write_rows(directory, requests, batches)
    return directory


def batch(*requests: int) -> Events:
    size = len(requests)
    return Events(
        request=np.array(requests, np.int32),
        kind=np.full(size, KIND_CODE["chunk"], np.uint8),
        at_ns=np.arange(size, dtype=np.int64) * 10**15,
        n=np.ones(size, np.int64),
        bytes=np.zeros(size, np.int64),
        note=np.zeros(size, np.uint32),
        notes=("content",),
    )


def test_a_simulation_writes_the_same_rows_without_a_log(tmp_path: Path) -> None:
    directory = simulated(tmp_path / "sim", [batch(0, 0), batch(1)], request=np.arange(2))
    connection = store.open_run(directory)
    assert columns(directory, "requests") == store.REQUEST_COLUMNS
    assert connection.execute("select request, phase, after, ignore_eos from requests").fetchall() == [
        (0, "load", -1, False),
        (1, "load", -1, False),
    ]
    assert connection.execute("select request, kind, at_ns, n, note from events").fetchall() == [
        (0, "chunk", 0, 1, "content"),
        (0, "chunk", 10**15, 1, "content"),
        (1, "chunk", 0, 1, "content"),
    ]


def test_a_simulation_without_events_has_empty_tables(tmp_path: Path) -> None:
    connection = store.open_run(simulated(tmp_path / "sim", [], request=np.zeros(0, np.int32)))
    for table in ("requests", "events"):
        assert connection.execute(f"select * from {table}").fetchall() == []


@pytest.mark.parametrize(
    "columns_given", [{"request": [0, 1], "turn": [0]}, {"request": [0], "nonsense": [1]}, {"turn": [1]}]
)
def test_rows_that_do_not_fit_are_refused(tmp_path: Path, columns_given: dict[str, list[int]]) -> None:
    with pytest.raises(RecordError, match="columns of requests"):
        simulated(tmp_path / "sim", [], **{name: np.array(values) for name, values in columns_given.items()})


def test_answers_and_time_lines_come_with_their_texts(run: Path) -> None:
    assert {request: reply.text for request, reply in store.answers(run).items()} == {0: "hi", 1: "hi"}
    facts = store.timeline(run, 1)
    assert [fact.kind.value for fact in facts] == ["due", "sent", "headers", "chunk", "done"]
    assert [fact.text for fact in facts if isinstance(fact, Chunk)] == ["hi"]
    assert isinstance(facts[0], Event)
    with pytest.raises(RecordError, match="no request 7"):
        store.timeline(run, 7)
