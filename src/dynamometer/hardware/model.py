"""An architecture in, its sizes out: parameters by class, cache bytes a token, fixed state a sequence, FLOPs a token.

A model is a bag of `Part`s (weights), `Cache`s (what grows with the context) and `State`s (what does not). Everything
is a sum over those three, so a new architecture needs a reader (config.py) and no new arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from dynamometer.errors import UsageError


class Part(msgspec.Struct, frozen=True):
    """Weights of one class. `active`: the elements that one token's pass computes with. `matrix`: a linear weight,
    which formats quantize; norms, biases and other vectors stay at the model's own type."""

    # embedding head attention attention_v attention_out mlp mlp_down experts experts_down shared shared_down router
    # recurrent norm bias vision other
    kind: str
    elements: int
    active: int
    matrix: bool


class Cache(msgspec.Struct, frozen=True):
    """What a group of equal layers keeps of each token.

    `elements` counts K and V of all heads in one layer, or the latent. `heads` is the number of KV heads, by which
    tensor parallelism splits it; 0 means one latent that every rank must hold whole. `window` 0 keeps every token.
    """

    layers: int
    heads: int
    elements: int
    window: int = 0
    fixed_bytes: int = 0  # bytes a token and layer that do not follow the KV type, e.g. FP8 keys of a sparse indexer
    expanded: int = 0  # elements when a runtime caches expanded K and V instead of the latent
    every: int = 1  # one entry for so many tokens (compressed caches)
    query_heads: int = 0
    score_width: int = 0  # multiply-adds a query head spends on one key, and
    value_width: int = 0  # on one value, in decode (MLA: absorbed)
    prefill_width: int = 0  # both together in prefill


class State(msgspec.Struct, frozen=True):
    """What a group of recurrent layers keeps of a sequence, however long it is."""

    layers: int
    bytes_each: int
    kind: str


class Quantization(msgspec.Struct, frozen=True):
    """How a checkpoint says that it is stored; `skip` are patterns of module names that stay unquantized."""

    method: str  # a format of formats.py
    group: int = 0
    zero_point: bool = False
    skip: tuple[str, ...] = ()


class Model(msgspec.Struct, frozen=True):
    name: str
    family: str
    layers: int
    hidden: int  # 0 when the config does not say
    vocab: int
    heads: int
    intermediate: int  # widest MLP that one token runs through, for activations
    dtype: str  # bf16 | fp16 | fp32 | fp8: the type in which unquantized tensors are stored
    parts: tuple[Part, ...]
    caches: tuple[Cache, ...]
    states: tuple[State, ...] = ()
    quantization: Quantization | None = None
    context_max: int = 0
    missing: tuple[str, ...] = ()  # fields whose absence leaves the parameter count open
    notes: tuple[str, ...] = ()
    source: str = ""
    stored_bytes: int = 0  # sum over the tensors of a real checkpoint, 0 = only a config was read
    stored_by_kind: tuple[tuple[str, int], ...] = ()  # the same by class, where the file's names tell it
    recurrent_layers: int = 0
    latent_rank: int = 0
    expert_width: int = 0  # intermediate size of one routed expert


def parameters_total(model: Model) -> int | None:
    """Elements of all weights, without multi-token-prediction modules; None if the config does not determine it."""
    return None if model.missing else sum(part.elements for part in model.parts)


def parameters_active(model: Model) -> int | None:
    """Elements a token's pass uses: chosen experts only, output head included; the embedding table is included as the
    field does when it publishes active counts (each token reads one row of it, so it costs no bandwidth)."""
    return None if model.missing else sum(part.active for part in model.parts)


def matmul_active(model: Model, head: bool = True) -> int:
    """Elements of linear weights one token multiplies with: no embedding, no vectors; the head only if sampled."""
    skip = {"embedding"} if head else {"embedding", "head"}
    tied = 0 if any(part.kind == "head" for part in model.parts) or not head else model.vocab * model.hidden
    return tied + sum(part.active for part in model.parts if part.matrix and part.kind not in skip)


def parameters_by_kind(model: Model) -> dict[str, int]:
    """Elements by class in order of first appearance."""
    sums: dict[str, int] = {}
    for part in model.parts:
        sums[part.kind] = sums.get(part.kind, 0) + part.elements
    return sums


