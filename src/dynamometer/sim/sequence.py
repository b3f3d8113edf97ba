"""One request's life inside the simulator: what was asked in, when what happened out."""

from __future__ import annotations

from collections.abc import Sequence as Many

NOT_YET = -1.0


class Sequence:
    """A request under way. Times in seconds of virtual time, NOT_YET until they happened; tokens are counts.

    What most requests never change stands once, in the class: millions of these are made.
    """

    priority = 0
    prefix = -1  # key of a shared prefix, or −1
    prefix_tokens = 0
    session = ""
    family = ""
    turn = 0
    after = -1
    think_s = 0.0
    key = -1  # routing key
    context = 0  # tokens in the cache when it last joined the decoding batch, or was put aside
    produced = 0  # tokens out before the present span of decoding
    cached = 0  # prompt tokens found in the prefix cache
    start_tick = -1
    end_tick = -1
    stop_tick = -1  # the next tick at which something happens to it
    admitted_s = NOT_YET
    first_s = NOT_YET
    last_s = NOT_YET
    first_lag_s = 0.0  # from the engine to the client's socket
    last_lag_s = 0.0
    evictions: tuple[float, ...] = ()  # when it was preempted
    error = ""
    yields: Many[int] = ()  # tokens of each verified step under speculation
    accepted = 0  # entries of `yields` used up

    def __init__(self, index: int, at_s: float, prompt: int, output: int) -> None:
        self.index = index
        self.at_s = self.sent_s = self.visible_s = at_s  # due, sent, seen by the scheduler
        self.prompt = prompt
        self.output = output
        self.remaining = prompt  # prompt tokens still to compute
        self.token_s: list[float] = []  # when each token after the first came, if kept

    def __lt__(self, other: Sequence) -> bool:
        return self.index < other.index
