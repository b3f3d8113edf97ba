"""A seed in, built-in texts to read along out: worked solutions in a row, and code. Made here, free of any licence."""

from __future__ import annotations

import numpy as np

from dynamometer.quality.word_problems import solutions
from dynamometer.workload.filler import blocks

CHAIN: int = 8  # worked problems in a row: some 500 tokens, deep enough to see a drift


def built_in(count: int, seed: int = 0) -> tuple[tuple[str, str], ...]:
    """(name, text): three chains of thought to one piece of code."""
    made = []
    for at in range(count):
        if at % 4 == 3:
            lines = blocks("python", np.random.default_rng([seed, at]))
            made.append((f"code-{at}", "\n\n".join(next(lines) for _ in range(12))))
        else:
            made.append((f"chain-{at}", "\n".join(solutions(CHAIN, seed=1_000_003 * (seed + 1) + at))))
    return tuple(made)
