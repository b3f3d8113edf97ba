"""`dyno tail`: a run directory in, what was different about its slow requests out."""

from __future__ import annotations

from pathlib import Path

import click

METRICS = ("ttft", "e2e", "tpot")


@click.command("tail", short_help="Say what was different about a run's slow requests.")
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--metric", "metrics", multiple=True, type=click.Choice(METRICS), help="Slow in what.  [default: ttft and e2e]"
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the shuffles that tell chance.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(run: Path, metrics: tuple[str, ...], seed: int, as_json: bool) -> None:
    """Say what was different about the requests of RUN beyond P95, P99 and P99.9, or that nothing was found.

    Looks at what was asked, how things stood when it was sent, and what the sensors beside the load said meanwhile.
    """
    from contextlib import closing

    from rich.text import Text

    from dynamometer.cli.output import print_json
    from dynamometer.decisions.tail import attribute
    from dynamometer.metrics import views
    from dynamometer.record.store import open_run, read_run
    from dynamometer.report.table import clean, draw, terminal
    from dynamometer.report.tail_tables import tail_tables

    with closing(open_run(run)) as connection:
        views.install(connection, read_run(run))
        told = attribute(connection, read_run(run), metrics or METRICS[:2], seed)
    if as_json:
        print_json(told)
        return
    console = terminal()
    console.print(Text(clean(told.decision.answer), style="bold"))
    console.print()
    for table in tail_tables(told):
        draw(table, console)
