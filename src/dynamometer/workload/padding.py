"""A head, filler and a tail in; a text of an exact number of tokens out, as the given counter counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

TokenCounter = Callable[[str], int]
"""Text of a user message in, prompt tokens out: the engine's own count, or an estimate."""

_ONE_TOKEN = (" the", " a", " I", ".", "\n", " of", " x", "!", "1")  # each a single token in nearly every vocabulary
_GUESSES = 6  # interpolation steps before plain bisection, which is sure to end


def longest(build: Callable[[int], str], most: int, target: int, count: TokenCounter) -> tuple[int, int]:
    """The largest k in [0, most] for which `build(k)` has at most `target` tokens, and its tokens.

    `build(k)` grows with k. Interpolates first, as a call of the counter may be a question over the network. When even
    `build(0)` is too long, k is 0 and its tokens are above the target.
    """
    low, tokens = 0, count(build(0))
    base, high = tokens, most + 1
    a_unit = 1.5
    step = 0
    while high - low > 1 and tokens < target:
        step += 1
        k = low + int((target - tokens) / a_unit) if step <= _GUESSES else (low + high) // 2
        k = min(max(k, low + 1), high - 1)
        found = count(build(k))
        a_unit = max((found - base) / k, 0.05)
        if found <= target:
            low, tokens = k, found
        else:
            high = k
    return low, tokens


def _filled(head: str, pieces: Sequence[str], tail: str, k: int) -> str:
    return head + "".join(pieces[:k]) + tail


def fit(
    head: str, words: Sequence[str], tail: str, target: int, count: TokenCounter, blocks: Sequence[str] = ()
) -> tuple[str, int]:
    """Head, words, blocks, tail: `target` tokens where the vocabulary allows it, else the most below.

    As many blocks as fit, then as many words. Returns the text and its tokens. Head and tail stay whole, so a text that
    is longer without any filler comes back as it is.
    """
    if blocks:
        k, _ = longest(partial(_filled, head, blocks, tail), len(blocks), target, count)
        tail = "".join(blocks[:k]) + tail
    k, tokens = longest(partial(_filled, head, words, tail), len(words), target, count)
    head += "".join(words[:k])
    short = target - tokens
    for piece in _ONE_TOKEN if short > 0 else ():
        found = count(head + piece * short + tail)
        if tokens < found <= target:
            head, tokens, short = head + piece * short, found, target - found
        if not short:
            break
    return head + tail, tokens
