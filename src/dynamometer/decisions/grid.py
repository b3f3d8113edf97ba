"""Runs, or a table of figures, in; throughput over batch and context, ready for a surface, out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from dynamometer.decisions import columns
from dynamometer.decisions.curve import Point
from dynamometer.errors import Refused, UsageError
from dynamometer.types import Float64

_SAME = 0.05  # contexts closer than this share are one level: a tokenizer meets a length within a few tokens
_BATCH = ("batch", "concurrency", "b")
_CONTEXT = ("context", "sequence_length", "length", "seq_len", "s", "input_tokens")
_RATE = ("tokens_per_s", "throughput", "rate", "output_tokens_per_s")


class Grid(msgspec.Struct, frozen=True):
    """`batch` sequences, `context` mean tokens a sequence holds, `rate` tokens/s; arrays [n]. `driver`: measured,
    simulated, or given for a table whose origin dyno does not know."""

    batch: Float64
    context: Float64
    rate: Float64
    driver: str
    about: str


def from_runs(points: Sequence[Point]) -> Grid:
    """A closed loop's concurrency is the batch; a sequence holds its prompt and, on average, half its answer."""
    usable = [point for point in points if not point.unusable]
    if not usable:
        raise Refused("no run can be used: " + "; ".join(f"{point.run}: {point.unusable}" for point in points))
    for point in usable:
        if point.law != "closed":
            raise UsageError(f"run {point.run} was asked a rate; a surface takes closed loops, whose batch is known")
        if point.input_tokens is None:
            raise UsageError(f"run {point.run} does not say how long its prompts were; measure with --input-tokens")
    for what in ("driver", "model"):
        seen = sorted({str(getattr(point, what)) for point in usable})
        if len(seen) > 1:
            raise UsageError(f"the runs differ in {what} ({', '.join(seen)}); give those of one kind")
    context = np.array([(point.input_tokens or 0.0) + (point.output_tokens or 0.0) / 2 for point in usable])
    return Grid(
        np.array([point.asked for point in usable]),
        snapped(context),
        np.array([point.tokens_per_s.value or 0.0 for point in usable]),
        str(usable[0].driver),
        f"{usable[0].model or 'engine'}, {len(usable)} runs",
    )


def from_csv(path: Path) -> Grid:
    """Columns batch, context and tokens_per_s (or names like these), a point a row."""
    table = columns.read(path)
    batch, context, rate = (np.array(columns.numbers(table, names, path)) for names in (_BATCH, _CONTEXT, _RATE))
    return Grid(batch, context, rate, "given", f"{path.name}, {len(batch)} points")


def snapped(context: Float64) -> Float64:
    """Contexts that differ by a few tokens as one level, the whole number nearest to their mean."""
    found = context.copy()
    order = np.argsort(context)
    start = 0
    for at in range(1, len(order) + 1):
        if at == len(order) or context[order[at]] > context[order[start]] * (1 + _SAME):
            level = order[start:at]
            found[level] = round(float(context[level].mean()))
            start = at
    return found
