"""Fields of a recurrent layer in, its weights and the bytes of state it keeps for each sequence out.

State bytes follow the config's own state type where it names one, else the model's type; the convolution keeps kernel
- 1 columns. Sources: the reference implementations of Mamba, Mamba-2, Gated DeltaNet, Kimi Delta Attention, Lightning
Attention, RG-LRU and LFM2's short convolution.
"""

from __future__ import annotations

from typing import Final

from dynamometer.hardware.fields import Fields
from dynamometer.hardware.layers import matrix, vector
from dynamometer.hardware.model import Part

_WIDTH: Final = {"float32": 4, "fp32": 4, "bfloat16": 2, "float16": 2, "bf16": 2, "fp16": 2}


def recurrent(f: Fields, kind: str, hidden: int, dtype_bytes: int) -> tuple[list[Part], int | None]:
    """(weights, bytes of state) of one layer; bytes None when the config lacks the fields that give them."""
    named = f.text("mamba_ssm_cache_dtype", "mamba_ssm_dtype").removeprefix("torch.")
    state_bytes = _WIDTH.get(named, dtype_bytes)
    if kind == "linear":
        if f.table("linear_attn_config") or f.number("linear_num_heads"):
            return _delta_channelwise(f, hidden, dtype_bytes, state_bytes)
        if f.number("linear_num_value_heads"):
            return _delta(f, hidden, dtype_bytes, state_bytes)
        if f.family.startswith("minimax"):
            return _lightning(f, hidden)
        return [], None
    makers = {"mamba": _mamba, "mamba2": _mamba2, "parallel": _mamba2}
    if kind in makers:
        return makers[kind](f, hidden, dtype_bytes, state_bytes)
    if kind == "conv":
        return _short_conv(f, hidden, dtype_bytes)
    if kind == "recurrent" and f.number("lru_width"):
        return _rg_lru(f, hidden, dtype_bytes)
    return [], None


