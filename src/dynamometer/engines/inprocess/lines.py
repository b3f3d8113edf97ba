"""The record of an in-process run: emissions as JSON lines in, chunks out. A dialect, so every reader knows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from dynamometer.engines.dialect import HttpRequest
from dynamometer.engines.inprocess import Emission
from dynamometer.errors import UsageError
from dynamometer.types import Chunk, EventKind, Request, Target, Texts

_decode = msgspec.json.Decoder(Emission).decode
_encode = msgspec.json.Encoder().encode


def line(emission: Emission) -> bytes:
    """What the log keeps of an emission."""
    return _encode(emission) + b"\n"


class Lines:
    """A dialect that nobody speaks over a wire."""

    name = "inprocess"

    def request(self, request: Request, target: Target, answers: Mapping[int, str]) -> HttpRequest:
        raise UsageError("the dialect inprocess is for engines inside this process; there is nothing to send")

    def parser(self, status: int, headers: Mapping[str, str]) -> LineParser:
        return LineParser()


class LineParser:
    """Times are the emissions' own frames' times."""

    def __init__(self) -> None:
        self._rest = b""
        self._end = ""
        self._error = ""

    @property
    def ended(self) -> bool:
        """True once the engine gave an end, good or bad."""
        return bool(self._end or self._error)

    def feed(self, data: bytes, at_ns: int) -> list[Chunk]:
        *whole, self._rest = (self._rest + data).split(b"\n")
        chunks: list[Chunk] = []
        for text in whole:
            try:
                emission = _decode(text)
            except msgspec.DecodeError as wrong:
                self._error = self._error or f"record: a line of the log cannot be read: {wrong}"
                continue
            chunks += self._chunks(emission, at_ns)
        return chunks

    def feed_reads(self, reads: Sequence[bytes], at_ns: Sequence[int]) -> list[Chunk | Texts]:
        return [chunk for data, at in zip(reads, at_ns, strict=True) for chunk in self.feed(data, at)]

    def _chunks(self, emission: Emission, at_ns: int) -> list[Chunk]:
        chunks: list[Chunk] = []
        if emission.text or emission.tokens:
            chunks.append(Chunk(EventKind.CHUNK, at_ns, emission.tokens, emission.text, "content"))
        if emission.error:
            self._error = emission.error
        if emission.finish:
            self._end = emission.finish
            counts = (
                ("prompt", emission.prompt_tokens),
                ("output", emission.output_tokens),
                ("cached", emission.cached_tokens),
            )
            chunks += [Chunk(EventKind.USAGE, at_ns, n, note=note) for note, n in counts if n or note != "cached"]
            chunks.append(Chunk(EventKind.FINISH, at_ns, note=emission.finish))
        return chunks

    def close(self, at_ns: int) -> list[Chunk]:
        if self._error:
            return [Chunk(EventKind.ERROR, at_ns, note=self._error)]
        if not self._end:
            return [Chunk(EventKind.ERROR, at_ns, note="truncated: the engine gave no end")]
        return [Chunk(EventKind.DONE, at_ns)]


inprocess = Lines()
