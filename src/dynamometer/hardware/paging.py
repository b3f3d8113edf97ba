"""Room for a cache and the lengths of its sequences in, how many fit paged and how many fit contiguous out.

Contiguous: every sequence reserves the longest length allowed. Paged: every sequence holds whole blocks of what it
has. A sequence of random length wastes (block - 1) / 2 tokens of its last block on average, and one of length n
ceil(n / block) · block - n exactly.
"""

from __future__ import annotations

import msgspec

from dynamometer.errors import UsageError


class Comparison(msgspec.Struct, frozen=True):
    block: int
    paged: int  # sequences at once
    contiguous: int
    paged_bytes: float  # held by one sequence
    contiguous_bytes: float
    fragmentation: float  # share of a paged sequence's memory that holds no token
    waste: float  # the same for a contiguous one
    table_bytes: int  # block table of one sequence, 4 bytes a block


def compare(room_bytes: float, bytes_per_token: float, longest: int, actual: int, block: int = 16) -> Comparison:
    """Sequences of `actual` tokens out of at most `longest` in `room_bytes` of cache."""
    if not 1 <= actual <= longest:
        raise UsageError(f"actual length is {actual} tokens; give 1 to the longest allowed, {longest}")
    if block < 1:
        raise UsageError(f"block is {block} tokens; give 1 or more")
    if bytes_per_token <= 0:
        raise UsageError("the model keeps no cache that grows with its context; paging changes nothing for it")
    blocks = -(-actual // block)
    held = blocks * block
    paged_bytes, contiguous_bytes = held * bytes_per_token, longest * bytes_per_token
    return Comparison(
        block=block,
        paged=int(max(room_bytes, 0) // paged_bytes),
        contiguous=int(max(room_bytes, 0) // contiguous_bytes),
        paged_bytes=paged_bytes,
        contiguous_bytes=contiguous_bytes,
        fragmentation=(held - actual) / held,
        waste=(longest - actual) / longest,
        table_bytes=4 * blocks,
    )


def expected_fragmentation(mean_tokens: float, block: int) -> float:
    """Share of paged memory without a token when lengths are spread over whole blocks: (block - 1) / 2 tokens a
    sequence."""
    wasted = (block - 1) / 2
    return wasted / (mean_tokens + wasted)


def length_that_gives(ratio: float, longest: int) -> float:
    """Mean actual length at which paging holds `ratio` times as many sequences as contiguous slots of `longest`
    tokens."""
    if ratio < 1:
        raise UsageError(f"ratio is {ratio}; paging never holds fewer sequences, give 1 or more")
    return longest / ratio
