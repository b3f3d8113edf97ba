"""A small record of each released version is read by this one: its log gives the rows that it gave then, and its rows
alone can be summed up. A release adds a folder to tests/data/records; none is ever changed."""

from __future__ import annotations

import shutil
from pathlib import Path

import duckdb
import msgspec
import pytest

from dynamometer import __version__
from dynamometer.decisions.account import account
from dynamometer.errors import RecordError
from dynamometer.record import manifest
from dynamometer.record.store import open_run

RECORDS = sorted((Path(__file__).parent / "data" / "records").iterdir())


def copy(record: Path, folder: Path, *names: str) -> Path:
    folder.mkdir()
    for name in ("run.json", "samples.jsonl", *names):
        shutil.copyfile(record / name, folder / name)
    return folder


def rows(connection: duckdb.DuckDBPyConnection, query: str) -> list[dict[str, object]]:
    found = connection.execute(query)
    names = [column[0] for column in found.description]
    return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


def test_this_version_has_a_record_of_its_own() -> None:
    assert __version__ in {record.name for record in RECORDS}


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.name)
@pytest.mark.parametrize(("table", "order"), [("requests", "request"), ("events", "request, at_ns, kind")])
def test_an_old_log_gives_the_rows_that_it_gave(record: Path, table: str, order: str, tmp_path: Path) -> None:
    then = rows(duckdb.connect(), f"from read_parquet('{record / table}.parquet') order by {order}")
    with open_run(copy(record, tmp_path / "run", "wire.log")) as connection:
        now = rows(connection, f"from {table} order by {order}")
    assert len(then) == len(now) > 0
    for old, new in zip(then, now, strict=True):
        assert {name: new[name] for name in old} == old  # a later version may have added columns


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.name)
@pytest.mark.parametrize("kept", [("wire.log",), ("requests.parquet", "events.parquet")], ids=["log", "rows"])
def test_an_old_record_is_summed_up(record: Path, kept: tuple[str, ...], tmp_path: Path) -> None:
    told = account(copy(record, tmp_path / "run", *kept))
    assert told.run.versions["dynamometer"] == record.name
    assert told.summary.metrics.requests_ok == 4


def test_a_record_of_a_later_format_is_refused_with_what_to_do(tmp_path: Path) -> None:
    folder = copy(RECORDS[-1], tmp_path / "run", "wire.log")
    later = msgspec.json.decode((folder / "run.json").read_bytes()) | {"format": manifest.FORMAT + 1}
    (folder / "run.json").write_bytes(msgspec.json.encode(later))
    with pytest.raises(RecordError, match="upgrade dynamometer"):
        open_run(folder)
