"""A device in; what it really does out: memory, launches, copies to the host, products of the shapes that models use.

Each row can be set beside the datasheet's figure. The products are those of Llama-3.1-8B and DeepSeek-V2-Lite, at the
numbers of tokens that decode and prefill have, in every format that torch can multiply here.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Mapping
from functools import partial

import msgspec
import torch

from dynamometer.errors import UsageError
from dynamometer.hardware import gpu
from dynamometer.kernels.backends import Backend
from dynamometer.kernels.experts import product
from dynamometer.kernels.found import Found, Row, Where, in_unit, scaled
from dynamometer.kernels.isa import instruction_sets
from dynamometer.kernels.machine import describe
from dynamometer.kernels.model import Linear
from dynamometer.kernels.quantized import FORMATS, MAKERS
from dynamometer.kernels.timing import Now, timed, wall
from dynamometer.types import Estimate

QUESTION = "What do memory, launches, links and products really reach on this device?"
_SHAPES = {  # model: product -> (out, in)
    "llama-3.1-8b": {"qkv": (6144, 4096), "out": (4096, 4096), "gate up": (28672, 4096), "down": (4096, 14336)},
    "deepseek-v2-lite": {"query": (3072, 2048), "latent": (576, 2048), "out": (2048, 2048), "shared": (5632, 2048)},
}
_COLD_BYTES = 128 * 2**20
_EXPERTS = (64, 6, 1408, 2048)  # experts, chosen, width of one, hidden: DeepSeek-V2-Lite


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tokens: tuple[int, ...] = (1, 16, 64, 256, 2048)
    formats: tuple[str, ...] = FORMATS
    models: tuple[str, ...] = tuple(_SHAPES)
    budget_s: float = 0.05
    mib: int = 1024  # of one array in the memory rows


QUICK: Mapping[str, float | int | tuple[int, ...] | tuple[str, ...]] = {
    "tokens": (1, 16), "models": ("deepseek-v2-lite",), "mib": 32, "budget_s": 0.01,
}  # fmt: skip


def run(options: Options, backend: Backend, now_ns: Now, say: Callable[[str], None]) -> Found:
    """All probes that this device has."""
    say("memory")
    rows = _memory(options, backend, now_ns)
    say("launches and links")
    rows += _launches(backend, now_ns)
    rows += _links(options, backend, now_ns)
    rows += _peers(options, backend, now_ns)
    for model in options.models:
        if model not in _SHAPES:
            raise UsageError(f"there are no products of {model!r}; known: {', '.join(_SHAPES)}")
        say(f"products of {model}")
        rows += _products(model, options, backend, now_ns)
    if "deepseek-v2-lite" in options.models:
        rows += _grouped(options, backend, now_ns)
    rows.append(
        Row({"what": "processor", "of": "instruction sets"}, refused=", ".join(instruction_sets()) or "unknown")
    )
    beside, verdict = _datasheet(rows, backend)
    notes = (*beside, "Bytes are counted read and written. Products are on random data; zeros would be faster.")
    return Found("probe", QUESTION, verdict, tuple(rows), describe(backend), notes)


def _memory(options: Options, backend: Backend, now_ns: Now) -> list[Row]:
    n = options.mib * 2**20 // 4
    a, b, out = (torch.randn(n, device=backend.device) for _ in range(3))
    calls: dict[str, tuple[int, Callable[[], object]]] = {
        "read": (1, a.sum),
        "write": (1, partial(out.fill_, 1.0)),
        "copy": (2, partial(out.copy_, a)),
        "add": (3, partial(torch.add, a, b, out=out)),
    }
    rows = []
    for name, (arrays, call) in calls.items():
        time = timed(call, backend, now_ns, options.budget_s)
        rate = scaled(time, arrays * a.nbytes / 1e9, "GB/s")
        rows.append(Row({"what": "memory", "of": name}, {"rate": rate}))
    return rows


def _launches(backend: Backend, now_ns: Now) -> list[Row]:
    """One small kernel: waited for, queued behind others, and as a node of a graph."""
    x = torch.zeros(256, device=backend.device)
    many = 1000

    def queue() -> None:
        for _ in range(many):
            x.add_(1.0)

    waited = in_unit(wall(partial(x.add_, 1.0), backend, now_ns, 0.02), 1e6, "µs")
    queued = in_unit(wall(queue, backend, now_ns, 0.05), 1e6 / many, "µs")
    rows = [
        Row({"what": "launch", "of": "one kernel, waited for"}, {"time_us": waited}),
        Row({"what": "launch", "of": "one of many in a row"}, {"time_us": queued}),
    ]
    if backend.graphs:
        node = in_unit(timed(queue, backend, now_ns, 0.05), 1e6 / many, "µs")
        rows.append(Row({"what": "launch", "of": "a node of a graph"}, {"time_us": node}))
    return rows


def _links(options: Options, backend: Backend, now_ns: Now) -> list[Row]:
    """Copies between host and device, pinned and pageable; for a processor there is no link."""
    if backend.name == "cpu":
        return [Row({"what": "link", "of": "host"}, refused="the device is the host")]
    rows = []
    for mib, pinned in itertools.product((1, min(options.mib, 256)), (True, False)):
        host = torch.empty(mib * 2**20, dtype=torch.uint8, pin_memory=pinned)
        there = torch.empty_like(host, device=backend.device)
        for way, call in (("to device", partial(there.copy_, host)), ("to host", partial(host.copy_, there))):
            time = wall(call, backend, now_ns, options.budget_s)
            kind = "pinned" if pinned else "pageable"
            figures = {"rate": scaled(time, host.nbytes / 1e9, "GB/s"), "time_us": in_unit(time, 1e6, "µs")}
            rows.append(Row({"what": "link", "of": f"{mib} MiB {way}, {kind}"}, figures))
    return rows


def _peers(options: Options, backend: Backend, now_ns: Now) -> list[Row]:
    """Copies to every other device of this host, and an all-reduce; one device alone has neither."""
    if backend.name not in ("cuda", "rocm") or torch.cuda.device_count() < 2:
        return [Row({"what": "peers", "of": "copy and all-reduce"}, refused="one device here")]
    rows = []
    here = torch.randn(options.mib * 2**18, device=backend.device)
    for peer in range(1, torch.cuda.device_count()):
        there = torch.empty_like(here, device=f"cuda:{peer}")
        time = wall(partial(there.copy_, here), backend, now_ns, options.budget_s)
        direct = "peer to peer" if torch.cuda.can_device_access_peer(peer, 0) else "through the host"
        at = {"what": "peers", "of": f"0 to {peer}, {direct}"}
        rows.append(Row(at, {"rate": scaled(time, here.nbytes / 1e9, "GB/s")}))
    parts = [torch.randn(options.mib * 2**16, device=f"cuda:{i}") for i in range(torch.cuda.device_count())]
    time = wall(partial(torch.cuda.nccl.all_reduce, parts), backend, now_ns, options.budget_s)
    n = len(parts)
    moved = 2 * (n - 1) / n * parts[0].nbytes / 1e9
    rows.append(Row({"what": "peers", "of": f"all-reduce of {n}"}, {"rate": scaled(time, moved, "GB/s")}))
    return rows


def _products(model: str, options: Options, backend: Backend, now_ns: Now) -> list[Row]:
    rows = []
    for name, (outputs, inputs) in _SHAPES[model].items():
        plain = Linear(inputs, outputs, backend.device, torch.bfloat16)
        for form in options.formats:
            at = {"what": f"products of {model}", "of": name, "format": form}
            try:
                ones = [plain if form == "bf16" else MAKERS[form](plain.weight.data)]
                ones += [copy.deepcopy(ones[0]) for _ in range(_copies(ones[0]) - 1)]
                with torch.inference_mode():
                    for tokens in options.tokens:
                        x = torch.randn((tokens, inputs), device=backend.device).to(torch.bfloat16)
                        time = timed(partial(_each, ones, x), backend, now_ns, options.budget_s)
                        time = in_unit(time, 1 / len(ones), "s")
                        rows.append(Row({**at, "tokens": tokens}, _rates(time, tokens, outputs, inputs, ones[0])))
            except (UsageError, RuntimeError, NotImplementedError, KeyError) as refused:
                rows.append(Row(at, refused=str(refused).splitlines()[0][:120]))
    return rows


def _copies(one: torch.nn.Module) -> int:
    """So many that their weights are twice what a large cache holds: in a model none finds its weights in a cache."""
    return max(1, min(64, -(-_COLD_BYTES // sum(p.nbytes for p in one.parameters()))))


def _each(ones: list[torch.nn.Module], x: torch.Tensor) -> None:
    for one in ones:
        one(x)


def _rates(time: Estimate, tokens: int, outputs: int, inputs: int, one: torch.nn.Module) -> dict[str, Estimate]:
    read = sum(p.nbytes for p in one.parameters()) + 2 * tokens * (outputs + inputs)
    return {
        "time_us": in_unit(time, 1e6, "µs"),
        "useful": scaled(time, 2e-12 * tokens * outputs * inputs, "TFLOP/s"),
        "rate": scaled(time, read / 1e9, "GB/s"),
    }


def _grouped(options: Options, backend: Backend, now_ns: Now) -> list[Row]:
    """The experts' two products, tokens routed at random."""
    experts, chosen, width, hidden = _EXPERTS
    rows = []
    for name, outputs, inputs in (("experts, gate up", 2 * width, hidden), ("experts, down", hidden, width)):
        weights = torch.randn((experts, outputs, inputs), device=backend.device).to(torch.bfloat16) * inputs**-0.5
        for tokens in options.tokens:
            at: Where = {"what": "products of deepseek-v2-lite", "of": name, "format": "bf16", "tokens": tokens}
            picks = torch.stack([torch.randperm(experts)[:chosen] for _ in range(tokens)]).flatten()
            sizes = torch.bincount(picks, minlength=experts).float().to(backend.device)
            x = torch.randn((tokens * chosen, inputs), device=backend.device).to(torch.bfloat16)
            time = timed(partial(product, x, weights, sizes), backend, now_ns, options.budget_s)
            touched = int((sizes > 0).sum()) * outputs * inputs * 2
            figures = {
                "time_us": in_unit(time, 1e6, "µs"),
                "useful": scaled(time, 2e-12 * len(x) * outputs * inputs, "TFLOP/s"),
                "rate": scaled(time, (touched + x.nbytes + 2 * len(x) * outputs) / 1e9, "GB/s"),
            }
            rows.append(Row(at, figures))
    return rows


def _datasheet(rows: list[Row], backend: Backend) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What the datasheet says of memory and products, and the share of it that was reached."""
    best_memory = max((r.value("rate") for r in rows if r.at["what"] == "memory"), default=0.0)
    flops = [r.value("useful") for r in rows if r.at.get("format") == "bf16" and "useful" in r.figures]
    said = f"Memory {best_memory:,.0f} GB/s; the best bf16 product {max(flops, default=0.0):,.3g} TFLOP/s."
    name = str(backend.facts.get("device", "")).replace("NVIDIA ", "").replace("AMD ", "")
    try:
        device = gpu.get(name)
    except UsageError:
        return (f"No datasheet is kept for {name!r}: dyno devices lists those that are.",), (said,)
    sheet = device.bandwidth.low / 1e9
    share = f"{best_memory / sheet:.0%} of the {sheet:,.0f} GB/s that the datasheet of {device.label} gives"
    return (), (f"{said} Memory is {share}.",)
