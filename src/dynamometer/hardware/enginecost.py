"""A model, a device, a split and an engine profile in, the cost of a step out: a roofline with measured efficiencies.

For T tokens: the larger of (touched weights / bandwidth) and (FLOPs / rate), plus collectives and a time per layer.
Attention is priced apart, by what is read and by pairs. Nothing here was measured on the user's machine; calibration
does that.
"""

from __future__ import annotations

import msgspec

from dynamometer.errors import UsageError
from dynamometer.hardware import formats
from dynamometer.hardware.gpu import Device
from dynamometer.hardware.links import Link, all_reduce_s, all_to_all_s, link, send_s, usual
from dynamometer.hardware.model import Cache, Model, check_tp, heads_per_rank, matmul_active
from dynamometer.hardware.profiles import EngineProfile
from dynamometer.hardware.roofline import arithmetic, expert_share, rate_of
from dynamometer.hardware.stepcost import StepCost

_KNOTS = (
    1,
    2,
    4,
    8,
    16,
    32,
    64,
    96,
    128,
    192,
    256,
    384,
    512,
    768,
    1024,
    1536,
    2048,
    3072,
    4096,
    6144,
    8192,
    16384,
    32768,
)


class Split(msgspec.Struct, frozen=True):
    """How one replica is laid over devices. `ep`: experts whole on different ranks, tokens travel to them. `link` ""
    is the device's own; `imbalance`: load of the busiest expert rank over the mean; `window`: attend to so many
    tokens only."""

    tp: int = 1
    pp: int = 1
    ep: bool = False
    link: str = ""
    weights: str = "auto"
    kv: str = "auto"
    imbalance: float = 1.0
    window: int = 0

    def __post_init__(self) -> None:
        if self.tp < 1 or self.pp < 1:
            raise UsageError(f"the split is tp {self.tp}, pp {self.pp}; give at least 1 of each")
        if self.imbalance < 1 or self.window < 0:
            raise UsageError(
                "the expert imbalance is the busiest rank over the mean, at least 1; a window is at least 0"
            )


class Parts(msgspec.Struct, frozen=True):
    """Where the time of a step of so many tokens goes, seconds."""

    weights_s: float
    compute_s: float
    communication_s: float
    layers_s: float

    @property
    def total_s(self) -> float:
        return max(self.weights_s, self.compute_s) + self.communication_s + self.layers_s


def step_cost(model: Model, device: Device, split: Split, engine: EngineProfile) -> StepCost:
    """The cost of a step of one replica; the slowest stage of a pipeline times its stages."""
    check_tp(model, split.tp)
    rate = _rate(model, device, split)
    bandwidth = device.bandwidth.low * engine.memory_share
    element = formats.kv_element_bytes(split.kv, model.dtype)
    full_s, window_s, pair_s, window_pair_s, window = 0.0, 0.0, 0.0, 0.0, split.window
    for cache in model.caches:
        read_s = cache.layers * _entry_bytes(cache, element, split.tp) / cache.every / bandwidth
        work = 2.0 * cache.layers * cache.query_heads * cache.prefill_width / split.tp
        each_s = work / (rate * engine.attention_share)
        narrow = split.window or cache.window
        if narrow:
            window = window or narrow
            window_s, window_pair_s = window_s + read_s, window_pair_s + each_s
        else:
            full_s, pair_s = full_s + read_s, pair_s + each_s
    return StepCost(
        tokens=_KNOTS,
        linear_s=tuple(parts(model, device, split, engine, tokens).total_s for tokens in _KNOTS),
        context_s=full_s,
        window_s=window_s,
        window=window if window_s else 0,
        sequence_s=engine.sequence_s,
        pair_s=pair_s,
        window_pair_s=window_pair_s,
        host=engine.host,
        depth=engine.depth,
        spread=engine.spread,
        source=f"roofline of {model.name} on {device.label} × {split.tp * split.pp}, profile: {engine.source}",
    )


def parts(model: Model, device: Device, split: Split, engine: EngineProfile, tokens: int) -> Parts:
    """The token-proportional time of a step, by cause."""
    share = expert_share(model)
    sizes = formats.bytes_by_kind(model, split.weights)
    dense = sum(v for k, v in sizes.items() if not k.startswith("experts") and k not in ("embedding", "vision"))
    if "head" not in sizes:
        dense += sizes.get("embedding", 0)
    experts = sum(v for k, v in sizes.items() if k.startswith("experts"))
    touched = dense + experts * (1 - (1 - share) ** tokens) * split.imbalance
    expert_work = 2.0 * sum(p.active for p in model.parts if p.kind.startswith("experts")) * tokens
    work = 2.0 * matmul_active(model, head=False) * tokens + expert_work * (split.imbalance - 1)
    moe = _moe_layers(model)
    return Parts(
        weights_s=touched / split.tp / (device.bandwidth.low * engine.memory_share),
        compute_s=work / split.tp / (_rate(model, device, split) * engine.compute_share),
        communication_s=communication_s(model, device, split, tokens),
        layers_s=model.layers * engine.layer_s + moe * engine.moe_layer_s,
    )


def communication_s(model: Model, device: Device, split: Split, tokens: int) -> float:
    """All-reduces (two a layer), expert dispatch and combine, and the sends between pipeline stages."""
    over = _link(device, split)
    message = tokens * model.hidden * 2.0
    moe = _moe_layers(model)
    total_s = 0.0
    if split.tp > 1:
        reduces = 2 * model.layers - (moe if split.ep else 0)
        total_s += reduces * all_reduce_s(over, split.tp, message)
        if split.ep and moe:
            each = message * _expert_visits(model) / moe / split.tp * split.imbalance
            total_s += 2 * moe * all_to_all_s(over, split.tp, each)
    if split.pp > 1:
        total_s += (split.pp - 1) * send_s(over, message)
    return total_s


def _link(device: Device, split: Split) -> Link:
    if split.link:
        return link(split.link)
    return usual(device.link_name, device.pcie.low if device.pcie else 0.0)


def _rate(model: Model, device: Device, split: Split) -> float:
    wanted = arithmetic(split.weights if split.weights != "auto" else formats.scheme(model, "").method)
    figure = rate_of(device, wanted) or rate_of(device, "bf16")  # a format without units of its own is widened
    if figure is None and "int8" in device.rates:
        return device.rates["int8"].low / 2  # an accelerator of 8-bit integers alone: half of it for 16 bits
    if figure is None:
        raise UsageError(f"{device.label} has no known rate for {wanted} arithmetic; choose other weights")
    return figure.low


def _entry_bytes(cache: Cache, element: float, tp: int) -> float:
    """Bytes a token takes in one layer on one rank: heads are split until each rank has one; a latent never is."""
    if cache.heads == 0:
        return cache.elements * element + cache.fixed_bytes
    return cache.elements // cache.heads * heads_per_rank(cache, tp) * element + cache.fixed_bytes


def _moe_layers(model: Model) -> int:
    """Layers with routed experts: all, but those whose MLP is dense."""
    if not any(part.kind.startswith("experts") for part in model.parts):
        return 0
    dense = sum(part.elements for part in model.parts if part.kind in ("mlp", "mlp_down"))
    return model.layers - round(dense / (3 * model.hidden * model.intermediate)) if model.intermediate else model.layers


def _expert_visits(model: Model) -> float:
    """Experts that one token visits on its way through all layers."""
    active = sum(part.active for part in model.parts if part.kind.startswith("experts"))
    return active / (3 * model.hidden * model.expert_width) if model.expert_width and model.hidden else 0.0
