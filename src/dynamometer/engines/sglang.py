"""SGLang's own POST …/generate: a bare prompt; each event repeats the text so far, unless the server was told not to.

Source: SGLang's native API documentation. Whether an event holds all text or only the new part is read from the
counts: ids as many as tokens so far mean all of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from dynamometer.engines.dialect import HttpRequest
from dynamometer.engines.fault import line
from dynamometer.engines.ledger import CONTENT, WHOLE, Ledger
from dynamometer.engines.post import join, post
from dynamometer.engines.prompt import plain
from dynamometer.engines.reading import EventDialect, each, failed, json_event, json_whole
from dynamometer.types import Request, Target


class Finish(msgspec.Struct):
    type: str = "stop"  # stop, length, abort
    message: str = ""
    err_type: str | None = None


class Meta(msgspec.Struct):
    finish_reason: Finish | str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None  # so far
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    e2e_latency: float | None = None  # seconds


class Generated(msgspec.Struct):
    """One event, or the whole document."""

    text: str | None = None
    output_ids: list[int] | None = None
    meta_info: Meta | None = None
    error: object = None


def _event(ledger: Ledger, event: Generated, data: bytes, at_ns: int) -> None:
    if failed(ledger, event.error, data, at_ns):
        return
    meta = event.meta_info or Meta()
    text = _new_text(ledger, event, meta)
    tokens = 0 if meta.completion_tokens is None else ledger.running_count(meta.completion_tokens)
    if text or tokens:
        ledger.text(at_ns, CONTENT, text, tokens)
    elif meta.finish_reason is None:
        ledger.frame(at_ns, "empty")
    _meta(ledger, meta, at_ns)


def _new_text(ledger: Ledger, event: Generated, meta: Meta) -> str:
    """What this event adds to the text."""
    text, said = event.text or "", ledger.said
    total = meta.completion_tokens
    if event.output_ids is not None and total is not None and event.output_ids:
        whole = len(event.output_ids) >= total
    else:
        whole = text.startswith(said)
    ledger.said = text if whole else said + text
    return text[len(said) :] if whole else text


def _meta(ledger: Ledger, meta: Meta, at_ns: int) -> None:
    ledger.usage(at_ns, "prompt", meta.prompt_tokens)
    ledger.usage(at_ns, "output", meta.completion_tokens)
    ledger.usage(at_ns, "cached", meta.cached_tokens)
    ledger.usage(at_ns, "reasoning", meta.reasoning_tokens)
    finish = meta.finish_reason
    if finish is None:
        return
    if isinstance(finish, Finish) and finish.type == "abort":
        ledger.fail(at_ns, finish.err_type or "abort", line(finish.message) or "the server gave the answer up")
        return
    ledger.timing(at_ns, "total", meta.e2e_latency)
    ledger.finish(at_ns, finish if isinstance(finish, str) else finish.type)


def _document(ledger: Ledger, answer: Generated, data: bytes, at_ns: int) -> None:
    if failed(ledger, answer.error or answer.text is None, data, at_ns):
        return
    ledger.frame(at_ns, WHOLE)
    _event(ledger, answer, data, at_ns)
    ledger.finish(at_ns, "stop")


_DECODER: Final = msgspec.json.Decoder(Generated)
_read: Final = each(json_event(_DECODER, _event))
_whole: Final = json_whole(_DECODER, _document)


def _ask(request: Request, target: Target, answers: Mapping[int, str]) -> HttpRequest:
    sampling: dict[str, object] = {}
    if request.output_tokens:
        sampling["max_new_tokens"] = request.output_tokens
    if request.ignore_eos:
        sampling["ignore_eos"] = True
    if request.stop:
        sampling["stop"] = list(request.stop)
    fields = {"text": plain(request, answers), "sampling_params": sampling, "stream": True}
    return post(target, join(target, "/generate"), fields)


sglang: Final = EventDialect("sglang", _ask, _read, _whole)
