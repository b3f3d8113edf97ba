"""How an endpoint is to be had in; the endpoint up, looked at, watched and driven out. For `bench` and for `sweep`."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Final
from urllib.parse import urlsplit

import msgspec
from rich.console import Console

from dynamometer import measure
from dynamometer.cli.options import DriveOptions
from dynamometer.cli.output import stages
from dynamometer.client.course import Progress as Driven
from dynamometer.engines.inprocess import Engine, load
from dynamometer.engines.recipes import Settings
from dynamometer.engines.serve import serve
from dynamometer.record.clock import now_ns
from dynamometer.report import live
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


@contextmanager
def endpoint(target: Target, engine: str, settings: Settings, console: Console, quiet: bool) -> Iterator[Up]:
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


def settings_of(given: DriveOptions, slots: int) -> Settings:
    """How an engine is to be started; `slots` where the user named none."""
    return Settings(
        slots=given.slots or slots,
        threads=given.threads,
        quantization=given.quantization,
        python=given.python,
        image=given.image,
    )


def served_before(target: Target, facts: Mapping[str, str | int | float]) -> tuple[str, Settings, Target]:
    """The engine, its settings and its target that let the engine of a recorded run be started again as it was; the
    engine is "" for an endpoint that dyno had not started."""
    engine = str(facts.get(SERVED + "engine", ""))
    if not engine:
        return "", Settings(), target
    kept = {k.removeprefix(SERVED): v for k, v in facts.items() if k.startswith(SERVED)}
    settings = msgspec.convert({k: v for k, v in kept.items() if k in Settings.__struct_fields__}, Settings)
    return engine, settings, msgspec.structs.replace(target, url="", model=str(kept.get("model", "")))


def _again(settings: Settings) -> Facts:
    """What lets the engine of a run be started again as it was."""
    return {SERVED + name: getattr(settings, name) for name in ("slots", "threads", "quantization", "python", "image")}


def look(experiment: Experiment, up: Up, given: DriveOptions, console: Console) -> measure.Ready:
    """The endpoint asked one untimed question, which is shown."""
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


def watched(up: Up, at: measure.Ready, given: DriveOptions) -> Up:
    """The same with what can be read beside the load: the engine's own page, this machine's GPUs."""
    page = given.metrics_url
    if not page and at.seen.metrics_path:
        whole = urlsplit(at.experiment.target.url)
        page = f"{whole.scheme}://{whole.netloc}{at.seen.metrics_path}"
    found, missing = samplers(page, here=bool(up.pids) or up.engine is not None)
    return msgspec.structs.replace(up, samplers=found, missing=missing)


def one(
    drive: Callable[[measure.Beside], Run],
    experiment: Experiment,
    up: Up,
    given: DriveOptions,
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
                prometheus=given.prometheus,
                otlp=given.otlp,
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
        first_ms=now.first_ms,
        late_ms=now.late_ms,
        last_error=now.last_error,
    )


def console_of(given: DriveOptions) -> Console:
    """Progress and remarks go to stderr, so that stdout can be piped."""
    console = terminal(sys.stderr)
    console.quiet = given.quiet or given.as_json
    return console
