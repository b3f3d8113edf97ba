"""May a request enter, and in what order do the waiting ones go: facts of the queue in, a decision out. Pure."""

from __future__ import annotations

import msgspec

from dynamometer.errors import UsageError

ORDERS = ("fcfs", "priority", "shortest")


class Admission(msgspec.Struct, frozen=True):
    """`queue`: most waiting requests per replica, 0 = no limit; `order`: who goes first."""

    queue: int = 0
    order: str = "fcfs"

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise UsageError(f"queue order is {self.order!r}; one of {', '.join(ORDERS)}")
        if self.queue < 0:
            raise UsageError(f"queue limit is {self.queue}; give 0 (none) or more")


def accepts(rule: Admission, waiting: int) -> bool:
    """False: turn the request away, as a server does with 429."""
    return rule.queue == 0 or waiting < rule.queue


def rank(rule: Admission, priority: int, tokens: int) -> int:
    """Sort key of a waiting request, lowest first; equal ranks keep their order of arrival."""
    if rule.order == "priority":
        return -priority
    return tokens if rule.order == "shortest" else 0
