"""Values in, a picture out: what every figure shares (axes, rules, the table of numbers) and the curve.

A figure is a Vega-Lite spec without a colour (the page's theme brings them), a caption that says in words what is to be
seen, and a table with the same numbers for whoever cannot see the picture. Altair checks each spec against Vega-Lite's
schema.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from dynamometer.report.table import Table
from dynamometer.report.vega import alt
from dynamometer.units import significant

Value = float | int | str | bool | None
Row = Mapping[str, Value]
Scale = Literal["linear", "log", "sqrt", "symlog"]
HEIGHT = 250  # pixels; the width is the page's
MOST_ROWS = 20  # of a figure's table of numbers


class Heading(msgspec.Struct, frozen=True):
    """`name`: the figure's anchor on a page. `caption`: what is to be seen, also the text for a screen reader."""

    name: str
    title: str
    caption: str


class Figure(msgspec.Struct, frozen=True):
    """One picture. `wide`: it needs the whole width of the page."""

    heading: Heading
    spec: Mapping[str, object]
    table: Table
    wide: bool = False


class Axis(msgspec.Struct, frozen=True):
    """A field of the rows, the text of its axis (unit in brackets), its scale.

    `labels`: a Vega expression for the text of a tick. `whole`: a count, so no tick lies between two whole numbers.
    """

    field: str
    title: str
    scale: Scale = "linear"
    zero: bool = False
    domain: tuple[float, float] | None = None
    ticks: tuple[float, ...] = ()
    labels: str = ""
    whole: bool = False


class Rule(msgspec.Struct, frozen=True):
    """A dashed line across the picture at a value of x or y, with a few words: a knee, a limit, a cut."""

    at: float
    label: str
    along: Literal["x", "y"] = "x"


def spec_of(layers: Sequence[alt.Chart], height: int = HEIGHT) -> dict[str, object]:
    """Layers as one Vega-Lite spec as wide as its container; `height` in pixels.

    Raises SchemaValidationError for what Vega-Lite would not take.
    """
    spec: dict[str, object] = alt.layer(*layers).properties(width="container", height=height).to_dict()
    spec.pop("config", None)  # Altair's default look; the page's theme is the only one
    spec["autosize"] = {"type": "fit-x", "contains": "padding"}
    return spec


def data(rows: Sequence[Row]) -> alt.InlineData:
    """Rows as inline data; floats are cut to five significant digits, which is more than a screen shows."""
    return alt.InlineData(
        values=[{name: _short(value) for name, value in row.items() if value is not None} for row in rows]
    )


def _short(value: Value) -> Value:
    return float(f"{value:.5g}") if isinstance(value, float) else value


def decades(low: float, high: float) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, … from below `low` to above `high`: the ticks of a log axis that has room for their labels."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    steps = [digit * 10.0**power for power in range(first, last + 1) for digit in (1, 2, 5)]
    return tuple(step for step in steps if low / 2.5 <= step <= high * 2.5)


def axis_x(axis: Axis) -> alt.X:
    return alt.X(
        field=axis.field, type="quantitative", title=axis.title, scale=_scale(axis), axis=_axis(axis, grid=False)
    )


def axis_y(axis: Axis) -> alt.Y:
    return alt.Y(
        field=axis.field, type="quantitative", title=axis.title, scale=_scale(axis), axis=_axis(axis, grid=True)
    )


def _scale(axis: Axis) -> alt.Scale:
    zero = axis.zero if axis.scale == "linear" else alt.Undefined
    domain = list(axis.domain) if axis.domain else alt.Undefined
    # a log axis that is widened to whole decades wastes most of its length
    nice = axis.domain is None and axis.scale != "log"
    return alt.Scale(type=axis.scale, zero=zero, nice=nice, domain=domain)


def _axis(axis: Axis, grid: bool) -> alt.Axis:
    return alt.Axis(
        grid=grid,
        tickCount=6,
        values=list(axis.ticks) or alt.Undefined,
        labelExpr=axis.labels or alt.Undefined,
        tickMinStep=1 if axis.whole else alt.Undefined,
    )


def series_colour(order: Sequence[str], field: str = "series") -> alt.Color:
    """Colour by a text field, in the order given; no legend for a single series."""
    return alt.Color(field=field, type="nominal", scale=alt.Scale(domain=list(order)), legend=_legend(order))


def _legend(order: Sequence[str]) -> alt.Legend | None:
    return alt.Legend(title=None) if len(order) > 1 else None


