"""`dyno study effects`: the table of a factorial experiment in; main effects and interactions with intervals out."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click


@click.command("effects", short_help="Main effects and interactions of a factorial experiment.")
@click.argument("table", required=False, default=None, type=click.Path(path_type=Path), metavar="[FILE.csv]")
@click.option("--response", default="", help="Column of results.  [default: the last]")
@click.option("--level", type=click.FloatRange(0.5, 0.99), default=0.9, show_default=True, help="Of the intervals.")
@click.option("--out", "-o", type=click.Path(path_type=Path), default=None, help="Write a page with the pictures.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(table: Path | None, response: str, level: float, out: Path | None, as_json: bool) -> None:
    """Effects of a full or fractional two-level factorial experiment, on ratios and on rates.

    FILE.csv has a column a factor (on/off, 1/0, +/-, yes/no) and one of results; rows with the same settings are
    repeats. Without a file the worked example is shown: baseline 1842, A 2157, B 2396, both 2834 tokens/s.

    \b
    dyno study effects
    dyno study effects ablation.csv --response tokens_per_s --out effects.html
    """
    from dynamometer.cli.output import tell_study
    from dynamometer.decisions import factors
    from dynamometer.report import effects_page

    found = factors.from_csv(table, response, level) if table else factors.worked_example()
    about = table.name if table else "worked example, one run of each"
    values = {
        "verdict": effects_page.verdict(found),
        "ratio": found.effects.ratio,
        "difference": found.effects.difference,
        "aliases": found.effects.aliases,
        "ablation": found.ablation,
        "cells": found.cells,
    }
    tables = effects_page.tables(found)
    page = lambda: effects_page.page(found, about)  # noqa: E731 - drawn only where it is asked for
    said, picture = (f"{effects_page.verdict(found)} ({about})",), partial(effects_page.in_characters, found)
    tell_study(said, tables, page, out, values if as_json else None, picture)
