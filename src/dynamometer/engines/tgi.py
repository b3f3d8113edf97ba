"""Hugging Face's text-generation-inference: POST …/generate_stream; a bare prompt, one token an event.

Source: TGI's API reference and its router's event types. TGI has no switch that keeps it from stopping at the end
token, so `ignore_eos` cannot be asked for here; answers that are shorter than asked show it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from dynamometer.engines.dialect import HttpRequest
from dynamometer.engines.fault import explain
from dynamometer.engines.ledger import CONTENT, WHOLE, Ledger
from dynamometer.engines.post import join, post
from dynamometer.engines.prompt import plain
from dynamometer.engines.reading import EventDialect, each, failed, json_event, json_whole
from dynamometer.types import Request, Target


class Token(msgspec.Struct):
    text: str = ""
    special: bool = False  # an end token: generated, but no part of the text


class Details(msgspec.Struct):
    finish_reason: str | None = None
    generated_tokens: int | None = None
    input_length: int | None = None
    prefill: list[object] | None = None  # the prompt's tokens, when they were asked for


class Generated(msgspec.Struct):
    """One event, or the whole document."""

    token: Token | None = None
    generated_text: str | None = None
    details: Details | None = None
    error: object = None


def _event(ledger: Ledger, event: Generated, data: bytes, at_ns: int) -> None:
    if failed(ledger, event.error, data, at_ns):
        return
    if event.token is None:
        ledger.frame(at_ns, "empty")
    else:
        ledger.text(at_ns, CONTENT, "" if event.token.special else event.token.text, 1)
    _end(ledger, event, at_ns)


def _end(ledger: Ledger, event: Generated, at_ns: int) -> None:
    details = event.details
    if details is not None:
        ledger.usage(at_ns, "output", details.generated_tokens)
        ledger.usage(at_ns, "prompt", details.input_length or (len(details.prefill) if details.prefill else None))
    if event.generated_text is not None or (details is not None and details.finish_reason):
        ledger.finish(at_ns, (details and details.finish_reason) or "stop")


def _document(ledger: Ledger, answer: Generated, data: bytes, at_ns: int) -> None:
    if failed(ledger, answer.error, data, at_ns):
        return
    if answer.generated_text is None:
        ledger.fail(at_ns, *explain(data, "no text"))
        return
    ledger.frame(at_ns, WHOLE)
    if answer.generated_text:
        ledger.text(at_ns, CONTENT, answer.generated_text, (answer.details and answer.details.generated_tokens) or 0)
    _end(ledger, answer, at_ns)


_DECODER: Final = msgspec.json.Decoder(Generated)
_read: Final = each(json_event(_DECODER, _event))
_whole: Final = json_whole(_DECODER, _document)


def _ask(request: Request, target: Target, answers: Mapping[int, str]) -> HttpRequest:
    parameters: dict[str, object] = {"details": True}
    if request.output_tokens:
        parameters["max_new_tokens"] = request.output_tokens
    if request.stop:
        parameters["stop"] = list(request.stop)
    fields = {"inputs": plain(request, answers), "parameters": parameters}
    return post(target, join(target, "/generate_stream"), fields)


tgi: Final = EventDialect("tgi", _ask, _read, _whole)
