"""`dyno report`: run directories in, HTML pages out, again from the record."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("report", short_help="Write the HTML report again from a record.")
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", "-o", type=click.Path(path_type=Path), default=None, help="One page over several runs.")
@click.option("--json", "as_json", is_flag=True, help="Print the paths as JSON.")
def command(runs: tuple[Path, ...], out: Path | None, as_json: bool) -> None:
    """Write summary.json and report.html of each run in RUNS again; with --out, one page over all of them."""
    from dynamometer.cli.output import print_json
    from dynamometer.errors import UsageError
    from dynamometer.report.html import NAME, write_derived, write_reports

    if out and len(runs) < 2:
        raise UsageError("--out makes one page over several runs; name two or more, or leave it out")
    written: list[Path] = []
    for run in runs:
        write_derived(run)
        written.append(run / NAME)
    if out:
        written.append(write_reports(list(runs), out))
    if as_json:
        print_json([str(path) for path in written])
    else:
        for path in written:
            click.echo(path)
