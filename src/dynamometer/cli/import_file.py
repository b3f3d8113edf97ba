"""`dyno import`: another tool's result file in, run directories that are quoted, not measured, out."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("import", short_help="Read the results of AIPerf, GuideLLM, vLLM bench or llm-d into a record.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--out", "-o", type=click.Path(path_type=Path), default=None, help="[default: runs/<time>-<tool>]")
@click.option("--json", "as_json", is_flag=True, help="Print the paths as JSON.")
def command(file: Path, out: Path | None, as_json: bool) -> None:
    """Read FILE into a record, as far as it goes: requests where it has them, else its figures as they stand.

    Known: AIPerf's profile_export.jsonl and profile_export_aiperf.json, GuideLLM's benchmarks.json, the JSON of vllm
    bench serve (--save-detailed has the requests), llm-d's Benchmark Report 0.2. What comes out is quoted: it was not
    measured by dyno, and every table and page says so.
    """
    from dynamometer.cli.output import print_json
    from dynamometer.decisions.account import account, write_summary
    from dynamometer.record.clock import wall_ns
    from dynamometer.record.foreign import read
    from dynamometer.record.manifest import new_run_id
    from dynamometer.record.quote import keep
    from dynamometer.report import brief
    from dynamometer.report.table import Table, draw, terminal
    from dynamometer.units import significant

    found = read(file)
    tool = found[0].tool.replace(" ", "-") if found else ""
    place = out or Path("runs") / f"{new_run_id(wall_ns())}-{tool}"
    folders = [place] if len(found) == 1 else [place / f"benchmark-{at + 1}" for at in range(len(found))]
    for one, folder in zip(found, folders, strict=True):
        keep(one, folder, file, wall_ns())
        told = account(folder, steady=False)
        write_summary(folder, told.summary)
        if not as_json and one.requests:
            brief.show(terminal(), told)
        elif not as_json:
            figures = tuple((name, significant(value)) for name, value in one.figures.items())
            title = f"Quoted from {one.tool}: figures only, nothing here can be computed again"
            draw(Table(title, ("", "as it says"), figures), terminal())
        if not as_json:
            click.echo(f"record: {folder}")
    if as_json:
        print_json([str(folder) for folder in folders])
