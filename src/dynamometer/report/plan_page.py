"""A plan in, its page out: verdict, fleets, kinds, the front of cost, latency and power."""

from __future__ import annotations

from dynamometer.decisions.plan import Planned
from dynamometer.report.figure import Axis, Figure, Heading, Row
from dynamometer.report.page import Page, Recipe, Section
from dynamometer.report.plan_tables import tables
from dynamometer.report.shapes import pareto, stacked_bars


def plan_page(found: Planned, command: str) -> Page:
    """The page of one plan. `command`: how to make it again."""
    kinds = sorted(set(found.provenance.values()))
    section = Section(
        anchor="plan",
        title="Plan",
        verdict=found.decision.answer,
        badge=kinds[0] if len(kinds) == 1 else "simulated" if kinds else "",
        tone="plain" if found.fleet is not None else "bad",
        because=(*found.decision.because, *(f"it would flip: {flip}" for flip in found.decision.flips)),
        tables=tables(found),
        figures=figures(found),
        recipes=(Recipe("Command", command),),
    )
    return Page(f"{found.conditions.peak_per_s:g} requests/s within {found.objective}", (section,))


def figures(found: Planned) -> tuple[Figure, ...]:
    """Cost by kind, cost against latency, cost against energy."""
    return (
        *_fleets(found),
        *_front(found, "latency_ms", "latency"),
        *_front(found, "joules_per_output_token", "energy"),
    )


def _fleets(found: Planned) -> tuple[Figure, ...]:
    rows: list[Row] = [
        {"bar": f"{row.alone.replicas} × {row.name}", "part": row.provenance, "usd": row.alone.usd_per_hour}
        for row in found.options
    ]
    if found.fleet is not None and len(found.fleet.counts) > 1:
        rows.insert(0, {"bar": found.fleet.text, "part": "mix", "usd": found.fleet.usd_per_hour})
    if not rows:
        return ()
    caption = f"The smallest fleet of each kind that holds the peak; {rows[0]['bar']} is the cheapest."
    return (stacked_bars(Heading("fleets", "What each kind would cost", caption), rows, Axis("usd", "USD an hour")),)


def _front(found: Planned, field: str, word: str) -> tuple[Figure, ...]:
    points = [
        (row.name, value, row.usd_per_million_output_tokens)
        for row in found.options
        if (value := getattr(row, field)) is not None and row.usd_per_million_output_tokens is not None
    ]
    if len(points) < 2:
        return ()
    rows: list[Row] = [
        {
            "label": name,
            "x": x,
            "y": y,
            "best": not any(a <= x and b <= y and (a, b) != (x, y) for _, a, b in points),
        }
        for name, x, y in sorted(points, key=lambda point: point[1])
    ]
    unit = {"latency": "latency at capacity (ms)", "energy": "J an output token"}[word]
    heading = Heading(
        word, f"Cost against {word}", f"Of {len(rows)} kinds the line joins those that none beats in both."
    )
    return (pareto(heading, rows, Axis("x", unit, zero=True), Axis("y", "USD/M output tokens", zero=True)),)
