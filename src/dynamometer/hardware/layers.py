"""Shapes of one layer in, its weights (`Part`s) and its `Cache` out: attention, latent attention, MLPs and experts."""

from __future__ import annotations

import msgspec

from dynamometer.hardware.model import Cache, Part


class Bias(msgspec.Struct, frozen=True):
    """Which linears of a layer carry a bias vector."""

    qkv: bool = False
    output: bool = False
    mlp: bool = False


class AttentionShape(msgspec.Struct, frozen=True):
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    window: int = 0
    qk_norm: str = ""  # "" | head: one vector of head_dim each for q and k | full: over all heads | layer: with bias
    gated: bool = False  # a sigmoid gate as wide as the queries comes out of the query projection
    sinks: bool = False  # one learned logit a query head
    own_cache: bool = True  # False: reads the cache of an earlier layer and projects no K and V
    value_is_key: bool = False  # one projection serves as K and V


def matrix(kind: str, elements: int, active: int | None = None) -> Part:
    return Part(kind, elements, elements if active is None else active, True)


def vector(kind: str, elements: int, active: int | None = None) -> Part:
    return Part(kind, elements, elements if active is None else active, False)


def attention(shape: AttentionShape, bias: Bias) -> list[Part]:
    """Projections of grouped-query attention (MHA: kv_heads = heads, MQA: 1)."""
    q, k = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    v = shape.kv_heads * shape.value_dim
    out = shape.heads * shape.value_dim
    gate = q if shape.gated else 0
    parts = [matrix("attention", shape.hidden * (q + gate)), matrix("attention_out", out * shape.hidden)]
    if shape.own_cache:
        parts += [matrix("attention", shape.hidden * k)]
        parts += [] if shape.value_is_key else [matrix("attention_v", shape.hidden * v)]
    if bias.qkv:
        parts.append(vector("bias", q + gate + ((k + (0 if shape.value_is_key else v)) if shape.own_cache else 0)))
    if bias.output:
        parts.append(vector("bias", shape.hidden))
    norms = {"": 0, "head": 2 * shape.head_dim, "full": q + k, "layer": 4 * shape.head_dim}[shape.qk_norm]
    return [
        *parts,
        *([vector("norm", norms)] if norms else []),
        *([vector("other", shape.heads)] if shape.sinks else []),
    ]


def attention_cache(shape: AttentionShape) -> Cache:
    """K and V of one layer; one that shares an earlier layer's cache keeps nothing but still computes."""
    width = shape.head_dim + shape.value_dim
    return Cache(
        layers=1,
        heads=shape.kv_heads,
        elements=shape.kv_heads * width if shape.own_cache else 0,
        window=shape.window,
        query_heads=shape.heads,
        score_width=shape.head_dim,
        value_width=shape.value_dim,
        prefill_width=width,
    )


class LatentShape(msgspec.Struct, frozen=True):
    """Multi-head latent attention: one compressed vector of `kv_rank` and one rotary key of `rope` a token."""

    hidden: int
    heads: int
    q_rank: int  # 0: queries are projected directly
    kv_rank: int
    rope: int
    nope: int
    value_dim: int
    bias: bool = False
    index_heads: int = 0
    index_dim: int = 0
    gated: bool = False
    window: int = 0


def latent(shape: LatentShape) -> list[Part]:
    """Projections of latent attention, with the sparse indexer where there is one."""
    s, key = shape, shape.nope + shape.rope
    query = s.hidden * s.q_rank + s.q_rank * s.heads * key if s.q_rank else s.hidden * s.heads * key
    down = s.hidden * (s.kv_rank + s.rope)
    up = s.kv_rank * s.heads * (s.nope + s.value_dim)
    out = s.heads * s.value_dim * s.hidden
    gate = s.hidden * s.heads * s.value_dim if s.gated else 0
    parts = [matrix("attention", query + down + up + out + gate), vector("norm", s.q_rank + s.kv_rank)]
    if s.bias:
        parts.append(vector("bias", s.q_rank + s.kv_rank + s.rope + s.hidden))
    if s.index_heads:
        width = s.index_heads * s.index_dim
        parts.append(matrix("attention", s.q_rank * width + s.hidden * s.index_dim + s.hidden * s.index_heads))
        parts.append(vector("norm", 2 * s.index_dim))
    return parts


def latent_cache(shape: LatentShape) -> Cache:
    """The latent and the rotary key, once for all heads. The indexer's keys are FP8 with one 4-byte scale."""
    return Cache(
        layers=1,
        heads=0,
        elements=shape.kv_rank + shape.rope,
        window=shape.window,
        fixed_bytes=shape.index_dim + 4 if shape.index_heads else 0,
        expanded=shape.heads * (shape.nope + shape.rope + shape.value_dim),
        query_heads=shape.heads,
        score_width=shape.kv_rank + shape.rope,
        value_width=shape.kv_rank,
        prefill_width=shape.nope + shape.rope + shape.value_dim,
    )


def mlp(hidden: int, intermediate: int, gated: bool, bias: bool, kind: str = "mlp") -> list[Part]:
    """Feed-forward: gate and up (or up alone), then down."""
    ups = 2 if gated else 1
    parts = [matrix(kind, ups * hidden * intermediate), matrix(f"{kind}_down", hidden * intermediate)]
    return [*parts, vector("bias", ups * intermediate + hidden)] if bias else parts


class ExpertShape(msgspec.Struct, frozen=True):
    hidden: int
    experts: int
    chosen: int
    intermediate: int
    gated: bool = True
    bias: bool = False
    router_bias: bool = False  # a bias, or a balancing correction, a routed expert
    shared_intermediate: int = 0  # width of the experts that every token visits, together
    shared_gate: bool = False
    latent: int = 0  # routed experts work in a narrower space than the model


def experts(shape: ExpertShape) -> list[Part]:
    """A mixture of experts: every expert is in memory, `chosen` of them compute for a token."""
    s = shape
    width, ups = s.latent or s.hidden, 2 if s.gated else 1
    one_up, one_down = ups * width * s.intermediate, width * s.intermediate
    parts = [
        matrix("experts", s.experts * one_up, s.chosen * one_up),
        matrix("experts_down", s.experts * one_down, s.chosen * one_down),
        matrix("router", s.hidden * s.experts),
    ]
    if s.latent:
        parts.append(matrix("shared", 2 * s.hidden * s.latent))
    if s.bias:
        one = ups * s.intermediate + width
        parts.append(vector("bias", s.experts * one, s.chosen * one))
    if s.router_bias:
        parts.append(vector("bias", s.experts))
    if s.shared_intermediate:
        parts += mlp(s.hidden, s.shared_intermediate, s.gated, s.bias, "shared")
    if s.shared_gate:
        parts.append(matrix("router", s.hidden))
    return parts


def merge(parts: list[Part]) -> tuple[Part, ...]:
    """Equal classes added up, in order of first appearance."""
    sums: dict[tuple[str, bool], tuple[int, int]] = {}
    for part in parts:
        elements, active = sums.get((part.kind, part.matrix), (0, 0))
        sums[part.kind, part.matrix] = (elements + part.elements, active + part.active)
    return tuple(Part(kind, n, active, whole) for (kind, whole), (n, active) in sums.items() if n)


def group(caches: list[Cache]) -> tuple[Cache, ...]:
    """Equal layers counted together."""
    counts: dict[Cache, int] = {}
    for cache in caches:
        counts[cache] = counts.get(cache, 0) + 1
    return tuple(msgspec.structs.replace(cache, layers=n) for cache, n in counts.items())
