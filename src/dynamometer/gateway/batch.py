"""Text completions that do not stream in, one request with a list of prompts out, and each client's own answer back.

Requests are joined when everything but the prompt is equal, and wait at most `wait_s` or until there are `most`.
"""

from __future__ import annotations

from typing import Final, cast

import msgspec

from dynamometer.gateway.back import Back, Replica
from dynamometer.gateway.exchange import Exchange

PATH: Final = "/v1/completions"
Json = dict[str, object]


class Waiting(msgspec.Struct):
    """Requests with the same parameters, on their way to one replica."""

    fields: Json
    replica: Replica
    exchanges: list[Exchange]
    prompts: list[str]


def fields_of(body: bytes) -> tuple[Json, str] | None:
    """Parameters and prompt of a request that can be joined with others; None: it goes alone."""
    try:
        found = msgspec.json.decode(body, type=Json)
    except msgspec.DecodeError:
        return None
    prompt = found.pop("prompt", None)
    alone = (
        found.get("stream") or found.get("n", 1) != 1 or found.get("best_of", 1) != 1 or found.get("seed") is not None
    )
    if not isinstance(prompt, str) or alone:
        return None
    return found, prompt


class Answered:
    """A `Sink` for the joined answer."""

    def __init__(self, waiting: Waiting) -> None:
        self._waiting = waiting
        self._body: list[bytes] = []
        self.sent_ns = 0
        self.back: Back | None = None

    def sent(self, back: Back, at_ns: int) -> None:
        self.back, self.sent_ns = back, at_ns
        for exchange in self._waiting.exchanges:
            exchange.joined_sent(back, at_ns)

    def head(self, back: Back, at_ns: int) -> None: ...

    def piece(self, back: Back, body: bytes, at_ns: int) -> None:
        self._body.append(body)

    def ended(self, back: Back, at_ns: int) -> None:
        body = b"".join(self._body)
        exchanges = self._waiting.exchanges
        parts = split(body, len(exchanges)) if back.status == 200 else [body] * len(exchanges)
        for at, exchange in enumerate(exchanges):
            if parts is None:
                exchange.fail("protocol: the engine did not answer each prompt of a batch", at_ns, 502)
            else:
                exchange.joined_answer(back, parts[at], at_ns)

    def lost(self, back: Back | None, reason: str, at_ns: int) -> None:
        """Each goes its own way, as after any loss before the first byte."""
        for exchange in self._waiting.exchanges:
            exchange.joined_lost(reason, at_ns)


def joined_body(waiting: Waiting) -> bytes:
    return msgspec.json.encode({**waiting.fields, "prompt": waiting.prompts})


def split(body: bytes, count: int) -> list[bytes] | None:
    """One document a prompt, by the choices' `index`. The usage is the whole batch's and cannot be told apart, so it is
    given to none."""
    try:
        whole = msgspec.json.decode(body, type=Json)
    except msgspec.DecodeError:
        return None
    choices = whole.pop("choices", None)
    whole.pop("usage", None)
    if not isinstance(choices, list) or len(choices) != count:
        return None
    rows = cast(list[Json], choices)
    indices = [row.get("index") for row in rows]
    if sorted(indices, key=str) != sorted(range(count), key=str):
        return None
    ordered = {cast(int, row["index"]): row for row in rows}
    return [msgspec.json.encode({**whole, "choices": [{**ordered[i], "index": 0}]}) for i in range(count)]
