"""Chance in, plain English words out: text for prompts whose content does not matter, only its length."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import numpy as np


@cache
def vocabulary() -> tuple[str, ...]:
    """Some nine hundred everyday words, most of them one token in any large vocabulary."""
    return tuple((files(__package__) / "tasks" / "words.txt").read_text(encoding="utf-8").split())


def words(n: int, chance: np.random.Generator) -> list[str]:
    """n words, each with the space before it."""
    known = vocabulary()
    return [" " + known[i] for i in chance.integers(0, len(known), n)]


def most_words(tokens: int) -> int:
    """Words that are sure to be more than `tokens` tokens: none counts for less than half a token on average."""
    return 2 * tokens + 16
