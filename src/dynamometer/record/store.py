"""A run's directory in, a DuckDB connection with the views requests, events and samples out; rows in, Parquet out.

DuckDB writes Parquet itself, so the record needs no Arrow. Parquet that is missing or older than the log is made again.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import duckdb
import msgspec
import numpy as np

from dynamometer import plugins
from dynamometer.engines.dialect import Dialect
from dynamometer.engines.reply import Reply
from dynamometer.errors import MissingPath, RecordError
from dynamometer.record import manifest
from dynamometer.record.decode import decode, replay, replies
from dynamometer.record.log import held, shards
from dynamometer.record.rows import KINDS, Column, Events, Fact, Plan, Rows, plan_columns, type_name
from dynamometer.types import Provenance, Run

_DECODER: Final = 1  # raised when rows made from the same log change, so that old Parquet counts as stale

_SQL_TYPES: Final = {"int": "INTEGER", "str": "VARCHAR", "float": "DOUBLE", "bool": "BOOLEAN"}
REQUEST_COLUMNS: Final = {f.name: _SQL_TYPES[type_name(f)] for f in msgspec.structs.fields(Plan)}
EVENT_COLUMNS: Final = {
    "request": "INTEGER",
    "kind": "VARCHAR",
    "at_ns": "BIGINT",
    "n": "BIGINT",
    "bytes": "BIGINT",
    "note": "VARCHAR",
}
SAMPLE_COLUMNS: Final = {
    "source": "VARCHAR",
    "name": "VARCHAR",
    "device": "VARCHAR",
    "at_ns": "BIGINT",
    "value": "DOUBLE",
}
TABLES: Final = {"requests": REQUEST_COLUMNS, "events": EVENT_COLUMNS, "samples": SAMPLE_COLUMNS}


def read_run(directory: Path) -> Run:
    """The manifest; a run that says "running" although nobody writes its log any more was interrupted by force."""
    run = manifest.read(directory)
    if run.status == "running" and run.driver is Provenance.MEASURED and not any(map(held, shards(directory))):
        return msgspec.structs.replace(run, status="interrupted")
    return run


def list_runs(folder: Path) -> list[tuple[Path, Run | RecordError]]:
    """Runs in the folder, in its folders and in theirs, oldest first. A damaged one comes with its error."""
    if not folder.is_dir():
        raise MissingPath(f"{folder} is no folder; give the folder that holds your runs")
    found: list[tuple[Path, Run | RecordError]] = []
    for depth in ("", "*/", "*/*/"):
        for path in folder.glob(f"{depth}run.json"):
            try:
                found.append((path.parent, read_run(path.parent)))
            except RecordError as wrong:
                found.append((path.parent, wrong))
    return sorted(found, key=lambda item: (item[1].origin_wall_ns if isinstance(item[1], Run) else 0, item[0]))


def open_run(directory: Path) -> duckdb.DuckDBPyConnection:
    """An in-memory connection with the views `requests`, `events` and `samples` of one run."""
    return _connect({read_run(directory).id: directory}, named=False)


def open_runs(directories: Iterable[Path]) -> duckdb.DuckDBPyConnection:
    """The same views over several runs, with a column `run`: the run's id, or its path where two runs share an id."""
    paths = list(dict.fromkeys(directories))
    if not paths:
        raise MissingPath("no run was given; name at least one run directory")
    ids = [read_run(path).id for path in paths]
    names = [name if ids.count(name) == 1 else str(path) for name, path in zip(ids, paths, strict=True)]
    return _connect(dict(zip(names, paths, strict=True)), named=True)


def _connect(runs: Mapping[str, Path], named: bool) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    for directory in runs.values():
        refresh(directory)
    for table, columns in TABLES.items():
        parts = []
        for name, directory in runs.items():
            label = f"{sql_text(name)} AS run, " if named else ""
            parts.append(f"SELECT {label}{', '.join(columns)} FROM {_source(directory, table)}")
        try:
            connection.execute(f"CREATE VIEW {table} AS {' UNION ALL '.join(parts)}")
        except duckdb.Error as wrong:
            where = ", ".join(str(path) for path in runs.values())
            raise RecordError(
                f"{table} of {where} cannot be read: {wrong}; delete the .parquet files, they are remade"
            ) from wrong
    return connection


