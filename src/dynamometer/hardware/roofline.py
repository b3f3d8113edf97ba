"""A model, its formats, a batch and a device in, the least time that physics allows out: bytes over bandwidth, FLOPs
over rate.

These are floors. Nothing runs faster; real engines reach 39 to 81 % of the bandwidth at batch 1 (docs/memory.md) and
less of the compute. A floor that a claim undercuts makes the claim impossible.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dynamometer.errors import UsageError
from dynamometer.hardware import formats
from dynamometer.hardware.gpu import Device, Figure
from dynamometer.hardware.model import Model, decode_flops, kv_bytes, prefill_flops

_FALLBACK = {"fp16": ("bf16",), "bf16": ("fp16",), "fp8": ("int8", "bf16", "fp16"), "fp32": ("tf32",)}


class Floor(msgspec.Struct, frozen=True):
    """Least seconds of one step. `bound`: what sets it, memory or compute."""

    seconds: float
    memory_s: float
    compute_s: float
    bytes_read: float
    flops: float
    bound: str


def touched_weights_bytes(model: Model, weights: str, tokens: int) -> float:
    """Bytes of weights that a pass over `tokens` tokens must read: all dense ones once, each expert with the chance
    that uniform routing visits it, 1 - (1 - k/E)^tokens. Of an untied embedding it reads single rows, which are left
    out.

    Real routing is uneven and touches fewer experts, so this is above a strict floor for a mixture at large batch; at
    one token it is exact.
    """
    if model.missing:
        raise UsageError(f"{model.name}: its weights are not known, the config does not say {', '.join(model.missing)}")
    sizes = formats.bytes_by_kind(model, weights)
    share = expert_share(model)
    tied = "head" not in sizes
    total = 0.0
    for kind, size in sizes.items():
        if kind == "vision" or (kind == "embedding" and not tied):
            continue
        total += size * (1 - (1 - share) ** tokens) if kind.startswith("experts") else size
    return total


def expert_share(model: Model) -> float:
    """k/E: the share of routed experts that one token visits; 1 for a dense model."""
    elements = sum(part.elements for part in model.parts if part.kind.startswith("experts"))
    active = sum(part.active for part in model.parts if part.kind.startswith("experts"))
    return active / elements if elements else 1.0


def decode_floor(
    model: Model, bandwidth: float, rate: float, contexts: Sequence[int], weights: str = "auto", kv: str = "auto"
) -> Floor:
    """Least time of one decode step for sequences of these lengths. `bandwidth` in B/s and `rate` in FLOPS, of all GPUs
    together; rate 0: not known, memory alone decides."""
    element = formats.kv_element_bytes(kv, model.dtype)
    read = touched_weights_bytes(model, weights, len(contexts)) + sum(kv_bytes(model, n, element) for n in contexts)
    return _floor(read, decode_flops(model, contexts), bandwidth, rate)


def prefill_floor(model: Model, bandwidth: float, rate: float, tokens: int, weights: str = "auto") -> Floor:
    """Least time to prefill one prompt of `tokens`."""
    return _floor(touched_weights_bytes(model, weights, tokens), prefill_flops(model, tokens), bandwidth, rate)


def _floor(read: float, flops: float, bandwidth: float, rate: float) -> Floor:
    memory_s = read / bandwidth
    compute_s = flops / rate if rate else 0.0
    bound = "memory" if memory_s >= compute_s else "compute"
    return Floor(max(memory_s, compute_s), memory_s, compute_s, read, flops, bound)


def rate_of(device: Device, precision: str) -> Figure | None:
    """Dense peak for arithmetic in a precision. Weight-only formats (int4, nf4, GGUF) multiply in 16 bits."""
    wanted = precision or "bf16"
    for name in (wanted, *_FALLBACK.get(wanted, ())):
        if name in device.rates:
            return device.rates[name]
    return None


def arithmetic(weights: str) -> str:
    """The precision in which a weight format multiplies at its fastest: 8-bit formats have tensor units, 4-bit
    integers and GGUF types are widened to 16 bits first."""
    key = formats.canonical(weights)
    if key in ("fp8", "fp8_block", "int8", "fp32"):
        return "fp8" if key.startswith("fp8") else key
    return "fp4" if key in ("nvfp4", "mxfp4") else "bf16"
