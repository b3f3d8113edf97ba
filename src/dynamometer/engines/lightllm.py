"""LightLLM: POST …/generate_stream; a bare prompt, one token an event with running counts.

Source: LightLLM's API server. It says neither a version nor an end marker: `finished` closes the answer.
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
    special: bool = False
    count_output_tokens: int = 0  # so far
    prompt_tokens: int = 0


class Generated(msgspec.Struct):
    """One event; with `generated_text`, one entry for each answer, the whole document."""

    token: Token | None = None
    generated_text: list[str] | str | None = None
    finished: bool = False
    finish_reason: str | None = None
    count_output_tokens: int | None = None
    prompt_tokens: int | None = None
    error: object = None


def _event(ledger: Ledger, event: Generated, data: bytes, at_ns: int) -> None:
    if failed(ledger, event.error, data, at_ns):
        return
    token = event.token
    if token is None:
        ledger.frame(at_ns, "empty")
    else:
        tokens = ledger.running_count(token.count_output_tokens) if token.count_output_tokens else 1
        ledger.text(at_ns, CONTENT, "" if token.special else token.text, tokens)
        ledger.usage(at_ns, "prompt", token.prompt_tokens or None)
        ledger.usage(at_ns, "output", token.count_output_tokens or None)
    if event.finished:
        ledger.finish(at_ns, event.finish_reason or "stop")


def _document(ledger: Ledger, answer: Generated, data: bytes, at_ns: int) -> None:
    if failed(ledger, answer.error, data, at_ns):
        return
    texts = [answer.generated_text] if isinstance(answer.generated_text, str) else answer.generated_text
    if not texts:
        ledger.fail(at_ns, *explain(data, "no text"))
        return
    ledger.frame(at_ns, WHOLE)
    if texts[0]:
        ledger.text(at_ns, CONTENT, texts[0], answer.count_output_tokens or 0)
    ledger.usage(at_ns, "prompt", answer.prompt_tokens)
    ledger.usage(at_ns, "output", answer.count_output_tokens)
    ledger.finish(at_ns, answer.finish_reason or "stop")


_DECODER: Final = msgspec.json.Decoder(Generated)
_read: Final = each(json_event(_DECODER, _event))
_whole: Final = json_whole(_DECODER, _document)


def _ask(request: Request, target: Target, answers: Mapping[int, str]) -> HttpRequest:
    parameters: dict[str, object] = {}
    if request.output_tokens:
        parameters["max_new_tokens"] = request.output_tokens
    if request.ignore_eos:
        parameters["ignore_eos"] = True
    if request.stop:
        parameters["stop_sequences"] = list(request.stop)
    fields = {"inputs": plain(request, answers), "parameters": parameters}
    return post(target, join(target, "/generate_stream"), fields)


lightllm: Final = EventDialect("lightllm", _ask, _read, _whole)
