"""llama.cpp's own POST …/completion: a bare prompt, a running count of tokens, the server's timings at the end.

Source: the README of llama.cpp's server. `tokens_evaluated` is the whole prompt; `timings.prompt_n` only its uncached
part.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from dynamometer.engines.dialect import HttpRequest
from dynamometer.engines.ledger import CONTENT, WHOLE, Ledger
from dynamometer.engines.openai import Timings, server_timings
from dynamometer.engines.post import join, post
from dynamometer.engines.prompt import plain
from dynamometer.engines.reading import EventDialect, each, failed, json_event, json_whole
from dynamometer.types import Request, Target


class Completion(msgspec.Struct):
    """One event, or the whole document."""

    content: str | None = None
    tokens: list[int] | None = None  # with return_tokens
    stop: bool = False
    stop_type: str | None = None  # limit, eos, word, none
    stopped_eos: bool = False  # until 2024, in place of stop_type
    stopped_limit: bool = False
    stopped_word: bool = False
    tokens_predicted: int | None = None  # so far
    tokens_evaluated: int | None = None
    timings: Timings | None = None
    error: object = None


def _event(ledger: Ledger, event: Completion, data: bytes, at_ns: int) -> None:
    if failed(ledger, event.error, data, at_ns):
        return
    if event.content:
        ledger.text(at_ns, CONTENT, event.content, _tokens(ledger, event))
    elif not event.stop:
        ledger.frame(at_ns, "empty")
    if event.stop:
        _end(ledger, event, at_ns)


def _tokens(ledger: Ledger, event: Completion) -> int:
    if event.tokens_predicted is not None and not event.stop:
        return ledger.running_count(event.tokens_predicted)
    ledger.counted = ledger.counted and event.stop
    return len(event.tokens or ())


def _end(ledger: Ledger, event: Completion, at_ns: int) -> None:
    ledger.usage(at_ns, "prompt", event.tokens_evaluated)
    ledger.usage(at_ns, "output", event.tokens_predicted)
    if event.timings is not None:
        server_timings(ledger, event.timings, at_ns)
    old = "limit" if event.stopped_limit else "word" if event.stopped_word else "eos"
    ledger.finish(at_ns, event.stop_type if event.stop_type not in (None, "none") else old)
    ledger.ended = True


def _document(ledger: Ledger, answer: Completion, data: bytes, at_ns: int) -> None:
    if failed(ledger, answer.error or answer.content is None, data, at_ns):
        return
    ledger.frame(at_ns, WHOLE)
    if answer.content:
        ledger.text(at_ns, CONTENT, answer.content, answer.tokens_predicted or 0)
    _end(ledger, answer, at_ns)


_DECODER: Final = msgspec.json.Decoder(Completion)
_read: Final = each(json_event(_DECODER, _event))
_whole: Final = json_whole(_DECODER, _document)


def _ask(request: Request, target: Target, answers: Mapping[int, str]) -> HttpRequest:
    fields = {
        "prompt": plain(request, answers),
        "n_predict": request.output_tokens or None,
        "ignore_eos": True if request.ignore_eos else None,
        "stop": list(request.stop) or None,
        "stream": True,
    }
    return post(target, join(target, "/completion"), fields)


llamacpp: Final = EventDialect("llamacpp", _ask, _read, _whole)
