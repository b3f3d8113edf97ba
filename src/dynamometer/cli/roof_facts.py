"""An engine that is up and idle in; what its model needs a token and what its device can do, for the record, out."""

from __future__ import annotations

from pathlib import Path

from dynamometer.cli.endpoint import Facts, Up
from dynamometer.engines.recipes import Settings
from dynamometer.errors import DynoError, Refused, TargetError
from dynamometer.hardware import gpu, probe, source
from dynamometer.hardware.formats import bytes_by_kind
from dynamometer.hardware.gpu import Device
from dynamometer.hardware.model import Model, decode_flops, kv_bytes_per_token
from dynamometer.hardware.roofline import arithmetic, rate_of, touched_weights_bytes
from dynamometer.plugins import available
from dynamometer.record.clock import now_ns
from dynamometer.types import Target

CONTEXT = 512  # tokens, at which a token's arithmetic is counted; attention is a small part of it


def roof_facts(up: Up, asked: Target, settings: Settings, device: str) -> Facts:
    """Facts for `decisions.roof`. What cannot be known is left out, and the level then says so.

    `device`: as `dyno devices` names it. Without it: a GPU that this machine has; else, for an engine on this machine,
    its memory's bandwidth measured now, with as many threads as the engine has.
    """
    model = _model(up, asked, settings)
    card = gpu.get(device) if device else _card() if _here(up) else None
    found = _of_model(model, settings) if model else {}
    if card:
        return found | _of_device(card, settings)
    if _here(up):
        return found | _of_machine(int(up.facts.get("threads", 0) or 0))
    return found


def _here(up: Up) -> bool:
    return bool(up.pids) or up.engine is not None


def _model(up: Up, asked: Target, settings: Settings) -> Model | None:
    """From the file that the engine was started on, else from a built-in of the served name."""
    from dynamometer.engines import embedded

    try:
        if str(up.facts.get("model_file", "")).endswith(".gguf"):
            return source.from_path(Path(embedded.model_file(asked.model or "smollm2", settings.quantization)))
        return source.resolve(up.target.model or asked.model, online=False)
    except DynoError:
        return None


def _of_model(model: Model, settings: Settings) -> Facts:
    try:
        weights = touched_weights_bytes(model, settings.quantization, 1)
        if model.stored_bytes:  # the file's own bytes, of which a step reads the same share
            whole = sum(bytes_by_kind(model, settings.quantization).values())
            weights *= model.stored_bytes / whole
    except DynoError:
        return {}
    return {
        "model_weights_bytes": round(weights),
        "model_cache_bytes_per_token": round(kv_bytes_per_token(model)),
        "model_flop_per_token": round(decode_flops(model, [CONTEXT])),
    }


def _card() -> Device | None:
    from dynamometer.telemetry.nvml import Nvml, facts

    if not available("pynvml"):
        return None
    try:
        Nvml()
    except TargetError:
        return None
    return gpu.find(str(facts().get("gpu0", "")))


def _of_device(card: Device, settings: Settings) -> Facts:
    rate = rate_of(card, arithmetic(settings.quantization or "bf16"))
    found: Facts = {"device": card.label, "device_bytes_per_s": card.bandwidth.low}
    return found | ({"device_flop_per_s": rate.low} if rate else {})


def _of_machine(threads: int) -> Facts:
    """The best of the kernels that only read: a decode step reads its weights and writes next to nothing."""
    try:
        rows = probe.measure(now_ns, threads=threads, repeats=3)
    except Refused:
        return {}
    best = max(row.estimate.value or 0.0 for row in rows if row.kernel == "read")
    return {"device": f"memory of this machine, {rows[0].threads} threads", "device_bytes_per_s": round(best)}
