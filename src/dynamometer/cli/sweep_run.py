"""What `dyno sweep` does: serve if need be, measure what tells most, fit, print. An exit code comes out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click
import msgspec
from rich.console import Console

from dynamometer import measure, sweep
from dynamometer.cli import endpoint as ends
from dynamometer.cli.options import DriveOptions
from dynamometer.cli.output import json_text, print_json
from dynamometer.cli.roof_facts import roof_facts
from dynamometer.cli.sweep import SweepOptions
from dynamometer.decisions.curve import curve
from dynamometer.decisions.gate import objectives
from dynamometer.decisions.trial import attainment_of
from dynamometer.engines.recipes import Settings
from dynamometer.errors import DynoError, Refused, TargetError, UsageError
from dynamometer.models.search import RateRules, SweepRules, capacity
from dynamometer.record import manifest
from dynamometer.record.clock import wall_ns
from dynamometer.record.store import read_run
from dynamometer.report import fit_page, sweep_page
from dynamometer.report.html import NAME as PAGE
from dynamometer.report.html import write_page
from dynamometer.report.table import draw, terminal
from dynamometer.sweep import Drive, Ended, Plan, Record, Step
from dynamometer.types import Experiment, Load, Run, Target, Workload
from dynamometer.units import seconds, significant

SLOTS = 16  # of an engine that is started for a sweep
RESULT = "summary.json"
Conclude = Callable[[Path, Record, Ended, DriveOptions], int]


def start(target: Target, workload: Workload, given: SweepOptions, how: DriveOptions) -> int:
    """A new sweep; into the folder of the same sweep it goes on."""
    slo = objectives(given.slo) if given.slo else ()
    plan = plan_of(given)
    experiment = Experiment("sweep", target, workload, Load("closed", 1), slo=slo, seed=given.seed)
    folder = given.out or Path("runs") / f"{manifest.new_run_id(wall_ns())}-sweep"
    settings = ends.settings_of(how, SLOTS)
    return measured(folder, Record(plan, experiment), (how.engine, settings), how, given.device)


def resume(folder: Path, how: DriveOptions, device: str, conclude: Conclude | None = None) -> int:
    """Goes on with a sweep; an engine that dyno had started is started again as it was."""
    record = sweep.read(folder)
    if record.plan.grid and conclude is None:
        raise UsageError(f"{folder} is a grid; go on with it: dyno study surface --resume {folder}")
    engine, settings, target = how.engine, ends.settings_of(how, SLOTS), record.experiment.target
    for path in sorted(folder.glob("*/run.json")):
        run = read_run(path.parent)
        known, kept, there = ends.served_before(run.experiment.target, run.engine)
        if known:
            engine, settings, target = known, kept, there
            break
    record = msgspec.structs.replace(record, experiment=msgspec.structs.replace(record.experiment, target=target))
    return measured(folder, record, (engine, settings), how, device, conclude)


def plan_of(given: SweepOptions) -> Plan:
    """What the options ask to look for."""
    duration_s = seconds(given.duration, "--duration") if given.duration else 0.0
    if given.duration and duration_s <= 0:
        raise UsageError(f"--duration is {given.duration!r}; give a time above 0, e.g. 60s")
    load = given.load or ("open" if given.slo else "closed")
    first = 1.0 if given.first is None else given.first
    if load == "closed":
        last = 1024.0 if given.last is None else given.last
        for name, value in (("--from", first), ("--to", last)):
            if value != int(value) or value < 1:
                raise UsageError(f"{name} is {value:g}; requests in flight are whole numbers of at least 1")
        rules = SweepRules(int(first), int(last), given.runs or 16, width=given.width)
        _check(first, last)
        return Plan(levels=rules, requests=given.requests or 0, duration_s=duration_s or 60.0)
    if not given.slo:
        raise UsageError("--load open looks for the highest rate within an objective; give it: --slo 'ttft_p99<500ms'")
    last = 1e5 if given.last is None else given.last
    _check(first, last)
    share = given.attainment or attainment_of(objectives(given.slo))
    search = RateRules(first, last, share, given.tolerance, given.confirm, runs=given.runs or 30)
    return Plan(rates=search, requests=given.requests or 0, duration_s=duration_s or 30.0)


def _check(first: float, last: float) -> None:
    if not 0 < first <= last:
        raise UsageError(f"the sweep goes from {first:g} to {last:g}; give --from above 0 and at most --to")


def measured(
    folder: Path,
    record: Record,
    serve: tuple[str, Settings],
    how: DriveOptions,
    device: str,
    conclude: Conclude | None = None,
) -> int:
    """Drives the sweep against one engine, started once, and tells what was found. `serve`: engine and settings."""
    console = ends.console_of(how)
    sweep.begin(folder, record)
    engine, settings = serve
    with ends.endpoint(record.experiment.target, engine, settings, console, how.quiet) as up:
        base = msgspec.structs.replace(record.experiment, target=up.target)
        at = ends.look(base, up, how, console)
        up = ends.watched(up, at, how)
        facts = roof_facts(up, record.experiment.target, settings, device)
        at = msgspec.structs.replace(at, facts={**at.facts, **facts})
        record = msgspec.structs.replace(record, experiment=at.experiment)
        ended = _driven(folder, record, _drive(at, up, how, console), console)
    code = (conclude or _conclude)(folder, record, ended, how)
    if ended.stopped:
        console.print(f"interrupted; dyno {_verb(record)} --resume {folder} goes on", style="yellow")
        return 130
    return code


def _verb(record: Record) -> str:
    return "study surface" if record.plan.grid else "sweep"


def _driven(folder: Path, record: Record, drive: Drive, console: Console) -> Ended:
    try:
        return sweep.run(folder, record, drive, lambda step: console.print(_told(step), style="bold", soft_wrap=True))
    except TargetError as lost:
        if not list(folder.glob("*/run.json")):
            raise
        return Ended(f"the engine was lost: {lost}")


def _told(step: Step) -> str:
    left = ""
    if step.left_s is not None:
        left = f"; about {step.left + 1} runs and {significant(max(1.0, step.left_s), 2)} s to go"
    return f"run {step.number}: {step.load} ({step.reason}){left}"


def _drive(at: measure.Ready, up: ends.Up, how: DriveOptions, console: Console) -> Drive:
    def drive(experiment: Experiment, place: Path) -> Run:
        ready = msgspec.structs.replace(at, experiment=experiment)
        if (place / manifest.NAME).exists():
            target = at.experiment.target
            ready = msgspec.structs.replace(ready, experiment=msgspec.structs.replace(experiment, target=target))
            run = ends.one(lambda beside: measure.resume(ready, place, beside), experiment, up, how, console)
        else:
            run = ends.one(lambda beside: measure.measure(ready, place, beside), experiment, up, how, console)
        measure.sum_up(place)
        return run

    return drive


def _conclude(folder: Path, record: Record, ended: Ended, how: DriveOptions) -> int:
    try:
        return _levels(folder, ended, how) if record.plan.levels else _rates(folder, record, ended, how)
    except DynoError as why:
        if not ended.stopped:
            raise Refused(f"{why} (the sweep ended because: {ended.reason}; its runs are in {folder})") from why
        click.echo(f"so far: {why}", err=True)
        return 130


def _levels(folder: Path, ended: Ended, how: DriveOptions) -> int:
    from dynamometer.cli.fit import values_of

    found = curve(sweep.points(folder))
    values = {"verdict": sweep_page.level_verdict(found), "ended": ended.reason, **values_of(found, [])}
    (folder / RESULT).write_text(json_text(values) + "\n", encoding="utf-8")
    page = write_page(sweep_page.level_page(found, ended.reason), folder / PAGE)
    if how.as_json:
        print_json(values)
        return 0
    console = terminal()
    click.echo(f"{sweep_page.level_verdict(found)}\n{fit_page.sentence(found)}\n")
    click.echo(fit_page.in_characters(found, plain=not (console.encoding or "").lower().startswith("utf")))
    for table in fit_page.tables(found):
        draw(table, console)
    click.echo(f"It ended because: {ended.reason}.\nreport: {page}   records: {folder}")
    return 0


def _rates(folder: Path, record: Record, ended: Ended, how: DriveOptions) -> int:
    rules = record.plan.rates
    assert rules is not None
    tried, points = sweep.trials(folder), sweep.points(folder)
    if not tried:
        raise Refused("no run has ended")
    try:
        answer = capacity([one.trial for one in tried if not one.spoilt], rules)
    except Refused:
        answer = None
    slo = record.experiment.slo
    found = sweep_page.Searched(slo, rules, tuple(points), tuple(tried), answer, ended.reason)
    verdict = sweep_page.rate_verdict(found)
    values = {"verdict": verdict, "ended": ended.reason, "capacity": answer, "trials": tried, "points": points}
    (folder / RESULT).write_text(json_text(values) + "\n", encoding="utf-8")
    page = write_page(sweep_page.rate_page(found), folder / PAGE)
    if how.as_json:
        print_json(values)
    else:
        click.echo(f"{verdict}\n")
        for table in sweep_page.rate_tables(found):
            draw(table, terminal())
        click.echo(f"It ended because: {ended.reason}.\nreport: {page}   records: {folder}")
    return 0 if answer else 1
