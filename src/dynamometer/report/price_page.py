"""A priced case in, its page out: verdict, prices, tornado, curves, heat table, every input with its source."""

from __future__ import annotations

from dynamometer.decisions.cost import VARIABLES
from dynamometer.decisions.flip import plain
from dynamometer.decisions.price import FIGURES, Priced
from dynamometer.report.figure import Axis, Figure, Heading, Row, curve
from dynamometer.report.page import Key, Page, Section
from dynamometer.report.price_tables import tables
from dynamometer.report.shapes import heat_map, stacked_bars, tornado


def price_page(found: Priced, command: str) -> Page:
    """The page of one price. `command`: how to make it again."""
    from dynamometer.report.page import Recipe

    kinds = sorted(set(found.provenance.values()))
    shown = [(name, found.estimates[name]) for name in list(FIGURES)[:2]]
    section = Section(
        anchor="price",
        title="Price",
        verdict=found.decision.answer,
        badge=kinds[0] if len(kinds) == 1 else "quoted" if "quoted" in kinds else kinds[0],
        because=(
            *found.decision.because,
            *(f"it would flip at: {flip}" for flip in found.decision.flips),
            *found.notes,
        ),
        key=tuple(Key(name.removeprefix("usd_per_").replace("_", " "), one) for name, one in shown),
        tables=tables(found),
        figures=figures(found),
        recipes=(Recipe("Command", command),),
    )
    return Page("What a million tokens cost", (section,))


def figures(found: Priced) -> tuple[Figure, ...]:
    """Bill by term, tornado, one curve a leading factor, and the heat table of the two that matter most."""
    value = Axis("value", FIGURES[found.sensitivity.of], zero=True)
    return (*_bill(found), *_tornado(found, value), *_curves(found, value), *_heat(found))


def _bill(found: Priced) -> tuple[Figure, ...]:
    rows: list[Row] = []
    for bar, terms in (("paid for", found.terms), ("becomes", found.uses)):
        rows += [{"bar": bar, "part": term.name, "usd": term.usd_per_duty_hour} for term in terms if term.share > 0]
    biggest = max(found.terms, key=lambda term: term.share)
    caption = f"A duty hour of one replica. The largest part is {biggest.name} with {biggest.share:.0%}."
    return (stacked_bars(Heading("bill", "Where the money goes", caption), rows, Axis("usd", "USD a duty hour")),)


def _tornado(found: Priced, value: Axis) -> tuple[Figure, ...]:
    moved = found.sensitivity
    base = found.estimates[moved.of].value
    rows: list[Row] = [
        {
            "factor": plain(swing.name),
            "low": swing.low,
            "high": swing.high,
            "ends": f"{swing.factor_low:.4g} … {swing.factor_high:.4g} {VARIABLES[swing.name][0]}",
        }
        for swing in moved.tornado
        if swing.low is not None and swing.high is not None
    ]
    if not rows or base is None:
        return ()
    heading = Heading("tornado", "What moves the price", moved.words)
    return (tornado(heading, rows, base, Axis("value", value.title)),)


def _curves(found: Priced, value: Axis) -> tuple[Figure, ...]:
    made = []
    for name, points in found.sensitivity.curves.items():
        rows: list[Row] = [{"x": x, "value": y, "kind": "line"} for x, y in points if y is not None]
        unit = VARIABLES[name][0]
        axis = Axis("x", f"{plain(name)} ({unit})" if unit else plain(name))
        heading = Heading(f"curve-{name}", f"Price against {plain(name)}", "All other inputs at their base.")
        made.append(curve(heading, rows, axis, value))
    return tuple(made)


def _heat(found: Priced) -> tuple[Figure, ...]:
    table = found.sensitivity.table
    if table is None:
        return ()
    rows: list[Row] = [
        {"x": float(f"{cell.x:.3g}"), "y": float(f"{cell.y:.3g}"), "value": cell.result} for cell in table.cells
    ]
    heading = Heading("heat", f"{plain(table.x)} and {plain(table.y)}", "All other inputs at their base.")
    axes = (Axis("x", plain(table.x)), Axis("y", plain(table.y)), Axis("value", FIGURES[found.sensitivity.of]))
    return (heat_map(heading, rows, *axes),)
