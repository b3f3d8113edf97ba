"""One run's connection and figures of merit in, the pictures of its report out, in the order in which they are read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import duckdb

from dynamometer.metrics.views import samples
from dynamometer.report import series
from dynamometer.report.figure import Axis, Figure, Heading, Row, Rule, curve, decades
from dynamometer.report.series import Extent
from dynamometer.report.shapes import boxes, histogram, lanes, stacked_over_time
from dynamometer.types import Estimate
from dynamometer.units import show, show_bytes, significant

Metrics = Mapping[str, Mapping[str, Estimate]]  # metric such as ttft_ms -> statistic -> Estimate
LANES = 40
PARTS = ("late", "to first token", "tokens", "failed or stopped")
TIME = Axis("at_s", "time since the first request was due (s)", zero=True)
NINES = Axis(
    "odds",
    "share of answers (%)",
    scale="log",
    ticks=(1, 2, 4, 10, 20, 100, 1000, 10_000, 100_000),
    labels="datum.value <= 1 ? '0' : format(100 - 100 / datum.value, '~r')",
)
# unit at the end of a sensor's name -> title and axis
UNITS = {
    "cores": ("Who used the processor", "cores"),
    "w": ("Power", "W"),
    "bytes": ("Memory", "bytes"),
}
SENSORS = {"cpu_foreign_cores": "other processes", "cpu_client_cores": "this client", "cpu_engine_cores": "engine"}


def run_figures(connection: duckdb.DuckDBPyConnection, metrics: Metrics) -> tuple[Figure, ...]:
    """All figures that the run's rows can fill; a run without an answer has those of its failures."""
    span = series.extent(connection)
    if span is None:
        return ()
    drawn = [
        percentiles(connection, metrics),
        over_time(connection, span, "ttft", metrics),
        over_time(connection, span, "e2e", metrics),
        throughput(connection, span),
        concurrency(connection, span),
        token_gaps(connection, metrics),
        by_family(connection),
        errors(connection, span),
        lateness(connection, span, metrics),
        *sensors(connection, span),
        life_lines(connection, span),
    ]
    return tuple(figure for figure in drawn if figure is not None)


def percentiles(connection: duckdb.DuckDBPyConnection, metrics: Metrics) -> Figure | None:
    """Latency against share, the tail stretched: every further nine is as wide as the last."""
    names = {"ttft": "TTFT", "ttft_due": "TTFT from due", "e2e": "E2E"}
    rows: list[Row] = []
    for view, label in names.items():
        found = samples(connection, view)
        estimates = metrics.get(f"{view}_ms", {})
        if view == "ttft_due" and not _worth_showing(metrics):
            continue
        rows += series.percentiles(found, label, estimates)
    if not rows:
        return None
    said = [_said(label, metrics.get(f"{view}_ms", {})) for view, label in names.items() if view != "ttft_due"]
    said += ["The right end is the tail; bars are 95 % intervals, and a curve ends where the sample does."]
    caption = " ".join(text for text in said if text)
    highest = max(float(row["odds"] or 1) for row in rows)
    axis = Axis(NINES.field, NINES.title, "log", domain=(1, highest), ticks=NINES.ticks, labels=NINES.labels)
    values = [float(row["value"] or 0) for row in rows]
    upward = Axis("value", "ms", "log", ticks=decades(min(values), max(values)))
    return curve(Heading("percentiles", "Latency by percentile", caption), rows, axis, upward)


def _worth_showing(metrics: Metrics) -> bool:
    """TTFT from due is a curve of its own only where the client was late enough to be seen beside the TTFT itself."""
    late, ttft = (metrics.get(name, {}).get("p99") for name in ("lateness_ms", "ttft_ms"))
    if not late or not ttft or late.value is None or ttft.value is None:
        return False
    return late.value > 0.05 * ttft.value


def _said(label: str, estimates: Mapping[str, Estimate]) -> str:
    half, most = estimates.get("p50"), estimates.get("p99")
    if half is None or half.value is None:
        return ""
    tail = f", 99 % within {show(most)}" if most is not None and most.value is not None else ""
    return f"{label}: half within {show(half)}{tail}."


def _cut(span: Extent) -> list[Rule]:
    return [Rule(span.cut_s, "counted from here")] if span.cut_s > 0 else []


def over_time(connection: duckdb.DuckDBPyConnection, span: Extent, view: str, metrics: Metrics) -> Figure | None:
    """A latency over time, with the warm-up cut, also for the requests before it."""
    end, label, words = {
        "ttft": ("first_ns", "TTFT", "Time to first token"),
        "e2e": ("last_ns", "E2E", "End-to-end latency"),
    }[view]
    if view == "ttft" and not metrics.get("ttft_ms", {}).get("mean", Estimate(None, None, None, 0, "ms")).n:
        return None
    rows = series.spread(connection, span, "sent_ns", f"({end} - sent_ns) / 1e6", "outcome = 'ok'", label)
    if not rows:
        return None
    how = (
        "Each point is an answer"
        if rows[0]["kind"] == "point"
        else "Median, and P10 to P90 as a band, of each time bin"
    )
    cut = f" Rates are counted from {significant(span.cut_s)} s on." if span.cut_s > 0 else ""
    caption = f"{how}, by when it was sent. A level run has no slope.{cut}"
    zero = Axis("value", f"{label} (ms)", zero=True)
    return curve(Heading(f"{view}-over-time", f"{words} over time", caption), rows, TIME, zero, _cut(span))


