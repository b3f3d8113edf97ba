"""`dyno study`: a study's name in, its cases simulated, a table and a plain verdict out."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("study", short_help="Answer a ready question by simulation: batching, paged-kv, topology…")
@click.argument("name", required=False, default="")
@click.option("--list", "listing", is_flag=True, help="Name the studies and their questions.")
@click.option("--repeats", "-k", type=click.IntRange(2), default=3, show_default=True, help="Seeds of every case.")
@click.option("--quick", is_flag=True, help="A tenth of the load: a look, no verdict to rely on.")
@click.option("--out", "-o", type=click.Path(path_type=Path), default=None, help="Write the result as JSON.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(name: str, listing: bool, repeats: int, quick: bool, out: Path | None, as_json: bool) -> None:
    """Answer a ready question by simulation. NAME is a study of --list or a TOML file.

    \b
    dyno study --list
    dyno study batching
    dyno study topology --quick
    dyno study my-question.toml --json

    Every figure is simulated, and the table says so. Exit code: 0; 1 a claim of the study did not survive.
    """
    from dynamometer.cli.study_run import catalogue, run

    if listing or not name:
        for known, question in catalogue().items():
            click.echo(f"{known:16} {question}")
        return
    raise SystemExit(run(name, repeats, quick, out, as_json))
