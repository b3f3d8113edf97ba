"""A model and a deployment in, memory on each GPU out: weights, cache, state, buffers; what fits, and how much of it.

All sizes are bytes on one GPU unless a name says `all`. Nothing is measured here.
"""

from __future__ import annotations

import math

import msgspec

from dynamometer.errors import UsageError
from dynamometer.hardware import formats
from dynamometer.hardware.model import Model, check_tp, kv_bytes, kv_bytes_per_token, state_bytes
from dynamometer.hardware.reserve import ENGINES, Buffers, Engine, buffers, padding
from dynamometer.units import show_bytes


class Deployment(msgspec.Struct, frozen=True):
    """What is to run. `tp` GPUs share each layer and `pp` stages share the layers; other GPUs hold further replicas.

    `memory_bytes` is what a process sees on one GPU, 0 = not stated. `concurrency` counts sequences on one replica.
    """

    context: int = 4096
    concurrency: int = 1
    weights: str = "auto"
    kv: str = "auto"
    tp: int = 1
    pp: int = 1
    memory_bytes: float = 0.0
    utilization: float | None = None  # None: the engine's default
    engine: Engine = ENGINES["vllm"]
    windowed: bool = True  # sliding-window layers keep their window only
    expanded: bool = False  # latent attention is cached as full K and V
    activation_bytes: int | None = None  # measured or known; None: estimated
    runtime_bytes: int | None = None
    weights_bytes: int | None = None  # measured size of the whole model's weights
    state_bytes_per_layer: int | None = None  # for a recurrent state the config does not give


class Breakdown(msgspec.Struct, frozen=True):
    """Bytes on each GPU; None where the config leaves the weights open."""

    weights: int | None
    weights_by_kind: dict[str, int]
    weights_all: int | None
    kv_per_token: float
    kv_per_sequence: float
    kv: int  # of all sequences, exactly their tokens
    held: int  # the same in whole blocks, as a paging engine holds it
    state_per_sequence: int | None  # None: the config does not give it
    state: int
    buffers: Buffers
    budget: float  # what weights, buffers, cache and state may take together; 0 without a device
    room: float  # what of it is left for cache and state; negative: the engine does not start

    @property
    def total(self) -> int | None:
        return None if self.weights is None else self.weights + self.kv + self.state + self.buffers.total


def breakdown(model: Model, d: Deployment) -> Breakdown:
    """Memory of one deployment on each of its GPUs."""
    _check(model, d)
    element = formats.kv_element_bytes(d.kv, model.dtype)
    whole = d.weights_bytes if d.weights_bytes is not None else formats.weights_bytes(model, d.weights)
    ranks = d.tp * d.pp
    by_kind = _classes(model, d)
    padded = (
        padding(model, formats.scheme(model, d.weights).method, by_kind, d.engine) if d.weights_bytes is None else 0
    )
    weights = None if whole is None else math.ceil((whole + padded) / ranks)
    exact = kv_bytes(model, d.context, element, d.tp, d.windowed, d.expanded) / d.pp
    sequence = sequence_bytes(model, d)
    state = _state(model, d)
    work = _buffers(model, d)
    budget, room = _budget(d, weights, work)
    return Breakdown(
        weights=weights,
        weights_by_kind={kind: math.ceil(size / ranks) for kind, size in by_kind.items()},
        weights_all=whole,
        kv_per_token=kv_bytes_per_token(model, element, d.tp, d.expanded) / d.pp,
        kv_per_sequence=sequence,
        kv=math.ceil(exact * d.concurrency),
        held=math.ceil(sequence * d.concurrency),
        state_per_sequence=state,
        state=(state or 0) * d.concurrency,
        buffers=work,
        budget=budget,
        room=room,
    )


def _classes(model: Model, d: Deployment) -> dict[str, int]:
    """Bytes of the whole model by class: of the real file where it is used as it is, else worked out; empty when
    unknown."""
    as_stored = bool(model.stored_bytes) and not formats.canonical(d.weights)
    if as_stored and model.stored_by_kind:
        return dict(model.stored_by_kind)
    if model.missing or d.weights_bytes is not None:
        return {}
    found = formats.bytes_by_kind(model, d.weights)
    differs = as_stored and abs(sum(found.values()) - model.stored_bytes) > 0.02 * model.stored_bytes
    return {} if differs else found


def _check(model: Model, d: Deployment) -> None:
    check_tp(model, d.tp)
    if d.pp < 1 or d.pp > model.layers:
        raise UsageError(f"pipeline parallelism is {d.pp}; give 1 to {model.layers}, the model's layers")
    if d.context < 1:
        raise UsageError(f"context is {d.context} tokens; give 1 or more")
    if d.concurrency < 1:
        raise UsageError(f"concurrency is {d.concurrency} sequences; give 1 or more")
    if d.utilization is not None and not 0 < d.utilization <= 1:
        raise UsageError(f"utilization is {d.utilization}; give a share above 0 and up to 1")


