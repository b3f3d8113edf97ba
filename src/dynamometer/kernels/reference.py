"""Inputs and a mask in, the right answer for some query rows in float64 out: what every kernel is held against."""

from __future__ import annotations

import torch

from dynamometer.kernels.mask import Mask


def rows_to_check(length: int, mask: Mask, seed: int = 0) -> torch.Tensor:
    """Rows at every edge of the mask and 48 at random, sorted, each once."""
    edges = [0, 63, 64, mask.window, mask.window + mask.sinks, length - mask.dense_rows, length - 1]
    near = torch.tensor([edge + step for edge in edges for step in (-1, 0, 1)])
    chance = torch.Generator().manual_seed(seed)
    return torch.cat([near, torch.randint(length, (48,), generator=chance)]).clamp(0, length - 1).unique()


def answer(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Mask, rows: torch.Tensor) -> torch.Tensor:
    """[batch, heads, len(rows), size] in float64. One head at a time, so that long inputs fit."""
    length, share = q.shape[2], q.shape[1] // k.shape[1]
    i, j = rows[:, None], torch.arange(length, device=q.device)[None, :]
    seen = j <= i
    if not mask.full:
        seen &= (i - j < mask.window) | (j < mask.sinks) | (i >= length - mask.dense_rows)
    heads = []
    for head in range(q.shape[1]):
        keys, values = k[:, head // share].double(), v[:, head // share].double()
        s = q[:, head, rows].double() @ keys.transpose(-1, -2) / q.shape[-1] ** 0.5
        heads.append(s.masked_fill(~seen, float("-inf")).softmax(-1) @ values)
    return torch.stack(heads, 1)


def decoded(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Mask) -> torch.Tensor:
    """One query a sequence over the keys that the mask keeps, in float64: [batch, heads, 1, size]."""
    length, share = k.shape[2], q.shape[1] // k.shape[1]
    key = torch.arange(length, device=q.device)
    seen = torch.ones(length, dtype=torch.bool, device=q.device)
    if not mask.full:
        seen = (key >= length - mask.window) | (key < mask.sinks)
    keys, values = (t.double().repeat_interleave(share, 1) for t in (k, v))
    s = q.double() @ keys.transpose(-1, -2) / q.shape[-1] ** 0.5
    return s.masked_fill(~seen, float("-inf")).softmax(-1) @ values


def error(found: torch.Tensor, right: torch.Tensor) -> float:
    """‖found − right‖ / ‖right‖; NaN where anything is NaN, which no limit passes."""
    return float((found.double() - right).norm() / right.norm())
