"""An experiment and a setup in, a run directory out, exactly as a measurement leaves it, and labelled as simulated.

The counterpart of measure.py: the same schedule and workload, the same rows, virtual time in place of the clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np

from dynamometer.errors import RecordError, Refused, UsageError
from dynamometer.hardware.stepcost import scaled
from dynamometer.record import manifest
from dynamometer.record.clock import Origin, wall_ns
from dynamometer.record.rows import Events
from dynamometer.record.store import Writer
from dynamometer.sim.asks import conversations, due_s, sequences, streams
from dynamometer.sim.cluster import Cluster, Ledger, Outcome
from dynamometer.sim.ledger import RowLedger, Tally
from dynamometer.sim.setup import Setup, cluster
from dynamometer.types import Doubt, Estimate, Experiment, Provenance, Run

Facts = dict[str, str | int | float]
MOST_TOKENS = 20_000_000  # more token rows than this are thinned to two an answer
_FAR = 3.0  # a batch so many times beyond the calibration's largest is refused
_Z80 = 1.2816


class Wanted(msgspec.Struct, frozen=True):
    """What else to say and keep. `rows`: auto, tokens (a row a token) or answers (two an answer)."""

    rows: str = "auto"
    facts: Facts = {}
    notes: tuple[str, ...] = ()
    command: str = ""
    extrapolate: bool = False

    def __post_init__(self) -> None:
        if self.rows not in ("auto", "tokens", "answers"):
            raise UsageError(f"rows is {self.rows!r}; one of auto, tokens, answers")


def simulate(experiment: Experiment, setup: Setup, directory: Path, wanted: Wanted) -> tuple[Run, Outcome]:
    """One simulated run into a new directory."""
    if (directory / manifest.NAME).exists():
        raise UsageError(f"{directory} holds a run already; give another --out")
    due = due_s(experiment)
    if due is not None and not len(due):
        raise UsageError(f"no request is due in {experiment.duration_s:g} s; give a higher rate or a longer duration")
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as wrong:
        raise RecordError(f"{directory} cannot be made: {wrong.strerror}; give another --out") from wrong
    thin = _thin(experiment, len(due) if due is not None else experiment.requests, wanted)
    setup = msgspec.structs.replace(setup, rules=msgspec.structs.replace(setup.rules, keep_tokens=not thin))
    facts = {**_facts(setup), **wanted.facts}
    run = manifest.begin(experiment, Origin(wall_ns(), 0), Provenance.SIMULATED, facts, wanted.command)
    run = msgspec.structs.replace(run, notes=(*run.notes, *wanted.notes))
    manifest.write(directory, run)
    with Writer(directory, "simulated") as writer:
        ledger = RowLedger(_events(writer), writer.requests, not thin, _level(experiment))
        outcome = drive(experiment, cluster(setup, ledger, experiment.seed))
        ledger.flush()
    doubts = _doubts(setup, outcome, thin, wanted)
    run = manifest.finish(run, "complete", round(max(outcome.end_s, ledger.end_s) * 1e9), {}, doubts)
    run = msgspec.structs.replace(run, engine={**run.engine, **_account(outcome)})
    manifest.write(directory, run)
    return run, outcome


def _events(writer: Writer) -> Callable[[Events], None]:
    return writer.events


def drive(experiment: Experiment, engines: Cluster) -> Outcome:
    """Runs the experiment's load on the engines."""
    due = due_s(experiment)
    asked = sequences(experiment, due)
    if due is None:
        return engines.run_closed(asked, streams(experiment))
    return engines.run_open(asked, conversations(experiment))


def rehearse(experiment: Experiment, setup: Setup, ledger: Ledger) -> Outcome:
    """The same without a record."""
    setup = msgspec.structs.replace(setup, rules=msgspec.structs.replace(setup.rules, keep_tokens=False))
    return drive(experiment, cluster(setup, ledger, experiment.seed))


def band(experiment: Experiment, setup: Setup, spread: float) -> dict[str, Estimate]:
    """Figures with an 80 % band of the prediction: all step times slower, and all faster, by as much as the cost may
    be wrong."""
    tables = {}
    for name, factor in (("value", 1.0), ("high", math.exp(_Z80 * spread)), ("low", math.exp(-_Z80 * spread))):
        tally = Tally()
        rehearse(experiment, msgspec.structs.replace(setup, cost=scaled(setup.cost, factor, factor)), tally)
        tables[name] = figures(tally)
    out: dict[str, Estimate] = {}
    for key, value in tables["value"].items():
        ends = sorted([value, tables["low"][key], tables["high"][key]])
        unit = "tokens/s" if key.endswith("per_s") else "ms"
        method = f"all step times × e^±{_Z80 * spread:.2f}"
        out[key] = Estimate(value, ends[0], ends[2], len(tally.rows), unit, 0.8, method)
    return out


