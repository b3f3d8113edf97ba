"""Window, sinks and dense rows, held against the definition by brute force."""

from __future__ import annotations

import numpy as np
import pytest

from dynamometer.errors import UsageError
from dynamometer.kernels.mask import FULL, Mask, Shape, floor_s, keep, pairs, tile_pairs, useful_flops

MASKS = [Mask(), Mask(8, 2, 2), Mask(16, 5, 3), Mask(4, 0, 0), Mask(8, 2, 0), Mask(3, 9, 1), FULL]


@pytest.mark.parametrize("length", [1, 7, 33, 64])
@pytest.mark.parametrize(("window", "ends"), [(8, 2), (8, 8), (16, 3)])
def test_under_causality_global_leading_rows_and_trailing_columns_add_nothing(
    length: int, window: int, ends: int
) -> None:
    i, j = np.arange(length)[:, None], np.arange(length)[None, :]
    rows_or_columns = (i < ends) | (j < ends) | (i >= length - ends) | (j >= length - ends)
    as_it_is_usually_said = (j <= i) & ((i - j < window) | rows_or_columns)
    assert np.array_equal(keep(Mask(window, ends, ends), length), as_it_is_usually_said)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("length", [1, 2, 17, 64, 100])
def test_pairs_are_the_entries_of_the_mask(mask: Mask, length: int) -> None:
    assert pairs(mask, length) == keep(mask, length).sum()


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(("rows", "columns"), [(16, 16), (32, 16), (16, 8)])
def test_tiles_are_counted_whole_when_they_hold_one_kept_pair(mask: Mask, rows: int, columns: int) -> None:
    length = 96
    seen = keep(mask, length)
    tiles = sum(
        seen[r : r + rows, c : c + columns].any() for r in range(0, length, rows) for c in range(0, length, columns)
    )
    counted = tile_pairs(mask, length, rows, columns)
    assert counted >= pairs(mask, length)
    # a tile of rows that mixes windowed and dense ones is computed as dense, and sinks as whole tiles
    assert counted >= tiles * rows * columns
    assert counted <= (tiles + length // rows) * rows * columns


def test_at_16k_the_mask_leaves_a_thirteenth_of_the_work() -> None:
    shape = Shape(16384)
    assert useful_flops(FULL, shape) / useful_flops(Mask(), shape) == pytest.approx(13.06, abs=0.01)
    assert useful_flops(Mask(), shape) == pytest.approx(168.4e9, rel=1e-3)
    assert floor_s(Mask(), shape, 790e12, 4.3e12) == pytest.approx(213e-6, rel=5e-3)  # the matrix units set it
    assert floor_s(Mask(), Shape(2048), 790e12, 0.1e12) == Shape(2048).io_bytes / 0.1e12  # a slow memory sets it


def test_decode_keeps_the_sinks_and_the_window() -> None:
    assert Mask().cache_keys(16384) == 576
    assert Mask().cache_keys(100) == 100
    assert FULL.cache_keys(16384) == 16384


def test_shapes_and_masks_that_cannot_be_are_refused() -> None:
    with pytest.raises(UsageError, match="negative size"):
        Mask(-1)
    with pytest.raises(UsageError, match="multiple of kv_heads"):
        Shape(16, heads=6, kv_heads=4)
    with pytest.raises(UsageError, match="no attention shape"):
        Shape(0)
