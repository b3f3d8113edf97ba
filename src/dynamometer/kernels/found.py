"""What a bench measured in; rows with intervals, a verdict, the machine and its versions out, also as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence

import msgspec

from dynamometer.report.table import Table, figure_text
from dynamometer.types import Estimate

Where = dict[str, str | int | float]  # what was varied


class Row(msgspec.Struct, frozen=True):
    """One case. `at`: what was varied, such as implementation and length. `refused`: why there is no figure."""

    at: Mapping[str, str | int | float]
    figures: Mapping[str, Estimate] = {}
    refused: str = ""

    def value(self, figure: str) -> float:
        """The figure, NaN where there is none."""
        found = self.figures.get(figure)
        return float("nan") if found is None or found.value is None else found.value


class Found(msgspec.Struct, frozen=True):
    """A measured study. Every figure in it was measured on `machine`, unless a row's own note says otherwise."""

    study: str
    question: str
    verdict: tuple[str, ...]
    rows: tuple[Row, ...]
    machine: Mapping[str, str]
    notes: tuple[str, ...] = ()
    driver: str = "measured"


def exactly(value: float, unit: str, method: str = "counted") -> Estimate:
    """A number without scatter: counted bytes, or a ratio of published figures."""
    return Estimate(value, None, None, 1, unit, method=method)


def scaled(time: Estimate, amount: float, unit: str) -> Estimate:
    """`amount` over a time as a rate, with the interval turned over."""
    if not time.value:
        return Estimate(None, None, None, time.n, unit, method=time.method)
    low = amount / time.high if time.high else None
    high = amount / time.low if time.low else None
    return Estimate(amount / time.value, low, high, time.n, unit, time.level, time.method)


def in_unit(time: Estimate, factor: float, unit: str) -> Estimate:
    """The same figure in another unit."""
    value, low, high = (None if x is None else x * factor for x in (time.value, time.low, time.high))
    return Estimate(value, low, high, time.n, unit, time.level, time.method)


def tables(found: Found) -> tuple[Table, ...]:
    """One row a case, one column a figure; a table for each value of what is varied first. Refusals become notes."""
    keys = list(dict.fromkeys(key for row in found.rows for key in row.at))
    groups = dict.fromkeys(str(row.at.get(keys[0], "")) for row in found.rows) if len(keys) > 1 else {"": None}
    made = [_table(found, keys, group) for group in groups]
    machine = ", ".join(f"{name} {value}" for name, value in found.machine.items())
    last = made[-1]
    return (
        *made[:-1],
        msgspec.structs.replace(last, notes=(*last.notes, *found.notes, f"{found.driver} on {machine}")),
    )


def _table(found: Found, keys: Sequence[str], group: str) -> Table:
    """The rows whose first key has this value; "" takes all."""
    rows = [row for row in found.rows if not group or str(row.at.get(keys[0], "")) == group]
    shown = keys[1:] if group else keys
    figures = list(dict.fromkeys(name for row in rows for name in row.figures))
    units = {name: _unit(rows, name) for name in figures}
    lines = [
        (
            " · ".join(str(row.at[key]) for key in shown if key in row.at),
            *(figure_text(row.figures.get(name)) for name in figures),
        )
        for row in rows
        if row.figures
    ]
    missing = [
        f"{' · '.join(str(row.at[k]) for k in shown if k in row.at)}: {row.refused}" for row in rows if row.refused
    ]
    heads = (" · ".join(shown), *(f"{_name(name)}{units[name]}" for name in figures))
    return Table(f"{found.study}: {group}" if group else found.study, heads, tuple(lines), tuple(missing))


def _name(figure: str) -> str:
    """A figure's name as a heading: its unit stands behind it anyway."""
    return figure.removesuffix("_ms").removesuffix("_mib").removesuffix("_us").replace("_", " ")


def _unit(rows: Sequence[Row], name: str) -> str:
    units = {row.figures[name].unit for row in rows if name in row.figures} - {""}
    return f" ({units.pop()})" if len(units) == 1 else ""


def as_csv(found: Found) -> str:
    """A line a case and figure: what was varied, figure, value, low, high, n, unit, method; the machine as comments."""
    keys = list(dict.fromkeys(key for row in found.rows for key in row.at))
    text = io.StringIO()
    text.write(f"# {found.study}, {found.driver}\n")
    for name, value in found.machine.items():
        text.write(f"# {name}: {value}\n")
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow([*keys, "figure", "value", "low", "high", "n", "unit", "method"])
    for row in found.rows:
        where = [row.at.get(key, "") for key in keys]
        for name, e in row.figures.items():
            lines.writerow([*where, name, *(_short(x) for x in (e.value, e.low, e.high)), e.n, e.unit, e.method])
        if row.refused:
            lines.writerow([*where, "refused", "", "", "", "", "", row.refused])
    return text.getvalue()


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"