def throughput(connection: duckdb.DuckDBPyConnection, span: Extent) -> Figure | None:
    rows = [{**row, "kind": "line"} for row in series.token_rate(connection, span)]
    if not any(row["value"] for row in rows):
        return None
    caption = (
        f"Output tokens a second, in bins of {significant(span.bin_s)} s. Rise and fall at the ends are not steady."
    )
    heading = Heading("throughput", "Throughput over time", caption)
    return curve(heading, rows, TIME, Axis("value", "output tokens/s", zero=True), _cut(span), steps=True)


def concurrency(connection: duckdb.DuckDBPyConnection, span: Extent) -> Figure:
    rows = [{**row, "kind": "line"} for row in series.in_flight(connection, span)]
    most = max(float(row["high"] or 0) for row in rows)
    caption = (
        f"Requests sent and not yet ended, {most:,.0f} at most; the band is what it rose and fell to within a bin."
    )
    heading = Heading("concurrency", "Requests in flight", caption)
    return curve(heading, rows, TIME, Axis("value", "requests", zero=True, whole=True), _cut(span), steps=True)


def token_gaps(connection: duckdb.DuckDBPyConnection, metrics: Metrics) -> Figure | None:
    rows, joined = series.token_gaps(connection)
    if not rows:
        return None
    together = f" {100 * joined:.2g} % of the tokens came in one read with the token before." if joined else ""
    said = _said("Gap between tokens", metrics.get("itl_ms", {}))
    caption = f"{said} A second hump is a stall or a batch change.{together}".strip()
    heading = Heading("token-gaps", "Inter-token latency", caption)
    return histogram(heading, rows, Axis("from_ms", "gap (ms)", "log"), Axis("share", "tokens (%)", zero=True))


def by_family(connection: duckdb.DuckDBPyConnection) -> Figure | None:
    rows = series.family_boxes(connection, "(last_ns - sent_ns) / 1e6", "outcome = 'ok'")
    if len(rows) < 2:
        return None
    caption = "Boxes hold the middle half of the answers, whiskers P5 to P95, the mark is the median."
    return boxes(
        Heading("families", "End-to-end latency by workload", caption), rows, Axis("p50", "E2E (ms)", zero=True)
    )


def errors(connection: duckdb.DuckDBPyConnection, span: Extent) -> Figure | None:
    rows = series.failures(connection, span)
    if not rows:
        return None
    count = sum(int(row["requests"] or 0) for row in rows)
    caption = (
        f"{count:,} of {span.requests:,} requests gave no good answer; they count as misses and never as fast answers."
    )
    return stacked_over_time(
        Heading("errors", "Failed, empty and stopped requests", caption),
        rows,
        Axis("requests", "requests", zero=True, whole=True),
    )


def lateness(connection: duckdb.DuckDBPyConnection, span: Extent, metrics: Metrics) -> Figure | None:
    value = "(sent_ns - due_ns) / 1e6"
    rows = series.spread(connection, span, "sent_ns", value, "due_ns is not null", "client")
    if not rows:
        return None
    tail = metrics.get("lateness_ms", {}).get("p99")
    said = f" 99 % within {show(tail)}." if tail is not None and tail.value is not None else ""
    caption = (
        f"How long after its due time this client sent each request: the error budget of every latency here.{said}"
    )
    heading = Heading("lateness", "Client lateness", caption)
    return curve(heading, rows, TIME, Axis("value", "sent − due (ms)", zero=True))


def sensors(connection: duckdb.DuckDBPyConnection, span: Extent, most: int = 6) -> list[Figure]:
    """One picture a unit: the processor's users first, then every other sensor that moved, `most` pictures in all."""
    by_unit: dict[str, list[Row]] = {}
    for name, rows in series.sensors(connection, span).items():
        values = [float(row["value"] or 0) for row in rows]
        if len(rows) > 1 and (name == "cpu_foreign_cores" or not math.isclose(min(values), max(values))):
            unit = name.rpartition("_")[2]
            unit = unit if unit in UNITS else name  # what has no unit in common has a picture of its own
            label = SENSORS.get(name, name.removesuffix(f"_{unit}").replace("_", " "))
            by_unit.setdefault(unit, []).extend({**row, "series": f"{label} {row['series']}".strip()} for row in rows)
    ordered = [*(unit for unit in UNITS if unit in by_unit), *sorted(set(by_unit) - set(UNITS))]
    return [_sensor(unit, by_unit[unit]) for unit in ordered[:most]]


def _sensor(unit: str, rows: Sequence[Row]) -> Figure:
    told = []
    for name in dict.fromkeys(str(row["series"]) for row in rows):
        values = [float(row["value"] or 0) for row in rows if row["series"] == name]
        show_value = show_bytes if unit == "bytes" else significant
        told.append(f"{name} {show_value(sum(values) / len(values))} (at most {show_value(max(values))})")
    title, text = UNITS.get(unit, (unit.replace("_", " "), ""))
    heading = Heading(f"sensors-{unit}", title, f"On average: {', '.join(told[:8])}.")
    labels = "format(datum.value, '~s')" if unit == "bytes" else ""
    return curve(heading, rows, TIME, Axis("value", text, zero=True, labels=labels))


def life_lines(connection: duckdb.DuckDBPyConnection, span: Extent) -> Figure | None:
    rows = series.life_lines(connection, span, LANES)
    if not rows:
        return None
    shown = len({row["lane"] for row in rows})
    which = "All requests" if shown >= span.requests else f"The {shown} requests sent around the slowest answer"
    caption = f"{which}, one lane each: what it waited for and when its tokens came."
    return lanes(Heading("timeline", "Requests side by side", caption), rows, PARTS)