def _source(directory: Path, table: str) -> str:
    """The table expression that reads one table of one run."""
    if table != "samples":
        return f"read_parquet({sql_text(directory / f'{table}.parquet')})"
    path = directory / "samples.jsonl"
    if not path.exists():
        nothing = ", ".join(f"NULL::{kind} AS {name}" for name, kind in SAMPLE_COLUMNS.items())
        return f"(SELECT {nothing} WHERE false)"
    columns = ", ".join(f"{name}: {sql_text(kind)}" for name, kind in SAMPLE_COLUMNS.items())
    # a line that is still being written is torn, so it is skipped instead of failing the whole file
    options = f"format = 'newline_delimited', ignore_errors = true, columns = {{{columns}}}"
    return f"(SELECT * FROM read_json({sql_text(path)}, {options}) WHERE name IS NOT NULL)"


def refresh(directory: Path) -> None:
    """Makes requests.parquet and events.parquet from the wire logs, unless they are there and as new as the logs."""
    run = read_run(directory)
    derived = [directory / "requests.parquet", directory / "events.parquet"]
    there = all(path.exists() for path in derived)
    logs = shards(directory)
    if run.driver is Provenance.SIMULATED or not logs:
        if not there:
            what = "wire.log" if run.driver is not Provenance.SIMULATED else "requests.parquet and events.parquet"
            raise RecordError(f"{directory} has no {what}; the run wrote no rows, or they were deleted")
        return
    source = f"{_DECODER} {run.experiment.target.api} {sum(path.stat().st_size for path in logs)}"
    if not there or _written_from(derived[1]) != source:
        with Writer(directory, source) as writer:
            plans = decode(logs, dialect_of(run), writer.events)
            writer.requests(plan_columns(plans))


def _written_from(path: Path) -> str:
    query = f"SELECT value FROM parquet_kv_metadata({sql_text(path)}) WHERE key = 'source'::BLOB"
    try:
        row = duckdb.connect().execute(query).fetchone()
    except duckdb.Error:
        return ""  # torn or foreign: made again
    return bytes(row[0]).decode("utf-8", "replace") if row else ""


def dialect_of(run: Run) -> Dialect:
    """The dialect that the run was recorded in."""
    api = run.experiment.target.api
    if api == "auto":
        api = str(run.engine.get("api", "auto"))
    dialect = plugins.load("engine", api)
    if not (hasattr(dialect, "request") and hasattr(dialect, "parser")):
        raise RecordError(f"{api!r} of run {run.id} is no dialect, so its log cannot be read; see dyno doctor")
    return dialect  # type: ignore[return-value]  # checked just above; a Protocol cannot be checked by isinstance cheaply


