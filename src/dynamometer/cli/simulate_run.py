"""What `dyno simulate` does: options in, a setup and an experiment, the simulation, its table and page out."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.table import Table

from dynamometer import simulate as sim
from dynamometer.cli.bench import LoadOptions, load_of
from dynamometer.cli.output import json_text
from dynamometer.cli.simulate import SimulateOptions
from dynamometer.errors import UsageError
from dynamometer.record import manifest, steplog
from dynamometer.record.clock import wall_ns
from dynamometer.report import brief
from dynamometer.report.table import terminal
from dynamometer.sim.setup import Setup
from dynamometer.types import Estimate, Experiment, Load, Target, Workload
from dynamometer.units import significant


def run(given: SimulateOptions, workload: Workload, raw: Mapping[str, object]) -> int:
    """One simulation, or the replay of a step log's phases."""
    from dynamometer.cli.simulate_setup import calibration, setup_of

    if given.predict:
        return _replay(given)
    known = calibration(given)
    experiment = experiment_of(given, workload, raw)
    setup, spread, notes = setup_of(given, known)
    directory = given.out or Path("runs") / f"{manifest.new_run_id(wall_ns())}-{experiment.name}"
    wanted = sim.Wanted(
        rows=given.rows,
        notes=notes,
        command=shlex.join(["dyno", *sys.argv[1:]]),
        extrapolate=given.extrapolate,
    )
    sim.simulate(experiment, setup, directory, wanted)
    return _tell(given, experiment, setup, spread, directory)


def _tell(given: SimulateOptions, experiment: Experiment, setup: Setup, spread: float, directory: Path) -> int:
    from dynamometer.measure import sum_up

    found = sum_up(directory)
    band: dict[str, Estimate] = {}
    if spread > 0 and not given.no_band and found.summary.metrics.requests_ok <= 50_000:
        band = sim.band(experiment, setup, spread)
        (directory / "prediction.json").write_text(json_text(band) + "\n", encoding="utf-8")
    if given.as_json:
        click.echo(json_text(found.summary))
    else:
        console = terminal()
        brief.show(console, found)
        if band:
            _show_band(console, band)
        console.print(f"report: {directory / 'report.html'}   record: {directory}", soft_wrap=True)
    if found.invalid:
        return 5
    return 1 if found.missed or not found.summary.metrics.requests_ok else 0


def _show_band(console: Console, band: Mapping[str, Estimate]) -> None:
    table = Table(title="prediction, with the 80 % band of the step times", title_justify="left")
    for column in ("figure", "simulated", "low", "high", "unit"):
        table.add_column(column, justify="left" if column in ("figure", "unit") else "right")
    for name, e in band.items():
        cells = [significant(v) if v is not None else "n/a" for v in (e.value, e.low, e.high)]
        table.add_row(name.rsplit("_ms", 1)[0].removesuffix("_per_s"), *cells, e.unit)
    console.print(table)


def experiment_of(given: SimulateOptions, workload: Workload, raw: Mapping[str, object]) -> Experiment:
    """The experiment named, or the one that the options describe."""
    if given.experiment:
        found = _read_experiment(Path(given.experiment))
        changed: dict[str, object] = {"seed": given.seed} if given.seed else {}
        if given.duration or given.requests:
            changed |= {"duration_s": _seconds(given.duration), "requests": given.requests or 0}
        if given.rate is not None or given.concurrency is not None:
            changed["load"] = _load(raw)
        target = msgspec.structs.replace(found.target, url="simulated://", api="simulated")
        return msgspec.structs.replace(found, target=target, repeats=1, **changed)
    from dynamometer.decisions.gate import objectives

    load = _load(raw)
    requests, duration_s = given.requests or 0, _seconds(given.duration)
    if not requests and not duration_s and load.law == "closed":
        requests = max(80, 15 * load.concurrency)
    elif not requests and not duration_s and load.law != "trace":
        duration_s = 60.0
    label = f"c{load.concurrency}" if load.law == "closed" else f"{load.law}-{load.rate:g}rps"
    return Experiment(
        name=given.name or f"simulated-{label}",
        target=Target("simulated://", given.model, api="simulated"),
        workload=workload,
        load=load,
        requests=requests,
        duration_s=duration_s,
        seed=given.seed,
        slo=objectives(given.slo) if given.slo else (),
    )


def _load(raw: Mapping[str, object]) -> Load:
    """The load by the rules of `dyno bench`."""
    given: dict[str, object] = dict.fromkeys(LoadOptions.__struct_fields__) | {"arrival_options": ()}
    known = {name: raw[name] for name in LoadOptions.__struct_fields__ if name in raw}
    return load_of(msgspec.convert({**given, **known}, LoadOptions))


def _seconds(text: str) -> float:
    from dynamometer.units import seconds

    if not text:
        return 0.0
    found = seconds(text, "--duration")
    if found <= 0:
        raise UsageError(f"--duration is {text!r}; give a time above 0, e.g. 60s")
    return found


def _read_experiment(path: Path) -> Experiment:
    """A TOML file, or the experiment of a recorded run."""
    if path.is_dir():
        return manifest.read(path).experiment
    if not path.is_file():
        raise UsageError(f"{path} is neither an experiment file (TOML) nor a run; give one, or only options")
    try:
        return msgspec.toml.decode(path.read_bytes(), type=Experiment)
    except (msgspec.DecodeError, UnicodeDecodeError) as wrong:
        raise UsageError(f"{path} is not an experiment: {wrong}; docs/simulator.md shows one") from wrong


def _replay(given: SimulateOptions) -> int:
    """Fits to some phases of a step log and predicts others, beside what was recorded."""
    from dynamometer.models.steplog import phases
    from dynamometer.replay import predict, table_rows

    if len(given.calibrate) != 1 or not steplog.is_step_log(given.calibrate[0]):
        raise UsageError("--predict needs one --calibrate with a step log folder; docs/simulator.md says what that is")
    folder = given.calibrate[0]
    found = phases(steplog.read_steps(folder), steplog.read_requests(folder))
    asked = given.predict.split(",") if given.predict != "rest" else []
    known = given.phases.split(",") if given.phases else []
    outcome = predict(found, known, asked, given.seed)
    if given.as_json:
        click.echo(json_text(outcome))
        return 0
    console = terminal()
    table = Table(title=f"predicted from {', '.join(outcome.fitted)}", title_justify="left")
    head, rows = table_rows(outcome)
    for i, name in enumerate(head):
        table.add_column(name, justify="left" if i < 2 else "right")
    for row in rows:
        table.add_row(*row)
    console.print(table)
    return 0