def tooltip(*fields: tuple[str, str]) -> list[alt.Tooltip]:
    """(field, heading) of numbers, for the pointer."""
    return [alt.Tooltip(field=field, type="quantitative", title=title, format=",.4~r") for field, title in fields]


def rule_layers(rules: Sequence[Rule], right_of: float = float("inf")) -> list[alt.Chart]:
    """A line and its words for each rule; the words stand left of a standing line that is beyond `right_of`."""
    layers: list[alt.Chart] = []
    for rule in rules:
        base = alt.Chart(data([{"at": rule.at, "label": rule.label}]))
        if rule.along == "x":
            side: Literal["left", "right"] = "left" if rule.at <= right_of else "right"
            words = base.mark_text(style="limit-label", align=side, dy=-3, baseline="bottom")
            layers += [base.mark_rule(style="limit").encode(x="at:Q")]
            layers += [words.encode(x="at:Q", y=alt.value(0), text="label:N")]
        else:
            words = base.mark_text(style="limit-label", align="right", dy=-3, baseline="bottom")
            layers += [base.mark_rule(style="limit").encode(y="at:Q")]
            layers += [words.encode(x=alt.value("width"), y="at:Q", text="label:N")]
    return layers


def numbers(columns: Sequence[tuple[str, str]], rows: Sequence[Row], most: int = MOST_ROWS) -> Table:
    """The rows as a table: (field, heading) for each column; at most `most` rows, evenly taken, with a note then."""
    chosen = list(rows)
    if len(chosen) > most:
        chosen = [rows[round(at * (len(rows) - 1) / (most - 1))] for at in range(most)]
    shown = [column for column in columns if any(row.get(column[0]) not in (None, "") for row in chosen)]
    lines = tuple(tuple(_cell(row.get(field)) for field, _ in shown) for row in chosen)
    notes = (f"{len(chosen)} of {len(rows):,} rows, evenly taken.",) if len(chosen) < len(rows) else ()
    return Table("", tuple(heading for _, heading in shown), lines, notes)


def _cell(value: Value) -> str:
    if value is None:
        return "n/a"
    if isinstance(value, str | bool):
        return str(value)
    return significant(float(value))


def curve(
    heading: Heading, rows: Sequence[Row], x: Axis, y: Axis, rules: Sequence[Rule] = (), steps: bool = False
) -> Figure:
    """Lines and points, with an interval band or interval bars where the rows have `low` and `high`.

    Fields of a row: x.field, y.field; optional `series` (text), `low`, `high` (interval of y), `kind` = "line", "point"
    or "both" (default). A fitted law is rows of kind "line" with its band; what was measured is rows of kind "point".
    `steps`: a value holds until the next (replicas, a queue).
    """
    full = [{"series": "", "kind": "both", "low": None, "high": None, **row} for row in rows]
    order = list(dict.fromkeys(str(row["series"]) for row in full))
    lines, points = (
        [{name: row[name] for name in row if name != "kind"} for row in full if row["kind"] != other]
        for other in ("point", "line")
    )
    across, up = axis_x(x), axis_y(y)
    low = axis_y(msgspec.structs.replace(y, field="low"))
    colour = series_colour(order)
    shape: Literal["step-after", "linear"] = "step-after" if steps else "linear"
    dash = alt.StrokeDash(field="series", type="nominal", scale=alt.Scale(domain=order), legend=_legend(order))
    layers: list[alt.Chart] = []
    if bounded := [row for row in lines if row["low"] is not None and row["high"] is not None]:
        band = alt.Chart(data(bounded)).mark_area(opacity=0.18, interpolate=shape)
        layers.append(band.encode(x=across, y=low, y2="high:Q", color=colour))
    if lines:
        drawn = alt.Chart(data(lines)).mark_line(interpolate=shape)
        layers.append(drawn.encode(x=across, y=up, color=colour, strokeDash=dash))
    if bounded := [row for row in points if row["low"] is not None and row["high"] is not None]:
        bars = alt.Chart(data(bounded)).mark_rule(strokeWidth=1.5)
        layers.append(bars.encode(x=across, y=low, y2="high:Q", color=colour))
    if points:
        shown = [alt.Tooltip("series:N", title=" "), *tooltip((x.field, x.title), (y.field, y.title))]
        layers.append(alt.Chart(data(points)).mark_point(size=36).encode(x=across, y=up, color=colour, tooltip=shown))
    columns = [("series", "series"), (x.field, x.title), (y.field, y.title), ("low", "low"), ("high", "high")]
    layers += rule_layers(rules, right_of=0.6 * max((float(row[x.field] or 0) for row in full), default=0.0))
    return Figure(heading, spec_of(layers), numbers(columns, full))
