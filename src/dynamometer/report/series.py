"""A run's connection (with the views of metrics) in; short lists of rows out, no more than a picture can show.

DuckDB does the reducing, so a page stays as small for ten million tokens as for ten thousand. Times are seconds from
the first request that was due.
"""

from __future__ import annotations

from collections.abc import Mapping

import duckdb
import msgspec
import numpy as np

from dynamometer.metrics.quantiles import survival, weighted
from dynamometer.metrics.views import Samples
from dynamometer.report.figure import Row, Value
from dynamometer.types import Estimate

MOST_POINTS = 1000  # single requests that one picture shows; more are binned
BINS = 80  # of time
CURVE = 90  # points of a percentile curve
DEVICES = 8  # of one sensor
SHARES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}


class Extent(msgspec.Struct, frozen=True):
    """The load in time: zero is its first due time. `cut_s`: where measuring begins, 0 if from the start."""

    zero_ns: int
    end_s: float
    cut_s: float
    requests: int

    @property
    def bin_s(self) -> float:
        return max(self.end_s / BINS, 1e-3)


def fetch(connection: duckdb.DuckDBPyConnection, query: str, values: Mapping[str, Value] | None = None) -> list[Row]:
    """The result as one mapping a row."""
    result = connection.execute(query, dict(values) if values else None)
    names = [column[0] for column in result.description]
    return [dict(zip(names, row, strict=True)) for row in result.fetchall()]


def extent(connection: duckdb.DuckDBPyConnection) -> Extent | None:
    """None if no request of the load was sent."""
    [row] = fetch(
        connection,
        "select min(coalesce(due_ns, sent_ns)) as zero_ns, max(ended_ns) as end_ns, any_value(from_ns) as from_ns,"
        " min(sent_ns) as first_ns, count(*) as requests from answers, span"
        " where phase = 'load' and sent_ns is not null",
    )
    if row["zero_ns"] is None:
        return None
    zero, end, start, first = (int(row[name] or 0) for name in ("zero_ns", "end_ns", "from_ns", "first_ns"))
    cut_s = (start - zero) / 1e9 if start > first else 0.0
    return Extent(zero, max((end - zero) / 1e9, 1e-3), cut_s, int(row["requests"] or 0))


def percentiles(samples: Samples, series: str, estimates: Mapping[str, Estimate]) -> list[Row]:
    """The percentile curve of one metric, up to the share that its sample can carry, and points with intervals.

    `odds` is 1 / (1 - share): 10 is the 90th percentile, 100 the 99th; on a log axis each nine is as wide as another.
    """
    size = len(samples.value)
    if size == 0:
        return []
    shares = 1 - np.logspace(0, -np.log10(max(size, 2)), CURVE)
    if samples.censored is not None:
        curve = survival(samples.value, samples.censored)
        values = [curve.quantile(float(share)) for share in shares]
    else:
        ordered = weighted(samples.value, samples.weight)
        values = [ordered.quantile(float(share)) for share in shares]
    rows: list[Row] = [
        {"odds": float(1 / (1 - share)), "value": value, "series": series, "kind": "line"}
        for share, value in zip(shares, values, strict=True)
        if value is not None and value > 0
    ]
    rows += [
        {
            "odds": 1 / (1 - SHARES[name]),
            "value": found.value,
            "low": found.low,
            "high": found.high,
            "series": series,
            "kind": "point",
        }
        for name, found in estimates.items()
        if name in SHARES and found.value is not None and found.value > 0
    ]
    return rows


