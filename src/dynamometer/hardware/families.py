"""A `model_type` in, its `Traits` out: what a config leaves unsaid about biases, norms and MLPs of its architecture.

Each line is read off the architecture's public reference implementation. A type that is not listed is counted as the
common shape (gated MLP, two RMS norms, no biases), and the result says so.
"""

from __future__ import annotations

from typing import Final

import msgspec


class Traits(msgspec.Struct, frozen=True):
    gated: bool = True
    qkv_bias: bool | None = False  # None: as the config's attention_bias / use_bias / bias says
    output_bias: bool | None = False
    mlp_bias: bool | None = False
    norms: int = 2  # vectors of hidden size a layer
    norm_bias: bool = False
    qk_norm: str = ""
    tied: bool = False  # when the config does not say
    positions: int = -1  # learned position rows beyond the context length; -1: none
    head_bias: bool = False
    embedding_norm: bool = False
    final_norm: bool = True
    sinks: bool = False
    gated_attention: bool = False
    expert_bias: bool = False
    router_bias: bool = False
    normless: bool = False
    sub_norms: bool = False  # a norm before the output and the down projection as well
    act_parameters: int = 0  # learned numbers in one layer's activation


_LLAMA = Traits(qkv_bias=None, output_bias=None, mlp_bias=None)
_QWEN2 = Traits(qkv_bias=True)
_QWEN3 = Traits(qkv_bias=None, output_bias=None, qk_norm="head")
_DEEPSEEK = Traits(qkv_bias=None, output_bias=None)
_GEMMA = Traits(qkv_bias=None, output_bias=None, tied=True)
_GEMMA3 = Traits(qkv_bias=None, output_bias=None, tied=True, norms=4, qk_norm="head")
_GPT2 = Traits(gated=False, qkv_bias=True, output_bias=True, mlp_bias=True, norm_bias=True, tied=True, positions=0)
_GPTJ = Traits(gated=False, mlp_bias=True, norm_bias=True, norms=1, head_bias=True)
_NEOX = Traits(gated=False, qkv_bias=True, output_bias=True, mlp_bias=True, norm_bias=True)
_QWEN35 = Traits(qkv_bias=None, output_bias=None, qk_norm="head", gated_attention=True)

