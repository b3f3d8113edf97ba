"""Answers in plain words in, an in-memory DuckDB with the tables of docs/record.md out; times are milliseconds since
0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import duckdb
import msgspec

from dynamometer.types import Experiment, Load, Objective, Provenance, Run, Target, Workload

MS = 1_000_000  # ns
Piece = (
    float | tuple[float, str] | tuple[float, str, int]
)  # time | time, channel | time, channel, tokens the server counted


class Answer(msgspec.Struct, frozen=True):
    """One request. `chunks`: times since it was sent. `done` None: after the last chunk; ends in one of done, error,
    cancel."""

    sent: float = 0.0
    due: float | None = None
    chunks: Sequence[Piece] = ()
    usage: Mapping[str, int] = {}
    usage_at: float | None = None
    timing: Mapping[str, int] = {}  # microseconds
    frames: Sequence[tuple[float, str]] = ()
    finish: str = "stop"
    finish_at: float | None = None
    done: float | None = None
    error: str = ""
    cancel: str = ""
    ends: bool = True  # False: the process died before it
    retries: int = 0
    phase: str = "load"
    family: str = ""
    level: float = 0.0
    input_tokens: int = 0
    asked: int = 0
    ignore_eos: bool = False


Row = tuple[int, str, int, int, int, str]


def events(request: int, a: Answer) -> list[Row]:
    sent = round(a.sent * MS)

    def at(ms: float) -> int:
        return sent + round(ms * MS)

    pieces = [piece if isinstance(piece, tuple) else (piece,) for piece in a.chunks]
    last = max((piece[0] for piece in pieces), default=0.0)
    end = at(last if a.done is None else a.done)
    rows: list[Row] = [(request, "due", round((a.sent if a.due is None else a.due) * MS), 0, 0, "")]
    rows.append((request, "sent", sent, 1, 100, "new"))
    rows += [(request, "retry", sent, n + 2, 0, "reset") for n in range(a.retries)]
    rows += [(request, "frame", at(time), 0, 0, note) for time, note in a.frames]
    for piece in pieces:
        channel = piece[1] if len(piece) > 1 else "content"
        rows.append((request, "chunk", at(piece[0]), piece[2] if len(piece) > 2 else 0, 4, str(channel)))
    told = end if a.usage_at is None else at(a.usage_at)
    rows += [(request, "usage", told, n, 0, note) for note, n in a.usage.items()]
    rows += [(request, "timing", told, n, 0, note) for note, n in a.timing.items()]
    if a.error:
        rows.append((request, "error", end, 200, 0, a.error))
    elif a.cancel:
        rows.append((request, "cancel", end, 0, 0, a.cancel))
    elif a.ends:
        if a.finish:
            rows.append((request, "finish", end if a.finish_at is None else at(a.finish_at), 0, 0, a.finish))
        rows.append((request, "done", end, 0, 100, ""))
    return rows


def connect(answers: Sequence[Answer], samples: Sequence[tuple[str, float, float]] = ()) -> duckdb.DuckDBPyConnection:
    """`samples`: (name, ms, value)."""
    connection = duckdb.connect()
    connection.execute("set threads = 1")
    connection.execute(
        "create table requests (request integer, phase varchar, family varchar, session varchar, turn integer,"
        " after integer, level double, input_tokens integer, output_tokens integer, ignore_eos boolean,"
        " prompt_sha varchar)"
    )
    connection.execute(
        "create table events (request integer, kind varchar, at_ns bigint, n integer, bytes integer, note varchar)"
    )
    connection.execute(
        "create table samples (source varchar, name varchar, device varchar, at_ns bigint, value double)"
    )
    plans = [
        (i, a.phase, a.family, "", 0, -1, a.level, a.input_tokens, a.asked, a.ignore_eos, "")
        for i, a in enumerate(answers)
    ]
    _insert(connection, "requests", plans)
    _insert(connection, "events", [row for i, a in enumerate(answers) for row in events(i, a)])
    _insert(connection, "samples", [("host", name, "", round(at * MS), value) for name, at, value in samples])
    return connection


def _insert(connection: duckdb.DuckDBPyConnection, table: str, rows: Sequence[tuple[object, ...]]) -> None:
    """By columns: one statement for thousands of rows."""
    if rows:
        columns = [list(column) for column in zip(*rows, strict=True)]
        unnested = ", ".join("unnest(?)" for _ in columns)
        connection.execute(f"insert into {table} select {unnested}", columns)


def run(
    load: Load | None = None, *, slo: tuple[Objective, ...] = (), workload: Workload | None = None, **changes: object
) -> Run:
    experiment = Experiment(
        "rows", Target("http://127.0.0.1:9/v1", "m"), workload or Workload(), load or Load("closed", 1), slo=slo
    )
    made = Run("run-1", 1, "complete", Provenance.MEASURED, experiment, {}, {"cores": 2}, {}, 0, 0)
    return msgspec.structs.replace(made, **changes)


def plain(count: int, ttft: float = 50.0, step: float = 10.0, tokens: int = 3, every: float = 100.0) -> list[Answer]:
    """`count` equal answers, one after another."""
    chunks = [ttft + i * step for i in range(tokens)]
    return [Answer(sent=i * every, chunks=chunks, usage={"output": tokens, "prompt": 7}) for i in range(count)]
