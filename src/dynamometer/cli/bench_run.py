"""What `dyno bench` does with an experiment: serve if need be, measure, sum up, print. An exit code comes out."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import click
import msgspec
from rich.console import Console

from dynamometer import measure
from dynamometer.cli.bench import BenchOptions
from dynamometer.cli.endpoint import console_of, endpoint, look, one, served_before, settings_of, watched
from dynamometer.cli.options import DriveOptions
from dynamometer.cli.output import json_text
from dynamometer.cli.repeats import tell_repeats
from dynamometer.decisions.account import Account
from dynamometer.errors import RecordError, UsageError
from dynamometer.record import manifest
from dynamometer.record.clock import wall_ns
from dynamometer.record.stores import shown, store_of
from dynamometer.report import brief
from dynamometer.report.table import terminal
from dynamometer.types import Experiment


def bench(experiment: Experiment, given: BenchOptions, how: DriveOptions) -> int:
    """Measures, as often as asked. Prints a table and a sentence, or JSON."""
    console = console_of(how)
    if given.store:
        store_of(given.store)  # an address that cannot be is refused before the load
    place = given.out or Path("runs") / f"{manifest.new_run_id(wall_ns())}-{experiment.name}"
    settings = settings_of(how, experiment.load.concurrency or 4)  # an open loop has no number in flight, so four
    folders = [place] if given.repeats == 1 else [place / f"repeat-{i + 1}" for i in range(given.repeats)]
    code = 0
    with endpoint(experiment.target, how.engine, settings, console, how.quiet) as up:
        at = look(msgspec.structs.replace(experiment, target=up.target), up, how, console)
        up = watched(up, at, how)
        for folder in folders:
            run = one(partial(measure.measure, at, folder), experiment, up, how, console)
            found = measure.sum_up(folder)
            code = max(code, _tell(found, folder, how, console, alone=given.repeats == 1))
            if given.store:
                code = max(code, _share(folder, given.store, console))
            if run.status == "interrupted":
                break
    if given.repeats > 1 and not tell_repeats(place, folders, how.as_json) and how.as_json:
        click.echo(json_text(found.summary))
    return code


def _share(folder: Path, url: str, console: Console) -> int:
    """Copies the run into the store. A store that is not there costs no run: the record stays, exit code 4 says so."""
    try:
        store_of(url).push(folder, url)
    except RecordError as wrong:
        console.print(f"{wrong}; the run is in {folder}: dyno store push {folder} sends it again", style="yellow")
        return wrong.exit_code
    console.print(f"stored in {shown(url)}", soft_wrap=True)
    return 0


def resume(folder: Path, how: DriveOptions, headers: Mapping[str, str]) -> int:
    """Goes on with an interrupted run; an engine that dyno had started is started again as it was. `headers`: those of
    the run, whose values its record leaves out."""
    console = console_of(how)
    run = manifest.read(folder)
    measure.resumable(folder, run)
    engine, settings, target = served_before(run.experiment.target, run.engine)
    lacking = [name for name in target.headers if name not in headers]
    if lacking:
        raise UsageError(f"the record of {folder} leaves out the values of headers; give --header {lacking[0]}=… again")
    target = msgspec.structs.replace(target, headers={**target.headers, **headers})
    with endpoint(target, engine, settings, console, how.quiet) as up:
        experiment = msgspec.structs.replace(run.experiment, target=up.target)
        at = look(experiment, up, how, console)
        up = watched(up, at, how)
        one(partial(measure.resume, at, folder), experiment, up, how, console)
        return _tell(measure.sum_up(folder), folder, how, console)


def _tell(found: Account, folder: Path, how: DriveOptions, console: Console, alone: bool = True) -> int:
    """Prints one run; as JSON only if it is alone, for one document is what a program reads.

    Exit code: 0 measured, 1 missed or nothing answered, 5 not to be believed, 130 interrupted.
    """
    if how.as_json and alone:
        click.echo(json_text(found.summary))
    elif not how.as_json:
        brief.show(terminal(), found)
        terminal().print(f"report: {folder / 'report.html'}   record: {folder}", soft_wrap=True)
    if found.run.status == "interrupted":
        console.print(f"interrupted; dyno bench --resume {folder} goes on with the rest", style="yellow")
        return 130
    if found.invalid:
        return 5
    return 1 if found.missed or not found.summary.metrics.requests_ok else 0
