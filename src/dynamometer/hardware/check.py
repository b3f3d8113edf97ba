"""A prediction and an engine's own report in, a row a figure out: predicted, reported, relative error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from dynamometer.hardware import formats
from dynamometer.hardware.memory import Deployment, breakdown, judge
from dynamometer.hardware.model import Model, kv_bytes_per_token, parameters_total


class Report(Protocol):
    """What an engine says of itself; 0 or "" where it is silent."""

    @property
    def engine(self) -> str: ...
    @property
    def parameters(self) -> int: ...
    @property
    def weights_bytes(self) -> int: ...
    @property
    def context(self) -> int: ...
    @property
    def slots(self) -> int: ...
    @property
    def blocks(self) -> int: ...
    @property
    def block(self) -> int: ...
    @property
    def kv_tokens(self) -> int: ...
    @property
    def kv_bytes(self) -> int: ...
    @property
    def kv_format(self) -> str: ...
    @property
    def compute_bytes(self) -> int: ...
    @property
    def utilization(self) -> float: ...
    @property
    def resident_bytes(self) -> int: ...


class Row(msgspec.Struct, frozen=True):
    """`judged` False: shown, but its error decides nothing."""

    name: str
    predicted: float
    reported: float
    unit: str
    error: float | None
    witness: str
    judged: bool = True


def _row(name: str, predicted: float, reported: float, unit: str, witness: str, judged: bool = True) -> Row:
    return Row(name, predicted, reported, unit, predicted / reported - 1 if reported else None, witness, judged)


def as_reported(model: Model, d: Deployment, seen: Report) -> Deployment:
    """The deployment with the settings that the engine reports: context, slots, share, block, cache format."""
    engine = msgspec.structs.replace(d.engine, block=seen.block) if seen.block else d.engine
    return msgspec.structs.replace(
        d,
        context=seen.context or d.context,
        concurrency=seen.slots or d.concurrency,
        utilization=seen.utilization or d.utilization,
        kv=seen.kv_format or d.kv,
        engine=engine,
    )


def compare(model: Model, d: Deployment, seen: Report) -> list[Row]:
    """Every figure that both sides know."""
    placed = as_reported(model, d, seen)
    b = breakdown(model, placed)
    v = judge(model, placed, b)
    total = parameters_total(model)
    rows = []
    if seen.parameters and total is not None:
        rows.append(_row("parameters", total, seen.parameters, "", "the engine's model list"))
    if seen.weights_bytes and b.weights is not None:
        rows.append(_row("weights", b.weights, seen.weights_bytes, "B", "the engine's model list or log"))
    element = formats.kv_element_bytes(placed.kv, model.dtype)
    if placed.engine.name == "llama.cpp":
        rows += _llama_cpp(model, placed, seen, element)
    elif placed.memory_bytes:
        rows += _pooled(model, placed, seen, v.tokens)
    if seen.resident_bytes and placed.engine.name == "llama.cpp" and b.total is not None:
        rows.append(
            _row("process memory", b.total, seen.resident_bytes, "B", "resident set; not all is touched yet", False)
        )
    return rows


def _llama_cpp(model: Model, d: Deployment, seen: Report, element: float) -> list[Row]:
    """It allocates the whole context of every slot at start."""
    rows = []
    if seen.kv_bytes:
        b = breakdown(model, d)
        rows.append(_row("cache of all slots", b.kv, seen.kv_bytes, "B", "the engine's log"))
        tokens = d.context * d.concurrency
        each = seen.kv_bytes / tokens
        rows.append(_row("cache a token", kv_bytes_per_token(model, element), each, "B", f"log / {tokens:,} tokens"))
    if seen.compute_bytes:
        b = breakdown(model, d)
        rows.append(_row("compute buffer (estimate)", b.buffers.activation, seen.compute_bytes, "B", "the log", False))
    return rows


def _pooled(model: Model, d: Deployment, seen: Report, tokens: int) -> list[Row]:
    """Engines that fill a share of the GPU with cache."""
    rows = []
    if seen.blocks:
        rows.append(_row("cache blocks", tokens // max(d.engine.block, 1), seen.blocks, "", "the engine's metrics"))
    if seen.kv_tokens:
        rows.append(_row("cache tokens", tokens, seen.kv_tokens, "", "the engine's log or server info"))
    if seen.kv_bytes:
        b = breakdown(model, d)
        rows.append(_row("cache", b.room, seen.kv_bytes, "B", "the engine's log"))
    return rows


def worst(rows: Sequence[Row]) -> float | None:
    """Largest absolute error of the judged rows; None when nothing could be compared."""
    errors = [abs(row.error) for row in rows if row.judged and row.error is not None]
    return max(errors) if errors else None
