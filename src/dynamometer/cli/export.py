"""`dyno export`: a run directory in, its rows as files out."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("export", short_help="Write a run's rows as Parquet, CSV or JSON lines.")
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--format",
    "kind",
    type=click.Choice(["parquet", "csv", "jsonl", "llmd", "otlp"]),
    default="parquet",
    show_default=True,
    help="What to write; llmd: a Benchmark Report 0.2 of the figures; otlp: OpenTelemetry spans.",
)
@click.option("--out", "-o", type=click.Path(path_type=Path), default=None, help="Directory.  [default: RUN/export]")
@click.option("--json", "as_json", is_flag=True, help="Print the paths as JSON.")
def command(run: Path, kind: str, out: Path | None, as_json: bool) -> None:
    """Write RUN's requests, events and samples, one file each; or its figures as llm-d's Benchmark Report."""
    from dynamometer.cli.output import print_json
    from dynamometer.record.export import export

    folder = out or run / "export"
    others = {"llmd": _llmd, "otlp": _otlp}
    written = [others[kind](run, folder)] if kind in others else export(run, folder, kind)
    if as_json:
        print_json([str(path) for path in written])
    else:
        for path in written:
            click.echo(path)


def _llmd(run: Path, folder: Path) -> Path:
    from dynamometer.cli.output import json_text
    from dynamometer.decisions.account import account
    from dynamometer.report.llmd import benchmark_report

    told = account(run)
    return _write(folder / "benchmark_report_v0.2.json", json_text(benchmark_report(told.run, told.summary)) + "\n")


def _otlp(run: Path, folder: Path) -> Path:
    from contextlib import closing

    import msgspec

    from dynamometer.metrics import views
    from dynamometer.record.store import open_run, read_run
    from dynamometer.report.otlp import spans

    about = read_run(run)
    with closing(open_run(run)) as connection:
        views.install(connection, about)
        lines = [msgspec.json.encode(part).decode() for part in spans(connection, about)]
    return _write(folder / "traces.otlp.jsonl", "".join(f"{line}\n" for line in lines))


def _write(path: Path, text: str) -> Path:
    from dynamometer.errors import RecordError

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as wrong:
        raise RecordError(f"{path} cannot be written: {wrong.strerror}; give another --out") from wrong
    return path
