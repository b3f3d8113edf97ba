"""`dyno store`: runs copied into a store that many share, listed there, and brought back."""

from __future__ import annotations

from pathlib import Path

import click

_URL = click.option(
    "--store", "url", required=True, metavar="URL", help="postgresql://USER@HOST/DATABASE or s3://BUCKET/FOLDER."
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group("store", short_help="Share runs: push, list and pull them in PostgreSQL or S3.")
def command() -> None:
    """Copy runs into a store that many machines share, list them, bring them back.

    The embedded record (DuckDB over Parquet) stays what is measured into; the store gets a copy of finished rows.

    \b
    dyno store push runs/20261201-142233-9f3c --store postgresql://dyno@db/dyno
    dyno store list --store postgresql://dyno@db/dyno
    """


@command.command("push")
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@_URL
@_JSON
def push(runs: tuple[Path, ...], url: str, as_json: bool) -> None:
    """Copy RUNS into the store, each in place of what it holds of that run."""
    from dynamometer.cli.output import print_json
    from dynamometer.record.stores import shown, store_of

    store, done = store_of(url), {}
    for run in runs:
        done[str(run)] = store.push(run, url)
        if not as_json:
            told = ", ".join(f"{name} {count:,}" for name, count in done[str(run)].items())
            click.echo(f"{run} is in {shown(url)}: {told}")
    if as_json:
        print_json(done)


@command.command("list")
@_URL
@_JSON
def list_(url: str, as_json: bool) -> None:
    """List the store's runs, the newest first."""
    from dynamometer.cli.output import print_json
    from dynamometer.record.stores import store_of
    from dynamometer.report.table import Table, draw, terminal

    found = store_of(url).stored(url)
    if as_json:
        return print_json(found)
    rows = tuple((one.run, one.stored_at, one.experiment, one.status) for one in found)
    notes = () if rows else ("No run there yet; dyno store push brings one.",)
    draw(Table("", ("run", "stored (UTC)", "experiment", "status"), rows, notes, numbers=False), terminal())
    return None


@command.command("pull")
@click.argument("run")
@_URL
@click.option("--out", "-o", type=click.Path(path_type=Path), default=None, help="[default: runs/RUN]")
@_JSON
def pull(run: str, url: str, out: Path | None, as_json: bool) -> None:
    """Make the directory of RUN, an id that `dyno store list` shows; every verb reads it."""
    from dynamometer.cli.output import print_json
    from dynamometer.record.stores import store_of

    folder = out or Path("runs") / run
    store_of(url).pull(url, run, folder)
    if as_json:
        print_json({"run": run, "path": str(folder)})
    else:
        click.echo(f"{folder}: dyno report {folder} makes its page")
