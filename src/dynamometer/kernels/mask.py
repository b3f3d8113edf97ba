"""Window, sinks, dense last rows and a length in; which keys a query sees, pairs, useful FLOPs, the floor in time out.

A window of 512 with 64 global tokens at both ends is, under causality, less than it sounds. Global leading rows see
only keys that their window holds already, and global trailing columns are seen only by rows that have them in the
window. What is left is the window, 64 sink columns that every row sees, and 64 last rows that see everything. "The
last 64" moves with the length, so in decode each new token would be a dense row; a cache that saves anything keeps
the sinks and the window, 576 keys.
"""

from __future__ import annotations

import msgspec
import numpy as np

from dynamometer.errors import UsageError


class Mask(msgspec.Struct, frozen=True):
    """Causal attention. `window` 0: no limit. `sinks`: first keys seen by all. `dense_rows`: last queries that do."""

    window: int = 512
    sinks: int = 64
    dense_rows: int = 64

    def __post_init__(self) -> None:
        if min(self.window, self.sinks, self.dense_rows) < 0:
            raise UsageError(f"{self} has a negative size; give window, sinks and dense rows of 0 or more")

    @property
    def full(self) -> bool:
        return self.window == 0

    def cache_keys(self, length: int) -> int:
        """Keys that one decode query reads at this length."""
        return length if self.full else min(length, self.window + self.sinks)


FULL = Mask(0, 0, 0)


class Shape(msgspec.Struct, frozen=True):
    """One attention call: `length` queries over `length` keys, `kv_heads` shared by groups of query heads."""

    length: int
    batch: int = 1
    heads: int = 32
    kv_heads: int = 32
    head_size: int = 128

    def __post_init__(self) -> None:
        if min(self.length, self.batch, self.heads, self.kv_heads, self.head_size) < 1 or self.heads % self.kv_heads:
            raise UsageError(f"{self} is no attention shape; sizes of 1 or more, heads a multiple of kv_heads")

    @property
    def io_bytes(self) -> int:
        """Queries, keys, values read once and the answer written once, two bytes an element."""
        return 2 * self.batch * self.length * self.head_size * 2 * (self.heads + self.kv_heads)


def keep(mask: Mask, length: int) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    """[length, length] True where query i sees key j. For small lengths: it has length² entries."""
    i, j = np.arange(length)[:, None], np.arange(length)[None, :]
    if mask.full:
        return j <= i
    return (j <= i) & ((i - j < mask.window) | (j < mask.sinks) | (i >= length - mask.dense_rows))


def pairs(mask: Mask, length: int) -> int:
    """How many (query, key) pairs of one head are computed at least."""
    if mask.full:
        return length * (length + 1) // 2
    i = np.arange(length, dtype=np.int64)
    seen = np.minimum(i + 1, mask.window) + np.minimum(np.maximum(i + 1 - mask.window, 0), mask.sinks)
    if mask.dense_rows:
        seen[-mask.dense_rows :] = i[-mask.dense_rows :] + 1
    return int(seen.sum())


def useful_flops(mask: Mask, shape: Shape) -> float:
    """Two products of head_size multiply-adds a pair; the softmax is not counted, as is the habit of the field."""
    return 4.0 * shape.head_size * shape.heads * shape.batch * pairs(mask, shape.length)


def tile_pairs(mask: Mask, length: int, rows: int, columns: int) -> int:
    """Pairs that tiles of rows × columns compute: every tile that holds at least one kept pair counts whole."""
    total = 0
    for row in range(0, length, rows):
        last = min(row + rows, length) - 1
        first_key = 0 if mask.full or last >= length - mask.dense_rows else max(row - mask.window + 1, 0)
        tiles = last // columns - first_key // columns + 1
        if not mask.full:
            tiles += min(-(-mask.sinks // columns), first_key // columns)
        total += tiles * rows * columns
    return total


def floor_s(mask: Mask, shape: Shape, flops: float, bandwidth: float) -> float:
    """The larger of useful FLOPs over the matrix rate and bytes over the bandwidth, in seconds."""
    return max(useful_flops(mask, shape) / flops, shape.io_bytes / bandwidth)
