"""`dyno align`: runs of several engines in, a fair table of them out, or the reason why it would not be fair."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from dynamometer.decisions.align import Alignment, Side
    from dynamometer.report.table import Table


@click.command("align", short_help="Compare engines fairly, or say why that would not be fair.")
@click.argument("runs", nargs=-1, type=click.Path(path_type=Path))
@click.option("--allow", default="", metavar="CHECKS", help="What is meant to differ, e.g. weights,threads.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(runs: tuple[Path, ...], allow: str, as_json: bool) -> None:
    """Compare RUNS, one an engine: throughput, P95 and memory with intervals, and which differences are real.

    Refuses when the engines were not asked alike: prompts, tokens in and out, stop rule, load, cache state, weights,
    slots, threads, machine.

    \b
    for e in llamacpp vllm; do dyno bench --engine $e --same-prompts --seed 7 -o runs/$e; done
    dyno align runs/llamacpp runs/vllm --allow weights

    Exit code 5: the comparison would not be fair.
    """
    from contextlib import closing

    from dynamometer.cli.output import print_json
    from dynamometer.decisions.align import align
    from dynamometer.decisions.compare import measure
    from dynamometer.record.store import open_run, read_run
    from dynamometer.report.table import draw, terminal

    with ExitStack() as opened:
        sides = [measure(opened.enter_context(closing(open_run(path))), read_run(path)) for path in runs]
        told = align(sides, [name.strip() for name in allow.split(",") if name.strip()])
    if as_json:
        print_json(told)
        return
    for table in (sides_table(told), differences_table(told)):
        draw(table, terminal())


def sides_table(told: Alignment) -> Table:
    from dynamometer.report.table import Table

    columns = ("", "output tokens/s", "TTFT p95 (ms)", "TPOT p95 (ms)", "E2E p95 (ms)", "memory")
    notes = tuple(f"allowed to differ: {reason}" for reason in told.unfair) + tuple(
        dict.fromkeys(f"n/a: {one.method}" for row in told.sides for one in row.figures.values() if one.value is None)
    )
    return Table("Engines", columns, tuple(_row(one) for one in told.sides), notes)


def _row(one: Side) -> tuple[str, ...]:
    from dynamometer.report.table import figure_text
    from dynamometer.units import show_bytes

    figures = dict(one.figures)
    memory = figures.pop("memory_bytes").value
    name = f"{one.engine} {one.version}".strip()
    return (name, *map(figure_text, figures.values()), "n/a" if memory is None else show_bytes(memory))


def differences_table(told: Alignment) -> Table:
    from dynamometer.report.table import Table, figure_text

    rows = tuple(
        (
            f"{one.engines[1]} against {one.engines[0]}",
            f"{one.change.metric} {one.change.statistic}".strip().replace("_", " "),
            figure_text(one.change.ratio),
            one.change.verdict,
        )
        for one in told.differences
    )
    return Table("Differences", ("", "figure", "ratio", "real?"), rows, told.notes, numbers=False)
