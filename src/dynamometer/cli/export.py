"""`dyno export`: a run directory in, its rows as files out."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("export", short_help="Write a run's rows as Parquet, CSV or JSON lines.")
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--format",
    "kind",
    type=click.Choice(["parquet", "csv", "jsonl", "llmd"]),
    default="parquet",
    show_default=True,
    help="What to write; llmd: a Benchmark Report 0.2 of the figures.",
)
@click.option("--out", "-o", type=click.Path(path_type=Path), default=None, help="Directory.  [default: RUN/export]")
@click.option("--json", "as_json", is_flag=True, help="Print the paths as JSON.")
def command(run: Path, kind: str, out: Path | None, as_json: bool) -> None:
    """Write RUN's requests, events and samples, one file each; or its figures as llm-d's Benchmark Report."""
    from dynamometer.cli.output import print_json
    from dynamometer.record.export import export

    folder = out or run / "export"
    written = [_llmd(run, folder)] if kind == "llmd" else export(run, folder, kind)
    if as_json:
        print_json([str(path) for path in written])
    else:
        for path in written:
            click.echo(path)


def _llmd(run: Path, folder: Path) -> Path:
    from dynamometer.cli.output import json_text
    from dynamometer.decisions.account import account
    from dynamometer.errors import RecordError
    from dynamometer.report.llmd import benchmark_report

    told = account(run)
    path = folder / "benchmark_report_v0.2.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json_text(benchmark_report(told.run, told.summary)) + "\n", encoding="utf-8")
    except OSError as wrong:
        raise RecordError(f"{path} cannot be written: {wrong.strerror}; give another --out") from wrong
    return path
