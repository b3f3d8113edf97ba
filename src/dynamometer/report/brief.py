"""A run's summary in, what a terminal shows of it out: the verdict, tables that can be pasted, doubts with remedies."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from dynamometer.decisions.account import Account
from dynamometer.metrics.summary import Summary
from dynamometer.report.run_tables import rates_table, run_table
from dynamometer.report.table import Table, clean, draw
from dynamometer.types import Doubt
from dynamometer.units import significant


def show(console: Console, found: Account) -> None:
    """Verdict first, then the numbers, then why not to believe them."""
    summary = found.summary
    console.print()
    console.print(Text(clean(found.decision.answer), style="bold"))
    for limit in found.judged:
        console.print(Text(f"  {clean(limit.why)}"))
    console.print()
    draw(run_table(summary), console)
    families = family_table(summary)
    if families:
        draw(families, console)
    draw(rates_table(summary), console)
    for note in found.run.notes:
        console.print(Text(clean(note), style="dim"))
    doubts(console, summary.doubts)


def family_table(summary: Summary) -> Table | None:
    """One line a workload family, when there is more than one."""
    if len(summary.families) < 2:
        return None
    rows = [
        (
            name,
            f"{family.ok}/{family.requests}",
            _number(family.input_tokens),
            _number(family.output_tokens),
            _number(family.ttft_ms.p50),
            _number(family.tpot_ms.mean),
            _number(family.e2e_ms.p50),
            _number(family.stream_tokens_per_s),
        )
        for name, family in summary.families.items()
    ]
    columns = ("", "ok", "tokens in", "out", "TTFT p50 (ms)", "TPOT mean (ms)", "E2E p50 (ms)", "tokens/s a stream")
    return Table("By workload family", columns, tuple(rows))


def doubts(console: Console, found: Sequence[Doubt]) -> None:
    """Each reason not to believe the run, with its remedy."""
    for doubt in found:
        head = "INVALID" if doubt.fatal else "doubt"
        console.print(Text(f"{head} ({doubt.kind}): {clean(doubt.message)}", style="red" if doubt.fatal else "yellow"))
        console.print(Text(f"  → {clean(doubt.remedy)}", style="dim"))


def _number(value: float | None) -> str:
    return "n/a" if value is None else significant(value)
