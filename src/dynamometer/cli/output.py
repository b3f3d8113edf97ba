"""Values in, the ways in which verbs print them out: JSON on stdout, stages of a long start on stderr."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from dynamometer.report.page import Page
    from dynamometer.report.table import Table


def json_text(value: object) -> str:
    """Indented JSON; what is not to be had is null, never NaN."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def print_json(value: object) -> None:
    click.echo(json_text(value))


Picture = Callable[[bool], str]  # drawn in characters; True: ASCII alone


def tell_study(
    said: Sequence[str],
    tables: Sequence[Table],
    page: Callable[[], Page],
    out: Path | None,
    values: object = None,
    picture: Picture | None = None,
) -> None:
    """Prints sentences, a picture and tables, or `values` as JSON where they are given; writes the page where `out`
    names one."""
    from dynamometer.report.html import write_page
    from dynamometer.report.table import draw, terminal

    written = write_page(page(), out) if out else None
    if values is not None:
        return print_json(values)
    click.echo("\n".join(said) + "\n")
    console = terminal()
    if picture is not None and (drawn := picture(not (console.encoding or "").lower().startswith("utf"))):
        click.echo(drawn + "\n")
    for table in tables:
        draw(table, console)
    if written:
        click.echo(f"report: {written}")
    return None


@contextmanager
def stages(console: Console, quiet: bool = False) -> Iterator[Callable[[str, float], None]]:
    """Shows what a start-up is doing: a bar where the share is known, a spinner where it is not.

    Where there is no terminal each new stage is one line.
    """
    if quiet or console.quiet:
        yield lambda stage, share: None
    elif not console.is_terminal:
        yield _lines(console)
    else:
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=30), TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True) as shown:
            task = shown.add_task("", total=None)

            def show(stage: str, share: float) -> None:
                shown.update(task, description=stage[:70], total=None if isnan(share) else 1.0)
                shown.update(task, completed=0.0 if isnan(share) else share)

            yield show


def _lines(console: Console) -> Callable[[str, float], None]:
    seen: set[str] = set()

    def show(stage: str, share: float) -> None:
        head = stage.split(":")[0]
        if head not in seen:
            seen.add(head)
            console.print(head, markup=False, highlight=False)

    return show
