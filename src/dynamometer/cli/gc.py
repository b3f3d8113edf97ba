"""`dyno gc`: a folder or a store and a rule of retention in, what the rule gives up out; removed only on request."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import click

from dynamometer.errors import UsageError


@click.command("gc", short_help="Remove old runs, or what can be made again.")
@click.argument("folder", type=click.Path(path_type=Path), default=Path("runs"))
@click.option("--keep", type=click.IntRange(1), default=None, help="Keep the newest so many.")
@click.option("--older-than", default="", metavar="TIME", help="Give up only what is older, e.g. 30d or 12h.")
@click.option("--derived", is_flag=True, help="Only files that dyno makes again from the wire log.")
@click.option("--store", "url", default="", metavar="URL", help="Runs of a store in place of a folder's.")
@click.option("--delete", is_flag=True, help="Remove them; without it they are only listed.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    folder: Path, keep: int | None, older_than: str, derived: bool, url: str, delete: bool, as_json: bool
) -> None:
    """List the runs in FOLDER (default: runs) that a rule of retention gives up; --delete removes them.

    With both --keep and --older-than a run must fall under both. A run that is being written, or that is damaged,
    is never touched.

    \b
    dyno gc --keep 50 --older-than 30d
    dyno gc --derived --delete
    """
    from dynamometer.record.gc import Rule

    rule = Rule(keep or 0, _age_s(older_than), derived)
    if not (rule.keep or rule.older_than_s or derived):
        raise UsageError("no rule was given; give --keep, --older-than or --derived")
    if url and derived:
        raise UsageError("--derived is for a folder; a store's rows are what it keeps")
    if url:
        _of_store(url, rule, delete, as_json)
    else:
        _of_folder(folder, rule, delete, as_json)


def _age_s(text: str) -> float:
    from dynamometer.units import seconds

    if not text:
        return 0.0
    if text.endswith("d") and text[:-1].replace(".", "", 1).isdigit():
        age_s = float(text[:-1]) * 86_400
    else:
        age_s = seconds(text, "--older-than")
    if age_s <= 0:
        raise UsageError(f"--older-than is {text!r}; give a time above 0, e.g. 30d")
    return age_s


def _of_folder(folder: Path, rule: object, delete: bool, as_json: bool) -> None:
    from dynamometer.cli.output import print_json
    from dynamometer.record.clock import wall_ns
    from dynamometer.record.gc import Rule, doomed, remove

    assert isinstance(rule, Rule)
    found = doomed(folder, rule, wall_ns())
    if delete:
        for one in found:
            remove(one)
    if as_json:
        told = [{"path": str(o.path), "run": o.run, "bytes": o.bytes, "files": o.files} for o in found]
        return print_json({"deleted": delete, "runs": told})
    for one in found:
        click.echo(f"{one.path}  {one.bytes / 1e6:,.1f} MB{'  ' + ', '.join(one.files) if one.files else ''}")
    _conclude(len(found), f", {sum(one.bytes for one in found) / 1e6:,.1f} MB", delete)
    return None


def _of_store(url: str, rule: object, delete: bool, as_json: bool) -> None:
    from dynamometer.cli.output import print_json
    from dynamometer.record.clock import wall_ns
    from dynamometer.record.gc import Rule
    from dynamometer.record.stores import store_of

    assert isinstance(rule, Rule)
    store = store_of(url)
    youngest_s = wall_ns() / 1e9 - rule.older_than_s
    found = [one for one in store.stored(url)[rule.keep :] if _at_s(one.stored_at) <= youngest_s]
    if delete and found:
        store.drop(url, [one.run for one in found])
    if as_json:
        return print_json({"deleted": delete, "runs": found})
    for one in found:
        click.echo(f"{one.run}  {one.stored_at}  {one.experiment}")
    _conclude(len(found), "", delete)
    return None


def _at_s(text: str) -> float:
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp()


def _conclude(count: int, size: str, delete: bool) -> None:
    if not count:
        click.echo("nothing falls under the rule")
    else:
        click.echo(f"{count} run{'s' * (count > 1)}{size}: {'removed' if delete else 'add --delete to remove'}")
