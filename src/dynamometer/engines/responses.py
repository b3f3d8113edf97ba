"""OpenAI's responses: POST …/v1/responses, as the hosted API, vLLM and transformers' server speak it.

Source: the Responses API reference, "Streaming events". Events name themselves in `type`; text comes in `….delta`
events, counts and the reason of the end in the last one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from dynamometer.engines.dialect import HttpRequest
from dynamometer.engines.fault import explain, line
from dynamometer.engines.ledger import CONTENT, REASONING, REFUSAL, TOOL, WHOLE, Ledger
from dynamometer.engines.openai import Timings, server_timings
from dynamometer.engines.post import join, post
from dynamometer.engines.prompt import turns
from dynamometer.engines.reading import EventDialect, each, failed, json_event, json_whole
from dynamometer.types import Request, Target

CHANNELS: Final = {
    "response.output_text.delta": CONTENT,
    "response.refusal.delta": REFUSAL,
    "response.reasoning_text.delta": REASONING,
    "response.reasoning.delta": REASONING,
    "response.reasoning_summary_text.delta": REASONING,
    "response.function_call_arguments.delta": TOOL,
    "response.custom_tool_call_input.delta": TOOL,
}
PARTS: Final = {"output_text": CONTENT, "refusal": REFUSAL, "reasoning_text": REASONING, "summary_text": REASONING}


class Part(msgspec.Struct):
    type: str = ""
    text: str | None = None
    refusal: str | None = None


class Item(msgspec.Struct):
    """One output item: a message, a thought or a call."""

    type: str = ""
    name: str | None = None
    arguments: str | None = None
    content: list[Part] | None = None
    summary: list[Part] | None = None


class InputDetails(msgspec.Struct):
    cached_tokens: int | None = None


class OutputDetails(msgspec.Struct):
    reasoning_tokens: int | None = None


class Usage(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: InputDetails | None = None
    output_tokens_details: OutputDetails | None = None


class Incomplete(msgspec.Struct):
    reason: str | None = None


class Fault(msgspec.Struct):
    code: str | int | None = None
    type: str | None = None
    message: str | None = None


class Response(msgspec.Struct):
    status: str | None = None
    output: list[Item] | None = None
    usage: Usage | None = None
    incomplete_details: Incomplete | None = None
    error: Fault | None = None


class Event(msgspec.Struct):
    type: str = ""
    delta: str | None = None
    output_index: int = 0
    item: Item | None = None
    response: Response | None = None
    timings: Timings | None = None  # llama.cpp, with the last event
    error: object = None


def _event(ledger: Ledger, event: Event, data: bytes, at_ns: int) -> None:
    if failed(ledger, event.error or event.type == "error", data, at_ns):
        return
    channel = CHANNELS.get(event.type)
    if event.type in ("response.completed", "response.incomplete", "response.failed", "response.done"):
        _end(ledger, event.response or Response(), at_ns)
        if event.timings is not None:
            server_timings(ledger, event.timings, at_ns)
    elif channel is not None and event.delta:
        ledger.text(at_ns, f"{TOOL} {event.output_index}" if channel == TOOL else channel, event.delta)
    elif event.type == "response.output_item.added" and event.item is not None and event.item.name:
        ledger.text(at_ns, f"{TOOL} {event.output_index}", event.item.name)
    else:
        ledger.frame(at_ns, "role" if event.type == "response.created" else "empty")


def _end(ledger: Ledger, response: Response, at_ns: int) -> None:
    usage = response.usage or Usage()
    prompt, output = usage.input_tokens_details, usage.output_tokens_details
    ledger.usage(at_ns, "prompt", usage.input_tokens)
    ledger.usage(at_ns, "output", usage.output_tokens)
    ledger.usage(at_ns, "cached", prompt.cached_tokens if prompt is not None else None)
    ledger.usage(at_ns, "reasoning", output.reasoning_tokens if output is not None else None)
    fault = response.error
    if fault is not None:
        ledger.fail(at_ns, str(fault.code or fault.type or "error"), line(fault.message or "no message"))
        return
    reason = response.incomplete_details and response.incomplete_details.reason
    ledger.finish(at_ns, reason or ("failed" if response.status == "failed" else "stop"))
    ledger.ended = True


def _document(ledger: Ledger, response: Response, data: bytes, at_ns: int) -> None:
    if response.output is None and response.error is None:
        ledger.fail(at_ns, *explain(data, "no output"))
        return
    ledger.frame(at_ns, WHOLE)
    for number, item in enumerate(response.output or ()):
        for part in (*(item.summary or ()), *(item.content or ())):
            if text := part.text or part.refusal:
                ledger.text(at_ns, PARTS.get(part.type, CONTENT), text)
        if item.name:
            ledger.text(at_ns, f"{TOOL} {number}", item.name + (item.arguments or ""))
    _end(ledger, response, at_ns)


_read: Final = each(json_event(msgspec.json.Decoder(Event), _event))
_whole: Final = json_whole(msgspec.json.Decoder(Response), _document)


def _ask(request: Request, target: Target, answers: Mapping[int, str]) -> HttpRequest:
    fields = {
        "model": target.model or None,
        "input": turns(request, answers),
        "max_output_tokens": request.output_tokens or None,
        "ignore_eos": True if request.ignore_eos else None,
        "stream": True,
    }
    return post(target, join(target, "/responses", "/v1"), fields)


responses: Final = EventDialect("openai.responses", _ask, _read, _whole)
