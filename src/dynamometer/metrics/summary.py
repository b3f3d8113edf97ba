"""The rows of one run and its manifest in; every figure with its interval, the window and the rules of counting out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal

import duckdb
import msgspec
import numpy as np

from dynamometer.metrics import enginepage, intervals, views
from dynamometer.metrics.checks import check
from dynamometer.metrics.distribution import Distribution, absent, distribution
from dynamometer.metrics.steady import Steady, find
from dynamometer.types import Doubt, Estimate, Objective, Provenance, Run

FAMILIES = 16  # more are not families but rows
STREAMED = ("ttft", "ttft_due", "ttfa", "tpot", "itl", "icl")  # need the time of single tokens


class Metrics(msgspec.Struct, frozen=True):
    """The figures of a run. `*_ms` over the measured window; counts over the whole load; None: not to be had, see
    `estimates`."""

    ttft_ms: Distribution
    ttft_due_ms: Distribution
    ttfa_ms: Distribution  # first token of the answer itself, after reasoning
    tpot_ms: Distribution
    itl_ms: Distribution
    icl_ms: Distribution
    e2e_ms: Distribution
    e2e_due_ms: Distribution
    stream_end_ms: Distribution
    lateness_ms: Distribution
    output_tokens_per_s: float | None
    input_tokens_per_s: float | None
    requests_per_s: float | None
    goodput: float | None  # answers a second that meet the whole objective; None without one
    attainment: float | None  # their share of the requests, cancelled ones left out
    requests_ok: int
    requests_failed: int
    requests_cancelled: int
    requests_empty: int
    requests_retried: int
    output_tokens: int  # of ok answers
    input_tokens: int | None  # as the server counts them; None: it does not say
    cached_tokens: int | None
    reasoning_tokens: int | None
    concurrency_mean: float | None  # requests in flight, over the window
    estimates: Mapping[str, Estimate]  # of the rates and shares above


class Family(msgspec.Struct, frozen=True):
    """One workload family of the run, in the measured window."""

    requests: int
    ok: int
    input_tokens: float | None
    output_tokens: float | None
    stream_tokens_per_s: float | None  # 1000 / mean tpot: the speed one reader sees
    ttft_ms: Distribution
    tpot_ms: Distribution
    e2e_ms: Distribution


class Summary(msgspec.Struct, frozen=True):
    """summary.json. It can be made again from the record at any time."""

    run: str
    status: str
    driver: Provenance  # measured or simulated
    window: Steady
    window_s: float
    metrics: Metrics
    families: Mapping[str, Family]
    groups: tuple[Mapping[str, str | float | int | None], ...]  # by family and level
    errors: tuple[Mapping[str, str | float | int | None], ...]
    finishes: Mapping[str, int]
    counting: tuple[Mapping[str, str | float | int | None], ...]  # where the token counts come from
    slo: tuple[Objective, ...]
    added: Mapping[str, Distribution]  # metrics of plugins
    rules: Mapping[str, str]  # formula of each figure
    server: Mapping[str, Estimate] = {}  # what the server says of itself, in its answers and on its metrics page
    doubts: tuple[Doubt, ...] = ()


def summarize(
    connection: duckdb.DuckDBPyConnection, run: Run, *, steady: bool = True, slo: tuple[Objective, ...] | None = None
) -> Summary:
    """All figures of one run. `connection` has the tables requests, events and samples of docs/record.md; the views
    are made on it.

    `steady` False: nothing is cut but the tagged warm-up. `slo`: another objective than the run's own, for a what-if.
    """
    views.install(connection, run)
    objective = run.experiment.slo if slo is None else slo
    views.set_limits(connection, objective)
    window = find(connection, run, steady)
    everything = views.whole(connection)
    first_ns = everything.from_ns if window.state == "resumed" else window.from_ns
    kept = (first_ns, everything.until_ns)  # rates end sooner; what was sent until the end has a latency all the same
    span = views.Span(window.from_ns, window.until_ns, kept)
    views.set_span(connection, span)
    extra = views.added()
    return Summary(
        run.id,
        run.status,
        run.driver,
        window,
        (span.until_ns - span.from_ns) / 1e9,
        _metrics(connection, span, objective, run.experiment.load.law == "closed"),
        _families(connection),
        _table(connection, "select * from groups"),
        _table(connection, "select * from errors"),
        {str(row["reason"]): _whole(row["requests"]) or 0 for row in views.rows(connection, "select * from finishes")},
        _table(connection, "select * from counting"),
        objective,
        {
            metric.name: distribution(views.samples(connection, metric.name), metric.unit, _kept(connection))
            for metric in extra
        },
        {metric.name: metric.formula for metric in (*views.built_ins(), *extra)},
        _server(connection) | enginepage.figures(connection, span),
        _once((*run.doubts, *check(connection, run, window))),
    )


def _server(connection: duckdb.DuckDBPyConnection) -> dict[str, Estimate]:
    """Speeds by the server's own clock: prompt tokens that it computed (cached ones apart) and tokens of one stream.

    Durations that do not fit into the time that the answer took here are left out; a check says so.
    """
    rows = views.columns_of(connection, "select * from server order by at_ns, request")
    found = {}
    sane = ~(rows["decode_ms"] * 5 < rows["client_decode_ms"]) & ~(rows["total_ms"] > rows["client_total_ms"] * 1.5)
    parts = (
        ("decode_tokens_per_s", "output_tokens", "decode_ms"),
        ("prompt_tokens_per_s", "computed_tokens", "prompt_ms"),
    )
    for name, tokens, duration in parts:
        known = sane & (rows[tokens] > 0) & (rows[duration] > 0)
        if known.any():
            found[name] = intervals.ratio(
                rows[tokens][known], rows[duration][known] / 1e3, "tokens/s", int(known.sum())
            )
    queued = rows["queue_ms"][np.isfinite(rows["queue_ms"])]
    if len(queued):
        found["queue_ms"] = intervals.mean(queued, "ms")
    return found


def _once(doubts: tuple[Doubt, ...]) -> tuple[Doubt, ...]:
    """One doubt of a kind: what the client saw itself comes before what its rows show."""
    first: dict[str, Doubt] = {}
    for doubt in doubts:
        first.setdefault(doubt.kind, doubt)
    return tuple(first.values())


def _metrics(
    connection: duckdb.DuckDBPyConnection, span: views.Span, slo: tuple[Objective, ...], closed: bool
) -> Metrics:
    counts = views.rows(connection, "select * from totals")[0]
    count = {name: _whole(value) for name, value in counts.items()}
    ok = count["ok"] or 0
    latencies = _latencies(connection, whole_answers=bool(ok) and not count["streamed"])
    rates = _rates(connection, span, slo, closed)
    failures = views.columns_of(connection, "select failed from outcomes")
    rates["error_rate"] = intervals.share(failures["failed"], "")
    value = {name: rate.value for name, rate in rates.items()}
    return Metrics(
        **{f"{name}_ms": found for name, found in latencies.items()},
        output_tokens_per_s=value["output_tokens_per_s"],
        input_tokens_per_s=value["input_tokens_per_s"],
        requests_per_s=value["requests_per_s"],
        goodput=value["goodput"],
        attainment=value["attainment"],
        requests_ok=ok,
        requests_failed=count["failed"] or 0,
        requests_cancelled=count["cancelled"] or 0,
        requests_empty=count["empty"] or 0,
        requests_retried=count["retried"] or 0,
        output_tokens=count["output_tokens"] or 0,
        input_tokens=count["input_tokens"],
        cached_tokens=count["cached_tokens"],
        reasoning_tokens=count["reasoning_tokens"],
        concurrency_mean=value["concurrency_mean"],
        estimates=rates,
    )


def _latencies(connection: duckdb.DuckDBPyConnection, whole_answers: bool) -> dict[str, Distribution]:
    """Every latency of LATENCIES. A metric that is pooled over tokens is computed once where chunks and tokens are
    the same."""
    kept, found = _kept(connection), {}
    for name in views.LATENCIES:
        if whole_answers and name in STREAMED:
            found[name] = absent("ms", kept, "the answers came whole, so no token has a time of its own")
            continue
        if name == "icl" and _chunks_are_tokens(connection):
            found[name] = found["itl"]
            continue
        found[name] = distribution(views.samples(connection, name), "ms", kept)
    return found


def _chunks_are_tokens(connection: duckdb.DuckDBPyConnection) -> bool:
    query = "select 1 from gaps join kept using (request) where outcome = 'ok' and gap_ns is not null and tokens <> 1"
    return not views.rows(connection, f"{query} limit 1")


def _rates(
    connection: duckdb.DuckDBPyConnection, span: views.Span, slo: tuple[Objective, ...], closed: bool
) -> dict[str, Estimate]:
    """Rates over the window; intervals from the stays in a closed loop, else from slices of the window, which are
    correlated in time as the requests are."""
    total = views.rows(connection, "select * from throughput")[0]
    pace = views.columns_of(connection, "select * from pace")
    found = {}
    turned = _turned(connection) if closed else {}
    for name, unit in (("output_tokens_per_s", "tokens/s"), ("requests_per_s", "1/s")):
        sliced = intervals.mean(pace[name], unit)
        found[name] = _around(_number(total[name]), turned.get(name, sliced))
    value = _number(total["input_tokens_per_s"])
    why = "total over the window" if value is not None else "the server does not count prompt tokens"
    found["input_tokens_per_s"] = Estimate(value, None, None, found["requests_per_s"].n, "tokens/s", method=why)
    found["concurrency_mean"] = _in_flight(connection)
    return found | _goodput(connection, span, slo)


def _turned(connection: duckdb.DuckDBPyConnection) -> dict[str, Estimate]:
    """Rates of one stream; empty where no answer ended.

    In a closed loop the requests in flight are fixed, so a rate is known as well as the stays are. Slices of time would
    show the waves in which such a loop moves, not its mean.
    """
    rows = views.columns_of(
        connection,
        "select output_tokens, (last_ns - sent_ns) / 1e9 as stay_s from kept where outcome = 'ok' "
        "order by sent_ns, request",
    )
    stay_s, n = rows["stay_s"], len(rows["stay_s"])
    if not n or not np.isfinite(rows["output_tokens"]).all():
        return {}
    return {
        "output_tokens_per_s": intervals.ratio(rows["output_tokens"], stay_s, "tokens/s", n),
        "requests_per_s": intervals.ratio(np.ones(n), stay_s, "1/s", n),
    }


def _around(value: float | None, sliced: Estimate) -> Estimate:
    """The exact total with the relative half-width of an estimate from parts of the run."""
    if value is None or sliced.low is None or sliced.high is None or not sliced.value:
        return msgspec.structs.replace(sliced, value=value, low=None, high=None)
    half = (sliced.high - sliced.low) / 2 / sliced.value * value
    return msgspec.structs.replace(sliced, value=value, low=max(0.0, value - half), high=value + half)


def _goodput(
    connection: duckdb.DuckDBPyConnection, span: views.Span, slo: tuple[Objective, ...]
) -> dict[str, Estimate]:
    limits = views.limits_ms(slo)
    if not limits:
        none = Estimate(None, None, None, 0, "", method="no limit on ttft, tpot or e2e was set")
        return {"goodput": msgspec.structs.replace(none, unit="1/s"), "attainment": none}
    rows = views.columns_of(connection, "select good::int as good, inside from goodput")
    good = rows["good"]
    if len(good) and np.isnan(good).all():
        none = Estimate(
            None, None, None, 0, "", method="the answers came whole: the objective's token times were not seen"
        )
        return {"goodput": msgspec.structs.replace(none, unit="1/s"), "attainment": none}
    good = np.nan_to_num(good)
    seconds = (span.until_ns - span.from_ns) / 1e9
    rate = float(np.sum(good * rows["inside"])) / seconds if seconds > 0 else None
    sliced = intervals.mean(views.columns_of(connection, "select goodput from pace")["goodput"], "1/s")
    return {"goodput": _around(rate, sliced), "attainment": intervals.share(good, "")}


def _in_flight(connection: duckdb.DuckDBPyConnection) -> Estimate:
    row = views.rows(connection, "select in_flight, requests from flow")[0]
    method = "average over the window"
    return Estimate(_number(row["in_flight"]), None, None, _whole(row["requests"]) or 0, "", method=method)


def _families(connection: duckdb.DuckDBPyConnection) -> dict[str, Family]:
    """Figures by workload family, where there are several."""
    rows = views.rows(connection, "select * from families")
    return {str(row["family"]): _family(connection, row) for row in rows} if 1 < len(rows) <= FAMILIES else {}


def _family(connection: duckdb.DuckDBPyConnection, row: Mapping[str, object]) -> Family:
    name, requests = str(row["family"]), _whole(row["requests"]) or 0
    found = {
        metric: distribution(views.samples(connection, metric, name), "ms", requests)
        if row["streamed"] or metric not in STREAMED
        else absent("ms", requests, "the answers came whole, so no token has a time of its own")
        for metric in ("ttft", "tpot", "e2e")
    }
    mean = found["tpot"].mean
    return Family(
        requests,
        _whole(row["ok"]) or 0,
        _number(row["input_tokens"]),
        _number(row["output_tokens"]),
        1000 / mean if mean else None,
        found["ttft"],
        found["tpot"],
        found["e2e"],
    )


def _table(connection: duckdb.DuckDBPyConnection, query: str) -> tuple[Mapping[str, str | float | int | None], ...]:
    return tuple(
        {name: value if isinstance(value, str | int | None) else _number(value) for name, value in row.items()}
        for row in views.rows(connection, query)
    )


def _kept(connection: duckdb.DuckDBPyConnection) -> int:
    return _whole(views.rows(connection, "select count(*) as n from kept")[0]["n"]) or 0


def _number(value: object) -> float | None:
    """A finite float, or None: JSON has no nan."""
    number = float(value) if isinstance(value, int | float | Decimal) else math.nan
    return number if math.isfinite(number) else None


def _whole(value: object) -> int | None:
    return int(value) if isinstance(value, int | float | Decimal) else None
