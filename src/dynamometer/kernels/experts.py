"""Tokens in, the mixture of their top-k experts out. On a GPU the experts' products are one grouped product."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from dynamometer.kernels.shapes import Sizes


class Experts(nn.Module):
    """Router, `experts` gated feed-forward experts and one shared one."""

    def __init__(self, sizes: Sizes, device: str, dtype: torch.dtype) -> None:
        super().__init__()
        from dynamometer.kernels.model import FeedForward, Linear

        hidden, ffn = sizes.hidden, sizes.expert_ffn

        def made(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(shape, device=device, dtype=dtype).normal_(0.0, shape[-1] ** -0.5), False)

        self.top_k = sizes.top_k
        self.router = Linear(hidden, sizes.experts, device, dtype)
        self.gate_up = made(sizes.experts, 2 * ffn, hidden)
        self.down = made(sizes.experts, hidden, ffn)
        self.shared = FeedForward(hidden, sizes.shared_ffn, device, dtype) if sizes.shared_ffn else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.reshape(-1, x.shape[-1])
        weights, chosen = torch.topk(torch.softmax(self.router(flat).float(), dim=-1), self.top_k, dim=-1)
        order = torch.argsort(chosen.reshape(-1), stable=True)
        token = order // self.top_k
        sizes = counts(chosen, self.gate_up.shape[0])
        rows = flat[token]
        gate, up = product(rows, self.gate_up, sizes, getattr(self, "gate_up_scale", None)).chunk(2, dim=-1)
        out = product(F.silu(gate) * up, self.down, sizes, getattr(self, "down_scale", None))
        out = out * weights.reshape(-1)[order].to(out.dtype)[:, None]
        mixed = torch.zeros_like(flat).index_add_(0, token, out)
        if self.shared is not None:
            mixed = mixed + self.shared(flat)
        return mixed.view_as(x)


def counts(chosen: torch.Tensor, experts: int) -> torch.Tensor:
    """How many rows each expert gets; without a copy to the host, so that a graph can hold it."""
    return (chosen.reshape(-1, 1) == torch.arange(experts, device=chosen.device)).sum(0)


def product(
    rows: torch.Tensor, weights: torch.Tensor, sizes: torch.Tensor, scale: torch.Tensor | None = None
) -> torch.Tensor:
    """Rows sorted by expert times each expert's weight [experts, out, in]. `sizes`: rows of each expert.

    With a `scale` [experts, out] the weights are in fp8, and the rows are put in fp8 too.
    """
    ends = torch.cumsum(sizes, 0).to(torch.int32)
    if scale is not None:
        each = rows.abs().amax(dim=1).float().clamp(min=1e-12) / 448.0
        low = (rows / each[:, None]).to(weights.dtype)
        return torch._scaled_grouped_mm(
            low, weights.transpose(-2, -1), each, scale, offs=ends, out_dtype=rows.dtype, use_fast_accum=True
        )
    if rows.is_cuda and rows.dtype == torch.bfloat16 and hasattr(torch, "_grouped_mm"):
        return torch._grouped_mm(rows, weights.transpose(-2, -1), offs=ends)
    pieces = rows.split([int(n) for n in sizes.tolist()])
    parts = [F.linear(piece, weights[e]) for e, piece in enumerate(pieces) if len(piece)]
    return torch.cat(parts)
