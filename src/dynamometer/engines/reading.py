"""A JSON shape and what to do with it in, readers of events and of whole bodies out, and the dialect of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TypeVar

import msgspec

from dynamometer.engines.dialect import HttpRequest
from dynamometer.engines.fault import explain
from dynamometer.engines.ledger import MALFORMED, AnswerParser, Ledger, ReadEvents, ReadWhole, Splits
from dynamometer.engines.sse import COMMENT, Splitter
from dynamometer.types import Request, Target

Shape = TypeVar("Shape")
ReadShape = Callable[[Ledger, Shape, bytes, int], None]  # ledger, decoded, its bytes, at_ns
Ask = Callable[[Request, Target, Mapping[int, str]], HttpRequest]
ReadEvent = Callable[[Ledger, str, bytes, int], None]  # ledger, event name, data, at_ns


def json_event(decoder: msgspec.json.Decoder[Shape], one: ReadShape[Shape]) -> ReadEvent:
    """Reads one event: comments, pings, errors by name, end markers, blanks, and JSON of the decoder's shape."""

    def read(ledger: Ledger, name: str, data: bytes, at_ns: int) -> None:
        data = data.strip()
        if name in (COMMENT, "ping"):
            ledger.frame(at_ns, "ping")
        elif name == "error":
            ledger.fail(at_ns, *explain(data, "error"))
        elif data == b"[DONE]":
            ledger.ended = True
        elif data[:1] == b"{":
            try:
                value = decoder.decode(data)
            except (ValueError, RecursionError):
                json_whole(decoder, one)(ledger, data, at_ns)
            else:
                one(ledger, value, data, at_ns)
        elif data in (b"", b'""', b"null"):
            ledger.frame(at_ns, "empty")
        else:
            ledger.fail(at_ns, MALFORMED, f"an event is no JSON object: {explain(data, '')[1]}")

    return read


def each(event: ReadEvent) -> ReadEvents:
    """Reads the events of one read, up to the one that ends the answer."""

    def read(ledger: Ledger, events: list[tuple[str, bytes]], at_ns: int) -> None:
        for name, data in events:
            if ledger.ended:
                return
            event(ledger, name, data, at_ns)

    return read


def json_whole(decoder: msgspec.json.Decoder[Shape], one: ReadShape[Shape]) -> ReadWhole:
    """Reads one document. Numbers as text and halves of surrogate pairs, which some gateways cut in two events, are
    forgiven; all else that does not fit is named and fails the answer."""

    def read(ledger: Ledger, data: bytes, at_ns: int) -> None:
        try:
            value = msgspec.convert(json.loads(data), decoder.type, strict=False)
        except (ValueError, RecursionError) as wrong:
            reason = wrong if isinstance(wrong, ValueError) else "JSON is nested too deeply"
            ledger.fail(at_ns, MALFORMED, f"{reason} in: {explain(data, '')[1][:200]}")
        else:
            one(ledger, value, data, at_ns)

    return read


def failed(ledger: Ledger, error: object, data: bytes, at_ns: int) -> bool:
    """True, and the answer has failed, if its `error` field holds anything."""
    if error:
        ledger.fail(at_ns, *explain(data, "error"))
    return bool(error)


class EventDialect(msgspec.Struct, frozen=True):
    """A `dialect.Dialect` whose answers are events or, with `whole`, one document.

    `ask` makes the request; `text_key` and `end_is_done` are those of `AnswerParser`.
    """

    name: str
    ask: Ask
    read: ReadEvents
    whole: ReadWhole | None = None
    splitter: Callable[[], Splits] = Splitter
    text_key: bytes = b""
    end_is_done: bool = False

    def request(self, request: Request, target: Target, answers: Mapping[int, str]) -> HttpRequest:
        return self.ask(request, target, answers)

    def parser(self, status: int, headers: Mapping[str, str]) -> AnswerParser:
        split = self.splitter()
        return AnswerParser(status, split, self.read, self.whole, self.text_key, end_is_done=self.end_is_done)
