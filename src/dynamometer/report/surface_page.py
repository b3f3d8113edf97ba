"""A fitted surface in; its verdict, its tables and its pictures out, beside the form that is in print."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from dynamometer.decisions.grid import Grid
from dynamometer.models import surface
from dynamometer.models.surface import Surface
from dynamometer.report.figure import Axis, Figure, Heading, Row, curve
from dynamometer.report.page import Key, Page, Section
from dynamometer.report.shapes import heat_map
from dynamometer.report.table import Table
from dynamometer.report.text_plot import text_map
from dynamometer.types import Float64
from dynamometer.units import show, significant


class Told(msgspec.Struct, frozen=True):
    """A grid, its surface, and the printed form beside it: its median miss as printed, and with free constants."""

    grid: Grid
    found: Surface
    printed_miss: float
    constants: Float64
    refit_miss: float


def told(grid: Grid, found: Surface) -> Told:
    """Holds the printed form against the same points."""
    printed = surface.printed_form(grid.batch, grid.context)
    miss = float(np.median(np.abs(printed / grid.rate - 1)))
    constants, refit = surface.refit_printed_form(grid.batch, grid.context, grid.rate)
    return Told(grid, found, miss, constants, refit)


def verdict(one: Told) -> str:
    """How well the surface holds, and where its regime changes."""
    found = one.found
    held = found.fit.held_out or 0.0
    change = found.change
    regimes = f"The regime changes at {show(change)}" if change.value is not None else change.method.capitalize()
    last = max(found.cells, key=lambda cell: (cell.batch, cell.context))
    return (
        f"The roofline surface misses by {found.fit.misfit:.1%} on the median, by {held:.1%} on points left out. "
        f"{regimes}; at batch {last.batch:g} and context {last.context:g} most of a step goes to {last.regime}."
    )


def contradiction(one: Told) -> str:
    """The printed form against its own table, in plain words."""
    (b0, s0, said0, _), (b1, s1, said1, _) = surface.PRINTED_ROWS
    at0, at1 = surface.printed_form(np.array([b0, b1]), np.array([s0, s1])).tolist()
    return (
        "The printed form 12500/(1 + 0.0043·b^0.82·s^1.37) contradicts its own table: "
        f"at batch {b0:g} and length {s0:g} it gives {significant(at0)} tokens/s, its table says {said0:,.0f}; "
        f"at {b1:g} and {s1:g} {significant(at1)} and {said1:,.0f}. "
        "It falls with the batch where the table rises. "
        f"On these points it misses by {one.printed_miss:.0%} as printed, by {one.refit_miss:.1%} with free constants."
    )


def tables(one: Told) -> tuple[Table, ...]:
    """Measured, predicted, error; the parameters; the two forms side by side."""
    found = one.found
    cells = sorted(found.cells, key=lambda cell: (cell.batch, cell.context))
    points = tuple(
        (
            f"{cell.batch:g}",
            f"{cell.context:g}",
            significant(cell.measured),
            significant(cell.predicted),
            f"{cell.error:+.1%}",
            f"{cell.left_out:+.1%}",
            cell.regime,
        )
        for cell in cells
    )
    head = (
        "batch",
        "context",
        f"{one.grid.driver} (tokens/s)",
        "predicted",
        "error",
        "error, left out",
        "most time goes to",
    )
    parameters = tuple((name, show(value), value.method) for name, value in found.fit.parameters.items())
    a, g, beta, sigma = one.constants.tolist()
    forms = (
        ("roofline surface", f"{found.fit.misfit:.1%}", f"{found.fit.held_out or 0.0:.1%}", found.fit.notes[0]),
        ("as printed", f"{one.printed_miss:.1%}", "not fitted", "12500/(1 + 0.0043·b^0.82·s^1.37)"),
        ("printed, refitted", f"{one.refit_miss:.1%}", "", f"{a:.4g}/(1 + {g:.3g}·b^{beta:.3g}·s^{sigma:.3g})"),
    )
    note = "Throughput counts prompts too: k then holds a prompt's prefill as well as the reading of its cache."
    return (
        Table("Points", head, points, (f"Context: prompt and half of the answer. {note}",)),
        Table(
            "Parameters",
            ("", "value", "meaning"),
            (*parameters, ("b*", show(found.change), found.change.method)),
            numbers=False,
        ),
        Table("Forms", ("", "median miss", "left out", "formula"), forms, numbers=False),
    )


def in_characters(one: Told, plain: bool) -> str:
    """Throughput over batch and context for a terminal. `plain`: ASCII alone."""
    cells = {(cell.batch, cell.context): cell.measured for cell in one.found.cells}
    return f"tokens/s, {one.grid.driver}; darker is more\n{text_map(cells, ('batch', 'context'), plain)}"


def pictures(one: Told) -> tuple[Figure, ...]:
    """Heat maps of throughput and of residuals, and throughput against batch for each context."""
    cells = one.found.cells
    batch, context = Axis("batch", "batch"), Axis("context", "context (tokens)")
    rows: list[Row] = [
        {"batch": c.batch, "context": c.context, "rate": c.measured, "error": 100 * c.error, "left": 100 * c.left_out}
        for c in cells
    ]
    worst = max(cells, key=lambda cell: abs(cell.error))
    residual = f"The largest miss is {worst.error:+.1%}, at batch {worst.batch:g} and context {worst.context:g}."
    return (
        heat_map(
            Heading("surface", "Throughput over batch and context", verdict(one)),
            *(rows, batch, context, Axis("rate", "tokens/s", "log")),
        ),
        heat_map(Heading("residuals", "Residuals", residual), rows, batch, context, Axis("error", "error (%)")),
        _lines(one, sorted({cell.context for cell in cells})),
    )


def _lines(one: Told, contexts: Sequence[float]) -> Figure:
    rows: list[Row] = []
    low, high = one.found.fit.domain
    for context in contexts:
        name = f"{context:g} tokens"
        for at in np.geomspace(low, high, 40).clip(low, high):
            said = surface.predict(one.found, float(at), context)
            rows.append(
                {"series": name, "kind": "line", "x": float(at), "y": said.value, "low": said.low, "high": said.high}
            )
        rows += [
            {"series": name, "kind": "point", "x": cell.batch, "y": cell.measured}
            for cell in one.found.cells
            if cell.context == context
        ]
    caption = (
        f"Points are {one.grid.driver}, lines the surface; the band would hold {one.found.level:.0%} of new points."
    )
    heading = Heading("slices", "Throughput against batch at each context", caption)
    return curve(heading, rows, Axis("x", "batch", "log"), Axis("y", "tokens/s", zero=True))


def page(one: Told) -> Page:
    keys = (Key("Regime change", one.found.change),) if one.found.change.value is not None else ()
    section = Section(
        "surface",
        "Response surface",
        verdict(one),
        badge=one.grid.driver,
        because=(contradiction(one),),
        key=keys,
        tables=tables(one),
        figures=pictures(one),
    )
    return Page("Throughput over batch and context", (section,), one.grid.about)
