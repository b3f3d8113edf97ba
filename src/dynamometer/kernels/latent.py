"""Hidden states in, multi-head latent attention out: a latent vector a token is kept, and decode works on that.

Decode folds the key and value projections into the query and the answer ("absorbed"), so that a step reads
latent_size + rope_size elements a token and no head's keys are ever made. The products are plain batched ones: an
upper bound on what a fused kernel would take.
"""

from __future__ import annotations

import torch
from torch import nn

from dynamometer.kernels.shapes import Sizes


class LatentAttention(nn.Module):
    """DeepSeek-V2's attention without a query latent, as in V2-Lite."""

    def __init__(self, sizes: Sizes, device: str, dtype: torch.dtype) -> None:
        super().__init__()
        from dynamometer.kernels.model import Linear, Norm

        self.sizes = sizes
        heads, plain, value = sizes.heads, sizes.head_size, sizes.value_size
        self.query = Linear(sizes.hidden, heads * (plain + sizes.rope_size), device, dtype)
        self.down = Linear(sizes.hidden, sizes.latent + sizes.rope_size, device, dtype)
        self.norm = Norm(sizes.latent, device, dtype)
        shape = (heads, plain + value, sizes.latent)
        self.up = nn.Parameter(torch.empty(shape, device=device, dtype=dtype).normal_(0.0, sizes.latent**-0.5), False)
        self.out = Linear(heads * value, sizes.hidden, device, dtype)

    def forward(
        self,
        x: torch.Tensor,
        rope: torch.Tensor,
        attend: object,
        cache: tuple[torch.Tensor, torch.Tensor] | None,
        at: int,
    ) -> torch.Tensor:
        """`attend` is used in prefill only, on expanded heads; decode is absorbed."""
        from dynamometer.kernels.model import turned

        s = self.sizes
        batch, tokens, _ = x.shape
        q = self.query(x).view(batch, tokens, s.heads, -1).transpose(1, 2)
        q_plain, q_turned = q.split((s.head_size, s.rope_size), dim=-1)
        latent, k_turned = self.down(x).split((s.latent, s.rope_size), dim=-1)
        latent = self.norm(latent)
        q_turned, k_turned = turned(q_turned, rope), turned(k_turned[:, None], rope)
        if cache is not None:
            cache[0][:, 0, at : at + tokens] = torch.cat((latent, k_turned[:, 0]), dim=-1)
        if cache is not None and tokens == 1:
            answer = self._absorbed(q_plain, q_turned, cache[0][:, 0])
        else:
            answer = self._expanded(q_plain, q_turned, latent, k_turned)
        out: torch.Tensor = self.out(answer.transpose(1, 2).reshape(batch, tokens, s.heads * s.value_size))
        return out

    def _absorbed(self, q_plain: torch.Tensor, q_turned: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
        s = self.sizes
        inner = torch.einsum("bhtd,hdl->bhtl", q_plain, self.up[:, : s.head_size])
        query = torch.cat((inner, q_turned), dim=-1)[:, :, 0]  # [batch, heads, latent + rope]
        scores = torch.bmm(query, kept.transpose(1, 2)) * (s.head_size + s.rope_size) ** -0.5
        weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(kept.dtype)
        mixed = torch.bmm(weights, kept[..., : s.latent])
        return torch.einsum("bhl,hvl->bhv", mixed, self.up[:, s.head_size :])[:, :, None]

    def _expanded(
        self, q_plain: torch.Tensor, q_turned: torch.Tensor, latent: torch.Tensor, k_turned: torch.Tensor
    ) -> torch.Tensor:
        s = self.sizes
        heads = torch.einsum("btl,hdl->bhtd", latent, self.up)
        k_plain, v = heads.split((s.head_size, s.value_size), dim=-1)
        q = torch.cat((q_plain, q_turned), dim=-1)
        k = torch.cat((k_plain, k_turned.expand(-1, s.heads, -1, -1)), dim=-1)
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
