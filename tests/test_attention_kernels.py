"""Our Triton kernels in Triton's interpreter, on a CPU, against float64; and the plan of the Hopper kernel's tasks.

The Hopper kernel itself has no interpreter: benchmarks/device/check_kernels.py checks it on such a GPU.
"""

from __future__ import annotations

import os

import numpy as np
import pytest

os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is defined
torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from dynamometer.errors import UsageError  # noqa: E402
from dynamometer.kernels import attention, hopper, reference  # noqa: E402
from dynamometer.kernels.mask import FULL, Mask, keep  # noqa: E402

# Triton 3.6 with an older numpy warns inside its interpreter
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")


def tensors(batch: int, heads: int, shared: int, length: int, size: int = 32) -> tuple[object, ...]:
    chance = torch.Generator().manual_seed(length)
    return tuple(torch.randn((batch, n, length, size), generator=chance) for n in (heads, shared, shared))


def in_full(q: object, k: object, v: object, mask: Mask) -> object:
    """Every row by the definition of the mask, in float64."""
    share = q.shape[1] // k.shape[1]
    keys, values = (t.double().repeat_interleave(share, 1) for t in (k, v))
    scores = q.double() @ keys.transpose(-1, -2) / q.shape[-1] ** 0.5
    seen = torch.from_numpy(keep(mask, q.shape[2]))
    return scores.masked_fill(~seen, float("-inf")).softmax(-1) @ values


@pytest.mark.parametrize(
    ("length", "heads", "shared", "mask", "rows", "keys"),
    [
        (200, 2, 1, Mask(64, 16, 16), 64, 32),
        (257, 2, 2, Mask(100, 7, 5), 32, 32),
        (130, 1, 1, FULL, 64, 64),
        (64, 1, 1, Mask(), 64, 64),
        (33, 1, 1, Mask(8, 2, 1), 32, 16),
        (150, 1, 1, Mask(32, 100, 20), 32, 32),
        (96, 2, 1, Mask(16, 0, 0), 32, 16),
    ],
)
def test_the_portable_kernel_computes_the_mask(
    length: int, heads: int, shared: int, mask: Mask, rows: int, keys: int
) -> None:
    q, k, v = tensors(2, heads, shared, length)
    found = attention.portable(q, k, v, mask, rows, keys)
    assert reference.error(found, in_full(q, k, v, mask)) < 1e-6


def test_tokens_may_stand_before_heads_in_memory() -> None:
    q, k, v = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in tensors(1, 2, 2, 70))
    found = attention.portable(q, k, v, Mask(16, 4, 4), 32, 16)
    assert reference.error(found, in_full(q, k, v, Mask(16, 4, 4))) < 1e-6


@pytest.mark.parametrize(
    ("length", "heads", "shared", "mask", "splits"),
    [
        (200, 8, 2, Mask(64, 16, 16), 0),
        (300, 4, 4, FULL, 3),
        (50, 2, 1, Mask(64, 16, 1), 0),
        (129, 4, 1, Mask(64, 1), 1),
    ],
)
def test_decode_reads_the_sinks_and_the_window_of_a_cache(
    length: int, heads: int, shared: int, mask: Mask, splits: int
) -> None:
    q, k, v = tensors(2, heads, shared, length)
    found = attention.over_cache(q[:, :, :1].contiguous(), k, v, mask, splits)
    assert reference.error(found, reference.decoded(q[:, :, :1], k, v, mask)) < 1e-6


def test_the_reference_rows_are_rows_of_the_whole_answer() -> None:
    q, k, v = tensors(1, 2, 1, 120)
    mask = Mask(16, 4, 4)
    rows = reference.rows_to_check(120, mask)
    assert set(range(116, 120)) & set(rows.tolist())
    assert reference.error(reference.answer(q, k, v, mask, rows), in_full(q, k, v, mask)[:, :, rows]) < 1e-12


def test_shapes_that_do_not_belong_together_are_refused() -> None:
    q, k, v = tensors(1, 2, 2, 64)
    with pytest.raises(UsageError, match="do not belong together"):
        attention.portable(q, k[:, :, :32], v)
    with pytest.raises(UsageError, match="powers of two"):
        attention.portable(q[..., :24], k[..., :24], v[..., :24])
    with pytest.raises(UsageError, match="contiguous"):
        attention.portable(q.transpose(2, 3), k.transpose(2, 3), v.transpose(2, 3))
    with pytest.raises(UsageError, match="one query a sequence"):
        attention.over_cache(q, k, v)


def test_the_hopper_kernel_says_what_it_does_not_take() -> None:
    q, k, v = tensors(1, 2, 2, 64)
    assert "Hopper GPU" in hopper.why_not(q, k, Mask())
    with pytest.raises(UsageError, match=r"use attention\.portable"):
        hopper.hopper(q, k, v)


@pytest.mark.parametrize(("heads", "programs"), [(1, 4), (32, 132), (3, 200)])
def test_the_plan_gives_each_task_to_one_program_and_ends_even(heads: int, programs: int) -> None:
    costs = hopper._costs(6, 85, 256, 8, 1)
    table = hopper.plan(heads, costs, programs)
    given = [table[1 : 1 + table[0, p], p] for p in range(table.shape[1])]
    assert sorted(np.concatenate(given).tolist()) == list(range(heads * len(costs)))
    busy = [sum(costs[task % len(costs)] for task in tasks) for tasks in given]
    # a program is never given a task while another is free: the last to end is at most one task late
    assert max(busy) - np.mean(busy) <= max(costs)
    assert len(table) == 2 + table[0].max()
