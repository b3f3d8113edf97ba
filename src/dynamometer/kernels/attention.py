"""Tensors and a mask in, attention by our own kernels out: the portable one, the Hopper one, and decode over a cache.

All take bf16, fp16 or fp32 tensors [batch, heads, length, head_size] with any strides but a contiguous last
dimension, and scale by 1/√head_size. They allocate the answer and, for rows that see everything, parts of it in fp32:
the only extra memory.
"""

from __future__ import annotations

import math

import torch
import triton

from dynamometer.errors import UsageError
from dynamometer.kernels.device.cache_triton import cache_kernel
from dynamometer.kernels.device.join import join_kernel
from dynamometer.kernels.device.window_triton import window_kernel
from dynamometer.kernels.mask import FULL, Mask

_LOG2E = math.log2(math.e)
_CHUNK_KEYS = 4096  # keys that one program takes of a dense row: about the work of a windowed tile, twice


def portable(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Mask = FULL, rows: int = 128, keys: int = 64
) -> torch.Tensor:
    """Causal attention on any device that Triton serves, `rows` × `keys` a tile."""
    batch, heads, length, size = _checked(q, k, v)
    out = torch.empty_like(q)
    dense = 0 if mask.full else min(mask.dense_rows, length)
    tiles, dense_tiles = _up(length - dense, rows), _up(dense, rows)
    chunk_blocks = _CHUNK_KEYS // keys
    chunks = _up(_up(length, keys), chunk_blocks)
    dense_programs = batch * heads * dense_tiles * chunks
    parts = _parts(q, max(dense_programs, 1), rows, size)
    grid = (dense_programs + batch * heads * tiles,)
    window_kernel[grid](
        q, k, v, out, *parts, _LOG2E / math.sqrt(size), length, mask.window, mask.sinks, dense, heads,
        heads // k.shape[1], dense_programs, max(dense_tiles, 1), chunks, chunk_blocks, max(tiles, 1),
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *out.stride()[:3],
        ROWS=rows, KEYS=keys, HEAD=size, WINDOWED=not mask.full, PRECISION=_precision(q),
        num_warps=8 if rows >= 128 else 4, num_stages=3 if size <= 128 else 2,
    )  # fmt: skip
    if dense:
        _join(parts, out[:, :, length - dense :], chunks, rows, dense_tiles)
    return out


def over_cache(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Mask = FULL, splits: int = 0) -> torch.Tensor:
    """Decode: q [batch, heads, 1, size] is the query after `length` cached keys, itself among them."""
    batch, kv_heads, length, size = k.shape
    heads = q.shape[1]
    if q.shape[2] != 1 or heads % kv_heads or v.shape != k.shape:
        raise UsageError(f"decode takes one query a sequence and equal key and value shapes, not {q.shape}, {k.shape}")
    shared_by = heads // kv_heads
    window = length if mask.full else mask.window
    sinks = 0 if mask.full else min(mask.sinks, length)
    total = min(length, window + sinks)
    rows = max(16, 1 << (shared_by - 1).bit_length())
    splits = splits or _splits(total, batch * kv_heads)
    split_keys = _up(_up(total, splits), 64) * 64
    splits = _up(total, split_keys)
    out = torch.empty_like(q)
    parts = _parts(q, batch * kv_heads * splits, rows, size)
    cache_kernel[(batch * kv_heads * splits,)](
        q, k, v, *parts, _LOG2E / math.sqrt(size), length, window, sinks, kv_heads, shared_by, splits, split_keys,
        *q.stride()[:2], *k.stride()[:3], *v.stride()[:3],
        ROWS=rows, KEYS=64, HEAD=size, PRECISION=_precision(q), num_warps=4, num_stages=3,
    )  # fmt: skip
    grouped = out.view(batch, kv_heads, shared_by, size)
    _join(parts, grouped, splits, rows, 1)
    return out


def _join(
    parts: tuple[torch.Tensor, torch.Tensor, torch.Tensor], out: torch.Tensor, count: int, part_rows: int, tiles: int
) -> None:
    """Joins `count` parts for each [batch, head] of `out` [batch, heads, rows, size]; one tile of rows at a time."""
    batch, heads, rows, size = out.shape
    if tiles > 1:
        raise UsageError(f"{rows} dense rows need {tiles} tiles; give at most {part_rows}")
    join_kernel[(batch * heads, rows)](
        *parts, out, count, heads, *out.stride()[:3], PART_ROWS=part_rows, PARTS=16, HEAD=size, num_warps=2
    )


def _parts(like: torch.Tensor, count: int, rows: int, size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    made = {"dtype": torch.float32, "device": like.device}
    return (
        torch.empty((count, rows, size), **made),
        torch.empty((count, rows), **made),
        torch.empty((count, rows), **made),
    )


def _splits(keys: int, heads: int) -> int:
    """Enough programs for two waves of a large GPU, each with at least 64 keys."""
    return max(1, min(_up(keys, 64), 264 // heads or 1))


def _checked(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[int, int, int, int]:
    batch, heads, length, size = q.shape
    if k.shape != v.shape or k.shape[0] != batch or k.shape[2:] != (length, size) or heads % k.shape[1]:
        raise UsageError(f"shapes {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)} do not belong together")
    if size & (size - 1) or not 16 <= size <= 256:
        raise UsageError(f"head size is {size}; the kernels take powers of two from 16 to 256")
    if any(t.stride(-1) != 1 for t in (q, k, v)):
        raise UsageError("the last dimension must be contiguous; call .contiguous() first")
    return batch, heads, length, size


def _precision(q: torch.Tensor) -> str:
    return "ieee" if q.dtype == torch.float32 else "tf32"


def _up(a: int, b: int) -> int:
    return triton.cdiv(a, b)