def heads_per_rank(cache: Cache, tp: int) -> int:
    """KV heads each of `tp` ranks holds; heads are replicated once there are more ranks than heads."""
    return max(1, cache.heads // tp) if cache.heads else 0


def check_tp(model: Model, tp: int) -> None:
    """Refuses a split that no engine can make: query heads must divide, KV heads must divide or be divided."""
    if tp < 1:
        raise UsageError(f"tensor parallelism is {tp}; give 1 or more")
    if model.heads and model.heads % tp:
        fits = ", ".join(str(n) for n in range(1, 65) if model.heads % n == 0 and _kv_splits(model, n))
        raise UsageError(
            f"{model.name} cannot be split over {tp} GPUs: {model.heads} attention heads leave {model.heads % tp} "
            f"over; tensor parallelism may be {fits}"
        )
    if not _kv_splits(model, tp):
        heads = next(cache.heads for cache in model.caches if cache.heads and cache.heads % tp and tp % cache.heads)
        raise UsageError(
            f"{model.name} cannot be split over {tp} GPUs: neither of {heads} KV heads and {tp} ranks divides the other"
        )


def _kv_splits(model: Model, tp: int) -> bool:
    return all(not c.heads or c.heads % tp == 0 or tp % c.heads == 0 for c in model.caches)


def _layer_bytes(cache: Cache, kv_bytes: float, tp: int, expanded: bool) -> float:
    """Bytes a token takes in one layer on one rank."""
    if cache.heads == 0:
        if expanded and cache.expanded:
            return cache.expanded * kv_bytes / min(tp, cache.query_heads or 1)
        return cache.elements * kv_bytes + cache.fixed_bytes
    return cache.elements // cache.heads * heads_per_rank(cache, tp) * kv_bytes + cache.fixed_bytes


def kv_bytes_per_token(model: Model, kv_bytes: float = 2.0, tp: int = 1, expanded: bool = False) -> float:
    """Bytes that the next token takes on each of `tp` ranks while it is inside every window; `kv_bytes` a cached
    element."""
    return sum(c.layers * _layer_bytes(c, kv_bytes, tp, expanded) / c.every for c in model.caches)


def kv_bytes(
    model: Model, context: int, kv_bytes: float = 2.0, tp: int = 1, windowed: bool = True, expanded: bool = False
) -> float:
    """Bytes of one sequence's cache at `context` tokens on each rank. `windowed` False: a runtime without a hybrid
    cache, which allocates the whole context in sliding-window layers too."""
    total = 0.0
    for cache in model.caches:
        kept = min(context, cache.window) if cache.window and windowed else context
        total += cache.layers * (kept // cache.every) * _layer_bytes(cache, kv_bytes, tp, expanded)
    return total


def state_bytes(model: Model, tp: int = 1) -> int:
    """Bytes of recurrent state of one sequence on each rank; independent of its length."""
    return sum(state.layers * (-(-state.bytes_each // tp)) for state in model.states)


def decode_flops(model: Model, contexts: Iterable[int]) -> float:
    """FLOPs of one decode step for sequences of these lengths: 2 per active matmul weight, plus attention's own."""
    lengths = list(contexts)
    total = 2.0 * matmul_active(model) * len(lengths)
    for cache in model.caches:
        kept = sum(min(n, cache.window) if cache.window else n for n in lengths) / cache.every
        total += 2.0 * cache.layers * cache.query_heads * (cache.score_width + cache.value_width) * kept
    return total


def prefill_flops(model: Model, tokens: int, cached: int = 0) -> float:
    """FLOPs to prefill `tokens` new tokens after `cached` ones, causal; the head runs for the last token only."""
    head = 2.0 * (matmul_active(model) - matmul_active(model, head=False))
    total = 2.0 * matmul_active(model, head=False) * tokens + head
    for cache in model.caches:
        total += 2.0 * cache.layers * cache.query_heads * cache.prefill_width * _pairs(tokens, cached, cache.window)
    return total


def attention_flops(model: Model, tokens: int, window: int = 0) -> float:
    """The part of `prefill_flops` that attention scores and values take; `window` > 0 narrows every layer to it."""
    total = 0.0
    for cache in model.caches:
        narrow = min(w for w in (cache.window, window) if w) if (cache.window or window) else 0
        total += 2.0 * cache.layers * cache.query_heads * cache.prefill_width * _pairs(tokens, 0, narrow)
    return total


def _pairs(tokens: int, cached: int, window: int) -> float:
    """Query-key pairs under a causal mask."""
    whole = tokens * (cached + (tokens + 1) / 2)
    if not window or cached + tokens <= window:
        return whole
    if cached >= window:
        return float(tokens) * window
    ramp = window - cached
    return ramp * (cached + (ramp + 1) / 2) + (tokens - ramp) * float(window)
