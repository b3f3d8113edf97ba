"""A request in, the call that the wire sends and the row that the log keeps out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Final

import msgspec

from dynamometer.client.endpoint import Endpoint, head
from dynamometer.client.wire import Call
from dynamometer.engines.dialect import Dialect
from dynamometer.types import Message, Request, Target

_NOTHING: Final[Mapping[int, str]] = {}
_encode: Final = msgspec.json.Encoder().encode


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
    prompt_sha: str  # first 16 hex digits of SHA-256 over the messages as JSON, with the engine's answers put in


class Planner(msgspec.Struct, frozen=True):
    """What all calls of a run have in common."""

    dialect: Dialect
    target: Target
    at: Endpoint
    texts: Mapping[str, Mapping[int, str]]  # answers so far by session, in the order of the turns

    def call(self, request: Request, phase: str, level: float, sent: bool = True) -> Call:
        """Serializes all of it, so that nothing but the write is left for the moment when the request is due.

        `level`: concurrency or rate in force. `sent` False: only the row is wanted.
        """
        said = self.texts.get(request.session, _NOTHING)
        messages = _filled(request.messages, said.values()) if said else request.messages
        row = Row(
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
            prompt_sha=sha256(_encode(messages)).hexdigest()[:16],
        )
        if not sent:
            return Call(request.index, b"", 0, _encode(row))
        http = self.dialect.request(request, self.target, said)
        size = len(http.body)
        if self.at.scheme.startswith("grpc"):  # its headers are made by grpc
            return Call(request.index, http.body, size, _encode(row), bool(request.session))
        data = head(http.method, http.path, http.headers, self.at) + b"content-length: %d\r\n\r\n" % size + http.body
        return Call(request.index, data, size, _encode(row), bool(request.session))


def _filled(messages: tuple[Message, ...], said: Iterable[str]) -> tuple[Message, ...]:
    """The messages with what the engine said in place of the turns that quote it."""
    texts = iter(said)
    return tuple(Message(message.role, next(texts, "")) if message.content is None else message for message in messages)
