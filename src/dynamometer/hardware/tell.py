"""A model, a deployment and its breakdown in, one JSON-ready table of every figure out."""

from __future__ import annotations

from collections.abc import Sequence

from dynamometer.hardware import formats
from dynamometer.hardware.choose import Choice
from dynamometer.hardware.memory import Breakdown, Deployment, Verdict, frontier
from dynamometer.hardware.model import Model, kv_bytes, parameters_active, parameters_by_kind, parameters_total
from dynamometer.hardware.paging import Comparison

Table = dict[str, object]


def account(model: Model, d: Deployment, b: Breakdown, v: Verdict) -> Table:
    """All figures of one deployment. `weights_bytes` is the whole model; what is not marked otherwise is on each
    GPU."""
    chosen = formats.scheme(model, d.weights)
    return {
        "model": model.name,
        "source": model.source,
        "architecture": model.family,
        "parameters_total": parameters_total(model),
        "parameters_active": parameters_active(model),
        "parameters_by_class": None if model.missing else parameters_by_kind(model),
        "missing": list(model.missing),
        "weights_format": chosen.method if not model.stored_bytes or formats.canonical(d.weights) else "as in the file",
        "weights_bytes": b.weights_all,
        "kv_format": d.kv,
        "kv_bytes_per_token": _whole(b.kv_per_token),
        "kv_bytes": b.kv,
        "state_bytes_per_sequence": b.state_per_sequence,
        "buffers_bytes": b.buffers.total,
        "fits": v.fits,
        "starts": v.starts,
        "why": v.why,
        "context": d.context,
        "concurrency": d.concurrency,
        "tp": d.tp,
        "pp": d.pp,
        "engine": d.engine.name,
        "per_gpu": _on_each(d, b),
        "kv_bytes_per_token_all_gpus": _whole(b.kv_per_token * d.tp * d.pp),
        "kv_alternatives": alternatives(model, d),
        "capacity": _capacity(model, d, b, v),
        "flag": {"name": d.engine.flag, "share_of": d.engine.flag_of, "means": d.engine.meaning},
        "notes": list(model.notes),
    }


def _on_each(d: Deployment, b: Breakdown) -> Table:
    """What fills one GPU."""
    return {
        "weights_bytes": b.weights,
        "weights_by_class": dict(b.weights_by_kind),
        "kv_bytes_per_token": _whole(b.kv_per_token),
        "kv_bytes": b.kv,
        "state_bytes": b.state,
        "activation_bytes": b.buffers.activation,
        "graphs_bytes": b.buffers.graphs,
        "runtime_bytes": b.buffers.runtime,
        "total_bytes": b.total,
        "memory_bytes": round(d.memory_bytes) or None,
        "budget_bytes": round(b.budget) or None,
        "room_bytes": round(b.room) if d.memory_bytes else None,
    }


def _whole(size: float) -> int | float:
    return int(size) if size == int(size) else size


def alternatives(model: Model, d: Deployment) -> Table:
    """The same cache under a runtime that lacks a feature: no windows, no latent."""
    element = formats.kv_element_bytes(d.kv, model.dtype)
    found: Table = {}
    if any(c.window for c in model.caches):
        whole = kv_bytes(model, d.context, element, d.tp, windowed=False) * d.concurrency / d.pp
        found["every_layer_whole_context_bytes"] = _whole(whole)
    if any(c.expanded for c in model.caches):
        wide = kv_bytes(model, d.context, element, d.tp, d.windowed, expanded=True) * d.concurrency / d.pp
        found["expanded_keys_and_values_bytes"] = _whole(wide)
    return found


def _capacity(model: Model, d: Deployment, b: Breakdown, v: Verdict) -> Table | None:
    if v.fits is None:
        return None
    return {
        "tokens": v.tokens,
        "blocks": v.blocks,
        "block": d.engine.block,
        "concurrency_max": v.concurrency_max,
        "context_max": v.context_max,
        "utilization_min": v.utilization_min,
        "frontier": [{"context": context, "concurrency": n} for context, n in frontier(model, d, b)],
    }


def choice_rows(choices: Sequence[Choice]) -> list[Table]:
    """Devices that fit, as rows."""
    return [
        {
            "device": choice.device.name,
            "count": choice.count,
            "usd_per_hour_low": choice.usd_h.low if choice.usd_h else None,
            "usd_per_hour_high": choice.usd_h.high if choice.usd_h else None,
            "price_source": list(choice.usd_h.sources) if choice.usd_h else [],
            "room_bytes": round(choice.room_bytes),
        }
        for choice in choices
    ]


def paging_table(c: Comparison, longest: int, actual: int) -> Table:
    return {
        "longest": longest,
        "actual": actual,
        "block": c.block,
        "paged_sequences": c.paged,
        "contiguous_sequences": c.contiguous,
        "paged_bytes_per_sequence": round(c.paged_bytes),
        "contiguous_bytes_per_sequence": round(c.contiguous_bytes),
        "internal_fragmentation": c.fragmentation,
        "contiguous_waste": c.waste,
        "block_table_bytes": c.table_bytes,
    }