def figures(tally: Tally) -> dict[str, float]:
    """Plain figures of a tally: milliseconds, and tokens per second from the first request sent to the last token."""
    return measures(tally.table())


def measures(table: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> dict[str, float]:
    """The same from columns index, due, sent, first, last, prompt, output."""
    if not len(table):
        return {}
    sent, first, last, output = table[:, 2], table[:, 3], table[:, 4], table[:, 6]
    ttft, e2e = (first - sent) * 1e3, (last - sent) * 1e3
    more = output > 1
    tpot = (last - first)[more] / (output[more] - 1) * 1e3
    found = {
        "ttft_p50_ms": float(np.median(ttft)),
        "ttft_p99_ms": float(np.quantile(ttft, 0.99)),
        "e2e_mean_ms": float(np.mean(e2e)),
        "e2e_p50_ms": float(np.median(e2e)),
        "e2e_p90_ms": float(np.quantile(e2e, 0.9)),
        "e2e_p95_ms": float(np.quantile(e2e, 0.95)),
        "e2e_p99_ms": float(np.quantile(e2e, 0.99)),
        "output_tokens_per_s": float(output.sum() / max(1e-9, last.max() - sent.min())),
    }
    if len(tpot):
        found["tpot_p50_ms"] = float(np.median(tpot))
        found["tpot_p99_ms"] = float(np.quantile(tpot, 0.99))
    return found


def _thin(experiment: Experiment, requests: int, wanted: Wanted) -> bool:
    """True: two token rows an answer."""
    if wanted.rows != "auto":
        return wanted.rows == "answers"
    from dynamometer.workload.lengths import parse

    lengths = parse(experiment.workload.output_tokens, "output_tokens")
    mean = lengths.draw(np.random.default_rng(0)) if lengths is not None else 128
    return requests * mean > MOST_TOKENS


def _level(experiment: Experiment) -> float:
    load = experiment.load
    return float(load.concurrency if load.law == "closed" else load.rate)


def _facts(setup: Setup) -> Facts:
    rules, cache = setup.rules, setup.cache
    return {
        "engine": "simulated",
        "step_cost": setup.cost.source,
        "step_cost_spread": setup.cost.spread,  # relative, one standard deviation
        "replicas": setup.replicas,
        "decoders": setup.decoders,
        "routing": setup.routing,
        "batching": rules.batching.name,
        "batch_sequences": rules.batching.size,
        "batch_tokens": rules.batching.tokens,
        "cache": "contiguous" if cache.slab else "paged",
        "cache_tokens": cache.tokens,
        "preemption": rules.preemption,
    }


def _account(outcome: Outcome) -> Facts:
    return {
        "device_busy_share": float(np.mean(outcome.busy_share)),
        "preemptions": outcome.preemptions,
        "cache_peak_share": outcome.peak_blocks_share,
        "decode_steps": outcome.decode_steps,
        "prompt_steps": outcome.prefill_steps,
    }


def _doubts(setup: Setup, outcome: Outcome, thin: bool, wanted: Wanted) -> list[Doubt]:
    """What the simulation itself gives reason to doubt. Far beyond the calibration it refuses."""
    found: list[Doubt] = []
    cost = setup.cost
    if cost.largest_context:
        beyond = max(outcome.peak_context / cost.largest_context, outcome.peak_tokens / max(1, cost.largest_tokens))
        if beyond > _FAR and not wanted.extrapolate:
            raise Refused(
                f"the load drives a batch to {beyond:.1f} times what the calibration has seen "
                f"({cost.largest_tokens:,} tokens a step, {cost.largest_context:,} of context); calibrate on a heavier "
                "run, or say --extrapolate"
            )
        if beyond > 1:
            found.append(
                Doubt(
                    "outside-calibration",
                    f"batches grew to {beyond:.2f} times the largest that the calibration has seen",
                    "calibrate on a run at this load",
                )
            )
    if thin:
        found.append(
            Doubt(
                "thinned-rows",
                "only each answer's first and last token have times; gaps between tokens are averages of their answer",
                "--rows tokens keeps every token",
            )
        )
    return found
