"""A config's fields in, the kind of each layer out: whole-context or windowed attention, recurrence, and which MLPs
are experts."""

from __future__ import annotations

from typing import Final

import msgspec

from dynamometer.errors import UsageError
from dynamometer.hardware.fields import Fields

_PATTERN: Final = {"M": "mamba2", "*": "full", "-": "mlp", "E": "moe"}
_TYPES: Final = {
    "full_attention": "full",
    "indexed_attention": "full",  # sparse reading, but every key is kept
    "attention": "full",
    "global_attention": "full",
    "hybrid": "parallel",
    "sliding_attention": "window",
    "local_attention": "window",
    "chunked_attention": "window",
    "linear_attention": "linear",
    "mamba": "mamba",
    "mamba2": "mamba2",
    "conv": "conv",
    "short_conv": "conv",
    "recurrent": "recurrent",
    "mlp": "mlp",
    "moe": "moe",
}
_RECURRENT_ONLY: Final = {"mamba": "mamba", "falcon_mamba": "mamba", "mamba2": "mamba2", "rwkv": "recurrent"}
_MAMBA_UNLESS_SAID: Final = frozenset({"bamba", "granitemoehybrid"})
_INTERVALS: Final = {"gemma3_text": 6, "gemma3": 6, "cohere2": 4, "olmo3": 4, "llama4_text": 4, "exaone4": 4}


class LayerKind(msgspec.Struct, frozen=True):
    mixer: str  # full | window | cross | linear | mamba | mamba2 | conv | recurrent | parallel | mlp | moe | none
    window: int = 0


def layer_kinds(f: Fields, layers: int) -> list[LayerKind]:
    """One entry a layer."""
    kinds = _mixers(f, layers)
    for i in f.rows("cross_attention_layers"):  # they attend to the picture: no cache that grows with the text
        if isinstance(i, int) and 0 <= i < len(kinds):
            kinds[i] = "cross"
    if len(kinds) != layers:
        raise UsageError(f"the model's config describes {len(kinds)} layers but says num_hidden_layers is {layers}")
    window = _window(f)
    if not window:
        return [LayerKind("full" if kind == "window" else kind) for kind in kinds]
    if "window" in kinds:
        return [LayerKind(kind, window if kind == "window" else 0) for kind in kinds]
    local = _local(f, kinds)
    return [
        LayerKind("window", window) if kind == "full" and near else LayerKind(kind)
        for kind, near in zip(kinds, local, strict=True)
    ]


def _mixers(f: Fields, layers: int) -> list[str]:
    pattern = f.text("hybrid_override_pattern")
    if pattern:
        unknown = set(pattern) - set(_PATTERN)
        if unknown:
            raise UsageError(
                f"hybrid_override_pattern holds {sorted(unknown)}; known are M (Mamba), * (attention), - and E"
            )
        return [_PATTERN[letter] for letter in pattern]
    types = f.rows("layer_types", "layers_block_type")
    if types:
        return [_kind(f, str(name)) for name in types]
    if f.family in _RECURRENT_ONLY:
        return [_RECURRENT_ONLY[f.family]] * layers
    if f.family == "falcon_h1":
        return ["parallel"] * layers
    return _by_rule(f, layers)


def _kind(f: Fields, name: str) -> str:
    if name not in _TYPES:
        raise UsageError(f"layer type {name!r} in the model's config is not known; known: {', '.join(_TYPES)}")
    kind = _TYPES[name]
    return _recurrence(f) if kind in ("linear", "mamba") else kind


def _recurrence(f: Fields) -> str:
    """Which recurrence a layer called "mamba" or "linear_attention" is: told by the fields that size it."""
    if f.number("linear_num_value_heads") or f.table("linear_attn_config") or f.number("linear_num_heads"):
        return "linear"
    if f.number("mamba_n_heads") or f.number("mamba_num_heads"):
        return "mamba2"
    if f.number("mamba_d_state") or f.number("mamba_expand"):
        return "mamba"
    if f.number("conv_L_cache"):
        return "conv"
    return "recurrent" if f.number("lru_width") else "linear"


