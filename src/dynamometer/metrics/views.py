"""A DuckDB connection with the tables requests, events and samples in; the views of this folder on it, and their
rows, out.

Each `.sql` file is one view and opens with its name, unit, formula and exclusions; `docs/glossary.md` says the same.
The views read two small tables that `install` makes: `span` (the measured window) and `limits` (the service level
objective).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

import duckdb
import msgspec
import numpy as np
import numpy.typing as npt

from dynamometer import plugins
from dynamometer.errors import RecordError, UsageError
from dynamometer.types import Float64, Objective, Run

Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

# in the order in which they build on each other
TABLES = ("answers", "gaps")  # kept as tables, since every view reads them
LATENCIES = ("ttft", "ttft_due", "ttfa", "tpot", "itl", "icl", "e2e", "e2e_due", "stream_end", "lateness")
LISTS = (
    *("kept", "progress", "totals", "outcomes", "throughput", "goodput", "pace", "concurrency"),
    *("errors", "finishes", "counting", "families", "groups", "server", "milestones", "flow", "facts", "evidence"),
    "traits",
)
LIMITS = ("ttft", "ttft_due", "tpot", "e2e", "e2e_due")  # metrics that a single request can meet or miss
SLICES = 60  # of the window, for the pace

_HEADER = re.compile(r"--\s*(metric|unit|formula|exclusions):\s*(.*)")


class Metric(msgspec.Struct, frozen=True):
    """What the head of a `.sql` file says, and its query."""

    name: str
    unit: str
    formula: str
    exclusions: str
    query: str


class Span(msgspec.Struct, frozen=True):
    """The measured window on the run's clock, both ends in. `kept`: the requests sent in it count for latencies; None:
    the same window."""

    from_ns: int
    until_ns: int
    kept: tuple[int, int] | None = None


class Samples(msgspec.Struct, frozen=True):
    """One metric's values in the order in which the requests were sent. `weight` None: 1 each; `group`: the request
    of each value where a request gives many; `censored`: True where the value is only a lower bound."""

    value: Float64
    weight: Float64 | None = None
    group: Int64 | None = None
    censored: Bool | None = None


def read_metric(text: str, where: str) -> Metric:
    """Splits the head off a `.sql` text; a line that goes on is indented."""
    head: dict[str, str] = {}
    key = ""
    lines = text.strip().splitlines()
    body = next((at for at, line in enumerate(lines) if not line.startswith("--")), len(lines))
    for line in lines[:body]:
        found = _HEADER.match(line)
        key = found[1] if found else key
        head[key] = found[2].strip() if found else f"{head.get(key, '')} {line.lstrip('- ').strip()}"
    missing = [word for word in ("metric", "unit", "formula", "exclusions") if not head.get(word)]
    if missing or not re.fullmatch(r"[a-z][a-z0-9_]*", head.get("metric", "")):
        raise UsageError(
            f"metric file {where} lacks {', '.join(missing) or 'a plain name'} in its head; wanted lines such as"
            " `-- metric: my_metric`, `-- unit: ms`, `-- formula: …`, `-- exclusions: …`, then one SELECT"
        )
    return Metric(
        head["metric"], head["unit"], head["formula"], head["exclusions"], "\n".join(lines[body:]).rstrip(";")
    )


def built_in(name: str) -> Metric:
    return read_metric((files(__package__) / f"{name}.sql").read_text(encoding="utf-8"), f"{name}.sql")


def built_ins() -> tuple[Metric, ...]:
    return tuple(built_in(name) for name in (*TABLES, *LISTS, *LATENCIES))


def added() -> tuple[Metric, ...]:
    """Metrics from other packages: the entry point of group `dynamometer.metric` names a path to a `.sql` file or its
    text. The query gives one row a sample: `value`, and if it wants `at_ns`, `request`, `weight`, `censored`."""
    found = []
    for name in plugins.names("metric"):
        source = plugins.load("metric", name)
        metric = read_metric(source.read_text(encoding="utf-8") if isinstance(source, Path) else str(source), name)
        if metric.name in {*TABLES, *LISTS, *LATENCIES}:
            raise UsageError(f"metric {metric.name!r} of plugin {name!r} has the name of a built-in; rename it")
        found.append(metric)
    return tuple(found)


def install(connection: duckdb.DuckDBPyConnection, run: Run) -> None:
    """Makes the views on the connection, over the whole load and with the run's own objective. The run's files are
    not touched."""
    try:
        connection.execute("select request, kind, at_ns, n, bytes, note from events limit 0")
        connection.execute(
            "select request, phase, family, level, input_tokens, output_tokens, ignore_eos from requests limit 0"
        )
    except duckdb.Error as wrong:
        raise RecordError(
            f"the record of run {run.id} lacks a table or a column: {str(wrong).splitlines()[0]}"
        ) from wrong
    for name in TABLES:
        connection.execute(f"create or replace temp table {name} as {built_in(name).query}")
    set_limits(connection, run.experiment.slo)
    set_span(connection, whole(connection))
    for name in (*LISTS, *LATENCIES):
        connection.execute(f"create or replace temp view {name} as {built_in(name).query}")
    for metric in added():
        try:
            connection.execute(f"create or replace temp view {metric.name} as {metric.query}")
        except duckdb.Error as wrong:
            raise UsageError(f"metric {metric.name!r} does not run: {str(wrong).splitlines()[0]}") from wrong


def whole(connection: duckdb.DuckDBPyConnection) -> Span:
    """From the first request sent to the last one ended, warm-up apart."""
    first, last = _one(
        connection,
        "select min(sent_ns), max(case outcome when 'ok' then last_ns else ended_ns end) from answers"
        " where phase = 'load' and outcome <> 'not sent'",
    )
    start = int(first) if first is not None else 0
    return Span(start, max(int(last) if last is not None else start, start))


def set_span(connection: duckdb.DuckDBPyConnection, span: Span) -> None:
    """Moves the measured window; every view follows."""
    bin_ns = max((span.until_ns - span.from_ns) // SLICES, 1_000_000)
    connection.execute(
        "create or replace temp table span as select ?::bigint as from_ns, ?::bigint as until_ns, ?::bigint as bin_ns, "
        "?::bigint as kept_from_ns, ?::bigint as kept_until_ns",
        [span.from_ns, span.until_ns, bin_ns, *(span.kept or (span.from_ns, span.until_ns))],
    )


def set_limits(connection: duckdb.DuckDBPyConnection, slo: tuple[Objective, ...]) -> None:
    """Limits in ms that one request can meet or miss; null where the objective sets none, the tightest where it sets
    two."""
    limits = limits_ms(slo)
    columns = ", ".join(f"?::double as {metric}_ms" for metric in LIMITS)
    connection.execute(
        f"create or replace temp table limits as select {columns}", [limits.get(metric) for metric in LIMITS]
    )


def limits_ms(slo: tuple[Objective, ...]) -> dict[str, float]:
    found: dict[str, float] = {}
    for objective in slo:
        if objective.metric in LIMITS and objective.op in ("<", "<="):
            limit = objective.value * {"s": 1000.0, "us": 1e-3}.get(objective.unit, 1.0)
            found[objective.metric] = min(limit, found.get(objective.metric, limit))
    return found


def samples(connection: duckdb.DuckDBPyConnection, name: str, family: str | None = None) -> Samples:
    """The values of one latency view, or of a plugin's; of one workload family if it is named."""
    only = "" if family is None else " where request in (select request from kept where family = ?)"
    columns = connection.execute(f"select * from {name}{only}", [] if family is None else [family]).fetchnumpy()
    if "value" not in columns:
        raise UsageError(f"metric {name!r} has no column `value`; its query must give one row a sample")
    value = _filled(columns["value"], np.nan).astype(np.float64, copy=False)
    known = np.isfinite(value)
    keep = slice(None) if known.all() else known
    weight = _filled(columns["weight"], 0.0).astype(np.float64, copy=False)[keep] if "weight" in columns else None
    censored = _filled(columns["censored"], False).astype(np.bool_)[keep] if "censored" in columns else None
    grouped = weight is not None and "request" in columns
    return Samples(
        value[keep],
        None if weight is None or bool(np.all(weight == 1.0)) else weight,
        _by_turn(connection, _filled(columns["request"], 0)[keep]) if grouped else None,
        censored if censored is not None and bool(censored.any()) else None,
    )


