"""A request in, the call that the wire sends and the row that the log keeps out."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import msgspec

from dynamometer.client.endpoint import Endpoint, serialize
from dynamometer.client.wire import Call
from dynamometer.engines.dialect import Dialect
from dynamometer.types import Message, Request, Target

_encode = msgspec.json.Encoder().encode


class Row(msgspec.Struct, frozen=True, gc=False):
    """One row of `requests.parquet` (docs/record.md)."""

    request: int
    phase: str
    family: str
    session: str
    turn: int
    after: int
    level: float
    input_tokens: int
    output_tokens: int
    ignore_eos: bool
    prompt_sha: str


class Planner(msgspec.Struct, frozen=True):
    """What all calls of a run have in common."""

    dialect: Dialect
    target: Target
    at: Endpoint

    def call(self, request: Request, phase: str, level: float, answers: Mapping[int, str]) -> Call:
        """`answers`: the conversation so far. `level`: concurrency or rate in force."""
        http = self.dialect.request(request, self.target, answers)
        row = planned(request, phase, level, answers)
        return Call(request.index, serialize(http, self.at), len(http.body), row, bool(request.session))


def planned(request: Request, phase: str, level: float, answers: Mapping[int, str]) -> bytes:
    """The request's row as JSON."""
    return _encode(
        Row(
            request=request.index,
            phase=phase,
            family=request.family,
            session=request.session,
            turn=request.turn,
            after=request.after,
            level=level,
            input_tokens=request.input_tokens,
            output_tokens=request.output_tokens,
            ignore_eos=request.ignore_eos,
            prompt_sha=prompt_sha(request.messages, answers.values()),
        )
    )


def prompt_sha(messages: tuple[Message, ...], said: Iterable[str]) -> str:
    """First 16 hex digits of SHA-256 over the messages as JSON, with the engine's answers (`said`, in order) put in."""
    if any(message.content is None for message in messages):
        texts = iter(said)
        messages = tuple(
            Message(message.role, next(texts, "")) if message.content is None else message for message in messages
        )
    return hashlib.sha256(_encode(messages)).hexdigest()[:16]
