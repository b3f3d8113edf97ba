"""An experiment in, a run directory out: look at the endpoint, drive it, read the rows back, sum them up.

The only file where both sides of the rows meet: `client` writes them here and `metrics` reads them here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import cast

import msgspec

from dynamometer import plugins
from dynamometer.client import inprocess
from dynamometer.client.budget import ClientReport
from dynamometer.client.course import Progress
from dynamometer.client.probe import Seen, first_answer, look, takes_ignore_eos, token_counter
from dynamometer.client.workers import run as drive
from dynamometer.decisions.account import Account
from dynamometer.engines import sense
from dynamometer.engines.dialect import Dialect
from dynamometer.engines.inprocess import Engine
from dynamometer.errors import RecordError, TargetError, UsageError
from dynamometer.record import manifest
from dynamometer.record.clock import Origin, RunClock, continued, now_ns, origin
from dynamometer.record.live_page import shown_live, traced_live, traces_url
from dynamometer.record.log import SampleLog, WireLog, main_log, reached, shards
from dynamometer.schedule import build as schedule_of
from dynamometer.telemetry.host import Host
from dynamometer.telemetry.interpreter import Interpreter
from dynamometer.telemetry.sampler import Sampler, beside
from dynamometer.types import Doubt, Experiment, Provenance, Request, Run, Schedule
from dynamometer.workload.padding import TokenCounter
from dynamometer.workload.plan import Plan, calibrate, made_to_length, plan

Facts = Mapping[str, str | int | float]
EXACT = (
    2000  # so many prompts are made before the load with the engine's own tokenizer; more are planned by an estimate
)

FREE_LENGTH = "the endpoint refuses ignore_eos: answers end where the model ends them, output_tokens is the most"


class Ready(msgspec.Struct, frozen=True):
    """An endpoint that has been looked at. `experiment` names it with its blanks filled in."""

    experiment: Experiment
    seen: Seen
    facts: Facts
    doubts: tuple[Doubt, ...] = ()
    answer: str = ""  # to the first question
    notes: tuple[str, ...] = ()


class Beside(msgspec.Struct, frozen=True):
    """What watches the load. `engine_pids`: the engine's processes on this machine."""

    engine_pids: tuple[int, ...] = ()
    samplers: tuple[Sampler, ...] = ()
    on_progress: Callable[[Progress], None] = lambda _: None
    command: str = ""
    workers: int = 0  # client processes; 0 = as many as the load needs
    missing: tuple[str, ...] = ()  # sensors that are not there, beyond what the samplers say
    engine: Engine | None = None  # one inside this process, to be asked in place of an endpoint
    prometheus: int = 0  # port on loopback where the run's own histograms are shown; 0: nowhere
    otlp: str = ""  # base URL of a collector that gets a span a request; "": none


def ready_inside(engine: Engine, experiment: Experiment, sense_check: bool = True) -> Ready:
    """As `ready`, for an engine inside this process."""
    seen = Seen(experiment.target, dict(engine.facts))
    text = inprocess.first_answer(engine, sense.question()) if sense_check else ""
    found = sense.doubt(text) if sense_check else None
    return Ready(experiment, seen, dict(engine.facts), (found,) if found else (), text)


def ready(experiment: Experiment, facts: Facts, sense_check: bool = True) -> Ready:
    """Looks at the endpoint and asks it one untimed question. `facts`: what is known of an engine that dyno started."""
    seen = look(experiment.target, os.environ)
    target, text = seen.target, ""
    doubts: tuple[Doubt, ...] = ()
    if sense_check:
        target, answer = first_answer(seen.target, sense.QUESTION, 48, os.environ)
        text = answer.text or answer.reasoning
        found = sense.doubt(text)
        doubts = (found,) if found else ()
    workload = experiment.workload
    notes: tuple[str, ...] = ()
    if sense_check and workload.ignore_eos and not takes_ignore_eos(target, os.environ):
        workload, notes = msgspec.structs.replace(workload, ignore_eos=False), (FREE_LENGTH,)
    known = msgspec.structs.replace(experiment, target=target, workload=workload)
    return Ready(known, msgspec.structs.replace(seen, target=target), {**seen.facts, **facts}, doubts, text, notes)


