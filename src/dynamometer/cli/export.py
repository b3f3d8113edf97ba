"""`dyno export`: a run directory in, its rows as files out."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("export", short_help="Write a run's rows as Parquet, CSV or JSON lines.")
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--format",
    "kind",
    type=click.Choice(["parquet", "csv", "jsonl"]),
    default="parquet",
    show_default=True,
    help="What to write.",
)
@click.option("--out", "-o", type=click.Path(path_type=Path), default=None, help="Directory.  [default: RUN/export]")
@click.option("--json", "as_json", is_flag=True, help="Print the paths as JSON.")
def command(run: Path, kind: str, out: Path | None, as_json: bool) -> None:
    """Write RUN's requests, events and samples, one file each."""
    from dynamometer.cli.output import print_json
    from dynamometer.record.export import export

    written = export(run, out or run / "export", kind)
    if as_json:
        print_json([str(path) for path in written])
    else:
        for path in written:
            click.echo(path)