def spread(
    connection: duckdb.DuckDBPyConnection, span: Extent, at: str, value: str, where: str, series: str
) -> list[Row]:
    """A per-request value over time: each request a point, or for many the median of each bin with its P10 to P90.

    `at`, `value`, `where`: SQL over `answers`, of ours, never of a user.
    """
    source = (
        f"select ({at} - $zero) / 1e9 as at_s, {value} as value from answers"
        f" where phase = 'load' and {where} and {at} is not null and ({value}) is not null"
    )
    if span.requests <= MOST_POINTS:
        found = fetch(connection, f"{source} order by at_s", {"zero": span.zero_ns})
        return [{**row, "series": series, "kind": "point"} for row in found]
    found = fetch(
        connection,
        f"with source as ({source}) select (floor(at_s / $bin) + 0.5) * $bin as at_s, median(value) as value,"
        " quantile_cont(value, 0.1) as low, quantile_cont(value, 0.9) as high from source group by 1 order by 1",
        {"zero": span.zero_ns, "bin": span.bin_s},
    )
    return [{**row, "series": series, "kind": "line"} for row in found]


def token_rate(connection: duckdb.DuckDBPyConnection, span: Extent) -> list[Row]:
    """`at_s`, `value`: output tokens per second in each bin; a bin without a token is 0, for then none came."""
    return fetch(
        connection,
        "with bins as (select unnest(range($bins)) as bin),"
        " counted as (select floor((at_ns - $zero) / 1e9 / $bin) as bin, sum(tokens) as tokens from gaps"
        "  join answers using (request) where phase = 'load' and outcome in ('ok', 'cancelled') group by 1)"
        " select (bin + 0.5) * $bin as at_s, coalesce(tokens, 0) / $bin as value"
        " from bins left join counted using (bin) order by bin",
        {"zero": span.zero_ns, "bin": span.bin_s, "bins": max(1, int(span.end_s / span.bin_s))},
    )


def in_flight(connection: duckdb.DuckDBPyConnection, span: Extent) -> list[Row]:
    """`at_s`, `value`: requests in flight at the start of each bin; `low`, `high`: the range within it."""
    return fetch(
        connection,
        "with edges as (select unnest(range($bins)) as bin, $zero + (bin * $bin * 1e9)::bigint as edge_ns),"
        " held as (select bin, edge_ns, coalesce(in_flight, 0) as value from edges"
        "  asof left join concurrency on edges.edge_ns >= concurrency.at_ns),"
        " inside as (select floor((at_ns - $zero) / 1e9 / $bin) as bin, min(in_flight) as low, max(in_flight) as high"
        "  from concurrency where at_ns >= $zero group by 1)"
        " select bin * $bin as at_s, value, least(value, coalesce(low, value)) as low,"
        " greatest(value, coalesce(high, value)) as high from held left join inside using (bin) order by bin",
        {"zero": span.zero_ns, "bin": span.bin_s, "bins": max(1, int(span.end_s / span.bin_s) + 1)},
    )


def token_gaps(connection: duckdb.DuckDBPyConnection) -> tuple[list[Row], float]:
    """Inter-token latency, twenty bins a decade, in % of all tokens; and the share of tokens that came with no gap."""
    found = fetch(
        connection,
        "select case when value > 0 then floor(log10(value) * 20) end as bin, sum(weight) as tokens"
        " from itl group by 1 order by 1",
    )
    total = sum(float(row["tokens"] or 0) for row in found)
    if total <= 0:
        return [], 0.0
    rows: list[Row] = [
        {
            "from_ms": 10 ** (float(row["bin"]) / 20),
            "to": 10 ** ((float(row["bin"]) + 1) / 20),
            "share": 100 * float(row["tokens"] or 0) / total,
        }
        for row in found
        if row["bin"] is not None
    ]
    return rows, sum(float(row["tokens"] or 0) for row in found if row["bin"] is None) / total


def failures(connection: duckdb.DuckDBPyConnection, span: Extent) -> list[Row]:
    """`at_s`, `to_s`, `series` (error class), `requests`: failed, empty and stopped requests by when they ended."""
    bin_s = max(span.end_s / 40, 1e-3)
    return fetch(
        connection,
        "select floor((ended_ns - $zero) / 1e9 / $bin) * $bin as at_s, at_s + $bin as to_s, count(*) as requests,"
        " case outcome when 'empty' then 'empty answer' when 'cancelled' then 'stopped: ' || coalesce(reason, '?')"
        "  else coalesce(nullif(reason, ''), 'error') end as series"
        " from answers where phase = 'load' and outcome in ('error', 'empty', 'cancelled') group by all order by 1, 4",
        {"zero": span.zero_ns, "bin": bin_s},
    )


