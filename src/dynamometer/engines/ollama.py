"""Ollama's own API: POST …/api/chat and …/api/generate; one JSON document a line, durations in nanoseconds.

Source: Ollama's API documentation. It has no switch that keeps it from stopping at the end token, so `ignore_eos`
cannot be asked for. The prompt's count is absent when the prompt was cached: then it is unknown, not 0. Some clones
send durations in another unit; a decoding time that the stream itself refutes is kept as `suspect decode`, not as
`decode`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from dynamometer.engines.dialect import HttpRequest
from dynamometer.engines.ledger import CONTENT, REASONING, TOOL, WHOLE, Ledger
from dynamometer.engines.ndjson import Splitter
from dynamometer.engines.post import join, post
from dynamometer.engines.prompt import plain, turns
from dynamometer.engines.reading import EventDialect, each, failed, json_event
from dynamometer.types import Request, Target

IMPLAUSIBLE: Final = 20  # a server that says it decoded so many times faster than its text was seen to come
FASTEST: Final = 100_000  # tokens/s of one stream that no engine reaches


class Function(msgspec.Struct):
    name: str = ""
    arguments: dict[str, object] | str = ""


class ToolCall(msgspec.Struct):
    function: Function | None = None


class Message(msgspec.Struct):
    content: str | None = None
    thinking: str | None = None
    tool_calls: list[ToolCall] | None = None


class Line(msgspec.Struct):
    """One line. /api/chat fills `message`, /api/generate `response` and `thinking`."""

    message: Message | None = None
    response: str | None = None
    thinking: str | None = None
    done: bool = False
    done_reason: str | None = None
    error: object = None
    total_duration: int | None = None
    load_duration: int | None = None
    prompt_eval_count: int | None = None
    prompt_eval_duration: int | None = None
    eval_count: int | None = None
    eval_duration: int | None = None


def _line(ledger: Ledger, line: Line, data: bytes, at_ns: int) -> None:
    if failed(ledger, line.error, data, at_ns):
        return
    pieces = _pieces(line)
    if line.done and not ledger.spoke and pieces:
        ledger.frame(at_ns, WHOLE)  # asked for without streaming: all in one line
    for channel, text in pieces:
        ledger.text(at_ns, channel, text)
    if line.done:
        _counts(ledger, line, at_ns)
        ledger.finish(at_ns, line.done_reason or "stop")
        ledger.ended = True
    elif not pieces:
        ledger.frame(at_ns, "empty")


def _pieces(line: Line) -> list[tuple[str, str]]:
    message = line.message or Message()
    found = [(REASONING, message.thinking or line.thinking or ""), (CONTENT, message.content or line.response or "")]
    for number, call in enumerate(message.tool_calls or ()):
        if call.function is not None:
            arguments = call.function.arguments
            text = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
            found.append((f"{TOOL} {number}" if number else TOOL, call.function.name + text))
    return [(channel, text) for channel, text in found if text]


def _counts(ledger: Ledger, line: Line, at_ns: int) -> None:
    ledger.usage(at_ns, "prompt", line.prompt_eval_count)
    ledger.usage(at_ns, "output", line.eval_count)
    seen_s = (at_ns - ledger.first_ns) / 1e9 if ledger.spoke else 0.0
    durations = {
        "total": line.total_duration,
        "load": line.load_duration,
        "prompt": line.prompt_eval_duration,
        "decode": line.eval_duration,
    }
    decode_s = (line.eval_duration or 0) / 1e9
    doubtful = decode_s > 0 and (
        seen_s > IMPLAUSIBLE * decode_s or (line.eval_count is not None and line.eval_count > FASTEST * decode_s)
    )
    for name, duration_ns in durations.items():
        if duration_ns is not None:
            ledger.timing(at_ns, f"suspect {name}" if doubtful else name, duration_ns / 1e9)


_read: Final = each(json_event(msgspec.json.Decoder(Line), _line))


def _fields(request: Request, target: Target) -> dict[str, object]:
    options: dict[str, object] = {}
    if request.output_tokens:
        options["num_predict"] = request.output_tokens
    if request.stop:
        options["stop"] = list(request.stop)
    return {"model": target.model or None, "stream": True, "options": options}


def _ask_chat(request: Request, target: Target, answers: Mapping[int, str]) -> HttpRequest:
    fields = {**_fields(request, target), "messages": turns(request, answers)}
    return post(target, join(target, "/api/chat"), fields)


def _ask_generate(request: Request, target: Target, answers: Mapping[int, str]) -> HttpRequest:
    fields = {**_fields(request, target), "prompt": plain(request, answers)}
    return post(target, join(target, "/api/generate"), fields)


chat: Final = EventDialect("ollama.chat", _ask_chat, _read, splitter=Splitter)
generate: Final = EventDialect("ollama.generate", _ask_generate, _read, splitter=Splitter)