def _by_rule(f: Fields, layers: int) -> list[str]:
    """Layer kinds that a config gives as an interval, an offset or a list of indices."""
    every = f.number("full_attention_interval")
    if every:
        return ["full" if (i + 1) % every == 0 else "linear" for i in range(layers)]
    period = f.number("attn_layer_period")
    if period:
        return ["full" if i % period == f.number("attn_layer_offset") else "mamba" for i in range(layers)]
    indices = f.rows("attn_layer_indices")
    if indices:
        return ["full" if i in indices else "mamba2" for i in range(layers)]
    indices = f.rows("full_attn_idxs")
    if indices:
        return ["full" if i in indices else "conv" for i in range(layers)]
    flags = f.rows("attn_type_list")
    if flags:
        return ["full" if flag else "linear" for flag in flags]
    linear = f.table("linear_attn_config").get("full_attn_layers")
    if isinstance(linear, list):
        return ["full" if i + 1 in linear else "linear" for i in range(layers)]
    cycle = f.rows("block_types", "_block_types")
    if cycle:
        return [_kind(f, str(cycle[i % len(cycle)])) for i in range(layers)]
    return ["mamba2" if f.family in _MAMBA_UNLESS_SAID else "full"] * layers


def _window(f: Fields) -> int:
    if f.flag("use_sliding_window") is False:
        return 0
    return f.number("sliding_window") or f.number("attention_chunk_size") or f.number("attention_window_size")


def _local(f: Fields, kinds: list[str]) -> list[bool]:
    """True for layers that see only the window, when the config has no layer_types."""
    n = len(kinds)
    for name, local in (("hybrid_layer_pattern", 1), ("no_rope_layers", 1)):
        flags = f.rows(name)
        if len(flags) == n:
            return [flag == local for flag in flags]
    pattern = f.raw("sliding_window_pattern", "_sliding_window_pattern")
    if isinstance(pattern, str) and pattern:
        return [pattern[i % len(pattern)] == "L" for i in range(n)]
    interval = pattern if isinstance(pattern, int) and pattern > 0 else _INTERVALS.get(f.family, 0)
    if interval:
        return [(i + 1) % interval != 0 for i in range(n)]
    if f.family in ("gemma2", "gpt_oss"):
        return [i % 2 == 0 for i in range(n)]
    first = f.whole_number("max_window_layers")
    if first is not None and f.family.startswith("qwen"):
        return [i >= first for i in range(n)]
    return [True] * n


def expert_layers(f: Fields, kinds: list[LayerKind]) -> list[bool]:
    """True where the MLP is a mixture of experts."""
    n = len(kinds)
    if any(kind.mixer in ("mlp", "moe") for kind in kinds):
        return [kind.mixer == "moe" for kind in kinds]
    if f.number("experts") <= 1:
        return [False] * n
    return [_is_expert(f, i) for i in range(n)]


def _is_expert(f: Fields, i: int) -> bool:
    frequency = f.raw("moe_layer_freq")
    if isinstance(frequency, list):
        return bool(frequency[i]) if i < len(frequency) else True
    kinds = f.rows("mlp_layer_types")
    if i < len(kinds):
        return kinds[i] == "sparse"
    if i in f.rows("mlp_only_layers"):
        return False
    if i < max(f.number("first_k_dense_replace"), f.number("num_dense_layers")):
        return False
    if isinstance(frequency, int) and frequency > 1:
        return i % frequency == 0
    step = f.number("decoder_sparse_step") or f.number("interleave_moe_layer_step")
    if step:
        return (i + 1) % step == 0
    period = f.number("expert_layer_period")
    if period:
        return i % period == f.number("expert_layer_offset")
    start, interval = f.whole_number("moe_layer_start_index"), f.number("moe_layer_interval", 1)
    if start is not None:
        end = f.raw("moe_layer_end_index")
        last = end if isinstance(end, int) and end >= 0 else 10**9
        return start <= i <= last and (i + 1) % interval == 0
    return True
