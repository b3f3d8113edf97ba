"""A run's directory and a PostgreSQL URL in, its rows in shared tables out, and back again: `dyno store`.

A run arrives whole or not at all, however many write at once: one transaction, under a lock of the run's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

import duckdb
import msgspec

from dynamometer import plugins
from dynamometer.errors import RecordError, UsageError
from dynamometer.record import manifest
from dynamometer.record.store import TABLES, open_run, read_run, sql_text
from dynamometer.record.stored import Stored
from dynamometer.types import Run

if TYPE_CHECKING:
    import psycopg

_POSTGRES: Final = {"VARCHAR": "text", "DOUBLE": "double precision"}  # other types have one name in both
_BLOCK_BYTES: Final = 1 << 20
_LOCK: Final = 0x64796E6F  # "dyno": nobody migrates while another does

# One row a request, in SQL that DuckDB and PostgreSQL read alike.
STREAMS: Final = """
select run, request, min(at_ns) filter (where kind = 'sent') as sent_ns,
  (min(at_ns) filter (where kind = 'chunk') - min(at_ns) filter (where kind = 'sent')) / 1e6 as ttft_ms,
  (max(at_ns) filter (where kind = 'chunk') - min(at_ns) filter (where kind = 'sent')) / 1e6 as e2e_ms,
  count(*) filter (where kind = 'chunk') as chunks,
  count(*) filter (where kind = 'done') as done
from events group by run, request
"""


def _table(name: str) -> str:
    columns = ", ".join(f"{column} {_POSTGRES.get(kind, kind)}" for column, kind in TABLES[name].items())
    return f"create table {name} (run text not null references runs on delete cascade, {columns})"


# A step once released is never edited: a store of any age is brought up to date by those that it lacks.
MIGRATIONS: Final = (
    "create table runs (run text primary key, stored_at timestamptz not null default now(), manifest json not null); "
    + "; ".join(map(_table, TABLES)),
    "create index on requests (run); create index on events (run, request); create index on samples (run, name)",
    f"create view streams as {STREAMS}",
)


@contextmanager
def _connected(url: str) -> Iterator[psycopg.Connection]:
    """A connection whose schema is up to date, in one transaction that the block's end commits."""
    plugins.optional("psycopg", "postgres")
    import psycopg

    if not url.startswith(("postgresql://", "postgres://")):
        raise UsageError(f"--store is {url.partition('://')[0]!r}…; give postgresql://USER@HOST/DATABASE")
    try:
        with psycopg.connect(url, connect_timeout=10, application_name="dynamometer") as connection:
            connection.execute("set search_path to dyno")
            _migrate(connection)
            yield connection
    except psycopg.Error as wrong:
        said = " ".join(str(wrong).split())
        raise RecordError(f"the store did not take it: {said}; nothing of this call was stored") from wrong


def _migrate(connection: psycopg.Connection) -> None:
    connection.execute("select pg_advisory_xact_lock(%s)", (_LOCK,))
    connection.execute("create schema if not exists dyno")
    connection.execute("create table if not exists schema_version (version int not null)")
    found = connection.execute("select max(version) from schema_version").fetchone()
    version = (found[0] if found else None) or 0
    if version > len(MIGRATIONS):
        raise RecordError(f"the store has schema {version}; this version knows {len(MIGRATIONS)}: upgrade dynamometer")
    for number, step in enumerate(MIGRATIONS[version:], version + 1):
        connection.execute(step.encode())
        connection.execute("insert into schema_version values (%s)", (number,))
    connection.commit()  # frees the lock, and a push that fails leaves the schema
    connection.execute("set search_path to dyno")


def push(directory: Path, url: str) -> dict[str, int]:
    """Copies a run into the store, in place of what it holds of that run. Rows by table."""
    run = read_run(directory)
    counted = {}
    with _connected(url) as connection, open_run(directory) as rows, TemporaryDirectory(prefix="dyno-") as folder:
        connection.execute("select pg_advisory_xact_lock(hashtextextended(%s, 0))", (run.id,))
        connection.execute("delete from runs where run = %s", (run.id,))
        text = msgspec.json.encode(run).decode().replace("\\u0000", "\\ufffd")
        connection.execute("insert into runs (run, manifest) values (%s, %s)", (run.id, text))
        for table in TABLES:
            part = Path(folder) / f"{table}.csv"
            counted[table] = _written(rows, table, run.id, part)
            _send(connection, table, part)
            part.unlink()
    return counted