def measure(at: Ready, directory: Path, beside_load: Beside) -> Run:
    """One run into a new directory. An interrupted run is a run: it has its status and all its finished answers."""
    if (directory / manifest.NAME).exists() or shards(directory):
        raise UsageError(f"{directory} holds a run already; give another --out, or go on with it: --resume {directory}")
    if beside_load.otlp:
        traces_url(beside_load.otlp)
    begun = origin()
    run = manifest.begin(at.experiment, begun, Provenance.MEASURED, at.facts, beside_load.command)
    run = msgspec.structs.replace(run, doubts=at.doubts, notes=at.notes)
    asked = _asked(at.experiment, at, run.id)  # whatever can't be asked is refused before there is a folder
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as wrong:
        raise RecordError(f"{directory} cannot be made: {wrong.strerror}; give another --out") from wrong
    manifest.write(directory, run)
    return _load(run, asked, at, directory, begun, beside_load)


def resume(at: Ready, directory: Path, beside_load: Beside) -> Run:
    """Asks what an interrupted run has not asked or not had answered, into the same record."""
    run = manifest.read(directory)
    resumable(directory, run)
    got = reached(shards(directory))
    again = msgspec.structs.replace(run.experiment, target=at.experiment.target)  # its address may be another now
    shown = msgspec.structs.replace(again, target=manifest.shown(again.target))
    asked = _asked(again, at, run.id, got.finished)
    begun = continued(got.last_at_ns)
    breaks = (*run.breaks, (got.whole_until_ns, now_ns() - begun.monotonic_ns))
    engine = {**run.engine, **at.facts}
    run = msgspec.structs.replace(run, status="running", experiment=shown, engine=engine, breaks=breaks)
    manifest.write(directory, run)
    return _load(run, asked, at, directory, begun, beside_load)


def resumable(directory: Path, run: Run) -> None:
    """UsageError if there is nothing to go on with."""
    if run.status == "complete":
        raise UsageError(f"{directory} is complete; there is nothing to resume")
    if run.driver is not Provenance.MEASURED:
        raise UsageError(f"{directory} is a simulation; simulate it again")


def sum_up(directory: Path) -> Account:
    """`summary.json` and `report.html` from the rows."""
    from dynamometer.report.html import write_derived

    found = write_derived(directory)
    if found.invalid and found.run.status == "complete":  # a list of runs reads manifests alone
        doubts = tuple(doubt for doubt in found.summary.doubts if doubt.fatal)
        manifest.write(directory, manifest.finish(found.run, "invalid", found.run.end_ns, found.run.client, doubts))
    return found


class _Asked(msgspec.Struct, frozen=True):
    """What is to be asked. `experiment` has the headers that its record leaves out."""

    experiment: Experiment
    made: Plan
    requests: Iterator[Request]
    schedule: Schedule | None
    dialect: Dialect


def _asked(experiment: Experiment, at: Ready, salt: str, finished: frozenset[int] = frozenset()) -> _Asked:
    """The requests that are not `finished`, at their times; the first is made, so that most mistakes show here."""
    schedule = None
    if experiment.load.law != "closed":
        schedule = schedule_of(experiment.load, experiment.seed, experiment.requests, experiment.duration_s)
    dialect = cast(Dialect, plugins.load("engine", experiment.target.api))
    made, requests = _requests(experiment, at.seen, salt, schedule)
    rest, schedule, experiment = _rest(experiment, requests, schedule, finished)
    first = list(islice(rest, 1))
    return _Asked(experiment, made, chain(first, rest), schedule, dialect)


