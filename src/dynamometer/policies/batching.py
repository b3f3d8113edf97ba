"""Who runs in the next step: the queue and the room in, how many prompt tokens of whom (and whether decoding goes on)
out.

Pure rules, one function each. `queue` holds the prompt tokens still to compute, partly computed prompts first, then
the waiting ones in their order; a rule reads it and changes nothing. Sources: Orca (iteration-level batching),
Sarathi (chunked prefill), Triton's dynamic batcher (timeout and maximum).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from dynamometer.errors import UsageError


class Room(NamedTuple):
    """What the engine has left. `slots`: sequences that may still be admitted; `started`: entries of the queue that
    were."""

    now_s: float
    decoding: int
    slots: int
    started: int
    oldest_s: float  # when the first waiting request came
    last: bool  # no more requests will come


class Step(NamedTuple):
    """Tokens for the first entries of the queue; `decode`: the running ones advance too; `until_s`: else sleep so
    long."""

    chunks: tuple[int, ...]
    decode: bool
    until_s: float = float("inf")


class Batching(msgspec.Struct, frozen=True):
    """A rule with its numbers. `tokens`: most tokens in a step; `size`: most sequences; `timeout_s` for dynamic
    batching."""

    name: str = "chunked"  # static | dynamic | continuous | chunked
    size: int = 256
    tokens: int = 8192
    timeout_s: float = 0.1

    def __post_init__(self) -> None:
        if self.name not in RULES:
            raise UsageError(f"batching is {self.name!r}; one of {', '.join(RULES)}")
        if self.size < 1 or self.tokens < 1 or self.timeout_s < 0:
            raise UsageError("a batch needs a size and a token budget of at least 1 and a timeout of at least 0 s")


def static(rule: Batching, queue: Sequence[int], room: Room) -> Step:
    """A full batch from start to end; the next one is formed when all its answers are complete."""
    if room.decoding or room.started:
        return Step(tuple(queue[: room.started]), True)
    if len(queue) >= rule.size or room.last:
        return Step(tuple(queue[: rule.size]), False)
    return Step((), False)


def dynamic(rule: Batching, queue: Sequence[int], room: Room) -> Step:
    """As static, but a batch also starts when its oldest request has waited for the timeout."""
    if room.decoding or room.started:
        return Step(tuple(queue[: room.started]), True)
    due_s = room.oldest_s + rule.timeout_s
    if len(queue) >= rule.size or (queue and (room.now_s >= due_s or room.last)):
        return Step(tuple(queue[: rule.size]), False)
    return Step((), False, due_s)


def continuous(rule: Batching, queue: Sequence[int], room: Room) -> Step:
    """Requests join between steps; whole prompts go first, in a step of their own, and decoding waits for it."""
    chosen: list[int] = []
    left = rule.tokens
    for tokens in queue[: room.started + room.slots]:
        if tokens > left and chosen:
            break
        chosen.append(tokens)
        left -= tokens
    return Step(tuple(chosen), not chosen)


def chunked(rule: Batching, queue: Sequence[int], room: Room) -> Step:
    """Decoding takes its tokens first; prompts share what is left of the budget, cut where it ends."""
    left = rule.tokens - room.decoding
    chosen: list[int] = []
    for tokens in queue[: room.started + room.slots]:
        if left <= 0:
            break
        chosen.append(min(tokens, left))
        left -= chosen[-1]
    return Step(tuple(chosen), True)


RULES = {"static": static, "dynamic": dynamic, "continuous": continuous, "chunked": chunked}


def plan(rule: Batching, queue: Sequence[int], room: Room) -> Step:
    """The next step under the rule."""
    return RULES[rule.name](rule, queue, room)


def holds(rule: Batching) -> bool:
    """True where a finished sequence keeps its place, and costs its share, until the whole batch is done."""
    return rule.name in ("static", "dynamic")