def _by_turn(connection: duckdb.DuckDBPyConnection, requests: npt.NDArray[np.generic]) -> Int64:
    """Request numbers replaced by the place of each request in the order of sending, so that neighbours are
    neighbours in time."""
    order = connection.execute("select request from answers order by sent_ns, request").fetchnumpy()["request"]
    turn = np.zeros(int(order.max(initial=0)) + 1, dtype=np.int64)
    turn[order] = np.arange(len(order))
    found: Int64 = turn[requests.astype(np.int64)]
    return found


def _filled(column: npt.NDArray[np.generic], blank: float | bool) -> npt.NDArray[np.generic]:
    return column.filled(blank) if isinstance(column, np.ma.MaskedArray) else column


def rows(connection: duckdb.DuckDBPyConnection, query: str) -> list[dict[str, object]]:
    """A small result as one mapping a row."""
    result = connection.execute(query)
    names = [column[0] for column in result.description]
    return [dict(zip(names, row, strict=True)) for row in result.fetchall()]


def columns_of(connection: duckdb.DuckDBPyConnection, query: str) -> Mapping[str, Float64]:
    """A numeric result as one float array a column, nan where null."""
    found = connection.execute(query).fetchnumpy()
    return {name: np.ma.filled(np.ma.asarray(column).astype(np.float64), np.nan) for name, column in found.items()}


def _one(connection: duckdb.DuckDBPyConnection, query: str) -> tuple[int | None, ...]:
    row = connection.execute(query).fetchone()
    assert row is not None
    return row
