"""Readings of the engine's own metrics page in, its figures over the measured window out: the server's view."""

from __future__ import annotations

import duckdb

from dynamometer.metrics import views
from dynamometer.pages import window
from dynamometer.pages.names import metrics
from dynamometer.types import Estimate


def figures(connection: duckdb.DuckDBPyConnection, span: views.Span) -> dict[str, Estimate]:
    """From the last reading before the window to the first one after it; empty where there is no such page.

    Where there is none before or after, the first or last one stands for it, and the figures are of so much less.
    """
    names = [metric.name for metric in metrics()]
    before = _state(connection, names, span.from_ns, after=False)
    end = _state(connection, names, span.until_ns, after=True)
    return window.figures(before, end) if before and end else {}


def _state(connection: duckdb.DuckDBPyConnection, names: list[str], at_ns: int, after: bool) -> window.State:
    """Of each series the reading nearest to `at_ns` on the wanted side, else the nearest on the other."""
    query = (
        "select name, device,"
        " arg_min(value, (case when (at_ns >= $at) = $after then 0 else 1e18 end) + abs(at_ns - $at))"
        " from samples where exists (select 1 from unnest($names) as known(stem)"
        "  where name = stem or starts_with(name, stem || '_'))"
        " group by name, device"
    )
    rows = connection.execute(query, {"at": at_ns, "after": after, "names": names}).fetchall()
    return {(str(name), str(device)): float(value) for name, device, value in rows}
