"""Run directories in; what they say of a bill's inputs and of its energy out, measured or simulated."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import msgspec

from dynamometer.decisions import energy, split
from dynamometer.decisions.account import conclude
from dynamometer.decisions.case import Input
from dynamometer.decisions.energy import Used
from dynamometer.errors import Refused
from dynamometer.record.store import open_run, read_run
from dynamometer.units import significant


class Seen(msgspec.Struct, frozen=True):
    """The runs' word. `notes`: what a reader should know of it."""

    inputs: tuple[Input, ...]
    used: tuple[Used, ...]
    notes: tuple[str, ...]


def from_runs(directories: Sequence[Path]) -> Seen:
    """One split over all runs; the energy is the first run's. Refuses runs that can't be believed."""
    parts, runs, used = [], [], []
    notes: list[str] = []
    for directory in directories:
        run = read_run(directory)
        with closing(open_run(directory)) as connection:
            found = conclude(connection, run, run.experiment.slo)
            fatal = [doubt for doubt in found.summary.doubts if doubt.fatal]
            if fatal:
                raise Refused(f"{run.id} can't be priced: {fatal[0].message}; {fatal[0].remedy}")
            parts.append(split.sums(connection))
            used.append(energy.used(connection))
        runs.append(run)
        notes += [f"{run.id}: {doubt.message}" for doubt in found.summary.doubts]
    whole = split.split(parts)
    notes.append(
        f"rates are those while busy ({whole.busy_share:.0%} of the window) over {whole.requests:,} answers, at the "
        "batch of the run: a fuller batch is cheaper a token, and slower"
    )
    if whole.prefill_tokens_per_s is None:
        notes.append("prompts took no measurable time, or their length is not known: output tokens carry the bill")
    else:
        share = whole.prompt_s / whole.busy_s
        notes.append(f"prompts took {share:.0%} of {significant(whole.busy_s)} busy seconds, the rest was decoding")
    return Seen(split.inputs(whole, runs), used[0] if used else (), tuple(notes))