def family_boxes(connection: duckdb.DuckDBPyConnection, value: str, where: str) -> list[Row]:
    """Quantiles of a per-request value for each workload family. `value`, `where`: SQL over `kept`, of ours."""
    picks = ", ".join(
        f"quantile_cont({value}, {share}) as p{round(100 * share)}" for share in (0.05, 0.25, 0.5, 0.75, 0.95)
    )
    query = f"select family as \"group\", {picks}, count({value}) as n from kept where {where} and family <> ''"
    return fetch(connection, f"{query} group by family having n > 0 order by p50")


def life_lines(connection: duckdb.DuckDBPyConnection, span: Extent, most: int) -> list[Row]:
    """The parts of the lives of the requests around the slowest one, in the order of sending."""
    found = fetch(
        connection,
        "with sent as (select *, row_number() over (order by sent_ns, request) as place from answers"
        "  where phase = 'load' and sent_ns is not null),"
        " slowest as (select coalesce(arg_max(place, ended_ns - sent_ns), 1) as place from sent where outcome = 'ok')"
        " select request, outcome,"
        "  (coalesce(due_ns, sent_ns) - $zero) / 1e9 as due_s, (sent_ns - $zero) / 1e9 as sent_s,"
        "  (first_ns - $zero) / 1e9 as first_s, (last_ns - $zero) / 1e9 as last_s, (ended_ns - $zero) / 1e9 as ended_s"
        " from sent, slowest where sent.place between greatest(1, slowest.place - $most // 2)"
        "  and greatest(1, slowest.place - $most // 2) + $most - 1 order by sent.place",
        {"zero": span.zero_ns, "most": most},
    )
    return [part for row in found for part in _parts(row)]


def _parts(row: Mapping[str, Value]) -> list[Row]:
    """Waited for the client, waited for the first token, tokens came, failed or stopped."""
    good = row["outcome"] in ("ok", "empty")
    first, last, ended = row["first_s"], row["last_s"], row["ended_s"]
    marks = [
        ("late", row["due_s"], row["sent_s"]),
        ("to first token", row["sent_s"], first if first is not None else ended if good else None),
        ("tokens", first, last if good else None),
        ("failed or stopped", None if good else row["sent_s"], None if good else ended),
    ]
    return [
        {"lane": f"{row['request']}", "series": name, "from_s": start, "to_s": stop}
        for name, start, stop in marks
        if start is not None and stop is not None and float(stop) > float(start)
    ]


def sensors(connection: duckdb.DuckDBPyConnection, span: Extent) -> dict[str, list[Row]]:
    """By sensor name: `at_s`, `value` (mean of the bin), `series` (device). Only readings beside the load.

    A counter (`*_total`) becomes its rise a second, `*_per_s`. Of a sensor with more devices than a picture can show
    the first DEVICES are given.
    """
    found = fetch(
        connection,
        "with binned as (select name, device as series,"
        "  (floor((at_ns - $zero) / 1e9 / $bin) + 0.5) * $bin as at_s, avg(value) as value"
        " from samples where at_ns between $zero and $zero + $end * 1e9 group by all),"
        " rated as (select * exclude (value), case when name like '%\\_total' escape '\\' then"
        "  greatest(0, value - lag(value) over same) / (at_s - lag(at_s) over same) else value end as value"
        "  from binned window same as (partition by name, series order by at_s))"
        " select * from rated where value is not null"
        " qualify dense_rank() over (partition by name order by series) <= $devices"
        " order by name, series, at_s",
        {"devices": DEVICES, "zero": span.zero_ns, "bin": span.bin_s, "end": span.end_s},
    )
    by_name: dict[str, list[Row]] = {}
    for row in found:
        name = str(row["name"])
        name = f"{name.removesuffix('_total')}_per_s" if name.endswith("_total") else name
        by_name.setdefault(name, []).append({**row, "kind": "line"})
    return by_name