class Writer:
    """Writes one run's Parquet files. They appear complete, under their names, when the `with` block ends well."""

    def __init__(self, directory: Path, source: str = "") -> None:
        """`source`: what the rows were made from, noted in the file."""
        self._directory, self._source = directory, source
        self._connection = duckdb.connect()
        self._parts = self._request_parts = 0
        self._notes: dict[str, int] = {}  # note -> its code in the parts
        try:
            self._folder = TemporaryDirectory(prefix=".rows-", dir=directory)
        except OSError as wrong:
            raise RecordError(
                f"{directory} cannot be written: {wrong.strerror}; copy the run to a place of yours"
            ) from wrong

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            self._connection.close()
            self._folder.cleanup()

    def events(self, batch: Events) -> None:
        """Appends a batch. Kinds and notes stay codes until the end, which is quicker than words written twice."""
        notes = self._notes
        code = np.array([notes.setdefault(note, len(notes)) for note in batch.notes or ("",)], dtype=np.uint32)
        codes = {name: getattr(batch, name) for name in EVENT_COLUMNS}
        codes["note"] = code[batch.note]
        self._write("*", codes, Path(self._folder.name) / f"events-{self._parts:06d}.parquet")
        self._parts += 1

    def _event_words(self) -> str:
        """The columns of the events with words in place of codes: the engine looks them up, a column at a time."""
        words = {"kind": _sql_list(KINDS), "note": _sql_list(list(self._notes) or ("",))}
        return ", ".join(
            f"{words[name]}[{name} + 1] AS {name}" if name in words else f"{name}::{kind} AS {name}"
            for name, kind in EVENT_COLUMNS.items()
        )

    def requests(self, columns: Mapping[str, Column]) -> None:
        """Appends requests, by column name; a column that is left out has the default of `rows.Plan`."""
        unknown = set(columns) - set(REQUEST_COLUMNS)
        sizes = {len(column) for column in columns.values()}
        if unknown or len(sizes) != 1 or "request" not in columns:
            raise RecordError(
                f"columns of requests: {sorted(columns)} of lengths {sizes}; give {', '.join(REQUEST_COLUMNS)}"
            )
        size = sizes.pop()
        defaults = {f.name: f.default for f in msgspec.structs.fields(Plan)}
        full = {
            name: columns[name] if name in columns else np.full(size, defaults[name], dtype=_dtype(kind))
            for name, kind in REQUEST_COLUMNS.items()
        }
        path = Path(self._folder.name) / f"requests-{self._request_parts:06d}.parquet"
        chosen = ", ".join(f"{name}::{kind} AS {name}" for name, kind in REQUEST_COLUMNS.items())
        self._write(chosen, full, path)
        self._request_parts += 1

    def _write(self, chosen: str, columns: Mapping[str, Column], path: Path) -> None:
        self._connection.register("batch", dict(columns))
        self._copy(f"SELECT {chosen} FROM batch", path)
        self._connection.unregister("batch")

    def _copy(self, query: str, path: Path, how: str = "uncompressed") -> None:
        options = f"FORMAT parquet, COMPRESSION {how}, KV_METADATA {{source: {sql_text(self._source)}}}"
        try:
            self._connection.execute(f"COPY ({query}) TO {sql_text(path)} ({options})")
        except duckdb.Error as wrong:
            raise RecordError(f"{path.name} of {self._directory} cannot be written: {wrong}") from wrong

    def _finish(self) -> None:
        folder = Path(self._folder.name)
        if not self._parts:
            self.events(Rows().take())
        self._connection.execute("SET threads = 1")  # in order without holding much: memory must not grow with the run
        for name, chosen in (("requests", "*"), ("events", self._event_words())):
            parts = sql_text(folder / f"{name}-*.parquet")
            self._copy(f"SELECT {chosen} FROM read_parquet({parts})", folder / f"{name}.parquet", "zstd")
        for name in ("requests.parquet", "events.parquet"):
            os.replace(folder / name, self._directory / name)


def write_rows(directory: Path, requests: Mapping[str, Column], events: Iterable[Events]) -> None:
    """The rows of a run that has no wire log: a simulation. `events`: batches, in time order within a request."""
    with Writer(directory) as writer:
        for batch in events:
            writer.events(batch)
        writer.requests(requests)


def answers(directory: Path) -> dict[int, Reply]:
    """What the engine said, thought and called, by request."""
    run = read_run(directory)
    return dict(replies(shards(directory), dialect_of(run)))


def timeline(directory: Path, request: int) -> list[Fact]:
    """All facts of one request in time order, with their texts."""
    run = read_run(directory)
    told: Iterator[list[Fact]] = (t.facts for t in replay(shards(directory), dialect_of(run), only=request))
    facts = next(told, [])
    if not facts:
        raise RecordError(f"run {run.id} has no request {request}, or it was never due")
    return sorted(facts, key=lambda fact: fact.at_ns)


def _dtype(sql_type: str) -> str:
    return {"INTEGER": "int32", "VARCHAR": "object", "DOUBLE": "float64", "BOOLEAN": "bool"}[sql_type]


def _sql_list(words: Iterable[str]) -> str:
    return "[" + ", ".join(sql_text(word) for word in words) + "]"


def sql_text(value: object) -> str:
    """A SQL string literal."""
    return "'" + str(value).replace("'", "''") + "'"
