"""Lengths, a mask and a device in; every attention's time, error, memory and share of the roofline out.

What the mask means is said in `mask.py`: a window, sink columns and dense last rows, because causality leaves nothing
else of "512 local and 64 global tokens". Prefill has a fixed length; decode keeps the window and the sinks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

import msgspec
import torch

from dynamometer.errors import UsageError
from dynamometer.kernels import reference, rivals
from dynamometer.kernels.backends import Backend
from dynamometer.kernels.ceilings import Ceilings, ceilings
from dynamometer.kernels.found import Found, Row, Where, exactly, in_unit, scaled
from dynamometer.kernels.machine import describe
from dynamometer.kernels.mask import FULL, Mask, Shape, floor_s, useful_flops
from dynamometer.kernels.rivals import Inputs, is_masked
from dynamometer.kernels.stack import layer_stack
from dynamometer.kernels.timing import Now, timed
from dynamometer.types import Estimate

QUESTION = "A window of 512 and 64 global tokens: what does it save over full attention, and over whose?"
_SLOW = {"unfused": 16384, "sdpa math": 4096, "sdpa efficient": 16384, "dense mask": 16384}  # longest that is tried


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is varied. `stack`: length of the prefill of a whole stack of layers; 0 leaves it out."""

    lengths: tuple[int, ...] = (2048, 4096, 8192, 16384, 32768, 65536, 131072)
    decode: tuple[int, ...] = (16384, 131072)
    batches: tuple[int, ...] = (1, 16)
    kv_heads: tuple[int, ...] = (32, 8)
    heads: int = 32
    head_size: int = 128
    window: int = 512
    sinks: int = 64
    dense_rows: int = 64
    only: tuple[str, ...] = ()
    budget_s: float = 0.15
    stack: int = 16384
    stack_layers: int = 8


QUICK: Mapping[str, int | tuple[int, ...]] = {
    "lengths": (1024,), "decode": (2048,), "batches": (1,), "kv_heads": (2,), "heads": 4, "head_size": 64, "stack": 0,
}  # fmt: skip


def run(options: Options, backend: Backend, now_ns: Now, say: Callable[[str], None]) -> Found:
    """Measures all cases; a case that cannot run says why."""
    mask = Mask(options.window, options.sinks, options.dense_rows)
    top = ceilings(backend, now_ns)
    rows: list[Row] = []
    for kv_heads in options.kv_heads:
        for length in options.lengths:
            say(f"prefill {length:,}, {kv_heads} key heads")
            shape = Shape(length, 1, options.heads, kv_heads, options.head_size)
            rows += _prefill_rows(shape, mask, options, backend, now_ns, top)
        for length in options.decode:
            for batch in options.batches:
                say(f"decode {length:,}, batch {batch}, {kv_heads} key heads")
                shape = Shape(length, batch, options.heads, kv_heads, options.head_size)
                rows += _decode_rows(shape, mask, options, backend, now_ns, top)
    if options.stack:
        say(f"a stack of {options.stack_layers} layers at {options.stack:,}")
        rows += layer_stack(options.stack, options.stack_layers, mask, backend, now_ns)
    notes = (
        "Masked: a window, sink columns and dense last rows; under causality the other global entries add nothing.",
        "Decode keeps the window and the sinks. Useful FLOPs and bytes alone count for the share of the roofline.",
        f"Ceilings here: {(top.flops.value or 0) / 1e12:,.3g} TFLOP/s, {(top.bandwidth.value or 0) / 1e12:,.3g} TB/s.",
    )
    return Found("sparse-attention", QUESTION, verdict(rows), tuple(rows), describe(backend), notes)


def inputs(shape: Shape, queries: int, backend: Backend, seed: int = 0) -> Inputs:
    """Random normal tensors in bf16, fp32 on a CPU."""
    chance = torch.Generator(device=backend.device).manual_seed(seed)
    dtype = torch.float32 if backend.name == "cpu" else torch.bfloat16

    def make(heads: int, length: int) -> torch.Tensor:
        size = (shape.batch, heads, length, shape.head_size)
        return torch.randn(size, generator=chance, device=backend.device).to(dtype)

    return Inputs(make(shape.heads, queries), make(shape.kv_heads, shape.length), make(shape.kv_heads, shape.length))


def _prefill_rows(
    shape: Shape, mask: Mask, options: Options, backend: Backend, now_ns: Now, top: Ceilings
) -> list[Row]:
    at = inputs(shape, shape.length, backend)
    found = []
    for name in rivals.PREFILL:
        if (options.only and name not in options.only) or shape.length > _SLOW.get(name, 1 << 30):
            continue
        where: Where = {
            "phase": "prefill",
            "attention": name,
            "length": shape.length,
            "key heads": shape.kv_heads,
            "batch": 1,
        }
        used = mask if is_masked(name) else FULL
        try:
            call = rivals.prefill(name, at, mask)
            found.append(Row(where, _prefill_figures(call, at, used, shape, (backend, now_ns, top, options.budget_s))))
        except (UsageError, torch.OutOfMemoryError) as refused:
            found.append(Row(where, refused=str(refused).splitlines()[0]))
    return found


