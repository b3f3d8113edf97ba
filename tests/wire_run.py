"""Reads of an answer in, a run directory with the wire log that the client would have written out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import duckdb
import msgspec

from dynamometer.metrics.summary import Summary, summarize
from dynamometer.record import log
from dynamometer.record.store import open_run, read_run
from dynamometer.types import Experiment, Load, Provenance, Run, Target, Workload

MS = 1_000_000  # ns
Read = tuple[float, bytes]  # ms since sent, bytes of one socket read


def manifest(api: str = "openai.chat", **changes: object) -> Run:
    experiment = Experiment("wire", Target("http://127.0.0.1:9/v1", "m", api), Workload(), Load())
    run = Run("run-1", 1, "complete", Provenance.MEASURED, experiment, {}, {}, {}, 1_700_000_000 * 10**9, 10**9)
    return msgspec.structs.replace(run, **changes)


def reads_of(case: Sequence[Sequence[object]]) -> tuple[list[Read], float]:
    """The reads of a case and the time at which the body ends."""
    found: list[Read] = []
    end = 0.0
    for first, second in case:
        if first == "eof":
            end = float(str(second))
            continue
        body = bytes.fromhex(second["hex"]) if isinstance(second, dict) else str(second).encode()
        found.append((float(str(first)), body))
        end = float(str(first))
    return found, end


def start(wire: log.WireLog, request: int = 0, at_ms: float = 0, status: int = 200, **plan: object) -> None:
    """Plan, due, sent and headers of one request."""
    at_ns = round(at_ms * MS)
    wire.append(log.PLAN, request, at_ns, json.dumps({"request": request, "phase": "load", **plan}).encode())
    wire.append(log.DUE, request, at_ns)
    wire.append(log.SENT, request, at_ns, b'{"attempt":1,"bytes":100,"connection":"new"}')
    wire.append(log.HEADERS, request, at_ns, json.dumps({"status": status, "headers": {}}).encode())


def body(wire: log.WireLog, reads: Sequence[Read], end_ms: float, request: int = 0, at_ms: float = 0) -> None:
    for read_ms, data in reads:
        wire.append(log.BODY, request, round((at_ms + read_ms) * MS), data)
    wire.append(log.END, request, round((at_ms + end_ms) * MS))


def record(
    directory: Path, streams: Mapping[str, Sequence[Sequence[object]]], api: str = "openai.chat", status: int = 200
) -> Path:
    """One request a stream, 10 s apart, in the order given."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "run.json").write_bytes(msgspec.json.encode(manifest(api)))
    wire = log.WireLog(directory / "wire.log", 0)
    for number, case in enumerate(streams.values()):
        reads, end_ms = reads_of(case)
        start(wire, number, number * 10_000, status, output_tokens=64)
        body(wire, reads, end_ms, number, number * 10_000)
    wire.close()
    return directory


def rows(directory: Path, request: int = 0) -> list[tuple[str, float, int, int, str]]:
    """(kind, ms since due, n, bytes, note) of one request, without what the wire did before the answer."""
    query = "select kind, at_ns / 1e6, n, bytes, note from events where request = ? order by at_ns"
    found = open_run(directory).execute(query, [request]).fetchall()
    begin = found[0][1]
    return [(kind, at - begin, n, size, note) for kind, at, n, size, note in found if kind not in WIRE]


WIRE = ("due", "sent", "headers")


def answers(directory: Path) -> list[dict[str, object]]:
    """The rows of the metrics' view `answers`."""
    connection = open_run(directory)
    summary_of(directory, connection)
    found = connection.execute("select * from answers order by request")
    names = [column[0] for column in found.description or ()]
    return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


def summary_of(directory: Path, connection: duckdb.DuckDBPyConnection | None = None) -> Summary:
    return summarize(connection or open_run(directory), read_run(directory), steady=False)