def _load(run: Run, asked: _Asked, at: Ready, directory: Path, begun: Origin, beside_load: Beside) -> Run:
    """Drives the requests, and closes the manifest whatever happens."""
    experiment, made, rest, schedule = asked.experiment, asked.made, asked.requests, asked.schedule
    clock = RunClock(begun)
    pauses = Interpreter(now_ns)
    samplers: tuple[Sampler, ...] = (Host(lambda: beside_load.engine_pids), pauses, *beside_load.samplers)

    def on_progress(now: Progress) -> None:
        pauses.note(now.lag_ns)
        beside_load.on_progress(now)

    sample_log = SampleLog(directory / "samples.jsonl")
    log = WireLog(main_log(directory), begun.monotonic_ns)
    report: ClientReport | None = None
    try:
        page, spans = shown_live(directory, beside_load.prometheus), traced_live(directory, beside_load.otlp)
        with page, spans as sent, pauses, beside(samplers, clock.now_ns, sample_log.append) as missing:
            if beside_load.engine is not None:
                report = inprocess.run(beside_load.engine, experiment, rest, schedule, log, on_progress)
            else:
                report = drive(experiment, rest, schedule, asked.dialect, log, on_progress, beside_load.workers)
        run = msgspec.structs.replace(
            run, engine={**run.engine, "sensors_missing": "; ".join((*beside_load.missing, *missing()))}
        )
    finally:
        log.close()
        sample_log.close()
        if report is None:  # the load could not be made; the record says so and stays readable
            manifest.write(directory, manifest.finish(run, "interrupted", clock.now_ns(), {}, ()))
    run = manifest.finish(run, report.status, report.end_ns, report.client, report.doubts)
    several = f"{report.client['workers']:.0f} client processes: {report.workers_because}"
    told = (made.account(), *made.notes, several if report.client.get("workers", 1) > 1 else "")
    notes = [note for note in (*told, *sent) if note]
    run = msgspec.structs.replace(run, notes=tuple(dict.fromkeys((*run.notes, *notes))))
    manifest.write(directory, run)
    return run


def _rest(
    experiment: Experiment, requests: Iterator[Request], schedule: Schedule | None, finished: frozenset[int]
) -> tuple[Iterator[Request], Schedule | None, Experiment]:
    """What is left to ask. The warm-up is asked again; gaps between arrivals stay as they were."""
    if not finished:
        return requests, schedule, experiment
    warm = experiment.warmup_requests
    rest = (request for request in requests if request.index < warm or request.index not in finished)
    done = sum(1 for index in finished if index >= warm)
    if schedule is None:
        left = experiment.requests - done if experiment.requests else 0
        if experiment.requests and left <= 0:
            raise UsageError("every request of this run was asked and has ended; there is nothing to resume")
        return rest, None, msgspec.structs.replace(experiment, requests=left)
    keep = [i for i in range(len(schedule.due_s)) if i + warm not in finished]
    if not keep:
        raise UsageError("every request of this run was asked and has ended; there is nothing to resume")
    due_s = schedule.due_s[keep]
    return rest, msgspec.structs.replace(schedule, due_s=due_s - due_s[0]), experiment


def _requests(
    experiment: Experiment, seen: Seen, salt: str, schedule: Schedule | None
) -> tuple[Plan, Iterator[Request]]:
    """The run's requests, warm-up first. Where prompts are made to a length, the engine's own tokenizer counts, if it
    has a page for that; all prompts are then made before the load."""
    workload = experiment.workload
    count = len(schedule.due_s) if schedule else experiment.requests
    counter = token_counter(seen, os.environ) if made_to_length(workload) and seen.counter else None
    if counter is None:
        made = plan(workload, experiment.seed, None, salt)
        if not made_to_length(workload):  # no length was asked for, so how it would have been met is no news
            made = msgspec.structs.replace(made, notes=made.notes[:-1])
        return made, made.requests
    if 0 < count <= EXACT:
        made = plan(workload, experiment.seed, _remembered(counter), salt)
        return made, iter(list(islice(made.requests, count + experiment.warmup_requests)))
    made = plan(workload, experiment.seed, calibrate(list(_seen_pairs(experiment, counter, salt))), salt)
    return made, made.requests


def _seen_pairs(experiment: Experiment, counter: TokenCounter, salt: str) -> Iterable[tuple[str, int]]:
    for request in islice(plan(experiment.workload, experiment.seed, None, salt).requests, 16):
        text = request.messages[-1].content or ""
        yield text, counter(text)


def _remembered(counter: TokenCounter) -> TokenCounter:
    """A prompt is counted over and over while it is cut to length; the endpoint is asked once for each text."""
    known: dict[str, int] = {}

    def count(text: str) -> int:
        if text not in known:
            try:
                known[text] = counter(text)
            except (KeyError, TypeError, ValueError) as wrong:
                raise TargetError(f"the endpoint's tokenizer page gave no count: {wrong}") from wrong
        return known[text]

    return count
