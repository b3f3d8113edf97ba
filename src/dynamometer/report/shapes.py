"""Values in, a picture out: the shapes beside the curve (bars, heat map, tornado, Pareto front, boxes, lanes)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dynamometer.report.figure import (
    HEIGHT,
    Axis,
    Figure,
    Heading,
    Row,
    Rule,
    axis_x,
    axis_y,
    data,
    numbers,
    rule_layers,
    series_colour,
    spec_of,
    tooltip,
)
from dynamometer.report.vega import alt

LANE = 26  # pixels of a bar or box that lies


def _names(field: str, order: Sequence[str]) -> alt.Y:
    """A vertical axis of names, in the order given."""
    return alt.Y(field=field, type="nominal", title=None, sort=list(order), axis=alt.Axis(labelLimit=220, ticks=False))


def stacked_bars(heading: Heading, rows: Sequence[Row], value: Axis, rules: Sequence[Rule] = ()) -> Figure:
    """Lying bars made of parts. Fields: `bar` and `part` (text), value.field. A rule is a value, e.g. a capacity."""
    bars = list(dict.fromkeys(str(row["bar"]) for row in rows))
    parts = list(dict.fromkeys(str(row["part"]) for row in rows))
    place = {part: at for at, part in enumerate(parts)}
    full = [{**row, "order": place[str(row["part"])]} for row in rows]
    chart = (
        alt.Chart(data(full))
        .mark_bar(style="edge")
        .encode(
            y=_names("bar", bars),
            x=axis_x(value).stack("zero"),
            color=series_colour(parts, "part"),
            order="order:O",
            tooltip=["bar:N", "part:N", *tooltip((value.field, value.title))],
        )
    )
    longest = max((sum(float(row[value.field] or 0) for row in rows if row["bar"] == bar) for bar in bars), default=0.0)
    spec = spec_of([chart, *rule_layers(rules, 0.6 * longest)], max(60, LANE * len(bars)))
    return Figure(heading, spec, numbers([("bar", ""), ("part", "part"), (value.field, value.title)], full))


def histogram(heading: Heading, rows: Sequence[Row], x: Axis, y: Axis, rules: Sequence[Rule] = ()) -> Figure:
    """Bars of counts. Fields: x.field (lower edge), `to` (upper edge), y.field (height)."""
    chart = (
        alt.Chart(data(rows))
        .mark_bar(style="edge")
        .encode(
            x=axis_x(x),
            x2="to:Q",
            y=axis_y(y),
            y2=alt.datum(0) if y.scale in ("linear", "sqrt", "symlog") else alt.datum(y.domain[0] if y.domain else 1),
            tooltip=tooltip((x.field, f"{x.title} from"), ("to", "to"), (y.field, y.title)),
        )
    )
    table = numbers([(x.field, f"{x.title} from"), ("to", "to"), (y.field, y.title)], rows)
    return Figure(heading, spec_of([chart, *rule_layers(rules)]), table)


def stacked_over_time(heading: Heading, rows: Sequence[Row], y: Axis, rules: Sequence[Rule] = ()) -> Figure:
    """Standing bars over time, stacked by `series`. Fields: `at_s`, `to_s` (the bin), y.field, `series`."""
    order = list(dict.fromkeys(str(row["series"]) for row in rows))
    chart = (
        alt.Chart(data(rows))
        .mark_bar(style="edge")
        .encode(
            x=axis_x(Axis("at_s", "time (s)", zero=True)).bin("binned"),
            x2="to_s:Q",
            y=axis_y(y).stack("zero"),
            color=series_colour(order),
            tooltip=["series:N", *tooltip(("at_s", "from (s)"), ("to_s", "to (s)"), (y.field, y.title))],
        )
    )
    table = numbers([("at_s", "from (s)"), ("to_s", "to (s)"), ("series", "kind"), (y.field, y.title)], rows)
    return Figure(heading, spec_of([chart, *rule_layers(rules)]), table)


def boxes(heading: Heading, rows: Sequence[Row], value: Axis) -> Figure:
    """Lying boxes. Fields: `group` (text), `p5`, `p25`, `p50`, `p75`, `p95`, `n`. The whiskers are p5 and p95."""
    order = list(dict.fromkeys(str(row["group"]) for row in rows))
    base = alt.Chart(data(rows)).encode(y=_names("group", order))
    colour = series_colour(order, "group").legend(None)
    whisker, box = (axis_x(msgspec.structs.replace(value, field=field)) for field in ("p5", "p25"))
    shown = tooltip(("p5", "p5"), ("p25", "p25"), ("p50", "median"), ("p75", "p75"), ("p95", "p95"), ("n", "n"))
    layers = [
        base.mark_rule(strokeWidth=1.5).encode(x=whisker, x2="p95:Q", color=colour, tooltip=shown),
        base.mark_bar(size=14).encode(x=box, x2="p75:Q", color=colour, tooltip=shown),
        base.mark_tick(size=14, thickness=2.5, style="median").encode(x="p50:Q", tooltip=shown),
    ]
    columns = [("group", ""), *((name, name) for name in ("p5", "p25", "p50", "p75", "p95", "n"))]
    return Figure(heading, spec_of(layers, max(70, LANE * len(order))), numbers(columns, rows))


def heat_map(heading: Heading, rows: Sequence[Row], x: Axis, y: Axis, value: Axis) -> Figure:
    """Coloured cells over two factors with few levels. Fields: x.field, y.field, value.field (None: blank).

    With 12 levels or fewer a side the number stands in its cell.
    """
    across, down = (_levels(rows, axis.field) for axis in (x, y))
    base = alt.Chart(data(rows)).encode(
        x=alt.X(field=x.field, type="ordinal", title=x.title, sort=across, axis=alt.Axis(labelAngle=0)),
        y=alt.Y(field=y.field, type="ordinal", title=y.title, sort=down[::-1]),
    )
    scale = alt.Scale(scheme="viridis", type=value.scale)
    colour = alt.Color(field=value.field, type="quantitative", title=value.title, scale=scale)
    colour = colour.legend(title=value.title, gradientLength=220)
    cells = base.mark_rect().encode(
        color=colour, tooltip=tooltip((x.field, x.title), (y.field, y.title), (value.field, value.title))
    )
    layers = [cells]
    if len(across) <= 12 and len(down) <= 12:
        known = [float(row[value.field] or 0) for row in rows if row[value.field] is not None]
        middle = _middle(known, value.scale)
        # viridis runs from dark to bright in both themes
        ink = alt.when(f"datum['{value.field}'] > {middle!r}").then(alt.value("#111")).otherwise(alt.value("#fff"))
        words = base.mark_text().encode(
            text=alt.Text(field=value.field, type="quantitative", format=",.3~r"), color=ink
        )
        layers.append(words)
    spec = spec_of(layers, max(HEIGHT, LANE * len(down)))
    columns = [(x.field, x.title), (y.field, y.title), (value.field, value.title)]
    return Figure(heading, spec, numbers(columns, rows))


def _levels(rows: Sequence[Row], field: str) -> list[float] | list[str]:
    """A factor's levels: numbers by size, texts as they come."""
    found = list(dict.fromkeys(row[field] for row in rows))
    sizes = [float(value) for value in found if isinstance(value, int | float)]
    return sorted(sizes) if len(sizes) == len(found) else [str(value) for value in found]