def _prefill_figures(
    call: rivals.Call, at: Inputs, mask: Mask, shape: Shape, bench: tuple[Backend, Now, Ceilings, float]
) -> dict[str, Estimate]:
    backend, now_ns, top, budget_s = bench
    rows = reference.rows_to_check(shape.length, mask).to(at.q.device)
    backend.reset_peak()
    before = backend.peak_bytes()
    out = call(at)
    backend.synchronize()
    extra = backend.peak_bytes() - before
    wrong = reference.error(out[:, :, rows], reference.answer(at.q, at.k, at.v, mask, rows))
    del out
    time = timed(partial(call, at), backend, now_ns, budget_s)
    floor = floor_s(mask, shape, top.flops.value or math.nan, top.bandwidth.value or math.nan)
    figures = {
        "time_ms": in_unit(time, 1e3, "ms"),
        "useful": scaled(time, useful_flops(mask, shape) / 1e12, "TFLOP/s"),
        "roofline": exactly(floor / (time.value or math.nan), "", "floor over measured median"),
        "error": exactly(wrong, "", "against float64, sampled rows"),
    }
    if backend.name != "cpu":
        figures["extra_mib"] = exactly(extra / 2**20, "MiB", "allocator's peak, answer included")
    return figures


def _decode_rows(shape: Shape, mask: Mask, options: Options, backend: Backend, now_ns: Now, top: Ceilings) -> list[Row]:
    at = inputs(shape, 1, backend)
    found = []
    for name in rivals.DECODE:
        for used in (FULL, mask):
            label = name if used.full else f"{name}, {used.cache_keys(shape.length)} keys"
            where: Where = {
                "phase": "decode", "attention": label, "length": shape.length, "key heads": shape.kv_heads,
                "batch": shape.batch,
            }  # fmt: skip
            if options.only and name not in options.only:
                continue
            try:
                kept = at if used.full or name == "ours" else rivals.short_cache(at, used)
                call = rivals.decode(name, kept, used)
                wrong = reference.error(call(kept), reference.decoded(at.q, at.k, at.v, used))
                time = timed(partial(call, kept), backend, now_ns, options.budget_s)
            except (UsageError, torch.OutOfMemoryError) as refused:
                found.append(Row(where, refused=str(refused).splitlines()[0]))
                continue
            read = (
                2 * at.k.element_size() * shape.batch * shape.kv_heads * used.cache_keys(shape.length) * shape.head_size
            )
            share = read / (top.bandwidth.value or math.nan) / (time.value or math.nan)
            found.append(
                Row(
                    where,
                    {
                        "time_ms": in_unit(time, 1e3, "ms"),
                        "roofline": exactly(share, "", "bytes of keys and values over measured median"),
                        "error": exactly(wrong, "", "against float64"),
                    },
                )
            )
    return found


def verdict(rows: list[Row]) -> tuple[str, ...]:
    """The best masked attention against the best full one and the best other masked one, where both were measured."""
    said = []
    cases = {(r.at["length"], r.at["key heads"]) for r in rows if r.at.get("phase") == "prefill" and r.figures}
    for length, heads in sorted(cases, key=lambda case: (-int(case[1]), int(case[0]))):
        here = {
            str(r.at["attention"]): r.value("time_ms")
            for r in rows
            if r.figures
            and (r.at.get("phase"), r.at.get("length"), r.at.get("key heads")) == ("prefill", length, heads)
        }
        full = {n: t for n, t in here.items() if not is_masked(n)}
        masked = {n: t for n, t in here.items() if is_masked(n)}
        if not full or not masked:
            continue
        best, dense = min(masked, key=masked.__getitem__), min(full, key=full.__getitem__)
        line = (
            f"{length:,} tokens, {heads} key heads: {best} {masked[best]:.3g} ms, {dense} {full[dense]:.3g} ms, "
            f"{full[dense] / masked[best]:.1f} times"
        )
        others = {n: t for n, t in masked.items() if not n.startswith("ours") and n != "dense mask"}
        if others and best.startswith("ours"):
            other = min(others, key=others.__getitem__)
            line += f"; {other} {others[other]:.3g} ms, {others[other] / masked[best]:.1f} times"
        said.append(line + ".")
    whole = [r for r in rows if r.at.get("phase") == "stack" and r.figures]
    if len(whole) > 1:
        slow = max(whole, key=lambda r: r.value("time_ms"))
        fast = min(whole, key=lambda r: r.value("time_ms"))
        said.append(
            f"In a stack of layers it is {slow.value('time_ms') / fast.value('time_ms'):.2f} times "
            f"({fast.at['attention']} over {slow.at['attention']}): attention is only a part of a prefill, so a gain "
            "of several times end to end can only come from a poor baseline."
        )
    return tuple(said)
