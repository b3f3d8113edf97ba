"""Estimates in, a table out: for the terminal (rich), as plain text, as Markdown. Each cell is text before it is drawn.

A table is one value with four ways out, so that what is pasted into a chat is what the page shows.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TextIO

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from dynamometer.types import Estimate
from dynamometer.units import significant

STATISTICS = ("mean", "p50", "p90", "p95", "p99", "p999")
HEADINGS = {"p999": "p99.9"}
NARROW = 90  # columns of text below which a table with intervals is turned on its side


class Table(msgspec.Struct, frozen=True):
    """Text in cells. The first column names the row; `numbers`: the other columns are aligned to the right."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    numbers: bool = True


def figure_text(estimate: Estimate | None, interval: bool = True) -> str:
    """`412` and, on a second line, `[388, 441]`; `n/a` when the sample can't carry it."""
    if estimate is None or estimate.value is None:
        return "n/a"
    text = significant(estimate.value)
    if not interval or estimate.low is None or estimate.high is None:
        return text
    return f"{text}\n[{significant(estimate.low)}, {significant(estimate.high)}]"


def statistics_table(
    title: str, rows: Mapping[str, Mapping[str, Estimate]], notes: Sequence[str] = (), interval: bool = True
) -> Table:
    """One row a metric, one column a statistic of STATISTICS, then n.

    `rows`: name with its unit -> statistic -> Estimate. The reasons for what is missing become notes.
    """
    lines = []
    reasons: dict[str, list[str]] = {}
    for name, cells in rows.items():
        shown = [figure_text(cells.get(statistic), interval) for statistic in STATISTICS]
        n = max((cell.n for cell in cells.values()), default=0)
        lines.append((name, *shown, f"{n:,}"))
        for statistic, cell in cells.items():
            if cell.value is None and cell.method:
                # how many samples there are stands in the row, so that rows may share a reason
                reason = cell.method.removeprefix(f"{cell.n:,} samples; ")
                if reason == cell.method:
                    reason = f"{HEADINGS.get(statistic, statistic)}, {reason}"
                reasons.setdefault(reason, []).append(name.partition(" (")[0])
    why = [f"n/a: {reason} ({', '.join(_few(names))})" for reason, names in reasons.items()]
    columns = ("", *(HEADINGS.get(name, name) for name in STATISTICS), "n")
    return Table(title, columns, tuple(lines), (*notes, *why))


def _few(names: Sequence[str], most: int = 4) -> list[str]:
    return list(names) if len(names) <= most else [*names[:most], f"{len(names) - most} more"]


def markdown(table: Table) -> str:
    """GitHub's table syntax; a line break in a cell becomes a space and a `|` is escaped."""
    align = "---:" if table.numbers else "---"
    lines = [
        "| " + " | ".join(_markdown_cell(name) for name in table.columns) + " |",
        "| " + " | ".join(["---", *[align] * (len(table.columns) - 1)]) + " |",
        *("| " + " | ".join(_markdown_cell(cell) for cell in row) + " |" for row in table.rows),
    ]
    title = [f"**{_markdown_cell(table.title)}**", ""] if table.title else []
    notes = ["", *(f"- {_markdown_cell(note)}" for note in table.notes)] if table.notes else []
    return "\n".join([*title, *lines, *notes]) + "\n"


def _markdown_cell(text: str) -> str:
    return clean(text).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def clean(text: str) -> str:
    """Text without the control characters that would move a terminal's cursor; line breaks stay."""
    return "".join(char if char == "\n" or char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def plain(table: Table, width: int = 120) -> str:
    """Aligned text without colour or escape codes, to paste anywhere."""
    stream = io.StringIO()
    console = Console(file=stream, width=width, color_system=None, highlight=False, emoji=False, markup=False)
    draw(table, console)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"


def terminal(stream: TextIO | None = None) -> Console:
    """A console for the stream: colour only on a terminal without NO_COLOR; 120 columns when it is not a terminal."""
    stream = stream if stream is not None else sys.stdout
    is_terminal = stream.isatty()
    return Console(
        file=stream,
        width=None if is_terminal else int(os.environ.get("COLUMNS", "0") or 0) or 120,
        no_color=bool(os.environ.get("NO_COLOR")) or not is_terminal,
        highlight=False,
        emoji=False,
        markup=False,
    )


def draw(table: Table, console: Console) -> None:
    """Prints the table. A table too wide for the console is turned: one block a row, one line a cell."""
    if table.title:
        console.print(Text(clean(table.title), style="bold"))
    if not table.rows and table.notes:  # its notes are all that it says
        pass
    elif console.width < NARROW and _text_width(table) > console.width:
        _draw_turned(table, console)
    else:
        console.print(_rich(table))
    for note in table.notes:
        console.print(Text(clean(note), style="dim"))


def _text_width(table: Table) -> int:
    """Columns that the table needs when no cell is wrapped."""
    lines = [table.columns, *table.rows]
    widest = [max(len(part) for row in lines for part in row[at].split("\n")) for at in range(len(table.columns))]
    return sum(widest) + 2 * len(widest)


def _rich(table: Table) -> RichTable:
    grid = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), show_edge=False)
    for at, name in enumerate(table.columns):
        words = any(row[at].count(" ") > 3 for row in table.rows)  # a sentence may be wrapped, a number not
        number = table.numbers and at > 0 and not words
        whole = at == 0 or (table.numbers and not words)
        grid.add_column(Text(clean(name)), justify="right" if number else "left", no_wrap=whole, overflow="fold")
    for row in table.rows:
        grid.add_row(*(_styled(cell, first=at == 0) for at, cell in enumerate(row)))
    return grid


def _styled(cell: str, first: bool) -> Text:
    """The value stands out, its interval steps back."""
    value, _, rest = clean(cell).partition("\n")
    text = Text(value, style="bold" if first else "")
    if rest:
        text.append("\n" + rest, style="dim")
    return text


def _draw_turned(table: Table, console: Console) -> None:
    pad = max(len(name) for name in table.columns)
    for row in table.rows:
        console.print(Text(clean(row[0]), style="bold"))
        for name, cell in zip(table.columns[1:], row[1:], strict=True):
            console.print(Text(f"  {clean(name):<{pad}}  {clean(cell).replace(chr(10), ' ')}"))


def estimates(table_rows: Iterable[tuple[str, Estimate]]) -> Table:
    """Single figures, one a line: name, value with unit, interval, n."""
    rows = []
    for name, estimate in table_rows:
        if estimate.value is None:
            rows.append((name, "n/a", estimate.method, f"{estimate.n:,}"))
            continue
        value = f"{significant(estimate.value)} {estimate.unit}".strip()
        known = estimate.low is not None and estimate.high is not None
        interval = f"[{significant(estimate.low or 0.0)}, {significant(estimate.high or 0.0)}]" if known else ""
        rows.append((name, value, interval, f"{estimate.n:,}"))
    return Table("", ("", "value", "interval", "n"), tuple(rows))
