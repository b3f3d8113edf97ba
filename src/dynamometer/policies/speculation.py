"""How far a guess gets: acceptance and draft length in, tokens per step out. Source: Leviathan et al. 2023, i.i.d.
acceptance."""

from __future__ import annotations

import msgspec
import numpy as np

from dynamometer.errors import UsageError


class Speculation(msgspec.Struct, frozen=True):
    """`draft` tokens are guessed and then verified in one step; each is right with probability `acceptance`, up to the
    first miss."""

    draft: int = 0
    acceptance: float = 0.0
    draft_cost: float = 0.0  # time of one draft token as a share of a decode step

    def __post_init__(self) -> None:
        if self.draft < 0 or not 0 <= self.acceptance < 1 or self.draft_cost < 0:
            raise UsageError("speculation needs draft ≥ 0, 0 ≤ acceptance < 1 and draft_cost ≥ 0")


def expected_tokens(rule: Speculation) -> float:
    """Mean tokens per verified step: (1 − a^(k+1)) / (1 − a)."""
    a = rule.acceptance
    return float((1 - a ** (rule.draft + 1)) / (1 - a))


def draw_steps(rule: Speculation, tokens: int, chance: np.random.Generator) -> list[int]:
    """Tokens that each verify step yields until `tokens` are out; the last step is cut to fit."""
    if tokens <= 0:
        return []
    if rule.draft == 0 or rule.acceptance == 0:
        return [1] * tokens
    yields: list[int] = []
    left = tokens
    while left > 0:
        for got in np.minimum(chance.geometric(1 - rule.acceptance, size=max(8, left)), rule.draft + 1):
            yields.append(min(int(got), left))
            left -= yields[-1]
            if left <= 0:
                break
    return yields
