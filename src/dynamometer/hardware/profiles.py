"""An engine's name in, how its host and its kernels behave out: the part of a step's time that no datasheet tells.

Efficiencies are shares of the datasheet peak. `vllm` is fitted to 28,000 steps of vLLM 0.26 on an H200
(docs/simulator.md); others are stated with their source. A calibration of one's own replaces all of it.
"""

from __future__ import annotations

from typing import Final

import msgspec

from dynamometer.errors import UsageError
from dynamometer.hardware.stepcost import Host


class EngineProfile(msgspec.Struct, frozen=True):
    """Shares of peak, seconds per layer, and the host. `spread`: relative error to expect of a step, one standard
    deviation."""

    memory_share: float = 0.80
    compute_share: float = 0.62
    attention_share: float = 0.40
    layer_s: float = 20e-6
    moe_layer_s: float = 43e-6
    sequence_s: float = 10e-6
    host: Host = Host()
    depth: int = 1
    batching: str = "chunked"
    size: int = 256
    tokens: int = 8192
    spread: float = 0.30
    source: str = ""


_VLLM_HOST: Final = Host(
    decode_s=2.3e-3,
    decode_per_sequence_s=35e-6,
    graph_s=(6.5e-3, 6.9e-3, 7.2e-3, 10.5e-3),
    eager_s=(14.3e-3, 15.1e-3, 17.5e-3, 23.0e-3),
    graph_tokens=512,
    prepare_s=1.7e-3,
    accept_s=1.8e-3,
    reply_s=1.0e-3,
    reply_first_s=0.7e-3,
    reply_per_sequence_s=0.1e-3,
)
PROFILES: Final[dict[str, EngineProfile]] = {
    "vllm": EngineProfile(host=_VLLM_HOST, depth=2, source="fitted: vLLM 0.26, H200, Llama-3.1-8B shape"),
    "sglang": EngineProfile(
        host=msgspec.structs.replace(_VLLM_HOST, decode_s=1.5e-3, accept_s=1.0e-3),
        depth=2,
        source="vllm's fit with a lighter host: an assumption",
    ),
    "tensorrt-llm": EngineProfile(
        memory_share=0.85,
        host=msgspec.structs.replace(_VLLM_HOST, decode_s=1.0e-3, accept_s=0.5e-3),
        depth=2,
        source="vllm's fit with a lighter host: an assumption",
    ),
    "llama.cpp": EngineProfile(
        memory_share=0.70,
        compute_share=0.40,
        layer_s=5e-6,
        sequence_s=50e-6,
        host=Host(decode_s=0.2e-3, graph_s=(0.2e-3,), eager_s=(0.2e-3,), reply_s=0.2e-3),
        tokens=2048,
        size=64,
        source="order of magnitude of llama.cpp servers: calibrate it",
    ),
    "triton-static": EngineProfile(batching="static", size=32, source="a static batch of 32"),
    "triton-dynamic": EngineProfile(batching="dynamic", size=32, source="a dynamic batch: 100 ms, 32 at most"),
    "ideal": EngineProfile(
        memory_share=1.0,
        compute_share=1.0,
        attention_share=1.0,
        layer_s=0.0,
        moe_layer_s=0.0,
        sequence_s=0.0,
        spread=0.0,
        source="the roofline itself",
    ),
}


def profile(name: str) -> EngineProfile:
    """A profile by the engine's name."""
    if name not in PROFILES:
        raise UsageError(f"engine profile is {name!r}; one of {', '.join(PROFILES)}")
    return PROFILES[name]
