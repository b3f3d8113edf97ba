"""One request's life inside the simulator: what was asked in, when what happened out."""

from __future__ import annotations

from collections.abc import Sequence as Many

NOT_YET = -1.0


class Sequence:
    """A request under way. Times in seconds of virtual time, NOT_YET until they happened; tokens are counts."""

    __slots__ = (
        "accepted",
        "admitted_s",
        "after",
        "at_s",
        "cached",
        "context",
        "end_tick",
        "error",
        "evictions",
        "family",
        "first_lag_s",
        "first_s",
        "index",
        "key",
        "last_lag_s",
        "last_s",
        "output",
        "prefix",
        "prefix_tokens",
        "priority",
        "produced",
        "prompt",
        "remaining",
        "sent_s",
        "session",
        "start_tick",
        "stop_tick",
        "think_s",
        "token_s",
        "turn",
        "visible_s",
        "yields",
    )

    def __init__(self, index: int, at_s: float, prompt: int, output: int) -> None:
        self.index = index
        self.at_s = at_s  # due
        self.sent_s = at_s
        self.prompt = prompt
        self.output = output
        self.priority = 0
        self.prefix = -1  # key of a shared prefix, or −1
        self.prefix_tokens = 0
        self.session = ""
        self.family = ""
        self.turn = 0
        self.after = -1
        self.think_s = 0.0
        self.key = -1  # routing key
        self.remaining = prompt  # prompt tokens still to compute
        self.context = 0  # tokens in the cache when it last joined the decoding batch, or was put aside
        self.produced = 0  # tokens out before the present span of decoding
        self.cached = 0  # prompt tokens found in the prefix cache
        self.start_tick = -1
        self.end_tick = -1
        self.stop_tick = -1  # the next tick at which something happens to it
        self.visible_s = at_s
        self.admitted_s = NOT_YET
        self.first_s = NOT_YET
        self.last_s = NOT_YET
        self.first_lag_s = 0.0  # from the engine to the client's socket
        self.last_lag_s = 0.0
        self.evictions: tuple[float, ...] = ()  # when it was preempted
        self.error = ""
        self.token_s: list[float] = []  # when each token after the first came, if kept
        self.yields: Many[int] = ()  # tokens of each verified step under speculation
        self.accepted = 0  # entries of `yields` used up

    def __lt__(self, other: Sequence) -> bool:
        return self.index < other.index