def _middle(values: Sequence[float], scale: str) -> float:
    if not values:
        return 0.0
    low, high = min(values), max(values)
    return float((low * high) ** 0.5) if scale == "log" and low > 0 else (low + high) / 2


def tornado(heading: Heading, rows: Sequence[Row], base: float, value: Axis) -> Figure:
    """What moves a result most, the widest bar on top.

    Fields: `factor`, `low`, `high` (the result at each end of the factor), optional `ends` (text: its two values).
    `base`: the result with nothing moved.
    """
    ranked = sorted(rows, key=lambda row: -abs(float(row["high"] or 0) - float(row["low"] or 0)))
    order = [str(row["factor"]) for row in ranked]
    sides = [
        {
            "factor": row["factor"],
            "from": base,
            value.field: row[end],
            "series": f"factor {end}",
            "ends": row.get("ends", ""),
        }
        for row in ranked
        for end in ("low", "high")
    ]
    bars = (
        alt.Chart(data(sides))
        .mark_bar(size=16)
        .encode(
            y=_names("factor", order),
            x=axis_x(value).stack(None),
            x2="from:Q",
            color=series_colour(["factor low", "factor high"]),
            tooltip=["factor:N", "series:N", "ends:N", *tooltip((value.field, value.title))],
        )
    )
    rule = Rule(base, f"base {base:.4g}")
    spec = spec_of([bars, *rule_layers([rule])], max(80, LANE * len(order)))
    columns = [
        ("factor", "factor"),
        ("ends", "from … to"),
        ("low", f"{value.title}, low"),
        ("high", f"{value.title}, high"),
    ]
    return Figure(heading, spec, numbers(columns, ranked))


def pareto(heading: Heading, rows: Sequence[Row], x: Axis, y: Axis) -> Figure:
    """Choices as points; a line joins those that nothing beats. Fields: x.field, y.field, `label`, `best` (bool)."""
    base = alt.Chart(data([{**row, "series": "best" if row["best"] else "beaten"} for row in rows]))
    base = base.encode(x=axis_x(x), y=axis_y(y))
    front = base.transform_filter("datum.best")
    words = tooltip((x.field, x.title), (y.field, y.title))
    layers = [
        front.mark_line(interpolate="step-after", strokeWidth=1.5),
        base.mark_point(size=50).encode(
            color=series_colour(["best", "beaten"]),
            shape=alt.Shape(field="series", type="nominal", scale=alt.Scale(domain=["best", "beaten"])).legend(
                title=None
            ),
            tooltip=["label:N", *words],
        ),
        front.mark_text(align="left", dx=7, dy=-5, limit=140).encode(text="label:N"),
    ]
    columns = [("label", "choice"), (x.field, x.title), (y.field, y.title), ("series", "")]
    table = numbers(columns, [{**row, "series": "best" if row["best"] else "beaten"} for row in rows])
    return Figure(heading, spec_of(layers), table)


def lanes(heading: Heading, rows: Sequence[Row], order: Sequence[str]) -> Figure:
    """One lane a request. Fields: `lane` (text), `from_s`, `to_s`, `series` (one of `order`: the parts of its life)."""
    names = list(dict.fromkeys(str(row["lane"]) for row in rows))
    chart = (
        alt.Chart(data(rows))
        .mark_bar()
        .encode(
            y=_names("lane", names),
            x=axis_x(Axis("from_s", "time (s)")),
            x2="to_s:Q",
            color=series_colour(order),
            tooltip=["lane:N", "series:N", *tooltip(("from_s", "from (s)"), ("to_s", "to (s)"))],
        )
    )
    columns = [("lane", "request"), ("series", "part"), ("from_s", "from (s)"), ("to_s", "to (s)")]
    return Figure(heading, spec_of([chart], max(120, 13 * len(names))), numbers(columns, rows, most=40), wide=True)
