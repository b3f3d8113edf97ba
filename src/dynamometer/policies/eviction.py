"""Whom to throw out when memory ends: candidates in, the chosen one out. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dynamometer.errors import UsageError

WAYS: Final = ("recompute", "swap")


def victim(arrived_s: Sequence[float], priority: Sequence[int]) -> int:
    """Index of the running sequence to preempt: the lowest priority, of those the last to arrive (vLLM's rule)."""
    return max(range(len(arrived_s)), key=lambda i: (-priority[i], arrived_s[i]))


def resume_tokens(way: str, prompt: int, produced: int) -> int:
    """Prompt tokens to compute again when a preempted sequence comes back: all of them, or none after a swap."""
    if way not in WAYS:
        raise UsageError(f"preemption is {way!r}; one of {', '.join(WAYS)}")
    return prompt + produced if way == "recompute" else 0


def stale_prefix(last_used_s: Sequence[float], in_use: Sequence[bool]) -> int:
    """Index of the cached prefix to drop: the one unused for longest; −1 if all are in use."""
    free = [i for i, used in enumerate(in_use) if not used]
    return min(free, key=lambda i: last_used_s[i]) if free else -1
