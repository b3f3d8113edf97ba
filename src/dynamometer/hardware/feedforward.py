"""A config's fields in, the widths of its feed-forward layers out: plain MLPs, routed experts, shared experts."""

from __future__ import annotations

from typing import Final

from dynamometer.hardware.families import FAMILIES, Traits
from dynamometer.hardware.fields import Fields
from dynamometer.hardware.layers import ExpertShape

_FOUR_TIMES: Final = frozenset({"gpt2", "gpt_bigcode", "gptj", "codegen", "gpt_neo", "falcon", "bloom", "mpt"})


def gated(f: Fields, traits: Traits) -> bool:
    """Whether the MLP has a gate; for a type that is not known, by its activation: GELU and ReLU are the plain form."""
    if f.family in FAMILIES:
        return traits.gated
    act = f.text("hidden_act", "mlp_hidden_act", "hidden_activation", "activation_function")
    return act not in ("relu2", "xielu", "gelu", "gelu_new", "gelu_fast", "quick_gelu", "relu")


def dense_width(f: Fields) -> int:
    """Width of a layer's own MLP where it is not a mixture of experts."""
    if f.number("experts") > 1:
        special = f.number("intermediate_size_mlp") or f.number("dense_intermediate_size")
        if special:
            return special
    width = f.number("intermediate")
    if f.number("block_multiple_of") and f.flag("block_auto_adjust_ff_dim"):
        scale, multiple = f.raw("block_ffn_dim_multiplier"), f.number("block_multiple_of")
        width = int(2 * width / 3 * (scale if isinstance(scale, (int, float)) else 1))
        return -(-width // multiple) * multiple
    if f.family == "recurrent_gemma":
        return width // 2
    if not width and f.family in _FOUR_TIMES:
        width = f.number("expansion_ratio", 4) * f.number("hidden")
    return width // 2 if f.family == "qwen" else width


def widest(f: Fields) -> int:
    """The widest MLP that a token passes through, in elements."""
    if f.number("experts") <= 1:
        return dense_width(f)
    one = f.number("expert_intermediate") or f.number("intermediate")
    return max(one * f.number("chosen", 1) + _shared_width(f, one), f.number("intermediate"))


def _shared_width(f: Fields, one: int) -> int:
    """Width of all shared experts together."""
    stated = (
        f.number("shared_expert_intermediate_size")
        or f.number("shared_intermediate_size")
        or f.number("share_expert_dim")
    )
    if stated:
        return stated
    count = f.raw("n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "num_shared_expert")
    if isinstance(count, list):
        count = max((n for n in count if isinstance(n, int)), default=0)
    each = f.number("moe_shared_expert_intermediate_size") or one
    if f.family in ("llama4_text",):
        return one
    return int(count) * each if isinstance(count, int) else 0


def expert_shape(f: Fields, traits: Traits) -> ExpertShape:
    one = f.number("expert_intermediate") or f.number("intermediate")
    corrected = f.text("topk_method") == "noaux_tc" or bool(
        f.flag("use_routing_bias", "moe_use_aux_free", "use_expert_bias")
    )
    return ExpertShape(
        hidden=f.number("hidden"),
        experts=f.number("experts"),
        chosen=f.number("chosen"),
        intermediate=one,
        gated=gated(f, traits),
        bias=traits.expert_bias,
        router_bias=traits.router_bias or corrected,
        shared_intermediate=_shared_width(f, one),
        shared_gate=bool(f.number("shared_expert_intermediate_size")),
        latent=f.number("moe_latent_size") or f.number("routed_expert_hidden_size"),
    )
