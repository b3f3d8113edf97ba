"""Sizes in, a decoder in plain PyTorch with random weights out: prefill and decode with an attention that is handed in.

It exists to time kernels where they are used. Its speeds are real, its answers are not, unless weights are loaded
into it. Products go through `Linear`, so that `quantized.py` can put other formats in their place; attention through
a callable, so that each kind can stand there.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from dynamometer.kernels.shapes import Sizes

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
Cache = tuple[torch.Tensor, torch.Tensor]  # keys and values [batch, kv_heads, length, head_size] of one layer


class Linear(nn.Module):
    """x · weightᵀ; weight [out, in]."""

    def __init__(self, inputs: int, outputs: int, device: str, dtype: torch.dtype) -> None:
        super().__init__()
        weight = torch.empty((outputs, inputs), device=device, dtype=dtype).normal_(0.0, inputs**-0.5)
        self.weight = nn.Parameter(weight, requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight)


class Norm(nn.Module):
    def __init__(self, size: int, device: str, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size, device=device, dtype=dtype), requires_grad=False)
        self.size = size

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (self.size,), self.weight, 1e-5)


class FeedForward(nn.Module):
    """Gated: down(silu(gate(x)) · up(x)); gate and up are one product."""

    def __init__(self, hidden: int, ffn: int, device: str, dtype: torch.dtype) -> None:
        super().__init__()
        self.gate_up = Linear(hidden, 2 * ffn, device, dtype)
        self.down = Linear(ffn, hidden, device, dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        out: torch.Tensor = self.down(F.silu(gate) * up)
        return out


class Attention(nn.Module):
    """Grouped-query attention with rotary positions."""

    def __init__(self, sizes: Sizes, device: str, dtype: torch.dtype) -> None:
        super().__init__()
        self.sizes = sizes
        width = (sizes.heads + 2 * sizes.kv_heads) * sizes.head_size
        self.qkv = Linear(sizes.hidden, width, device, dtype)
        self.out = Linear(sizes.heads * sizes.head_size, sizes.hidden, device, dtype)

    def forward(
        self, x: torch.Tensor, rope: torch.Tensor, attend: Attend, cache: Cache | None, at: int
    ) -> torch.Tensor:
        """x [batch, tokens, hidden]. With a cache, keys and values are written there from `at` on; all are read."""
        batch, tokens, _ = x.shape
        heads, shared, size = self.sizes.heads, self.sizes.kv_heads, self.sizes.head_size
        qkv = self.qkv(x).view(batch, tokens, heads + 2 * shared, size).transpose(1, 2)
        q, k, v = qkv.split((heads, shared, shared), dim=1)
        q, k = turned(q, rope), turned(k, rope)
        if cache is not None:
            cache[0][:, :, at : at + tokens] = k
            cache[1][:, :, at : at + tokens] = v
            if tokens == 1:
                k, v = cache
        out: torch.Tensor = self.out(attend(q, k, v).transpose(1, 2).reshape(batch, tokens, heads * size))
        return out


class Layer(nn.Module):
    """Attention and a feed-forward part, each behind a norm and beside a residual."""

    def __init__(self, attention: nn.Module, feed: nn.Module, hidden: int, device: str, dtype: torch.dtype) -> None:
        super().__init__()
        self.before, self.between = Norm(hidden, device, dtype), Norm(hidden, device, dtype)
        self.attention, self.feed = attention, feed

    def forward(
        self, x: torch.Tensor, rope: torch.Tensor, attend: Attend, cache: Cache | None, at: int
    ) -> torch.Tensor:
        x = x + self.attention(self.before(x), rope, attend, cache, at)
        out: torch.Tensor = x + self.feed(self.between(x))
        return out


class Decoder(nn.Module):
    """Embedding, layers, norm, output layer."""

    def __init__(self, sizes: Sizes, layers: list[nn.Module], device: str, dtype: torch.dtype) -> None:
        super().__init__()
        self.sizes = sizes
        weight = torch.empty((sizes.vocab, sizes.hidden), device=device, dtype=dtype).normal_(0.0, 1.0)
        self.embedding = nn.Parameter(weight, requires_grad=False)
        self.layers = nn.ModuleList(layers)
        self.norm = Norm(sizes.hidden, device, dtype)
        self.head = Linear(sizes.hidden, sizes.vocab, device, dtype)

    def forward(
        self, tokens: torch.Tensor, rope: torch.Tensor, attend: Attend, caches: list[Cache] | None, at: int,
        all_places: bool = False,
    ) -> torch.Tensor:  # fmt: skip
        """Logits [batch, tokens or 1, vocab]; tokens [batch, tokens], the first at place `at`."""
        x = F.embedding(tokens, self.embedding)
        for i, layer in enumerate(self.layers):
            x = layer(x, rope, attend, caches[i] if caches else None, at)
        out: torch.Tensor = self.head(self.norm(x if all_places else x[:, -1:]))
        return out


def build(sizes: Sizes, device: str, dtype: torch.dtype, seed: int = 0) -> Decoder:
    """A decoder with random weights; layers with experts and latent attention where the sizes say so."""
    from dynamometer.kernels.experts import Experts
    from dynamometer.kernels.latent import LatentAttention

    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for i in range(sizes.layers):
        attention: nn.Module = (LatentAttention if sizes.latent else Attention)(sizes, device, dtype)
        routed = sizes.experts > 0 and i >= sizes.dense_layers
        feed: nn.Module = (
            Experts(sizes, device, dtype) if routed else FeedForward(sizes.hidden, sizes.ffn, device, dtype)
        )
        layers.append(Layer(attention, feed, sizes.hidden, device, dtype))
    return Decoder(sizes, layers, device, dtype).eval()


def weight_bytes(model: nn.Module) -> int:
    """Bytes of all weights; one that two parts share counts once."""
    return sum({p.data_ptr(): p.nbytes for p in model.parameters()}.values())


def rotary(sizes: Sizes, places: int, device: str, dtype: torch.dtype, base: float = 500000.0) -> torch.Tensor:
    """[2, places, size / 2]: cosines and sines."""
    size = sizes.rope_size or sizes.head_size
    rates = base ** (-torch.arange(0, size, 2, device=device, dtype=torch.float32) / size)
    angles = torch.arange(places, device=device, dtype=torch.float32)[:, None] * rates
    return torch.stack([angles.cos(), angles.sin()]).to(dtype)


def turned(x: torch.Tensor, rope: torch.Tensor) -> torch.Tensor:
    """Rotary positions on [batch, heads, tokens, size], halves turned against each other."""
    low, high = x.chunk(2, dim=-1)
    cos, sin = rope[0], rope[1]
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)


def caches(sizes: Sizes, batch: int, length: int, device: str, dtype: torch.dtype) -> list[Cache]:
    """Filled with random keys and values for every layer: zeros would be faster than anything real."""
    heads, size = (1, sizes.latent + sizes.rope_size) if sizes.latent else (sizes.kv_heads, sizes.head_size)

    def one() -> torch.Tensor:
        return torch.randn((batch, heads, length, size), device=device).to(dtype)

    if sizes.latent:
        kept = [one() for _ in range(sizes.layers)]
        return [(latent, latent) for latent in kept]
    return [(one(), one()) for _ in range(sizes.layers)]
