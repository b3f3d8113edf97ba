"""Sizes of the models whose layers are built here: published shapes, and small ones for a machine without a GPU.

Sources: the config.json of Llama-3.1-8B and of DeepSeek-V2-Lite on the hub.
"""

from __future__ import annotations

import msgspec


class Sizes(msgspec.Struct, frozen=True):
    """A decoder. `experts` 0: a plain feed-forward layer. `latent` > 0: keys and values are one latent vector (MLA)."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    ffn: int
    vocab: int
    experts: int = 0
    top_k: int = 0
    expert_ffn: int = 0
    shared_ffn: int = 0
    dense_layers: int = 0  # leading layers without experts
    latent: int = 0
    rope_size: int = 0
    value_size: int = 0

    @property
    def cache_per_token(self) -> int:
        """Elements that a layer keeps for a token."""
        return self.latent + self.rope_size if self.latent else 2 * self.kv_heads * self.head_size


LLAMA_8B = Sizes("llama-3.1-8b", 32, 4096, 32, 8, 128, 14336, 128256)
DEEPSEEK_LITE = Sizes(
    "deepseek-v2-lite", 27, 2048, 16, 16, 128, 10944, 102400,
    experts=64, top_k=6, expert_ffn=1408, shared_ffn=2816, dense_layers=1, latent=512, rope_size=64, value_size=128,
)  # fmt: skip
TINY = Sizes("tiny", 2, 128, 4, 2, 32, 256, 512)
TINY_MOE = Sizes(
    "tiny-moe", 2, 128, 4, 4, 32, 256, 512,
    experts=8, top_k=2, expert_ffn=64, shared_ffn=64, dense_layers=1, latent=64, rope_size=16, value_size=32,
)  # fmt: skip
KNOWN = {sizes.name: sizes for sizes in (LLAMA_8B, DEEPSEEK_LITE, TINY, TINY_MOE)}
