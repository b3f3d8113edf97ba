"""Formats, models and batches in; memory by category, prefill and decode of each out, with random weights on a GPU.

Memory is the allocator's own count: what the weights took, what the cache took, and by how much a step's peak stood
above both. What quantizing costs in quality is not seen here: `dyno quality` measures that.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from functools import partial

import msgspec
import torch

from dynamometer.errors import UsageError
from dynamometer.kernels.backends import Backend
from dynamometer.kernels.found import Found, Row, exactly, in_unit, scaled
from dynamometer.kernels.machine import describe
from dynamometer.kernels.model import Decoder, Linear, build, caches, rotary
from dynamometer.kernels.quantized import FORMATS, MAKERS, quantize
from dynamometer.kernels.reference import error
from dynamometer.kernels.shapes import KNOWN, Sizes
from dynamometer.kernels.timing import Now, timed
from dynamometer.types import Estimate

QUESTION = "What do fp8, int8 and int4 save in memory and gain in speed, in prefill and at which batch in decode?"


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    models: tuple[str, ...] = ("llama-3.1-8b", "deepseek-v2-lite")
    formats: tuple[str, ...] = FORMATS
    batches: tuple[int, ...] = (1, 8, 32, 64, 128, 256)
    context: int = 512
    prompt: int = 2048
    budget_s: float = 0.2


QUICK: Mapping[str, int | float | tuple[int, ...] | tuple[str, ...]] = {
    "models": ("tiny", "tiny-moe"), "batches": (1, 8), "context": 64, "prompt": 64, "budget_s": 0.02,
}  # fmt: skip


def run(options: Options, backend: Backend, now_ns: Now, say: Callable[[str], None]) -> Found:
    """Every model in every format."""
    rows: list[Row] = []
    for name in options.models:
        if name not in KNOWN:
            raise UsageError(f"model is {name!r}; one of {', '.join(KNOWN)}")
        for form in options.formats:
            say(f"{name} in {form}")
            rows += _one(KNOWN[name], form, options, backend, now_ns)
    notes = (
        "Random weights, routing by a random router. Decode is a replayed graph where the model can be captured.",
        "int8 and fp8 put activations into the format for every product, which costs at batch 1; int4 keeps them.",
    )
    return Found("quantization-gpu", QUESTION, _verdict(rows), tuple(rows), describe(backend), notes)


def allocated(backend: Backend) -> int:
    """Bytes that the allocator has given out and not got back; 0 on a CPU, whose allocator does not count."""
    return int(torch.cuda.memory_allocated()) if backend.name in ("cuda", "rocm") else 0


def _one(sizes: Sizes, form: str, options: Options, backend: Backend, now_ns: Now) -> list[Row]:
    gc.collect()
    dtype = torch.bfloat16
    where: dict[str, str | int] = {"model": sizes.name, "format": form}
    before = allocated(backend)
    try:
        model = quantize(build(sizes, backend.device, dtype), form)
    except (UsageError, RuntimeError, NotImplementedError) as refused:
        return [Row({**where, "load": "weights"}, refused=str(refused).splitlines()[0][:160])]
    gc.collect()
    stored = sum(t.nbytes for t in model.parameters())
    held = allocated(backend) - before
    figures = {
        "weights_gib": exactly((held or stored) / 2**30, "GiB", "allocator" if held else "sum of tensors"),
        "product_error": exactly(product_error(form, backend), "", "one product of 512 × 1,024 against float64"),
    }
    rows = [Row({**where, "load": "weights"}, figures)]
    with torch.inference_mode():
        rows.append(_prefill(model, where, options, backend, now_ns))
        rows += [_decode(model, batch, where, options, backend, now_ns) for batch in options.batches]
    return rows


def product_error(form: str, backend: Backend) -> float:
    """Relative error of one product in the format on random data: a format that computes rubbish is not fast."""
    chance = torch.Generator(device=backend.device).manual_seed(1)
    x = torch.randn((64, 1024), generator=chance, device=backend.device).to(torch.bfloat16)
    one = Linear(1024, 512, backend.device, torch.bfloat16)
    right = x.double() @ one.weight.double().t()
    made = one if form == "bf16" else MAKERS[form](one.weight.data)
    with torch.inference_mode():
        return error(made(x), right)


def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=q.shape[2] > 1, enable_gqa=q.shape[1] != k.shape[1]
    )


def _prefill(model: Decoder, where: Mapping[str, str | int], options: Options, backend: Backend, now_ns: Now) -> Row:
    sizes = model.sizes
    rope = rotary(sizes, options.prompt, backend.device, torch.bfloat16)
    tokens = torch.randint(sizes.vocab, (1, options.prompt), device=backend.device)
    at = {**where, "load": f"prefill {options.prompt}"}
    try:
        figures, time = _measured(
            partial(model.__call__, tokens, rope, plain, None, 0), options, backend, now_ns, False
        )
    except RuntimeError as refused:
        return Row(at, refused=str(refused).splitlines()[0][:160])
    return Row(at, {**figures, "rate": scaled(time, options.prompt, "tokens/s")})


def _decode(
    model: Decoder, batch: int, where: Mapping[str, str | int], options: Options, backend: Backend, now_ns: Now
) -> Row:
    sizes = model.sizes
    at = {**where, "load": f"decode {batch}"}
    rope = rotary(sizes, options.context, backend.device, torch.bfloat16)[:, -1:]
    tokens = torch.randint(sizes.vocab, (batch, 1), device=backend.device)
    try:
        before = allocated(backend)
        kept = caches(sizes, batch, options.context, backend.device, torch.bfloat16)
        cache_bytes = allocated(backend) - before
        step = partial(model.__call__, tokens, rope, plain, kept, options.context - 1)
        figures, time = _measured(step, options, backend, now_ns, True)
    except RuntimeError as refused:
        return Row(at, refused=str(refused).splitlines()[0][:160])
    counted = batch * options.context * sizes.cache_per_token * 2 * sizes.layers
    cache = exactly((cache_bytes or counted) / 2**30, "GiB", "allocator" if cache_bytes else "counted")
    return Row(at, {**figures, "rate": scaled(time, batch, "tokens/s"), "cache_gib": cache})


def _measured(
    step: Callable[[], object], options: Options, backend: Backend, now_ns: Now, graph: bool
) -> tuple[dict[str, Estimate], Estimate]:
    """Time in ms and the buffers that a step needs above what stays."""
    step()
    backend.synchronize()
    figures = {}
    before = allocated(backend)
    if before:
        backend.reset_peak()
        step()
        backend.synchronize()
        figures["buffers_gib"] = exactly((backend.peak_bytes() - before) / 2**30, "GiB", "allocator's peak in a step")
    time = timed(step, backend, now_ns, options.budget_s, graph=graph)
    return {"time_ms": in_unit(time, 1e3, "ms"), **figures}, time


def _verdict(rows: list[Row]) -> tuple[str, ...]:
    said = []
    for model in dict.fromkeys(str(r.at["model"]) for r in rows):
        mine = {(str(r.at["format"]), str(r.at["load"])): r for r in rows if r.at["model"] == model and r.figures}
        loads = dict.fromkeys(load for _, load in mine if load != "weights")
        base = mine.get(("bf16", "weights"))
        parts = []
        for load in loads:
            here = {f: r.value("time_ms") for (f, one), r in mine.items() if one == load}
            if "bf16" in here and len(here) > 1:
                best = min(here, key=here.__getitem__)
                parts.append(f"{load}: {best} {here['bf16'] / here[best]:.2f} times bf16")
        small = {f: r.value("weights_gib") for (f, one), r in mine.items() if one == "weights"}
        if base and parts:
            least = min(small, key=small.__getitem__)
            said.append(
                f"{model}: weights {base.value('weights_gib'):.3g} GiB in bf16, {small[least]:.3g} in {least}. "
                f"Fastest by load: {', '.join(parts)}."
            )
    return tuple(said)