def sequence_bytes(model: Model, d: Deployment, context: int = 0) -> float:
    """Cache bytes of one sequence on each GPU, whole blocks; the engine's cache, or windows where `windowed`."""
    element = formats.kv_element_bytes(d.kv, model.dtype)
    tokens = context or d.context
    if d.engine.paged and d.engine.block > 1:
        tokens = -(-tokens // d.engine.block) * d.engine.block
    return kv_bytes(model, tokens, element, d.tp, d.windowed, d.expanded) / d.pp


def _state(model: Model, d: Deployment) -> int | None:
    """State of one sequence on each GPU; None when there are recurrent layers whose state nobody has given."""
    if d.state_bytes_per_layer is not None:
        return math.ceil(model.recurrent_layers * d.state_bytes_per_layer / d.tp / d.pp)
    if sum(state.layers for state in model.states) < model.recurrent_layers:
        return None
    return math.ceil(state_bytes(model, d.tp) / d.pp)


def _buffers(model: Model, d: Deployment) -> Buffers:
    work = buffers(model, d.engine, d.tp, 4 if model.dtype == "fp32" else 2)
    if d.activation_bytes is not None:
        work = msgspec.structs.replace(work, activation=d.activation_bytes, graphs=0, why="as stated")
    if d.runtime_bytes is not None:
        work = msgspec.structs.replace(work, runtime=d.runtime_bytes, graphs=0)
    return work


def _budget(d: Deployment, weights: int | None, work: Buffers) -> tuple[float, float]:
    """(budget, room) by what the engine's flag is a share of."""
    share = d.engine.utilization if d.utilization is None else d.utilization
    taken = (weights or 0) + work.total
    if not d.memory_bytes:
        return 0.0, 0.0
    if d.engine.flag_of == "free":
        free = d.memory_bytes - taken
        return taken + max(free, 0.0) * share, free * share if free > 0 else free
    if d.engine.flag_of == "static":
        pool = min(d.memory_bytes * share, d.memory_bytes - work.total)
        return pool + work.total, pool - (weights or 0)
    return d.memory_bytes * share, d.memory_bytes * share - taken


class Verdict(msgspec.Struct, frozen=True):
    """Whether a deployment fits, and the limits around it."""

    fits: bool | None  # None: no device was given, or the weights are not known
    starts: bool | None  # room for at least one block
    why: str
    tokens: int  # cache capacity of one replica, in tokens of long sequences
    blocks: int
    concurrency_max: int  # sequences of this context that fit at once
    context_max: int  # longest context at this concurrency, 0 = none
    utilization_min: float | None  # least share with which this deployment fits


def judge(model: Model, d: Deployment, b: Breakdown) -> Verdict:
    """Does it fit? A device is needed for an answer."""
    reason = _unknown(model, d, b)
    if reason:
        return Verdict(None, None, reason, 0, 0, 0, 0, None)
    tokens, blocks = capacity(b, d)
    need = b.held + b.state
    most = concurrency_max(model, d, b)
    longest = context_max(model, d, b)
    fits = b.room >= need
    starts = b.room > 0 and (most > 0 or tokens > 0 or b.kv_per_token == 0)
    return Verdict(fits, starts, _why(d, b, fits), tokens, blocks, most, longest, _least_share(d, b))


def _unknown(model: Model, d: Deployment, b: Breakdown) -> str:
    """Why there is no answer; empty when there is one."""
    if b.weights is None:
        return f"the config does not say {', '.join(model.missing)}"
    if b.state_per_sequence is None:
        return "the config does not give the recurrent layers' state; give --state-per-layer"
    return "" if d.memory_bytes else "no device or memory was given"


def _why(d: Deployment, b: Breakdown, fits: bool) -> str:
    need = b.held + b.state
    if fits:
        return f"{show_bytes(b.room)} are left for cache and state, {show_bytes(need)} are needed"
    held = (b.weights or 0) + b.buffers.total
    if b.room <= 0:
        return (
            f"the engine does not start: weights {show_bytes(b.weights or 0)} "
            f"and buffers {show_bytes(b.buffers.total)} take "
            f"{show_bytes(held)} of "
            f"{show_bytes(b.budget if d.engine.flag_of != 'free' else d.memory_bytes)} a GPU"
        )
    return f"the cache lacks {show_bytes(need - b.room)}: {show_bytes(b.room)} are left, {show_bytes(need)} are needed"


def _least_share(d: Deployment, b: Breakdown) -> float | None:
    """The smallest value of a total-memory flag at which the deployment fits; None when none does or the flag is
    another."""
    if d.engine.flag_of != "total" or b.weights is None:
        return None
    share = (b.weights + b.buffers.total + b.held + b.state) / d.memory_bytes
    return share if share <= 1 else None


def capacity(b: Breakdown, d: Deployment) -> tuple[int, int]:
    """(tokens, blocks) that the cache holds of sequences as long as this context; 0 when there is no room. Whole
    blocks only where the engine pages. Windows make a long sequence's token cheaper than a short one's."""
    block = d.engine.block if d.engine.paged else 1
    each = b.kv_per_sequence / (-(-d.context // block) * block)
    if b.room <= 0 or each <= 0:
        return 0, 0
    blocks = int(b.room // (each * block))
    return blocks * block, blocks


def concurrency_max(model: Model, d: Deployment, b: Breakdown, context: int = 0) -> int:
    """Sequences of `context` tokens that fit in the room at once."""
    if b.room <= 0:
        return 0
    one = sequence_bytes(model, d, context or d.context) + (b.state_per_sequence or 0)
    return int(b.room // one) if one > 0 else 0


def context_max(model: Model, d: Deployment, b: Breakdown) -> int:
    """Longest context at which `concurrency` sequences fit, at most what the model was made for; 0 when none does."""
    most = model.context_max or 2**24

    def fit(tokens: int) -> bool:
        return (sequence_bytes(model, d, tokens) + (b.state_per_sequence or 0)) * d.concurrency <= b.room

    if b.room <= 0 or not fit(1):
        return 0
    if fit(most):
        return most
    low, high = 1, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fit(middle) else (low, middle)
    return low


def frontier(model: Model, d: Deployment, b: Breakdown) -> list[tuple[int, int]]:
    """(context, concurrency) pairs that just fit, contexts doubling up to the model's own limit."""
    most = model.context_max or 131072
    contexts = [1024 * 2**i for i in range(20) if 1024 * 2**i <= most]
    return [(context, concurrency_max(model, d, b, context)) for context in contexts]
