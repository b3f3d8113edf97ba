"""What a dialect is: a request in, bytes to send out; bytes received in, chunks out. Sans-I/O: no socket, no clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from dynamometer.types import Chunk, Request, Target, Texts


class HttpRequest(msgspec.Struct, frozen=True):
    """One HTTP request, ready to send. `path` is absolute, query included; `headers` lack Host and Content-Length."""

    method: str
    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes


class Parser(Protocol):
    """Reads one answer. Feed it the body bytes of each socket read, in any split; every split gives the same tokens."""

    @property
    def ended(self) -> bool:
        """The protocol's own end marker, or an error, was read: what the connection does next changes nothing."""
        ...

    def feed(self, data: bytes, at_ns: int) -> list[Chunk]:
        """The events that `data` completed, each stamped `at_ns`."""
        ...

    def feed_reads(self, reads: Sequence[bytes], at_ns: Sequence[int]) -> list[Chunk | Texts]:
        """What several reads in a row completed: the same as feeding them one by one, held in fewer objects."""
        ...

    def close(self, at_ns: int) -> list[Chunk]:
        """The body ended. The last chunk is exactly one of kind DONE or ERROR; a truncated answer is an ERROR."""
        ...


class Dialect(Protocol):
    """One engine's language."""

    @property
    def name(self) -> str: ...

    def request(self, request: Request, target: Target, answers: Mapping[int, str]) -> HttpRequest:
        """`answers`: this conversation's earlier answers by request index, for messages whose content is None."""
        ...

    def parser(self, status: int, headers: Mapping[str, str]) -> Parser:
        """A parser for an answer with this status and these headers (names in lower case)."""
        ...
