"""A run's summary in, what a terminal shows of it out: the verdict, tables that can be pasted, doubts with remedies."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from dynamometer.decisions.account import Account
from dynamometer.report.run_tables import errors_table, family_tables, page_table, rates_table, run_table
from dynamometer.report.table import clean, draw
from dynamometer.types import Doubt


def show(console: Console, found: Account) -> None:
    """Verdict first, then the numbers, then why not to believe them."""
    summary = found.summary
    console.print()
    console.print(Text(clean(found.decision.answer), style="bold"))
    for limit in found.judged:
        console.print(Text(f"  {clean(limit.why)}"))
    console.print()
    draw(run_table(summary), console)
    for families in family_tables(summary):
        draw(families, console)
    draw(rates_table(summary), console)
    for table in (*page_table(found.run, summary), *errors_table(summary)):
        draw(table, console)
    for note in found.run.notes:
        console.print(Text(clean(note), style="dim"))
    doubts(console, summary.doubts)


def doubts(console: Console, found: Sequence[Doubt]) -> None:
    """Each reason not to believe the run, with its remedy."""
    for doubt in found:
        head = "INVALID" if doubt.fatal else "doubt"
        console.print(Text(f"{head} ({doubt.kind}): {clean(doubt.message)}", style="red" if doubt.fatal else "yellow"))
        console.print(Text(f"  → {clean(doubt.remedy)}", style="dim"))
