"""A study (TOML) in: its question, its cases as `dyno simulate` options, what is claimed. Each case simulated, the
claim judged, out."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Literal

import click
import msgspec
import numpy as np
from rich.table import Table

from dynamometer import simulate as sim
from dynamometer.cli import options
from dynamometer.cli.output import json_text
from dynamometer.errors import DynoError, UsageError
from dynamometer.report.table import terminal
from dynamometer.sim.cluster import Outcome
from dynamometer.sim.ledger import Tally
from dynamometer.types import Estimate
from dynamometer.units import significant

_SETTINGS = dict[str, str | int | float | bool]
_T = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36}  # Student's 97.5 % by the number of seeds


class Claim(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`order`: case names from the highest to the lowest value of `figure`, as claimed by `by`."""

    figure: str
    order: tuple[str, ...]
    by: str


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    options: _SETTINGS


class Study(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`options` hold for every case; `vary` crosses every case with every value. `verb`: whose options, and figures,
    they are: simulate or scale.
    """

    question: str
    options: _SETTINGS
    cases: tuple[Case, ...]
    figures: tuple[str, ...]
    claims: tuple[Claim, ...] = ()
    vary: dict[str, tuple[str | int | float, ...]] = {}
    notes: tuple[str, ...] = ()
    verb: Literal["simulate", "scale"] = "simulate"


class Row(msgspec.Struct, frozen=True):
    """One case. `refused`: why it could not be simulated."""

    case: str
    figures: dict[str, Estimate]
    refused: str = ""


class Verdict(msgspec.Struct, frozen=True):
    """`holds` None: the seeds cannot tell."""

    claim: str
    holds: bool | None
    why: str


class Result(msgspec.Struct, frozen=True):
    study: str
    question: str
    driver: str
    rows: tuple[Row, ...]
    verdicts: tuple[Verdict, ...]
    notes: tuple[str, ...]


def catalogue() -> dict[str, str]:
    """The ready studies with their questions."""
    folder = files("dynamometer.studies")
    names = sorted(item.name.removesuffix(".toml") for item in folder.iterdir() if item.name.endswith(".toml"))
    return {name: read(name).question for name in names}


def read(name: str) -> Study:
    """A ready study, or a TOML file."""
    path = Path(name)
    try:
        if path.suffix == ".toml":
            text = path.read_text(encoding="utf-8")
        else:
            text = files("dynamometer.studies").joinpath(f"{name}.toml").read_text(encoding="utf-8")
    except OSError:
        raise UsageError(f"there is no study {name!r}; dyno study --list names them, or give a TOML file") from None
    try:
        return msgspec.convert(tomllib.loads(text), Study)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as wrong:
        raise UsageError(f"{name} is not a study: {wrong}") from wrong


def run(name: str, repeats: int, quick: bool, out: Path | None, as_json: bool) -> int:
    """Simulates all cases, prints, and returns 1 if a claim fell."""
    study = read(name)
    rows = tuple(_row(case, settings, study, repeats, quick) for case, settings in _cases(study))
    verdicts = tuple(judge(claim, rows) for claim in study.claims)
    notes = (*study.notes, *(("quick: a tenth of the load; do not rely on the verdict",) if quick else ()))
    result = Result(Path(name).stem, study.question, "simulated", rows, verdicts, notes)
    if out:
        out.write_text(json_text(result) + "\n", encoding="utf-8")
    if as_json:
        click.echo(json_text(result))
    else:
        _show(result, study)
    return 1 if any(v.holds is False for v in verdicts) else 0


def _cases(study: Study) -> list[tuple[str, _SETTINGS]]:
    found: list[tuple[str, _SETTINGS]] = []
    crossed = list(itertools.product(*study.vary.values())) if study.vary else [()]
    for case in study.cases:
        for values in crossed:
            extra = dict(zip(study.vary, values, strict=True))
            label = " ".join([case.name, *(str(v) for v in values)])
            found.append((label, {**study.options, **case.options, **extra}))
    return found


def _row(name: str, settings: _SETTINGS, study: Study, repeats: int, quick: bool) -> Row:
    """One case over its seeds; a case that cannot run says why."""
    try:
        once = _scaled if study.verb == "scale" else _once
        drawn = [once({**settings, "seed": seed}, quick) for seed in range(repeats)]
    except DynoError as refused:
        return Row(name, {}, str(refused))
    return Row(name, {figure: _spread([d[figure] for d in drawn if figure in d], figure) for figure in study.figures})


def _scaled(settings: _SETTINGS, quick: bool) -> dict[str, float]:
    """One seed of one case of `dyno scale`."""
    from dynamometer.cli.scale_run import once

    short = {"before": "5s", "over": "5s", "hold": "5s", "to": "100"}
    return once({**settings, **short} if quick else settings)


def _once(settings: _SETTINGS, quick: bool) -> dict[str, float]:
    """One seed of one case."""
    from dynamometer.cli.simulate import SimulateOptions, command
    from dynamometer.cli.simulate_run import experiment_of
    from dynamometer.cli.simulate_setup import setup_of

    words: list[str] = []
    for key, value in settings.items():
        words += [f"--{key}"] if value is True else [] if value is False else [f"--{key}", str(value)]
    context = command.make_context("simulate", words)
    given = options.values(context.params, SimulateOptions)
    experiment = experiment_of(
        given, options.workload(options.values(context.params, options.WorkloadOptions)), context.params
    )
    if quick:
        shorter = {"requests": experiment.requests // 10, "duration_s": experiment.duration_s / 10}
        experiment = msgspec.structs.replace(experiment, **shorter)
    setup, _, _ = setup_of(given, None)
    tally = Tally()
    outcome = sim.rehearse(experiment, setup, tally)
    return {
        **sim.figures(tally),
        **_more(outcome, tally, given.count, setup.cache.tokens),
        **_communication(context.params),
    }


def _more(outcome: Outcome, tally: Tally, devices: int, cache_tokens: int) -> dict[str, float]:
    table = tally.table()
    tokens_per_s = sim.figures(tally).get("output_tokens_per_s", 0.0)
    return {
        "requests": float(len(table)),
        "refused": float(tally.failed),
        "preemptions": float(outcome.preemptions),
        "cache_peak_share": outcome.peak_blocks_share,
        "cache_tokens": float(cache_tokens),
        "busy_share": float(np.mean(outcome.busy_share)),
        "tokens_per_s_per_device": tokens_per_s / devices,
    }


def _communication(params: Mapping[str, object]) -> dict[str, float]:
    """The share of a decode step of 64 sequences that collectives take."""
    from dynamometer.hardware import gpu, source
    from dynamometer.hardware.enginecost import Split, communication_s, parts
    from dynamometer.hardware.profiles import profile

    tp, pp = int(str(params["tp"])), int(str(params["pp"]))
    split = Split(tp, pp, bool(params["expert_parallel"]), str(params["link"]), str(params["weights"]))
    model, device = source.resolve(str(params["model"])), gpu.get(str(params["gpu"]))
    whole = parts(model, device, split, profile(str(params["profile"])), 64).total_s
    return {"communication_share": communication_s(model, device, split, 64) / whole}


def _spread(values: list[float], figure: str) -> Estimate:
    """Mean over the seeds with Student's interval."""
    unit = "ms" if figure.endswith("_ms") else "tokens/s" if "per_s" in figure else ""
    if not values:
        return Estimate(None, None, None, 0, unit, method="no answer")
    mean = float(np.mean(values))
    half = _T.get(len(values), 2.0) * float(np.std(values, ddof=1)) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return Estimate(mean, mean - half, mean + half, len(values), unit, method="seeds, Student's t")


def judge(claim: Claim, rows: tuple[Row, ...]) -> Verdict:
    """Does the order survive? It falls when two neighbours stand the other way round by more than their intervals."""
    text = f"{claim.by}: {claim.figure} falls in the order {' > '.join(claim.order)}"
    found = {row.case: row.figures.get(claim.figure) for row in rows}
    known = [(name, found.get(name)) for name in claim.order]
    unsure = []
    for (first, a), (second, b) in itertools.pairwise(known):
        if a is None or b is None or a.value is None or b.value is None:
            return Verdict(text, None, f"{first if a is None else second} was not simulated")
        assert a.low is not None and a.high is not None and b.low is not None and b.high is not None  # noqa: PT018
        if b.low > a.high:
            why = f"{second} has {significant(b.value)}, more than {first} with {significant(a.value)}"
            return Verdict(text, False, why)
        if b.high >= a.low:
            unsure.append(f"{first} and {second}")
    if unsure:
        return Verdict(text, None, f"the seeds do not tell {', '.join(unsure)} apart")
    return Verdict(text, True, "every step of it is larger than the seeds' scatter")


def _show(result: Result, study: Study) -> None:
    console = terminal()
    console.print(f"{result.question}  (all figures are simulated)", highlight=False, markup=False)
    table = Table()
    table.add_column("case")
    for figure in study.figures:
        table.add_column(figure.removesuffix("_ms").replace("_", " "), justify="right")
    for row in result.rows:
        cells = (
            [_cell(row.figures[f]) for f in study.figures]
            if row.figures
            else [row.refused[:60], *[""] * (len(study.figures) - 1)]
        )
        table.add_row(row.case, *cells)
    console.print(table)
    for row in result.rows:
        if row.refused:
            console.print(f"{row.case}: {row.refused}", highlight=False, markup=False, soft_wrap=True)
    for verdict in result.verdicts:
        said = {True: "survives", False: "does not survive", None: "undecided"}[verdict.holds]
        console.print(f"{said}: {verdict.claim}; {verdict.why}", highlight=False, markup=False, soft_wrap=True)
    for note in result.notes:
        console.print(note, style="dim", highlight=False, markup=False, soft_wrap=True)


def _cell(e: Estimate) -> str:
    if e.value is None:
        return "n/a"
    if e.low is None or e.high is None or e.high - e.low < 0.02 * abs(e.value):
        return significant(e.value)
    return f"{significant(e.value)} ± {significant((e.high - e.low) / 2)}"
