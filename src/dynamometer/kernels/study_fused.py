"""A device in; what fusing attention gains, alone and in a whole model: unfused, SDPA's kinds, FlashAttention-3, ours.

Each attention runs alone at one length, then in a Llama-3-8B-shaped model with random weights, prefill and decode at
batch 1. In decode the keys and values are two hundredths of the bytes, so a better attention can gain two hundredths
and no more where the GPU sets the pace; what a launch-bound loop gains, it gains by fewer launches. So every step
stands once as eager PyTorch launches it and once replayed as a CUDA graph, and torch.compile is a row of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import msgspec
import torch

from dynamometer.errors import UsageError
from dynamometer.kernels import reference, rivals
from dynamometer.kernels.backends import Backend
from dynamometer.kernels.ceilings import Ceilings, ceilings
from dynamometer.kernels.found import Found, Row, exactly, in_unit, scaled
from dynamometer.kernels.machine import describe
from dynamometer.kernels.mask import FULL, Shape, floor_s, useful_flops
from dynamometer.kernels.model import Attend, Cache, Decoder, build, caches, rotary
from dynamometer.kernels.rivals import Inputs
from dynamometer.kernels.shapes import KNOWN, Sizes
from dynamometer.kernels.stack import attend
from dynamometer.kernels.study_quant import plain
from dynamometer.kernels.study_sparse import inputs
from dynamometer.kernels.timing import Now, timed, wall
from dynamometer.types import Estimate

QUESTION = "What does a fused attention gain, alone and end to end?"
_ALONE = tuple(name for name in rivals.PREFILL if not rivals.is_masked(name))
_PREFILL = ("unfused", "sdpa flash", "sdpa cudnn", "FlashAttention-3", "ours portable", "ours Hopper")
_DECODE = ("sdpa math", "sdpa flash", "sdpa cudnn", "FlashAttention-3", "ours")


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    model: str = "llama-3.1-8b"
    length: int = 2048
    budget_s: float = 0.3
    compile: bool = True


QUICK: Mapping[str, str | int | bool | float] = {"model": "tiny", "length": 256, "budget_s": 0.05, "compile": False}


class Bench(msgspec.Struct, frozen=True):
    """What every measurement of this study needs."""

    sizes: Sizes
    length: int
    backend: Backend
    now_ns: Now
    top: Ceilings
    budget_s: float

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32 if self.backend.name == "cpu" else torch.bfloat16


def run(options: Options, backend: Backend, now_ns: Now, say: Callable[[str], None]) -> Found:
    """Attention alone, a whole prefill, decode steps: eager, as a graph, compiled."""
    if options.model not in KNOWN or KNOWN[options.model].latent:
        plain = [name for name, sizes in KNOWN.items() if not sizes.latent]
        raise UsageError(f"model is {options.model!r}; one of {', '.join(plain)}")
    bench = Bench(KNOWN[options.model], options.length, backend, now_ns, ceilings(backend, now_ns), options.budget_s)
    say(f"attention alone at {options.length:,}")
    rows = _alone(bench)
    say(f"{options.model}: building")
    model = build(bench.sizes, backend.device, bench.dtype)
    say("prefill")
    rows += _prefills(bench, model)
    say("decode")
    rows += _decodes(bench, model, options.compile)
    notes = (
        "Random weights: speeds are real, answers are not. Batch 1. gain: against the row above it in the same mode.",
        "bandwidth share: weights and cache read once a step, over what a large copy reaches here.",
    )
    return Found("fused-attention", QUESTION, _verdict(rows), tuple(rows), describe(backend), notes)


def _alone(bench: Bench) -> list[Row]:
    s = bench.sizes
    shape = Shape(bench.length, 1, s.heads, s.kv_heads, s.head_size)
    at = inputs(shape, bench.length, bench.backend)
    picked = reference.rows_to_check(bench.length, FULL).to(at.q.device)
    right = reference.answer(at.q, at.k, at.v, FULL, picked)
    floor = floor_s(FULL, shape, bench.top.flops.value or 1.0, bench.top.bandwidth.value or 1.0)
    rows = []
    for name in _ALONE:
        where = {"what": "attention", "attention": name, "mode": "alone"}
        try:
            call = rivals.prefill(name, at, FULL)
            wrong = reference.error(call(at)[:, :, picked], right)
            time = timed(partial(call, at), bench.backend, bench.now_ns, bench.budget_s)
        except (UsageError, torch.OutOfMemoryError) as refused:
            rows.append(Row(where, refused=str(refused).splitlines()[0]))
            continue
        figures = {
            "time_ms": in_unit(time, 1e3, "ms"),
            "useful": scaled(time, useful_flops(FULL, shape) / 1e12, "TFLOP/s"),
            "roofline": exactly(floor / (time.value or 1.0), "", "floor over measured median"),
            "error": exactly(wrong, "", "against float64, sampled rows"),
        }
        rows.append(Row(where, figures))
    return rows


def _prefills(bench: Bench, model: Decoder) -> list[Row]:
    rope = rotary(bench.sizes, bench.length, bench.backend.device, bench.dtype)
    tokens = torch.randint(bench.sizes.vocab, (1, bench.length), device=bench.backend.device)
    rows = []
    for name in _PREFILL:
        where = {"what": "prefill", "attention": name, "mode": "eager"}
        try:
            with torch.inference_mode():
                step = partial(model.__call__, tokens, rope, attend(name, FULL), None, 0)
                time = timed(step, bench.backend, bench.now_ns, 2 * bench.budget_s, graph=False)
        except (UsageError, torch.OutOfMemoryError) as refused:
            rows.append(Row(where, refused=str(refused).splitlines()[0]))
            continue
        figures = {"time_ms": in_unit(time, 1e3, "ms"), "rate": scaled(time, bench.length, "tokens/s")}
        rows.append(_with_gain(Row(where, figures), rows))
    return rows


def decode_attend(name: str) -> Attend:
    """A decode attention by its name, made ready once."""
    ready: list[rivals.Call] = []

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        at = Inputs(q, k, v)
        if not ready:
            ready.append(rivals.decode(name, at, FULL))
        return ready[0](at)

    return call


def _decodes(bench: Bench, model: Decoder, compile_too: bool) -> list[Row]:
    s, device = bench.sizes, bench.backend.device
    kept: list[Cache] = caches(s, 1, bench.length, device, bench.dtype)
    rope = rotary(s, bench.length, device, bench.dtype)[:, -1:]
    token = torch.randint(s.vocab, (1, 1), device=device)
    read = sum(p.nbytes for p in model.parameters()) - model.embedding.nbytes
    read += s.layers * bench.length * s.cache_per_token * kept[0][0].element_size()
    rows: list[Row] = []

    def step(attention: Attend) -> Callable[[], object]:
        return partial(model.__call__, token, rope, attention, kept, bench.length - 1)

    with torch.inference_mode():
        for name in _DECODE:
            rows.append(_decode_row(bench, step(decode_attend(name)), name, "eager", read, rows))
        for name in _DECODE if bench.backend.graphs else ():
            rows.append(_decode_row(bench, step(decode_attend(name)), name, "graph", read, rows))
        if compile_too:
            for i, layer in enumerate(model.layers):
                model.layers[i] = torch.compile(layer, dynamic=False)
            for mode in ("compiled", "compiled, graph") if bench.backend.graphs else ("compiled",):
                rows.append(_decode_row(bench, step(plain), "sdpa, torch's choice", mode, read, rows))
    return rows


def _decode_row(bench: Bench, step: Callable[[], object], name: str, mode: str, read: int, before: list[Row]) -> Row:
    where = {"what": "decode", "attention": name, "mode": mode}
    try:
        step()
        time = (
            timed(step, bench.backend, bench.now_ns, bench.budget_s)
            if "graph" in mode
            else wall(step, bench.backend, bench.now_ns, bench.budget_s)
        )
    except (UsageError, RuntimeError) as refused:
        return Row(where, refused=str(refused).splitlines()[0][:160])
    share = read / (bench.top.bandwidth.value or 1.0) / (time.value or 1.0)
    figures = {
        "time_ms": in_unit(time, 1e3, "ms"),
        "rate": scaled(time, 1.0, "tokens/s"),
        "bandwidth_share": exactly(share, "", "bytes that a step must read over measured median"),
    }
    return _with_gain(Row(where, figures), before)


def _with_gain(row: Row, before: list[Row]) -> Row:
    """The row with how many times faster it is than the last measured one of its kind and mode."""
    same = [r for r in before if r.figures and (r.at["what"], r.at["mode"]) == (row.at["what"], row.at["mode"])]
    if not same:
        return row
    old, new = same[-1].figures["time_ms"], row.figures["time_ms"]
    return Row(row.at, {**row.figures, "gain": gain(old, new)}, row.refused)


def gain(old: Estimate, new: Estimate) -> Estimate:
    """old / new. Its interval is the widest that the two allow: wider than 95 % if they are independent."""
    if not old.value or not new.value:
        return Estimate(None, None, None, 0, "times", method="not measured")
    low = old.low / new.high if old.low and new.high else None
    high = old.high / new.low if old.high and new.low else None
    return Estimate(old.value / new.value, low, high, min(old.n, new.n), "times", method="ratio of medians")


def _verdict(rows: list[Row]) -> tuple[str, ...]:
    said = []
    for what, figure in (("attention", "time_ms"), ("prefill", "time_ms"), ("decode", "time_ms")):
        here = [r for r in rows if r.at["what"] == what and r.figures]
        if not here:
            continue
        first, best = here[0], min(here, key=lambda r: r.value(figure))
        name = " ".join(str(best.at[key]) for key in ("attention", "mode"))
        times = first.value(figure) / best.value(figure)
        said.append(
            f"{what}: {best.value(figure):.3g} ms with {name}, {times:.2f} times {first.at['attention']} "
            f"{first.at['mode']}."
        )
    eager = {
        str(r.at["attention"]): r for r in rows if r.at["what"] == "decode" and r.at["mode"] == "eager" and r.figures
    }
    graph = {
        str(r.at["attention"]): r for r in rows if r.at["what"] == "decode" and r.at["mode"] == "graph" and r.figures
    }
    if len(eager) > 1 and len(graph) > 1:
        spread = max(r.value("time_ms") for r in graph.values()) / min(r.value("time_ms") for r in graph.values())
        launch = min(r.value("time_ms") for r in eager.values()) / min(r.value("time_ms") for r in graph.values())
        said.append(
            f"In decode the choice of attention is worth {spread:.2f} times when launches are out of the way, the "
            f"launches themselves {launch:.2f} times: a large gain from an attention at batch 1 measures the host."
        )
    return tuple(said)