def _written(rows: duckdb.DuckDBPyConnection, table: str, run_id: str, part: Path) -> int:
    """A table as CSV, and its rows. PostgreSQL's text cannot hold the character 0."""
    words = [name for name, kind in TABLES[table].items() if kind == "VARCHAR"]
    chosen = [f"replace({name}, chr(0), '\ufffd') AS {name}" if name in words else name for name in TABLES[table]]
    query = f"SELECT {sql_text(run_id)} AS run, {', '.join(chosen)} FROM {table}"
    quoted = ", ".join(words)
    found = rows.execute(
        f"COPY ({query}) TO {sql_text(part)} (FORMAT csv, HEADER false, FORCE_QUOTE ({quoted}))"
    ).fetchone()
    return int(found[0]) if found else 0


def _send(connection: psycopg.Connection, table: str, part: Path) -> None:
    columns = ", ".join(("run", *TABLES[table]))
    command = f"copy {table} ({columns}) from stdin (format csv)"
    with part.open("rb") as file, connection.cursor().copy(command.encode()) as copy:
        while block := file.read(_BLOCK_BYTES):
            copy.write(block)


def pull(url: str, run_id: str, directory: Path) -> Run:
    """Makes a run's directory from the store: its manifest and rows. The wire log stays where the run was made."""
    if (directory / manifest.NAME).exists():
        raise UsageError(f"{directory} holds a run already; give another --out")
    with _connected(url) as connection:
        # one snapshot: a run that is pushed again meanwhile is not read half old, half new
        connection.execute("set transaction isolation level repeatable read")
        found = connection.execute("select manifest::text from runs where run = %s", (run_id,)).fetchone()
        if found is None:
            raise UsageError(f"the store holds no run {run_id!r}; dyno store list lists them")
        run = msgspec.json.decode(found[0], type=Run)
        directory.mkdir(parents=True, exist_ok=True)
        for table in TABLES:
            _receive(connection, table, run_id, directory)
        manifest.write(directory, run)
    return run


def _receive(connection: psycopg.Connection, table: str, run_id: str, directory: Path) -> None:
    columns = ", ".join(TABLES[table])
    part = directory / f".{table}.csv"
    command = f"copy (select {columns} from {table} where run = %s) to stdout (format csv, force_quote *)"
    with part.open("wb") as file, connection.cursor().copy(command.encode(), (run_id,)) as copy:
        for block in copy:
            file.write(block)
    kinds = ", ".join(f"{sql_text(name)}: {sql_text(kind)}" for name, kind in TABLES[table].items())
    # a quoted nothing is an empty word, an unquoted one is NULL
    source = (
        f"read_csv({sql_text(part)}, header = false, columns = {{{kinds}}}, auto_detect = false, quote = '\"', "
        "escape = '\"', allow_quoted_nulls = false, max_line_size = 16777216)"
    )
    place = directory / ("samples.jsonl" if table == "samples" else f"{table}.parquet")
    how = "FORMAT json" if table == "samples" else "FORMAT parquet, COMPRESSION zstd"
    order = "" if table == "samples" else " ORDER BY request" + (", at_ns" if table == "events" else "")
    with duckdb.connect() as rows:
        rows.execute(f"COPY (SELECT * FROM {source}{order}) TO {sql_text(place)} ({how})")
    part.unlink()


def stored(url: str) -> list[Stored]:
    """The runs of the store, the newest first."""
    query = """select run, to_char(stored_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'), manifest->>'status',
        manifest->'experiment'->>'name' from runs order by run desc"""
    with _connected(url) as connection:
        return [Stored(*map(str, row)) for row in connection.execute(query)]


def drop(url: str, run_ids: list[str]) -> int:
    """Removes runs with all their rows; how many there were."""
    with _connected(url) as connection:
        return connection.execute("delete from runs where run = any(%s)", (run_ids,)).rowcount
