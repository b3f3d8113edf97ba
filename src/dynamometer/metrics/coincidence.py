"""A trait of each request and which are slow in; how far apart the groups are, and how likely that is by chance, out.

Neighbouring requests are slow together, so shuffling single requests would call any two slow spells a connection. The
slow requests are moved in blocks as long as their memory, after a turn of the whole series by a random amount: spells
stay spells, and only their coincidence with the trait is broken (block permutation: Künsch, Annals of Statistics 17,
1989; turned series: Politis and Romano 1992).
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from dynamometer.metrics.intervals import effective_n
from dynamometer.types import Float64

TURNS = 9_999
MOST_BLOCKS = 500
MEMORIES = 6  # length of a block: at 2, AR(1) neighbours of 0.97 gave 15 % false alarms in place of 5
MOST_CELLS = 30_000_000  # of one draw: turns times slow requests

Places = npt.NDArray[np.int64]


def ranks(values: Float64) -> Float64:
    """Ranks from 1, equal values share the mean of theirs; unknown values (nan) stand in the middle."""
    known = np.where(np.isnan(values), np.nanmedian(values), values)
    _, inverse, counts = np.unique(known, return_inverse=True, return_counts=True)
    after = np.cumsum(counts)
    found: Float64 = (after - (counts - 1) / 2)[inverse]
    return found


def turned(slow: npt.NDArray[np.bool_], seed: int = 0, most: int = TURNS) -> tuple[Places, int]:
    """Places of the slow requests after each of many turns, (turns, slow requests), and the length of a block."""
    n, places = len(slow), np.nonzero(slow)[0]
    memory = n / effective_n(slow.astype(np.float64))
    length = max(math.ceil(MEMORIES * memory) if memory > 1.3 else 1, math.ceil(n / MOST_BLOCKS))
    blocks = math.ceil(n / length)
    turns = int(min(most, max(999, MOST_CELLS // max(len(places), blocks))))
    random = np.random.default_rng(seed)
    by = (places[None, :] + random.integers(0, n, (turns, 1))) % n
    order = random.permuted(np.tile(np.arange(blocks), (turns, 1)), axis=1)  # where each block goes
    short = blocks * length - n  # the last block lacks so many
    rank = np.take_along_axis(order, by // length, axis=1)
    moved: Places = rank * length + by % length - short * (rank > order[:, -1:])
    return moved, length


def effect(rank: Float64, slow: npt.NDArray[np.bool_]) -> float:
    """Rank-biserial correlation: 1 when every slow request has more of the trait than every other, 0 when they do not
    differ."""
    k, n = int(slow.sum()), len(slow)
    return float(2 * (rank[slow].sum() - k * (k + 1) / 2) / (k * (n - k)) - 1)


def chance(rank: Float64, slow: npt.NDArray[np.bool_], moved: Places) -> float:
    """The share of turns in which the slow requests have as much of the trait as they really have."""
    really = rank[slow].sum()
    as_much = int((rank[moved].sum(axis=1) >= really - 1e-9).sum())
    return (1 + as_much) / (1 + len(moved))


def holm(chances: Float64) -> Float64:
    """Holm's correction: with all of these looked at, the chance that any is a false alarm stays below the bound."""
    order = np.argsort(chances)
    raised = np.maximum.accumulate(chances[order] * (len(chances) - np.arange(len(chances))))
    found = np.empty_like(chances)
    found[order] = np.minimum(raised, 1.0)
    return found
