"""Runs at several loads in; the engine's saturation curve, latency laws, goodput and bottlenecks out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Literal

import duckdb
import msgspec
import numpy as np

from dynamometer.decisions.account import Account, conclude
from dynamometer.decisions.roof import roof_shares
from dynamometer.errors import Refused, UsageError
from dynamometer.metrics import views
from dynamometer.metrics.checks import LITTLE_MISS, LITTLE_STAYS
from dynamometer.models import bottleneck, latency, saturation
from dynamometer.models.bottleneck import Bottleneck, Signals
from dynamometer.models.latency import Goodput, Latency
from dynamometer.models.saturation import Saturation
from dynamometer.record.store import open_run, read_run
from dynamometer.types import Estimate, Provenance

By = Literal["auto", "asked", "measured"]
Tokens = tuple[float | None, float | None]  # mean of an answer: prompt, output


class Flow(msgspec.Struct, frozen=True):
    """Little's law over a run's window: requests `in_flight`, and `turned` = answers per second times their mean stay.
    In a steady state the two agree. `stays`: the window's length in such stays; below ten its ends weigh too much."""

    in_flight: float | None
    turned: float | None
    stays: float | None

    @property
    def error(self) -> float | None:
        """turned / in_flight − 1; None where one of them is not to be had."""
        return self.turned / self.in_flight - 1 if self.in_flight and self.turned is not None else None

    @property
    def broken(self) -> bool:
        """The window is long enough to tell, and the two differ by more than the check of `dyno bench` lets pass."""
        return self.error is not None and (self.stays or 0.0) >= LITTLE_STAYS and abs(self.error) > LITTLE_MISS


class Point(msgspec.Struct, frozen=True):
    """One run. `asked`: concurrency or rate of its load; `in_flight`: mean requests in flight over the window."""

    run: str
    law: str
    asked: float
    in_flight: Estimate
    tokens_per_s: Estimate
    ttft_ms: Estimate
    tpot_ms: Estimate
    goodput: Estimate
    bottleneck: Bottleneck
    driver: Provenance
    model: str
    workload: str
    flow: Flow
    input_tokens: float | None  # mean of an answered request, as the server counts; else as planned
    output_tokens: float | None
    unusable: str = ""  # why it is left out of the fit
    doubts: tuple[str, ...] = ()


class Curve(msgspec.Struct, frozen=True):
    """What the runs say together. `notes`: what could not be told, and why."""

    points: tuple[Point, ...]
    left_out: tuple[Point, ...]
    by: str  # asked | measured
    saturation: Saturation
    ttft: Latency | None
    tpot: Latency | None
    goodput: Goodput | None
    notes: tuple[str, ...]

    @property
    def driver(self) -> Provenance:
        return self.points[0].driver


def find_runs(places: Sequence[Path]) -> list[Path]:
    """Each place that is a run, and the runs below each that is none, in order of name."""
    found: list[Path] = []
    for place in places:
        runs = [place] if (place / "run.json").is_file() else sorted(p.parent for p in place.glob("**/run.json"))
        if not runs:
            raise UsageError(f"there is no run in {place}; give run directories, or a folder that holds some")
        found += [run for run in runs if run not in found]
    return found


def read_point(directory: Path) -> Point:
    """One run's figures, from its rows."""
    run = read_run(directory)
    with closing(open_run(directory)) as connection:
        account = conclude(connection, run, run.experiment.slo)
        tokens = _tokens(connection)
        return _point(account, _signals(connection, account, tokens), _flow(connection), tokens)


def curve(points: Sequence[Point], by: By = "auto", level: float = 0.9, seed: int = 0) -> Curve:
    """Fits runs of one engine, model and workload. `by`: the load that was asked, or the mean in flight that came of
    it; "auto" takes the asked one when all runs are closed loops."""
    usable = [point for point in points if not point.unusable]
    left_out = tuple(point for point in points if point.unusable)
    if not usable:
        reasons = "; ".join(f"{point.run}: {point.unusable}" for point in left_out)
        raise Refused(f"no run can be used ({reasons or 'none was given'})")
    _alike(usable)
    closed = all(point.law == "closed" for point in usable)
    if by == "asked" and not closed:
        raise UsageError("some runs were asked a rate, not a concurrency; fit by measured requests in flight")
    asked = by == "asked" or (by == "auto" and closed)
    x = np.array([point.asked if asked else point.in_flight.value or 0.0 for point in usable])
    found = saturation.fit(x, np.array([point.tokens_per_s.value for point in usable]), level=level, seed=seed)
    notes: list[str] = []
    laws = {
        name: _law(name, x, [getattr(point, name) for point in usable], level, notes) for name in ("ttft_ms", "tpot_ms")
    }
    try:
        good = latency.goodput_peak(list(x), [point.goodput for point in usable])
    except Refused as why:
        good = None
        notes.append(f"goodput: {why}")
    ordered = tuple(usable[i] for i in np.argsort(x, kind="stable"))
    how = "asked" if asked else "measured"
    return Curve(ordered, left_out, how, found, laws["ttft_ms"], laws["tpot_ms"], good, tuple(notes))


