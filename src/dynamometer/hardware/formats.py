"""A model and the name of a weight or cache format in, bytes by tensor class out.

Bits a weight are those of the stored format: codes plus the scales and zero points of each group, never the nominal
bits. What a format leaves alone (embeddings, output head, router, norms, biases) stays at the model's own type.
Sources: the formats' own block layouts: GGUF blocks as laid down in ggml's public headers (a Q4_K superblock of 256
weights is 144 bytes), OCP Microscaling 1.0 (MXFP4: 32 codes and one 8-bit scale), NVFP4 (16 codes and one FP8 scale),
AWQ and GPTQ (packed codes, 16-bit scales and 4-bit zero points a group), DeepSeek-V3's FP8 (one 32-bit scale for 128
× 128).
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from dynamometer.errors import UsageError
from dynamometer.hardware.model import Model, Part, Quantization

DTYPE_BITS: Final = {"fp32": 32.0, "fp16": 16.0, "bf16": 16.0}

# Codes only; a group adds its scale (and zero point). None: the scale is per channel or tensor and too small to count.
_CODES: Final[dict[str, tuple[float, int, float]]] = {  # name: (bits of a code, default group, bits of a group's scale)
    "fp8": (8, 0, 0),
    "fp8_block": (8, 128 * 128, 32),
    "int8": (8, 0, 0),
    "int6": (6, 128, 16),
    "int4": (4, 128, 16),
    "int3": (3, 128, 16),
    "int2": (2, 128, 16),
    "nf4": (4, 64, 32),
    "mxfp4": (4, 32, 8),
    "mxfp8": (8, 32, 8),
    "nvfp4": (4, 16, 8),
}
_ALIASES: Final = {
    "auto": "",
    "float32": "fp32",
    "f32": "fp32",
    "half": "fp16",
    "float16": "fp16",
    "f16": "fp16",
    "bfloat16": "bf16",
    "float8": "fp8",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
    "e4m3": "fp8",
    "w8a8": "int8",
    "w8a16": "int8",
    "w4a16": "int4",
    "4bit": "int4",
    "8bit": "int8",
    "bnb4": "nf4",
    "fp4": "nvfp4",
    "q8": "q8_0",
    "q4": "q4_0",
    "q6": "q6_k",
    "q4_k": "q4_k_m",
    "q5_k": "q5_k_m",
    "q3_k": "q3_k_m",
}

# GGUF block types: bits a weight = 8 × bytes of a block / weights in it.
GGUF_BITS: Final[dict[str, float]] = {
    "f32": 32.0,
    "f16": 16.0,
    "bf16": 16.0,
    "q4_0": 4.5,
    "q4_1": 5.0,
    "q5_0": 5.5,
    "q5_1": 6.0,
    "q8_0": 8.5,
    "q2_k": 2.625,
    "q3_k": 3.4375,
    "q4_k": 4.5,
    "q5_k": 5.5,
    "q6_k": 6.5625,
    "iq4_xs": 4.25,
    "iq4_nl": 4.5,
    "iq3_s": 3.4375,
    "iq3_xxs": 3.0625,
    "iq2_xs": 2.3125,
    "iq2_xxs": 2.0625,
    "iq1_s": 1.5625,
    "mxfp4": 4.25,
}


class Mixture(msgspec.Struct, frozen=True):
    """Which block type a GGUF recipe gives each class; `more` goes to `attention_v` and `mlp_down` of some layers."""

    base: str
    head: str
    more: str = ""
    layers: str = ""  # some (first eighth, last eighth, every third between) | eighth (first eighth) | all
    value: str = ""  # attention_v, when it has a type of its own
    out: str = ""  # attention_out
    first: str = ""  # attention_v of the first two layers and mlp_down of the first sixteenth


MIXTURES: Final[dict[str, Mixture]] = {
    "q2_k": Mixture("q2_k", "q6_k", more="q3_k", layers="all", value="q4_k", out="q3_k"),
    "q3_k_s": Mixture("q3_k", "q6_k"),
    "q3_k_m": Mixture("q3_k", "q6_k", more="q4_k", layers="all", value="q4_k", out="q4_k", first="q5_k"),
    "q4_k_s": Mixture("q4_k", "q6_k", more="q5_k", layers="eighth"),
    "q4_k_m": Mixture("q4_k", "q6_k", more="q6_k", layers="some"),
    "q5_k_s": Mixture("q5_k", "q6_k"),
    "q5_k_m": Mixture("q5_k", "q6_k", more="q6_k", layers="some"),
    "q6_k": Mixture("q6_k", "q6_k"),
    "q4_0": Mixture("q4_0", "q6_k"),
    "q4_1": Mixture("q4_1", "q6_k"),
    "q5_0": Mixture("q5_0", "q6_k"),
    "q5_1": Mixture("q5_1", "q6_k"),
    "q8_0": Mixture("q8_0", "q8_0"),
    "iq4_xs": Mixture("iq4_xs", "q6_k", value="q5_k"),
}

KV_BYTES: Final = {
    "fp32": 4.0,
    "fp16": 2.0,
    "bf16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "int4": 0.5625,  # 32 codes with a 16-bit scale
    "q8_0": 34 / 32,
    "q5_1": 24 / 32,
    "q5_0": 22 / 32,
    "q4_1": 20 / 32,
    "q4_0": 18 / 32,
    "nvfp4": 0.5625,
}
_ALWAYS_WIDE: Final = frozenset({"embedding", "head", "router"})
_SKIP_WORDS: Final = (
    (re.compile(r"lm_head"), ("head",)),
    (re.compile(r"embed"), ("embedding",)),
    (re.compile(r"self_attn|attention|\battn"), ("attention", "attention_v", "attention_out")),
    (re.compile(r"shared_expert"), ("shared", "shared_down")),
    (re.compile(r"router|mlp\.gate$|^gate$"), ("router",)),
    (re.compile(r"mlp\W+(gate|up|down|\(gate)"), ("mlp", "mlp_down")),
    (re.compile(r"linear_attn|mamba|mixer"), ("recurrent",)),
)


def canonical(name: str) -> str:
    """A format's own name from any usual spelling; awq and gptq keep their names, "" means as stored."""
    key = name.strip().lower().replace("-", "_")
    key = _ALIASES.get(key, key)
    known = {"", "awq", "gptq", *DTYPE_BITS, *_CODES, *MIXTURES}
    if key not in known:
        raise UsageError(f"format is {name!r}; give one of {', '.join(sorted(known - {''}))}")
    return key


