"""Anthropic-style messages: POST …/v1/messages, as the hosted API, vLLM, llama.cpp and gateways speak it.

Source: the Messages API reference, "Streaming messages". `input_tokens` leaves out what the cache gave, so the prompt
is the sum of three counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from dynamometer.engines.dialect import HttpRequest
from dynamometer.engines.ledger import CONTENT, REASONING, TOOL, WHOLE, Ledger
from dynamometer.engines.post import JSON_POST, join, post
from dynamometer.engines.prompt import turns
from dynamometer.engines.reading import EventDialect, each, failed, json_event, json_whole
from dynamometer.errors import UsageError
from dynamometer.types import Request, Target

VERSION: Final = "2023-06-01"


class Usage(msgspec.Struct):
    input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    output_tokens: int | None = None


class Block(msgspec.Struct):
    """A content block, or a delta to one."""

    type: str = ""
    text: str | None = None
    thinking: str | None = None
    partial_json: str | None = None
    name: str | None = None
    input: dict[str, object] | None = None
    stop_reason: str | None = None


class Message(msgspec.Struct):
    usage: Usage | None = None


class Event(msgspec.Struct):
    """One event, or (type "message") the whole document."""

    type: str = ""
    message: Message | None = None
    index: int = 0
    content_block: Block | None = None
    delta: Block | None = None
    usage: Usage | None = None
    content: list[Block] | None = None
    stop_reason: str | None = None
    error: object = None


def _event(ledger: Ledger, event: Event, data: bytes, at_ns: int) -> None:
    if failed(ledger, event.error or event.type == "error", data, at_ns):
        return
    _usage(ledger, event.usage or (event.message.usage if event.message is not None else None), at_ns)
    block = event.content_block or event.delta
    pieces = _pieces(block, event.index) if block is not None else []
    for channel, text in pieces:
        ledger.text(at_ns, channel, text)
    reason = event.delta.stop_reason if event.delta is not None else None
    if reason:
        ledger.finish(at_ns, reason)
    elif event.type == "message_stop":
        ledger.ended = True
    elif event.type == "message_start":
        ledger.frame(at_ns, "role")
    elif not pieces:
        ledger.frame(at_ns, "ping" if event.type == "ping" else "empty")


def _pieces(block: Block, index: int) -> list[tuple[str, str]]:
    call = f"{TOOL} {index}"
    arguments = msgspec.json.encode(block.input).decode() if block.input else ""
    found = [
        (REASONING, block.thinking),
        (CONTENT, block.text),
        (call, block.name),
        (call, block.partial_json or arguments),
    ]
    return [(channel, text) for channel, text in found if text]


def _usage(ledger: Ledger, usage: Usage | None, at_ns: int) -> None:
    if usage is None:
        return
    cached = usage.cache_read_input_tokens
    if usage.input_tokens is not None:
        ledger.usage(at_ns, "prompt", usage.input_tokens + (cached or 0) + (usage.cache_creation_input_tokens or 0))
    ledger.usage(at_ns, "cached", cached)
    ledger.usage(at_ns, "output", usage.output_tokens)


def _document(ledger: Ledger, answer: Event, data: bytes, at_ns: int) -> None:
    if failed(ledger, answer.error or answer.content is None, data, at_ns):
        return
    ledger.frame(at_ns, WHOLE)
    for number, block in enumerate(answer.content or ()):
        for channel, text in _pieces(block, number):
            ledger.text(at_ns, channel, text)
    _usage(ledger, answer.usage, at_ns)
    ledger.finish(at_ns, answer.stop_reason or "stop")


_DECODER: Final = msgspec.json.Decoder(Event)
_read: Final = each(json_event(_DECODER, _event))
_whole: Final = json_whole(_DECODER, _document)


def _ask(request: Request, target: Target, answers: Mapping[int, str]) -> HttpRequest:
    if not request.output_tokens:
        raise UsageError(f"request {request.index} has no output limit; this API demands one, so give --output-tokens")
    said = turns(request, answers)
    system = "\n\n".join(turn["content"] for turn in said if turn["role"] == "system")
    fields = {
        "model": target.model or None,
        "max_tokens": request.output_tokens,
        "system": system or None,
        "messages": [turn for turn in said if turn["role"] != "system"],
        "stop_sequences": list(request.stop) or None,
        "stream": True,
    }
    headers = {**JSON_POST, "anthropic-version": VERSION}
    return post(target, join(target, "/messages", "/v1"), fields, "x-api-key", headers)


anthropic: Final = EventDialect("anthropic", _ask, _read, _whole)
