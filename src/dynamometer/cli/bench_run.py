"""What `dyno bench` does with an experiment: serve if need be, measure, sum up, print. An exit code comes out."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import click
import msgspec
from rich.console import Console

from dynamometer import measure
from dynamometer.cli.bench import BenchOptions
from dynamometer.cli.output import json_text, stages
from dynamometer.cli.repeats import tell_repeats
from dynamometer.client.course import Progress as Driven
from dynamometer.decisions.account import Account
from dynamometer.engines.inprocess import Engine, load
from dynamometer.engines.recipes import Settings
from dynamometer.engines.serve import serve
from dynamometer.record import manifest
from dynamometer.record.clock import now_ns, wall_ns
from dynamometer.report import brief, live
from dynamometer.report.run_tables import load_text
from dynamometer.report.table import terminal
from dynamometer.telemetry.choice import samplers
from dynamometer.telemetry.process import listeners
from dynamometer.telemetry.sampler import Sampler
from dynamometer.types import Experiment, Run, Target

Facts = dict[str, str | int | float]
INSIDE: Final = "inprocess."  # an engine of that name is loaded into this process
SERVED: Final = "served_"  # prefix of the facts that let a run's engine be started again


class Up(msgspec.Struct, frozen=True):
    """What is to be measured: its address, what is known of it, its processes on this machine."""

    target: Target
    facts: Facts
    pids: tuple[int, ...] = ()
    engine: Engine | None = None  # loaded into this process
    samplers: tuple[Sampler, ...] = ()
    missing: tuple[str, ...] = ()  # sensors


def bench(experiment: Experiment, given: BenchOptions) -> int:
    """Measures, as often as asked. Prints a table and a sentence, or JSON."""
    console = _console(given)
    place = given.out or Path("runs") / f"{manifest.new_run_id(wall_ns())}-{experiment.name}"
    settings = _settings(experiment, given)
    folders = [place] if given.repeats == 1 else [place / f"repeat-{i + 1}" for i in range(given.repeats)]
    code = 0
    with _endpoint(experiment.target, given.engine, settings, console, given.quiet) as up:
        at = _look(msgspec.structs.replace(experiment, target=up.target), up, given, console)
        up = _watched(up, at, given)
        for folder in folders:
            run = _one(partial(measure.measure, at, folder), experiment, up, given, console)
            code = max(code, _tell(measure.sum_up(folder), folder, given, console))
            if run.status == "interrupted":
                break
    if given.repeats > 1:
        tell_repeats(place, folders, given.as_json)
    return code


def resume(given: BenchOptions) -> int:
    """Goes on with an interrupted run; an engine that dyno had started is started again as it was."""
    assert given.resume is not None
    console = _console(given)
    run = manifest.read(given.resume)
    target, settings = run.experiment.target, Settings()
    engine = str(run.engine.get(SERVED + "engine", ""))
    if engine:
        kept = {k.removeprefix(SERVED): v for k, v in run.engine.items() if k.startswith(SERVED)}
        settings = msgspec.convert({k: v for k, v in kept.items() if k in Settings.__struct_fields__}, Settings)
        target = msgspec.structs.replace(target, url="", model=str(kept.get("model", "")))
    with _endpoint(target, engine, settings, console, given.quiet) as up:
        experiment = msgspec.structs.replace(run.experiment, target=up.target)
        at = _look(experiment, up, given, console)
        folder = given.resume
        up = _watched(up, at, given)
        _one(partial(measure.resume, at, folder), experiment, up, given, console)
        return _tell(measure.sum_up(folder), folder, given, console)


def _settings(experiment: Experiment, given: BenchOptions) -> Settings:
    """A slot for each request in flight; an open loop has no such number, so four."""
    slots = given.slots or experiment.load.concurrency or 4
    return Settings(slots=slots, threads=given.threads, quantization=given.quantization)


@contextmanager
def _endpoint(target: Target, engine: str, settings: Settings, console: Console, quiet: bool) -> Iterator[Up]:
    """The endpoint to measure. Starts an engine when none is named, or loads it into this process."""
    if target.url:
        at = urlsplit(target.url)
        here = at.hostname in ("127.0.0.1", "localhost", "::1")
        yield Up(target, {}, listeners(at.port or 80) if here else ())
        return
    if engine.startswith(INSIDE):
        name = engine.removeprefix(INSIDE)
        inside = load(name, target.model, settings, now_ns)
        model = str(inside.facts.get("model_file", target.model or "packaged"))
        there = msgspec.structs.replace(target, url=f"inprocess://{name}", model=model, api="inprocess")
        again = {SERVED + "engine": engine, SERVED + "model": target.model, **_again(settings)}
        yield Up(there, again, (os.getpid(),), inside)  # its memory and CPU are this process's
        inside.close()
        return
    with ExitStack() as running:
        with stages(console, quiet) as stage:
            up = running.enter_context(serve(engine, target.model, settings, now_ns=now_ns, progress=stage))
        again = {SERVED + "engine": engine, SERVED + "model": target.model, **_again(settings)}
        found = msgspec.structs.replace(target, url=up.url, model=up.model)
        yield Up(found, {**up.facts, **again}, (up.pid,))


def _again(settings: Settings) -> Facts:
    """What lets the engine of a run be started again as it was."""
    return {SERVED + name: getattr(settings, name) for name in ("slots", "threads", "quantization")}


def _look(experiment: Experiment, up: Up, given: BenchOptions, console: Console) -> measure.Ready:
    if up.engine is not None:
        at = measure.ready_inside(up.engine, experiment, not given.no_sense_check)
        at = msgspec.structs.replace(at, facts={**at.facts, **up.facts})
    else:
        at = measure.ready(experiment, up.facts, not given.no_sense_check)
    engine = at.facts.get("engine", "an endpoint")
    console.print(
        f"measuring {at.experiment.target.model or '?'} on {engine} at {at.experiment.target.url}", style="dim"
    )
    if at.answer:
        console.print(f"first answer, untimed: {at.answer[:100]!r}", style="dim")
    return at


def _watched(up: Up, at: measure.Ready, given: BenchOptions) -> Up:
    """The same with what can be read beside the load: the engine's own page, this machine's GPUs."""
    page = given.metrics_url
    if not page and at.seen.metrics_path:
        whole = urlsplit(at.experiment.target.url)
        page = f"{whole.scheme}://{whole.netloc}{at.seen.metrics_path}"
    found, missing = samplers(page, here=bool(up.pids) or up.engine is not None)
    return msgspec.structs.replace(up, samplers=found, missing=missing)


def _one(
    drive: Callable[[measure.Beside], Run],
    experiment: Experiment,
    up: Up,
    given: BenchOptions,
    console: Console,
) -> Run:
    """One run with its live view."""
    command = shlex.join(["dyno", *sys.argv[1:]])
    title = f"{experiment.name}: {load_text(experiment.load)}"
    with live.watch(title, console, quiet=given.quiet or given.as_json) as show:
        return drive(
            measure.Beside(
                engine_pids=up.pids,
                samplers=up.samplers,
                on_progress=lambda now: show(_shown(now, experiment)),
                command=command,
                workers=given.workers,
                missing=up.missing,
                engine=up.engine,
            )
        )


def _shown(now: Driven, experiment: Experiment) -> live.Progress:
    warm = now.phase == "warmup"
    return live.Progress(
        phase="warm-up" if warm else now.phase,
        elapsed_s=now.elapsed_s,
        done=now.ended,
        failed=now.failed,
        in_flight=now.in_flight,
        planned=experiment.warmup_requests if warm else experiment.requests,
        expected_s=0.0 if warm else experiment.duration_s,
    )


def _tell(found: Account, folder: Path, given: BenchOptions, console: Console) -> int:
    """Prints one run. Exit code: 0 measured, 1 missed or nothing answered, 5 not to be believed, 130 interrupted."""
    if given.as_json:
        click.echo(json_text(found.summary))
    else:
        brief.show(terminal(), found)
        terminal().print(f"report: {folder / 'report.html'}   record: {folder}", soft_wrap=True)
    if found.run.status == "interrupted":
        console.print(f"interrupted; dyno bench --resume {folder} goes on with the rest", style="yellow")
        return 130
    if found.invalid:
        return 5
    return 1 if found.missed or not found.summary.metrics.requests_ok else 0


def _console(given: BenchOptions) -> Console:
    """Progress and remarks go to stderr, so that stdout can be piped."""
    console = terminal(sys.stderr)
    console.quiet = given.quiet or given.as_json
    return console