def _mamba(f: Fields, hidden: int, conv_bytes: int, ssm_bytes: int) -> tuple[list[Part], int | None]:
    inner = f.number("mamba_expand", f.number("expand")) * hidden or f.number("intermediate")
    state = f.number("mamba_d_state", f.number("state_size"))
    kernel = f.number("mamba_d_conv", f.number("conv_kernel"))
    if not (inner and state and kernel):
        return [], None
    rank = (
        f.whole_number("mamba_dt_rank") if isinstance(f.raw("mamba_dt_rank"), int) else f.whole_number("time_step_rank")
    )
    rank = rank or -(-hidden // 16)
    conv_bias = f.flag("mamba_conv_bias", "use_conv_bias") is not False
    matrices = hidden * 2 * inner + inner * (rank + 2 * state) + rank * inner + inner * hidden
    vectors = inner * kernel + (inner if conv_bias else 0) + inner + inner * state + inner
    if f.family == "jamba":
        vectors += rank + 2 * state
    if f.flag("mamba_proj_bias", "use_bias"):
        vectors += 2 * inner + hidden
    return [matrix("recurrent", matrices), vector("recurrent", vectors)], (
        inner * (kernel - 1) * conv_bytes + inner * state * ssm_bytes
    )


def _mamba2(f: Fields, hidden: int, conv_bytes: int, ssm_bytes: int) -> tuple[list[Part], int | None]:
    heads = f.number("mamba_num_heads", f.number("mamba_n_heads", 0 if f.family != "mamba2" else f.number("num_heads")))
    width = f.number("mamba_head_dim", f.number("mamba_d_head", 0 if f.family != "mamba2" else f.number("head_dim")))
    inner = heads * width or f.number("mamba_d_ssm") or f.number("mamba_expand", f.number("expand")) * hidden
    groups = f.number("mamba_n_groups", f.number("n_groups", 1))
    state = f.number("mamba_d_state", f.number("ssm_state_size", f.number("state_size")))
    kernel = f.number("mamba_d_conv", f.number("conv_kernel"))
    if not (inner and heads and state and kernel):
        return [], None
    conv = inner + 2 * groups * state
    conv_bias = f.flag("mamba_conv_bias", "use_conv_bias") is not False
    norm = 0 if f.family == "falcon_h1" and f.flag("mamba_rms_norm") is not True else inner
    vectors = conv * kernel + (conv if conv_bias else 0) + 3 * heads + norm
    if f.flag("mamba_proj_bias", "use_bias"):
        vectors += inner + conv + heads + hidden
    weights = [
        matrix("recurrent", hidden * (inner + conv + heads) + inner * hidden),
        vector("recurrent", vectors),
    ]
    return weights, conv * (kernel - 1) * conv_bytes + inner * state * ssm_bytes


def _delta(f: Fields, hidden: int, conv_bytes: int, state_bytes: int) -> tuple[list[Part], int | None]:
    """Gated DeltaNet (Qwen3-Next, Qwen3.5)."""
    keys = f.number("linear_num_key_heads") * f.number("linear_key_head_dim")
    heads, value = f.number("linear_num_value_heads"), f.number("linear_value_head_dim")
    kernel = f.number("linear_conv_kernel_dim", 4)
    values, conv = heads * value, 2 * keys + heads * value
    weights = [
        matrix("recurrent", hidden * (2 * keys + 2 * values) + hidden * 2 * heads + values * hidden),
        vector("recurrent", conv * kernel + 2 * heads + value),
    ]
    state = heads * f.number("linear_key_head_dim") * value
    return weights, conv * (kernel - 1) * conv_bytes + state * state_bytes


def _delta_channelwise(f: Fields, hidden: int, conv_bytes: int, state_bytes: int) -> tuple[list[Part], int | None]:
    """Kimi Delta Attention: low-rank decay and output gates, one decay a channel."""
    table = f.table("linear_attn_config")
    heads, width, kernel = (table.get(name) for name in ("num_heads", "head_dim", "short_conv_kernel_size"))
    if not table:
        names = ("linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim")
        heads, width, kernel = (f.number(name) for name in names)
    if not (isinstance(heads, int) and isinstance(width, int) and isinstance(kernel, int)):
        return [], None
    inner = heads * width
    gates = 2 * (hidden * width + width * inner)
    weights = [
        matrix("recurrent", 3 * hidden * inner + gates + hidden * heads + inner * hidden),
        vector("recurrent", 3 * inner * kernel + heads + inner + width),
    ]
    return weights, 3 * inner * (kernel - 1) * conv_bytes + inner * width * max(state_bytes, 4)


def _lightning(f: Fields, hidden: int) -> tuple[list[Part], int | None]:
    """Lightning attention (MiniMax-Text-01); its state is kept in 32 bits."""
    heads = f.number("heads")
    if not heads:
        return [], None
    width = f.number("head_dim") or hidden // heads
    inner = heads * width
    weights = [matrix("recurrent", hidden * 3 * inner + hidden * inner + inner * hidden), vector("norm", inner)]
    return weights, inner * width * 4


def _short_conv(f: Fields, hidden: int, conv_bytes: int) -> tuple[list[Part], int | None]:
    kernel = f.number("conv_L_cache", 3)
    bias = 3 * hidden + hidden + hidden if f.flag("conv_bias") else 0
    weights = [matrix("recurrent", hidden * 3 * hidden + hidden * hidden), vector("recurrent", hidden * kernel + bias)]
    return weights, hidden * (kernel - 1) * conv_bytes


def _rg_lru(f: Fields, hidden: int, conv_bytes: int) -> tuple[list[Part], int | None]:
    """RG-LRU (RecurrentGemma); the recurrence is kept in 32 bits."""
    width, blocks, kernel = f.number("lru_width"), f.number("heads"), f.number("conv1d_width", 4)
    weights = [
        matrix("recurrent", 3 * hidden * width + 2 * width * width // max(blocks, 1)),
        vector("recurrent", width * 2 + hidden + width * kernel + width + 3 * width),
    ]
    return weights, width * 4 + (kernel - 1) * width * conv_bytes
