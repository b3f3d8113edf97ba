"""Triton's generate extension: POST …/v2/models/MODEL/generate_stream, for its vLLM and TensorRT-LLM backends.

Source: Triton's generate extension, the vLLM backend's additional outputs, the TensorRT-LLM backend's ensemble. The two
backends take the limit under different names; both are sent, and what a model does not declare it does not read. The
stream has no end marker: the end of a body that held text is its end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

import msgspec

from dynamometer.engines.dialect import HttpRequest
from dynamometer.engines.ledger import CONTENT, WHOLE, Ledger
from dynamometer.engines.post import join, post
from dynamometer.engines.prompt import plain
from dynamometer.engines.reading import EventDialect, each, failed, json_event, json_whole
from dynamometer.errors import UsageError
from dynamometer.types import Request, Target


class Output(msgspec.Struct):
    """One event, or the whole document: the model's output tensors by name."""

    text_output: str | list[str] | None = None
    finish_reason: str | list[str] | None = None
    num_input_tokens: int | list[int] | None = None
    num_output_tokens: int | list[int] | None = None  # of this event
    error: object = None


def _first(value: str | list[str] | None) -> str:
    return (value[0] if value else "") if isinstance(value, list) else value or ""


def _number(value: int | list[int] | None) -> int | None:
    return (value[0] if value else None) if isinstance(value, list) else value


def _event(ledger: Ledger, event: Output, data: bytes, at_ns: int) -> None:
    if failed(ledger, event.error, data, at_ns):
        return
    text, tokens = _first(event.text_output), _number(event.num_output_tokens) or 0
    finish = _first(event.finish_reason)
    if text or tokens:
        ledger.text(at_ns, CONTENT, text, tokens)
        ledger.output_seen += tokens
    else:
        ledger.frame(at_ns, "empty")
    ledger.usage(at_ns, "prompt", _number(event.num_input_tokens))
    ledger.usage(at_ns, "output", ledger.output_seen or None)
    if finish and finish != "None":
        ledger.finish(at_ns, finish)


def _document(ledger: Ledger, answer: Output, data: bytes, at_ns: int) -> None:
    if failed(ledger, answer.error or answer.text_output is None, data, at_ns):
        return
    ledger.frame(at_ns, WHOLE)
    _event(ledger, answer, data, at_ns)
    ledger.ended = True


_DECODER: Final = msgspec.json.Decoder(Output)
_read: Final = each(json_event(_DECODER, _event))
_whole: Final = json_whole(_DECODER, _document)


def sampling(request: Request) -> dict[str, object]:
    """What vLLM's backend reads as JSON from `sampling_parameters`."""
    found: dict[str, object] = {}
    if request.output_tokens:
        found["max_tokens"] = request.output_tokens
    if request.ignore_eos:
        found["ignore_eos"] = True
    if request.stop:
        found["stop"] = list(request.stop)
    return found


def _ask(request: Request, target: Target, answers: Mapping[int, str]) -> HttpRequest:
    if not target.model and not target.url.rstrip("/").endswith("/generate_stream"):
        raise UsageError(f"Triton at {target.url} needs the model's name in the path; give --model, e.g. ensemble")
    fields = {
        "text_input": plain(request, answers),
        "stream": True,
        "exclude_input_in_output": True,
        "sampling_parameters": msgspec.json.encode(sampling(request)).decode(),
        "return_num_input_tokens": True,
        "return_num_output_tokens": True,
        "return_finish_reason": True,
        "max_tokens": request.output_tokens or None,  # TensorRT-LLM
        "stop_words": list(request.stop) or None,
    }
    path = join(target, f"/v2/models/{quote(target.model, safe='')}/generate_stream")
    if target.url.rstrip("/").endswith("/generate_stream"):
        path = join(target, "/generate_stream")
    return post(target, path, fields)


triton: Final = EventDialect("triton", _ask, _read, _whole, end_is_done=True)
