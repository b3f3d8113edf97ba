"""Operating points with their power in; the verdict, tables and pictures out."""

from __future__ import annotations

import numpy as np

from dynamometer.decisions.operating import Powers
from dynamometer.models.power import predict_energy
from dynamometer.report.figure import Axis, Figure, Heading, Row, curve
from dynamometer.report.page import Page, Section
from dynamometer.report.shapes import pareto
from dynamometer.report.table import Table
from dynamometer.report.text_plot import text_plot
from dynamometer.units import show, significant


def verdict(found: Powers) -> str:
    """The point with the best score, and what a token costs."""
    best = min(found.choices, key=lambda one: one.score)
    front = [one.point.name for one in found.choices if one.best]
    weights = f"{found.alpha:g} for throughput, {found.beta:g} for power"
    said = f"Best by the score is {best.point.name} (J = {best.score:.3g}; weights {weights})"
    said += f"; nothing beats {', '.join(front[:6])}{' …' if len(front) > 6 else ''} in both throughput and power."
    if found.law:
        e0, e1 = found.law.parameters["e0"], found.law.parameters["e1"]
        said += f" A token costs {show(e0)} by itself and its share of {show(e1)}."
    return said


def tables(found: Powers) -> tuple[Table, ...]:
    """Every point with its energy and score; the law."""
    rows = tuple(
        (
            one.point.name,
            "n/a" if one.batch is None else significant(one.batch),
            significant(one.point.tokens_per_s),
            significant(one.point.power_w),
            significant(one.energy.gross_j),
            "n/a" if one.energy.net_j is None else significant(one.energy.net_j),
            "n/a" if one.energy.idle_share is None else f"{one.energy.idle_share:.0%}",
            f"{one.score:.3f}",
            "yes" if one.best else "",
        )
        for one in found.choices
    )
    meter = found.choices[0].point.meter
    heads = (
        "",
        "batch",
        "tokens/s",
        f"power ({meter}, W)",
        "J/token",
        "J/token less idle",
        "idle share",
        "J score",
        "front",
    )
    formula = (
        f"J score = {found.alpha:g}·(T/Tref)⁻¹ + {found.beta:g}·(P/Pref), lower is better; 1 is {found.reference}."
    )
    made = [Table("Operating points", heads, rows, (formula, "The weights are a choice, not a fact.", *found.notes))]
    if found.law:
        lines = tuple((name, show(value), value.method) for name, value in found.law.parameters.items())
        held = f"on batches left out {found.law.held_out or 0.0:.1%}"
        note = f"J/token = e0 + e1/B; median miss {found.law.misfit:.1%}, {held}."
        made.append(Table("Energy law", ("", "value", ""), lines, (note,), numbers=False))
    return tuple(made)


def in_characters(found: Powers, plain: bool) -> str:
    """Joules a token against batch with the law, where there is one, else against throughput. `plain`: ASCII alone."""
    batched = [(one.batch, one.energy.gross_j) for one in found.choices if one.batch]
    if found.law and batched:
        low, high = found.law.domain
        x = np.geomspace(low, high, 128).clip(low, high)
        line = [(float(b), predict_energy(found.law, float(b))) for b in x]
        return f"J/token against batch; the line is e0 + e1/B\n{text_plot(line, batched, plain=plain)}"
    points = [(one.point.power_w, one.point.tokens_per_s) for one in found.choices if one.point.power_w > 0]
    front = [(one.point.power_w, one.point.tokens_per_s) for one in found.choices if one.best and one.point.power_w > 0]
    title = f"tokens/s against power ({found.choices[0].point.meter}, W)"
    return f"{title}\n{text_plot(front, points, plain=plain)}"


def pictures(found: Powers) -> tuple[Figure, ...]:
    """Throughput against power with the front; joules a token against batch with the law."""
    rows: list[Row] = [
        {"label": one.point.name, "power": one.point.power_w, "rate": one.point.tokens_per_s, "best": one.best}
        for one in found.choices
    ]
    meter = found.choices[0].point.meter
    heading = Heading("front", "Throughput against power", verdict(found))
    made = [pareto(heading, rows, Axis("power", f"power ({meter}, W)"), Axis("rate", "tokens/s", zero=True))]
    if found.law:
        low, high = found.law.domain
        lines: list[Row] = [
            {"series": "e0 + e1/B", "kind": "line", "x": float(b), "y": predict_energy(found.law, float(b))}
            for b in np.geomspace(low, high, 60).clip(low, high)
        ]
        lines += [
            {"series": found.driver, "kind": "point", "x": one.batch, "y": one.energy.gross_j}
            for one in found.choices
            if one.batch
        ]
        caption = f"Median miss {found.law.misfit:.1%}: each token by itself, and a step's cost shared by the batch."
        law = Heading("energy", "Energy a token against batch", caption)
        made.append(curve(law, lines, Axis("x", "batch", "log"), Axis("y", "J/token", zero=True)))
    return tuple(made)


def page(found: Powers) -> Page:
    section = Section(
        "power",
        "Throughput and power",
        verdict(found),
        badge=found.driver,
        tables=tables(found),
        figures=pictures(found),
    )
    return Page("Throughput, power and energy a token", (section,), f"{len(found.choices)} operating points")
