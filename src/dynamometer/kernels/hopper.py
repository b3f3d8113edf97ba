"""Tensors and a mask in, attention by the Hopper kernel out. It takes what it is made for and refuses the rest."""

from __future__ import annotations

import functools
import heapq
import math

import numpy as np
import torch
import triton
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from dynamometer.errors import UsageError
from dynamometer.kernels.device.join import join_kernel
from dynamometer.kernels.device.window_hopper import window_kernel
from dynamometer.kernels.mask import FULL, Mask

_GROUPS = 3  # warpgroups of 64 rows in a task, as in the device code
_CHUNK = 48  # 64-key blocks that one task of dense rows takes


def why_not(q: torch.Tensor, k: torch.Tensor, mask: Mask) -> str:
    """Empty, or the reason why this call is not for the Hopper kernel."""
    if not q.is_cuda or torch.cuda.get_device_capability(q.device)[0] != 9:
        return "needs a Hopper GPU (compute capability 9.x)"
    if q.dtype not in (torch.bfloat16, torch.float16) or q.shape[-1] != 128:
        return "takes bf16 or fp16 and a head size of 128"
    if mask.window % 64 or mask.sinks % 64 or mask.dense_rows not in (0, 64) or (mask.window and not mask.window >= 64):
        return "takes a window and sinks in multiples of 64, and 0 or 64 dense rows"
    if q.shape[2] < 64 or q.shape[2] != k.shape[2]:
        return "takes 64 tokens or more, as many keys as queries"
    return ""


def hopper(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: Mask = FULL,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Causal attention [batch, heads, length, 128]; see `why_not` for what it takes."""
    refused = why_not(q, k, mask)
    if refused:
        raise UsageError(f"the Hopper kernel {refused}; use attention.portable")
    batch, heads, length, size = q.shape
    out = torch.empty_like(q) if out is None else out
    dense = not mask.full and mask.dense_rows > 0
    window = mask.window or triton.cdiv(length, 64) * 64 + 64 * _GROUPS
    blocks = triton.cdiv(length, 64)
    chunks = triton.cdiv(blocks, _CHUNK)
    chunks = chunks if dense else 0
    tiles = triton.cdiv(blocks - (1 if dense and length % 64 == 0 else 0), _GROUPS)
    parts = max(batch * heads * chunks, 1) * _GROUPS
    made = {"dtype": torch.float32, "device": q.device}
    part_o = torch.empty((parts, 64, size), **made)
    part_m, part_l = torch.empty((parts, 64), **made), torch.empty((parts, 64), **made)
    costs = _costs(chunks, tiles, blocks, window // 64, mask.sinks // 64)
    schedule = _on_device(batch * heads, costs, q.device)
    window_kernel[(schedule.shape[1],)](
        *(_descriptor(t) for t in (q, k, v, out)), part_o, part_m, part_l, math.log2(math.e) / math.sqrt(size),
        schedule, chunks, tiles, length, window, mask.sinks, _CHUNK, heads, heads // k.shape[1],
        AHEAD=not dense, num_warps=4,
    )  # fmt: skip
    if dense:
        tail = out[:, :, length - 64 :]
        join_kernel[(batch * heads, 64)](
            part_o, part_m, part_l, tail, chunks * _GROUPS, heads, *tail.stride()[:3],
            PART_ROWS=64, PARTS=16, HEAD=size, num_warps=2,
        )  # fmt: skip
    return out


def _costs(chunks: int, tiles: int, blocks: int, window: int, sinks: int) -> tuple[int, ...]:
    """Blocks that the busiest warpgroup of each task of one head takes, and one for starting it."""
    dense = [triton.cdiv(min(_CHUNK, blocks - i * _CHUNK), _GROUPS) + 1 for i in range(chunks)]
    last = [_GROUPS * (tile + 1) - 1 for tile in range(tiles)]
    return (*dense, *(min(row + 1, window + 1) + min(sinks, max(row - window, 0)) + 1 for row in last))


def plan(heads: int, costs: tuple[int, ...], programs: int) -> np.ndarray[tuple[int, int], np.dtype[np.int32]]:
    """Which tasks each program does, in order: tasks as they come, each to the program that is free first.

    The cheapest tasks, up to 4 % of the work, come last and even out the end. Returns [2 + most tasks, programs]:
    counts, tasks by turn, and an unused row.
    """
    each = np.tile(np.array(costs), heads)
    cheap = np.argsort(each, kind="stable")
    cheap = cheap[np.cumsum(each[cheap]) <= 0.04 * each.sum()]
    order = np.concatenate([np.setdiff1d(np.arange(len(each)), cheap), cheap[::-1]])
    lists: list[list[int]] = [[] for _ in range(min(programs, len(each)))]
    free = [(0, program) for program in range(len(lists))]
    for task in order.tolist():
        busy, program = heapq.heappop(free)
        lists[program].append(task)
        heapq.heappush(free, (busy + int(each[task]), program))
    table = np.zeros((2 + max(len(tasks) for tasks in lists), len(lists)), dtype=np.int32)
    for program, tasks in enumerate(lists):
        table[0, program] = len(tasks)
        table[1 : 1 + len(tasks), program] = tasks
    return table


@functools.lru_cache(maxsize=64)
def _on_device(heads: int, costs: tuple[int, ...], device: torch.device) -> torch.Tensor:
    programs = torch.cuda.get_device_properties(device).multi_processor_count
    return torch.from_numpy(plan(heads, costs, programs)).to(device)


def _descriptor(tensor: torch.Tensor) -> TensorDescriptor:
    layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=4)
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), [1, 1, 64, 128], layout)
