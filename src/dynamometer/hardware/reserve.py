"""An engine's name in, what it keeps for itself and what its memory flag means out.

Everything here is a size that is not weights and not cache: the peak of one forward pass, the sampler's copies of the
logits, the CUDA context, graphs. Constants are fitted to published start-up profiles (docs/memory.md has table and
residuals).
"""

from __future__ import annotations

from typing import Final

import msgspec

from dynamometer.errors import UsageError
from dynamometer.hardware.model import Model
from dynamometer.units import GIB


class Engine(msgspec.Struct, frozen=True):
    """`flag_of`: what the share in `utilization` is a share of: total memory; memory free once weights and working
    memory are taken; or none (the engine allocates exactly what it is told to)."""

    name: str
    flag: str
    flag_of: str  # total | free | static | none
    utilization: float
    block: int  # tokens in a block of the cache; 1 = contiguous or token-granular
    batched_tokens: int  # most tokens in one forward pass
    sequences: int  # most sequences sampled at once
    sampler_copies: float  # 32-bit copies of the logits alive at the sampler's peak
    context_bytes: int  # CUDA context and libraries, one GPU
    peer_bytes: int  # more of it per GPU when several work together
    graph_bytes: int
    paged: bool = True
    meaning: str = ""


ENGINES: Final[dict[str, Engine]] = {
    "vllm": Engine(
        "vllm",
        "--gpu-memory-utilization",
        "total",
        0.92,
        16,
        8192,
        256,
        1.0,
        round(0.14 * GIB),
        round(0.41 * GIB),
        round(0.35 * GIB),
        meaning="a share of the GPU's total memory for weights, working memory and cache together",
    ),
    "vllm-0.11": Engine(
        "vllm-0.11",
        "--gpu-memory-utilization",
        "total",
        0.90,
        16,
        8192,
        1024,
        9.6,
        round(0.13 * GIB),
        round(0.41 * GIB),
        0,
        meaning="a share of the GPU's total memory for weights, working memory and cache; CUDA graphs come on top",
    ),
    "sglang": Engine(
        "sglang",
        "--mem-fraction-static",
        "static",
        0.88,
        1,
        8192,
        256,
        2.0,
        round(0.5 * GIB),
        round(0.5 * GIB),
        round(1.0 * GIB),
        meaning="a share of the GPU's total memory for weights and cache only; working memory and graphs take the rest",
    ),
    "tensorrt-llm": Engine(
        "tensorrt-llm",
        "free_gpu_memory_fraction",
        "free",
        0.90,
        32,
        8192,
        256,
        2.0,
        round(0.6 * GIB),
        round(0.5 * GIB),
        round(0.5 * GIB),
        meaning="a share of the memory still free once weights and working memory are loaded, for the cache alone",
    ),
    "lmdeploy": Engine(
        "lmdeploy",
        "--cache-max-entry-count",
        "free",
        0.80,
        64,
        8192,
        256,
        2.0,
        round(0.5 * GIB),
        round(0.4 * GIB),
        0,
        meaning="a share of the memory that is still free once the weights are loaded, for the cache alone",
    ),
    "tgi": Engine(
        "tgi",
        "--cuda-memory-fraction",
        "total",
        1.0,
        1,
        4096,
        256,
        2.0,
        round(0.5 * GIB),
        round(0.4 * GIB),
        round(0.5 * GIB),
        meaning="the most the process may take of the GPU's total memory",
    ),
    "llama.cpp": Engine(
        "llama.cpp",
        "--ctx-size",
        "none",
        1.0,
        1,
        512,
        512,
        1.0,
        round(0.1 * GIB),
        0,
        0,
        paged=False,
        meaning="no share: it allocates the cache of the whole --ctx-size at start, which all slots share",
    ),
    "transformers": Engine(
        "transformers",
        "none",
        "none",
        1.0,
        1,
        4096,
        64,
        2.0,
        round(0.5 * GIB),
        round(0.3 * GIB),
        0,
        paged=False,
        meaning="no share: the cache grows with each token until memory ends",
    ),
}
_ALIASES: Final = {
    "trt-llm": "tensorrt-llm",
    "trtllm": "tensorrt-llm",
    "tensorrt_llm": "tensorrt-llm",
    "llamacpp": "llama.cpp",
    "llama-cpp": "llama.cpp",
    "hf": "transformers",
}


def engine(name: str) -> Engine:
    """An engine's profile by name."""
    key = name.strip().lower()
    key = _ALIASES.get(key, key)
    if key not in ENGINES:
        raise UsageError(f"engine {name!r} has no memory profile; give one of {', '.join(ENGINES)}")
    return ENGINES[key]


class Buffers(msgspec.Struct, frozen=True):
    """Bytes on each GPU that are neither weights nor cache."""

    activation: int
    graphs: int
    runtime: int  # context, libraries, communication
    why: str  # what set the activation peak

    @property
    def total(self) -> int:
        return self.activation + self.graphs + self.runtime


def buffers(model: Model, profile: Engine, tp: int = 1, width: int = 2) -> Buffers:
    """Peak working memory on one of `tp` ranks: a forward pass over `batched_tokens`, or the sampler, whichever is
    more.

    A pass holds the residual, the normed input, and the widest MLP's gate, up and product; attention's projections are
    narrower than that in every model here. Logits are whole on every rank.
    """
    if profile.name == "llama.cpp":
        return Buffers(_graph_buffer(model, profile.batched_tokens), 0, profile.context_bytes, "one micro-batch")
    mlp = 3 * -(-model.intermediate // tp)
    forward = profile.batched_tokens * width * (mlp + 2 * model.hidden)
    sampler = round(profile.sampler_copies * profile.sequences * model.vocab * 4)
    why = "forward pass" if forward >= sampler else "sampler's copies of the logits"
    runtime = profile.context_bytes + (profile.peer_bytes if tp > 1 else 0)
    return Buffers(max(forward, sampler), profile.graph_bytes, runtime, why)


def padding(model: Model, method: str, by_kind: dict[str, int], profile: Engine) -> int:
    """Bytes by which vLLM's MXFP4 expert kernels widen the weights: each expert's intermediate size rounded up to
    256."""
    if method != "mxfp4" or not model.expert_width or not profile.name.startswith("vllm"):
        return 0
    wide = -(-model.expert_width // 256) * 256
    experts = by_kind.get("experts", 0) + by_kind.get("experts_down", 0)
    return round(experts * (wide / model.expert_width - 1))


def _graph_buffer(model: Model, ubatch: int) -> int:
    """llama.cpp's compute buffer for one micro-batch: 32-bit rows of the MLP's gate and up, and nine of the model's
    width.

    Logits are kept for the tokens that are sampled only. 3 % under what it logs for SmolLM2-135M (16.64 MiB).
    """
    return ubatch * 4 * (2 * model.intermediate + 9 * model.hidden)