FAMILIES: Final[dict[str, Traits]] = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "ministral": _LLAMA,
    "mistral3": _LLAMA,
    "mixtral": Traits(),
    "deepseek": _LLAMA,
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": Traits(qkv_bias=None, output_bias=None, router_bias=True),
    "deepseek_v32": Traits(qkv_bias=None, output_bias=None, router_bias=True),
    "kimi_k2": Traits(qkv_bias=None, output_bias=None, router_bias=True),
    "kimi_linear": Traits(router_bias=True),
    "glm_moe_dsa": Traits(router_bias=True),
    "glm4_moe_lite": Traits(router_bias=True),
    "longcat_flash": Traits(router_bias=True),
    "qwen": Traits(qkv_bias=True),
    "qwen2": _QWEN2,
    "qwen2_moe": _QWEN2,
    "qwen2_vl": _QWEN2,
    "qwen2_vl_text": _QWEN2,
    "qwen2_5_vl": _QWEN2,
    "qwen2_5_vl_text": _QWEN2,
    "qwen2_audio": _QWEN2,
    "qwen2_5_omni_text": _QWEN2,
    "mimo": _QWEN2,
    "mimo_v2_flash": Traits(qkv_bias=None, router_bias=True),
    "qwen3": _QWEN3,
    "qwen3_moe": _QWEN3,
    "qwen3_vl": _QWEN3,
    "qwen3_vl_text": _QWEN3,
    "qwen3_vl_moe": _QWEN3,
    "qwen3_vl_moe_text": _QWEN3,
    "qwen3_omni_moe_text": _QWEN3,
    "qwen3_next": _QWEN35,
    "qwen3_5": _QWEN35,
    "qwen3_5_text": _QWEN35,
    "qwen3_5_moe": _QWEN35,
    "qwen3_5_moe_text": _QWEN35,
    "gemma": _GEMMA,
    "gemma2": Traits(qkv_bias=None, output_bias=None, tied=True, norms=4),
    "gemma3": _GEMMA3,
    "gemma3_text": _GEMMA3,
    "gpt_oss": Traits(qkv_bias=None, output_bias=None, sinks=True, expert_bias=True, router_bias=True),
    "phi": Traits(gated=False, qkv_bias=True, output_bias=True, mlp_bias=True, norms=1, norm_bias=True, head_bias=True),
    "phi3": Traits(),
    "phi4mm": Traits(tied=True),
    "phimoe": Traits(qkv_bias=None, output_bias=None, norm_bias=True),
    "gpt2": _GPT2,
    "gpt_bigcode": _GPT2,
    "gpt_neo": Traits(gated=False, output_bias=True, mlp_bias=True, norm_bias=True, tied=True, positions=0),
    "gptj": _GPTJ,
    "codegen": _GPTJ,
    "gpt_neox": _NEOX,
    "gpt_neox_japanese": Traits(gated=False, norm_bias=True),
    "falcon": Traits(gated=False, qkv_bias=None, output_bias=None, mlp_bias=None, norm_bias=True, tied=True),
    "bloom": Traits(
        gated=False, qkv_bias=True, output_bias=True, mlp_bias=True, norm_bias=True, tied=True, embedding_norm=True
    ),
    "opt": Traits(gated=False, qkv_bias=True, output_bias=True, mlp_bias=True, norm_bias=True, tied=True, positions=2),
    "mpt": Traits(gated=False, tied=True),
    "starcoder2": Traits(gated=False, qkv_bias=True, output_bias=True, mlp_bias=True, norm_bias=True, tied=True),
    "stablelm": Traits(norm_bias=True),
    "persimmon": Traits(gated=False, qkv_bias=True, output_bias=True, mlp_bias=True, norm_bias=True, qk_norm="layer"),
    "olmo": Traits(qkv_bias=None, output_bias=None, normless=True),
    "olmo2": Traits(qkv_bias=None, output_bias=None, qk_norm="full"),
    "olmo3": Traits(qkv_bias=None, output_bias=None, qk_norm="full"),
    "olmoe": Traits(qkv_bias=None, output_bias=None, qk_norm="full"),
    "flex_olmo": Traits(qkv_bias=None, output_bias=None, qk_norm="full"),
    "cohere": Traits(qkv_bias=None, output_bias=None, norms=1, tied=True),
    "cohere2": Traits(qkv_bias=None, output_bias=None, norms=1, tied=True),
    "granite": _LLAMA,
    "granitemoe": Traits(qkv_bias=None, output_bias=None),
    "granitemoeshared": Traits(qkv_bias=None, output_bias=None),
    "granitemoehybrid": Traits(qkv_bias=None, output_bias=None),
    "minicpm": _LLAMA,
    "minicpm3": _DEEPSEEK,
    "internlm": Traits(qkv_bias=None, output_bias=None),
    "internlm2": Traits(qkv_bias=None, output_bias=None),
    "internlm3": Traits(qkv_bias=None, output_bias=None),
    "baichuan": Traits(),
    "chatglm": Traits(qkv_bias=None),
    "glm": Traits(qkv_bias=None),
    "glm4": Traits(qkv_bias=None, norms=4),
    "glm4_moe": Traits(qkv_bias=None, router_bias=True),
    "exaone": Traits(),
    "exaone4": Traits(qk_norm="head"),
    "smollm3": _LLAMA,
    "nemotron": Traits(gated=False, qkv_bias=None, output_bias=None, mlp_bias=None, norm_bias=True),
    "nemotron-nas": _LLAMA,
    "nemotron_h": Traits(gated=False, qkv_bias=None, output_bias=None, mlp_bias=None, norms=1, router_bias=True),
    "arcee": Traits(gated=False, qkv_bias=None, output_bias=None, mlp_bias=None),
    "apertus": Traits(gated=False, qkv_bias=None, output_bias=None, mlp_bias=None, qk_norm="head", act_parameters=2),
    "seed_oss": Traits(qkv_bias=None, output_bias=False, mlp_bias=None),
    "ernie4_5": Traits(qkv_bias=None, output_bias=None, mlp_bias=None, tied=True),
    "ernie4_5_moe": Traits(qkv_bias=None, output_bias=None, mlp_bias=None, tied=True, router_bias=True),
    "dots1": Traits(qkv_bias=None, output_bias=None, qk_norm="head", router_bias=True),
    "hunyuan_v1_dense": Traits(qkv_bias=None, output_bias=None, qk_norm="head"),
    "hunyuan_v1_moe": Traits(qkv_bias=None, output_bias=None, qk_norm="head"),
    "minimax": Traits(),
    "minimax_m2": Traits(qk_norm="full", router_bias=True),
    "minimax_m3": Traits(qk_norm="head", router_bias=True),
    "llama4": _LLAMA,
    "mllama_text_model": _LLAMA,
    "mllama": _LLAMA,
    "llama4_text": Traits(qkv_bias=None, output_bias=None),
    "dbrx": Traits(norms=2),
    "jamba": Traits(),
    "bamba": Traits(qkv_bias=None, output_bias=None, mlp_bias=None),
    "lfm2": Traits(qk_norm="head", tied=True),
    "lfm2_moe": Traits(qk_norm="head", tied=True),
    "mamba": Traits(tied=True),
    "mamba2": Traits(),
    "falcon_mamba": Traits(tied=True),
    "falcon_h1": Traits(qkv_bias=None, output_bias=None, mlp_bias=None),
    "recurrent_gemma": Traits(output_bias=True, mlp_bias=True, tied=True),
    "diffllama": _LLAMA,
    "helium": _LLAMA,
    "bitnet": Traits(sub_norms=True),
    "exaone_moe": Traits(qk_norm="head", router_bias=True),
    "hy_v3": Traits(qk_norm="head", router_bias=True),
    "minimax_text_01": Traits(),
    "minimax_m1": Traits(),
    "gemma4": _GEMMA3,
    "gemma4_text": _GEMMA3,
    "cwm": _LLAMA,
    "vaultgemma": Traits(qkv_bias=None, output_bias=None, tied=True),
    "ministral3": _LLAMA,
    "jais2": Traits(gated=False, qkv_bias=None, output_bias=None, mlp_bias=None, norm_bias=True),
    "gpt-sw3": _GPT2,
    "xglm": Traits(gated=False, qkv_bias=True, output_bias=True, mlp_bias=True, norm_bias=True, tied=True),
}

# Values that the published configs of a type leave out because its reference class defaults to them. Using one is
# noted.
DEFAULTS: Final[dict[str, dict[str, int]]] = {
    "gemma3_text": {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262208},
    "gemma2": {"head_dim": 256},
    "gemma": {"head_dim": 256},
}

# The same, for a language model nested in a multimodal config, whose writer drops every value equal to its class
# default.
NESTED_DEFAULTS: Final[dict[str, dict[str, int]]] = {
    "llama": {
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "vocab_size": 32000,
    },
    "mistral": {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 32000,
    },
}