def _law(name: str, x: np.ndarray, figures: Sequence[Estimate], level: float, notes: list[str]) -> Latency | None:
    known = [i for i, figure in enumerate(figures) if figure.value]
    try:
        return latency.fit(x[known], np.array([figures[i].value for i in known]), "concurrency", level=level)
    except Refused as why:
        notes.append(f"{name}: {why}")
        return None


def _alike(points: Sequence[Point]) -> None:
    for what in ("driver", "model", "workload"):
        seen = sorted({str(getattr(point, what)) for point in points})
        if len(seen) > 1:
            raise UsageError(f"the runs differ in {what} ({', '.join(seen)}); fit those of one kind")


def _flow(connection: duckdb.DuckDBPyConnection) -> Flow:
    row = views.rows(connection, "select * from flow")[0]
    return Flow(*(_number(row[name]) for name in ("in_flight", "turned", "stays")))


def _tokens(connection: duckdb.DuckDBPyConnection) -> Tokens:
    """Mean prompt and answer of the window's ok answers, in tokens."""
    query = "select avg(coalesce(prompt_tokens, nullif(input_tokens, 0))) as i, avg(output_tokens) as o"
    row = views.rows(connection, f"{query} from kept where outcome = 'ok'")[0]
    return _number(row["i"]), _number(row["o"])


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _point(account: Account, signals: Signals, flow: Flow, tokens: Tokens) -> Point:
    run, metrics = account.run, account.summary.metrics
    load, work = run.experiment.load, run.experiment.workload
    fatal = [doubt.message for doubt in account.summary.doubts if doubt.fatal]
    why = fatal[0] if fatal else "" if metrics.output_tokens_per_s else "it has no throughput"
    lengths = " → ".join((work.input_tokens or "as it comes", work.output_tokens or "as it comes"))
    return Point(
        run.id,
        load.law,
        float(load.concurrency) if load.law == "closed" else load.rate,
        metrics.estimates["concurrency_mean"],
        metrics.estimates["output_tokens_per_s"],
        metrics.ttft_ms.estimates["mean"],
        metrics.tpot_ms.estimates["mean"],
        metrics.estimates["goodput"],
        bottleneck.name(signals),
        run.driver,
        run.experiment.target.model,
        f"{work.name} {lengths} tokens",
        flow,
        *tokens,
        why,
        tuple(f"{doubt.kind}: {doubt.message}" for doubt in account.summary.doubts),
    )


def _signals(connection: duckdb.DuckDBPyConnection, account: Account, tokens: Tokens) -> Signals:
    """Telemetry inside the measured window, reduced to shares. A sensor that was not there stays None."""
    run, metrics = account.run, account.summary.metrics
    window = account.summary.window
    found: dict[str, tuple[float, float, float]] = {}
    query = (
        "select name, avg(value) as mean, max(value) as most, max(value) - min(value) as rise from samples "
        f"where at_ns between {window.from_ns} and {window.until_ns} group by name"
    )
    for row in views.rows(connection, query):
        found[str(row["name"])] = (float(str(row["mean"])), float(str(row["most"])), float(str(row["rise"])))

    def mean(name: str) -> float | None:
        return found[name][0] if name in found else None

    cores = float(run.machine.get("cores", 0) or 0)
    threads = float(run.engine.get("threads", 0) or 0) or cores
    engine_cores, foreign, slots = mean("cpu_engine_cores"), mean("cpu_foreign_cores"), run.engine.get("slots")
    load = run.experiment.load
    lateness = metrics.lateness_ms.estimates["p99"].value
    compute, memory = roof_shares(run.engine, metrics, tokens)
    return Signals(
        level=float(load.concurrency) if load.law == "closed" else load.rate,
        client_late_p99_ms=lateness if lateness is not None else run.client.get("lateness_p99_ms"),
        client_loop_share=run.client.get("busiest_cpu_share"),
        ttft_p50_ms=metrics.ttft_ms.estimates["p50"].value,
        cache_share=found["kv_cache_usage_ratio"][1] if "kv_cache_usage_ratio" in found else None,
        preemptions=found["preemptions_total"][2] if "preemptions_total" in found else None,
        waiting=mean("requests_waiting"),
        running=mean("requests_running"),
        running_limit=float(slots) if slots else None,
        device_busy=mean("gpu_utilization_ratio"),
        cores_share=min(1.0, engine_cores / threads) if engine_cores is not None and threads else None,
        foreign_share=foreign / cores if foreign is not None and cores else None,
        compute_share=_first(mean("gpu_tensor_active_ratio"), compute),
        memory_share=_first(mean("gpu_dram_active_ratio"), memory),
    )


def _first(counted: float | None, computed: float | None) -> float | None:
    """A counter of the device wins over what a model of it says."""
    return computed if counted is None else counted
