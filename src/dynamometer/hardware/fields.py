"""A config.json as parsed in, typed fields out: finds the language part in a multimodal config, knows each field's
aliases and says which field it wanted when none is there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from dynamometer.errors import UsageError
from dynamometer.hardware.families import DEFAULTS, NESTED_DEFAULTS

Json = Mapping[str, object]

_LANGUAGE: Final = ("text_config", "llm_config", "language_config", "thinker_config", "language_model", "decoder")
ALIASES: Final[dict[str, tuple[str, ...]]] = {
    "layers": (
        "num_hidden_layers",
        "n_layer",
        "n_layers",
        "num_layers",
        "num_decoder_layers",
        "num_transformer_layers",
    ),
    "hidden": ("hidden_size", "n_embd", "n_embed", "d_model", "dim", "model_dim"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads", "num_query_heads"),
    "kv_heads": (
        "num_key_value_heads",
        "num_kv_heads",
        "n_head_kv",
        "n_kv_heads",
        "multi_query_group_num",
        "kv_n_heads",
    ),
    "head_dim": ("head_dim", "kv_channels", "attention_head_dim", "attention_hidden_size_per_head"),
    "intermediate": ("intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim", "d_ff", "hidden_dim"),
    "vocab": ("padded_vocab_size", "vocab_size"),
    "context": ("max_position_embeddings", "n_positions", "seq_length", "max_seq_len", "max_sequence_length", "n_ctx"),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"),
    "chosen": (
        "num_experts_per_tok",
        "num_experts_per_token",
        "experts_per_token",
        "moe_top_k",
        "moe_topk",
        "moe_k",
        "top_k_experts",
    ),
    "expert_intermediate": ("moe_intermediate_size", "expert_intermediate_size", "expert_ffn_hidden_size"),
}


class Fields(msgspec.Struct, frozen=True):
    """The language model's own table, and the whole config around it for what the table does not repeat."""

    own: Json
    whole: Json
    family: str
    nested: bool
    assumed: tuple[str, ...] = ()

    def raw(self, *names: str) -> object:
        """First of the names that has a value; None when absent or null."""
        for table in (self.own, self.whole):
            for name in names:
                if table.get(name) is not None and not (table is self.whole and self.nested and name in _SHAPE):
                    return table[name]
        return None

    def whole_number(self, key: str, default: int | None = None) -> int | None:
        """An integer field by our name for it, through its aliases; lists (one entry a layer) are left to their
        readers."""
        names = ALIASES.get(key, (key,))
        value = self.raw(*names)
        if isinstance(value, list) and value and all(item == value[0] for item in value):
            value = value[0]  # one entry a layer, all alike
        if value is None or isinstance(value, (list, Mapping)):
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value != int(value) or value < 0:
            raise UsageError(f"{names[0]} is {value!r} in the model's config; a whole number is wanted")
        return int(value)

    def number(self, key: str, default: int = 0) -> int:
        value = self.whole_number(key)
        return default if value is None else value

    def flag(self, *names: str) -> bool | None:
        value = self.raw(*names)
        return value if isinstance(value, bool) else None

    def text(self, *names: str) -> str:
        value = self.raw(*names)
        return value if isinstance(value, str) else ""

    def rows(self, *names: str) -> list[object]:
        value = self.raw(*names)
        return list(value) if isinstance(value, list) else []

    def table(self, *names: str) -> Json:
        value = self.raw(*names)
        return value if isinstance(value, Mapping) else {}


_SHAPE: Final = frozenset(name for key, names in ALIASES.items() if key not in ("vocab", "context") for name in names)


def read(config: Json) -> Fields:
    """Finds the language model in a config, however deep, and adds the defaults that its type leaves out."""
    own, nested = language_part(config)
    for part in ("attn_config", "ffn_config", "moe"):  # heads and experts in tables of their own
        inner = own.get(part)
        own = {**inner, **own} if isinstance(inner, Mapping) else own
    family = str(own.get("model_type") or "")
    if nested and not family:
        family = str(config.get("model_type") or "")
    fill = dict(DEFAULTS.get(family, {}))
    if nested:
        fill.update(NESTED_DEFAULTS.get(family, {}))
    alias_of = {name: names for names in ALIASES.values() for name in names}
    absent = {
        name: value
        for name, value in fill.items()
        if all(own.get(other) is None for other in alias_of.get(name, (name,)))
    }
    assumed = tuple(f"{name} {value}, the default of {family}" for name, value in absent.items())
    return Fields({**absent, **own} if not absent else {**own, **absent}, config, family, nested, assumed)


def language_part(config: Json, depth: int = 0) -> tuple[Json, bool]:
    """The innermost table under one of the known names; the config itself when there is none."""
    for key in _LANGUAGE:
        inner = config.get(key)
        if isinstance(inner, Mapping) and inner and depth < 4:
            return language_part(inner, depth + 1)[0], True
    return config, False