def kv_element_bytes(name: str, dtype: str) -> float:
    """Bytes of one cached element; "auto" follows the model's type."""
    key = name.strip().lower().replace("-", "_")
    key = _ALIASES.get(key, key) or (dtype if dtype != "fp8" else "bf16")
    if key not in KV_BYTES:
        raise UsageError(f"KV cache format is {name!r}; give one of auto, {', '.join(KV_BYTES)}")
    return KV_BYTES[key]


def scheme(model: Model, name: str) -> Quantization:
    """The quantization in force: the one asked for, or the checkpoint's own, or none (its dtype)."""
    key = canonical(name)
    if not key:
        return model.quantization or Quantization(model.dtype)
    if key in ("awq", "gptq"):
        return Quantization("int4", 128, True)
    return Quantization(key)


def bytes_by_kind(model: Model, name: str = "") -> dict[str, int]:
    """Bytes of the whole model's weights by tensor class, in the named format ("" or auto: as the checkpoint is
    stored)."""
    chosen = scheme(model, name)
    sums: dict[str, float] = {}
    narrow = not any(part.kind == "head" for part in model.parts)
    for part in model.parts:
        bits = _bits(model, part, chosen, tied=narrow)
        sums[part.kind] = sums.get(part.kind, 0.0) + part.elements * bits / 8
    return {kind: round(size) for kind, size in sums.items()}


def weights_bytes(model: Model, name: str = "") -> int | None:
    """Bytes of the whole model's weights; the real file's own sum when it was read and no other format is asked for.
    None when the config leaves the parameters open."""
    if not canonical(name) and model.stored_bytes:
        return model.stored_bytes
    return None if model.missing else sum(bytes_by_kind(model, name).values())


def _bits(model: Model, part: Part, chosen: Quantization, tied: bool) -> float:
    wide = DTYPE_BITS.get(model.dtype, 16.0)
    if chosen.method in DTYPE_BITS:
        return DTYPE_BITS[chosen.method]
    if chosen.method in MIXTURES:
        return _gguf_bits(part, MIXTURES[chosen.method], model.layers, tied)
    if chosen.method not in _CODES:
        raise UsageError(f"{model.name} is stored as {chosen.method!r}, whose size is not known; give --weights")
    if not part.matrix or part.kind in _ALWAYS_WIDE or _skipped(part.kind, chosen.skip):
        return wide
    if chosen.method == "mxfp4" and "experts" not in part.kind and any("experts" in p.kind for p in model.parts):
        return wide
    code, group, scale = _CODES[chosen.method]
    size = chosen.group or group
    zero = code if chosen.zero_point else 0.0
    return code + ((scale or 16) + zero) / size if size else code


def _skipped(kind: str, skip: tuple[str, ...]) -> bool:
    return any(kind in kinds for name in skip for words, kinds in _SKIP_WORDS if words.search(name.replace("\\", "")))


def _gguf_bits(part: Part, mixture: Mixture, layers: int, tied: bool) -> float:
    """Bits a weight of a class, averaged over the layers."""
    if not part.matrix or part.kind == "router":
        return 32.0
    base, more = GGUF_BITS[mixture.base], GGUF_BITS.get(mixture.more, 0.0)
    if part.kind == "head" or (part.kind == "embedding" and tied):
        return GGUF_BITS[mixture.head]
    if part.kind == "attention_out" and mixture.out:
        return GGUF_BITS[mixture.out]
    if part.kind == "attention_v" and mixture.value:
        return _first(mixture, min(2, layers) / layers, GGUF_BITS[mixture.value])
    if part.kind in ("attention_v", "mlp_down", "experts_down") and more:
        share = _share(layers, mixture.layers)
        return _first(mixture, layers // 16 / layers, share * more + (1 - share) * base)
    return base


def _first(mixture: Mixture, share: float, bits: float) -> float:
    """Average bits when a recipe treats the first layers better."""
    return share * GGUF_BITS[mixture.first] + (1 - share) * bits if mixture.first else bits


def _share(layers: int, which: str) -> float:
    """Share of the layers to which a recipe gives more bits."""
    eighth = layers // 8
    if which == "all":
        return 1.0
    if which == "eighth":
        return eighth / layers
    some = [i < eighth or i >= 7 * layers // 8 or (i - eighth) % 3 == 2 for i in range(layers)]
    return sum(some) / layers
