"""Runs with a power sensor, or a table, in; operating points, their front, their scores and the energy law out."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import msgspec
import numpy as np

from dynamometer.decisions import columns
from dynamometer.decisions.account import conclude
from dynamometer.decisions.energy import used
from dynamometer.errors import Refused, UsageError
from dynamometer.models import power
from dynamometer.models.power import Energy, Operating
from dynamometer.record.store import open_run, read_run
from dynamometer.types import Fit


class Choice(msgspec.Struct, frozen=True):
    """One operating point. `batch`: mean sequences in flight, None where it is not known."""

    point: Operating
    batch: float | None
    energy: Energy
    score: float
    best: bool  # nothing beats it in both throughput and power


class Powers(msgspec.Struct, frozen=True):
    """`law`: J/token = e0 + e1/B; None with the reason in `notes` where the batches do not show it."""

    choices: tuple[Choice, ...]
    reference: str
    alpha: float
    beta: float
    law: Fit | None
    driver: str
    notes: tuple[str, ...]


Pair = tuple[Operating, float | None]  # with its batch


def judge(pairs: Sequence[Pair], driver: str, reference: str, weights: tuple[float, float]) -> Powers:
    """Front, scores against the `reference` ("": the first) with `weights` (α, β), and the energy law."""
    if not pairs:
        raise Refused("there is no operating point; give runs with a power sensor, or a table")
    points = [point for point, _ in pairs]
    front = power.pareto(points)
    named = next((point for point in points if point.name == reference), None) if reference else points[0]
    if named is None:
        raise UsageError(f"no point is called {reference!r}; one of {', '.join(point.name for point in points)}")
    notes: list[str] = []
    law = None
    known = [(b, p.power_w / p.tokens_per_s) for p, b in pairs if b]
    try:
        law = power.fit_energy(np.array([b for b, _ in known]), np.array([j for _, j in known]))
    except Refused as why:
        notes.append(f"no energy law: {why}")
    if any(point.idle_w is None for point in points):
        notes.append("idle power was not taken for every point; what the load itself adds is told where it was")
    choices = tuple(
        Choice(point, batch, power.energy(point), power.score(point, named, *weights), point in front)
        for point, batch in pairs
    )
    return Powers(choices, named.name, *weights, law, driver, tuple(notes))


def from_runs(directories: Sequence[Path], idle_w: float | None) -> tuple[list[Pair], str]:
    """A point a run; its meter is the GPUs' where one was read, else the processors'."""
    found: list[Pair] = []
    drivers: set[str] = set()
    for directory in directories:
        run = read_run(directory)
        with closing(open_run(directory)) as connection:
            metrics = conclude(connection, run, ()).summary.metrics
            meters = [one for one in used(connection) if one.mean_w]
        if not meters:
            raise Refused(
                f"{directory} holds no power: no sensor was there (nvml, DCGM or RAPL); "
                "give a table with columns name, tokens_per_s, power_w instead"
            )
        if not metrics.output_tokens_per_s:
            raise Refused(f"{directory} has no throughput")
        watts = meters[0].mean_w
        assert watts is not None
        point = Operating(directory.name, metrics.output_tokens_per_s, watts, meters[0].meter, idle_w)
        found.append((point, metrics.concurrency_mean))
        drivers.add(str(run.driver))
    if len(drivers) > 1:
        raise UsageError("some runs are measured and some simulated; give those of one kind")
    return found, drivers.pop()


def from_csv(path: Path, idle_w: float | None) -> list[Pair]:
    """Columns tokens_per_s and power_w; optional name, batch, idle_w and meter (gpu, cpu or wall; gpu without it)."""
    table = columns.read(path)
    rates, watts = (columns.numbers(table, names, path) for names in (("tokens_per_s", "throughput"), ("power_w",)))
    n = len(rates)
    names = table.get("name", [f"point {i + 1}" for i in range(n)])
    meters = table.get("meter", ["gpu"] * n)
    idle = _maybe(table, "idle_w", n, idle_w)
    batches = _maybe(table, "batch", n, None)
    return [
        (Operating(names[i], rates[i], watts[i], meters[i].lower() or "gpu", idle[i]), batches[i]) for i in range(n)
    ]


def _maybe(table: columns.Columns, name: str, n: int, otherwise: float | None) -> list[float | None]:
    """A column of numbers with blanks; `otherwise` where it is blank or not there."""
    cells = table.get(name, [""] * n)
    found: list[float | None] = []
    for at, text in enumerate(cells, 2):
        value = columns.number(text) if text else otherwise
        if text and value is None:
            raise UsageError(f"row {at}: {name} is {text!r}; give a number, or leave it blank")
        found.append(value)
    return found
