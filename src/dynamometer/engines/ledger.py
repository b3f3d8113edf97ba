"""What a dialect reads in, chunks out: the book-keeping that every dialect shares, so that all count by one rule.

One rule for all engines: text makes a `chunk`; a protocol event without text or tokens makes a `frame`; each server
count is one `usage` row, the last value that was sent, at the time it was sent; the first finish reason stays; an
answer ends in one `done` or one `error`. An error inside a stream ends the answer: what follows it is not read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from dynamometer.engines.fault import explain, line
from dynamometer.engines.repeat import Repeat
from dynamometer.engines.sse import MAX_EVENT_BYTES, Event
from dynamometer.types import Chunk, EventKind, Texts

# a class attribute of an enum costs more than a global, and these are read for every token
CHUNK: Final = EventKind.CHUNK
FRAME: Final = EventKind.FRAME

CONTENT: Final = "content"
REASONING: Final = "reasoning"
TOOL: Final = "tool"
REFUSAL: Final = "refusal"

MALFORMED: Final = "malformed"
WHOLE: Final = "whole"  # frame note: the answer came as one document, so no token has a time of its own
BLANK: Final = b"\xef\xbb\xbf \t\r\n"  # what may stand before the first meaningful byte: byte order mark, white space

# finish reasons by which a server says that it gave the answer up
FAILED_FINISH: Final = frozenset({"abort", "aborted", "error", "failed", "cancelled", "canceled"})
# one name for one reason, whatever the engine calls it
SAME_FINISH: Final = {
    **dict.fromkeys(("eos", "eos_token", "word", "end_turn", "stop_sequence", "stop_word"), "stop"),
    **dict.fromkeys(("limit", "max_tokens", "max_output_tokens", "model_length"), "length"),
    "tool_use": "tool_calls",
}


class Ledger:
    """Facts of one answer, in the order in which they were read."""

    __slots__ = (
        *("_timing", "_usage", "chunks", "counted", "ended", "failure", "finished"),
        *("first_ns", "output_seen", "said", "spoke"),
    )

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self.ended = False  # the protocol's own end marker, or an error, was read
        self.finished = ""
        self.failure: tuple[int, str] | None = None  # (at_ns, "class: message")
        self.spoke = False  # a chunk was read
        self.first_ns = 0  # when `text` was first called
        self.said = ""  # the whole text so far, for servers that repeat it in each event
        self.output_seen = 0  # output tokens that the server has announced so far
        self.counted = True  # every chunk so far came with a running count
        self._usage: dict[str, tuple[int, int]] = {}
        self._timing: dict[str, tuple[int, int]] = {}

    def text(self, at_ns: int, channel: str, text: str, tokens: int = 0) -> None:
        if not self.spoke:
            self.spoke, self.first_ns = True, at_ns
        self.chunks.append(Chunk(CHUNK, at_ns, tokens, text, channel))

    def frame(self, at_ns: int, note: str) -> None:
        self.chunks.append(Chunk(FRAME, at_ns, 0, "", note))

    def usage(self, at_ns: int, note: str, tokens: int | None) -> None:
        """A count by the server; a later one replaces it. None, negative and absurd numbers are not counts."""
        if tokens is not None and 0 <= tokens < 2**31:
            self._usage[note] = (at_ns, tokens)

    def fallback_usage(self, at_ns: int, note: str, tokens: int | None) -> None:
        """A count that is only kept where no usage object gives it."""
        if note not in self._usage:
            self.usage(at_ns, note, tokens)

    def timing(self, at_ns: int, note: str, duration_s: float | None) -> None:
        """A duration by the server, in seconds; kept in whole microseconds."""
        if duration_s is not None and 0 <= duration_s < 1e9:
            self._timing[note] = (at_ns, round(duration_s * 1e6))

    def running_count(self, output: int) -> int:
        """The server's running total of output tokens came with a chunk: the tokens since the last one.

        0 when an earlier chunk came without a total, because then the difference is not this chunk's.
        """
        new = output - self.output_seen if self.counted else 0
        self.output_seen = max(self.output_seen, output)
        return max(new, 0)

    def finish(self, at_ns: int, reason: str) -> None:
        if self.finished:
            return
        reason = SAME_FINISH.get(reason, reason)
        self.finished = reason
        if reason in FAILED_FINISH:
            self.fail(at_ns, reason, "the server gave the answer up")
        else:
            self.chunks.append(Chunk(EventKind.FINISH, at_ns, 0, "", line(reason, 80)))

    def fail(self, at_ns: int, kind: str, message: str) -> None:
        if self.failure is None:
            self.failure = (at_ns, f"{kind}: {message}")
            self.ended = True

    def close(self, at_ns: int, status: int) -> list[Chunk]:
        """What is left, the counts, and the one row that ends the answer."""
        if self.failure is None and not self.ended and not self.finished:
            what = "in mid-answer" if self.spoke else "before any text"
            self.fail(at_ns, "truncated", f"the body ended {what}, without end marker or finish reason")
        for kind, facts in ((EventKind.USAGE, self._usage), (EventKind.TIMING, self._timing)):
            self.chunks += [Chunk(kind, when, n, "", note) for note, (when, n) in facts.items()]
        if self.failure is None:
            self.chunks.append(Chunk(EventKind.DONE, at_ns))
        else:
            when, message = self.failure
            self.chunks.append(Chunk(EventKind.ERROR, when, status, "", message))
        return self.chunks


class Splits(Protocol):
    """Bytes in, events out: `sse.Splitter` or `ndjson.Splitter`."""

    overflow: bool  # one event was too large
    idle: bool  # between two events, with nothing held

    def feed(self, data: bytes) -> list[Event]: ...

    def close(self) -> list[Event]: ...


ReadEvents = Callable[[Ledger, list[Event], int], None]
ReadWhole = Callable[[Ledger, bytes, int], None]


class AnswerParser:
    """A parser of one answer: a stream, a whole JSON document, or a failure's body. The first byte tells which.

    `read` takes the events of one read; `whole` takes a complete JSON body. Content types are not trusted: servers send
    streams as text/plain, and error documents as text/event-stream.
    """

    __slots__ = (
        "_body",
        "_end_is_done",
        "_ledger",
        "_read",
        "_read_at_ns",
        "_repeat",
        "_split",
        "_status",
        "_streaming",
        "_whole",
    )

    def __init__(
        self,
        status: int,
        split: Splits,
        read: ReadEvents,
        whole: ReadWhole | None,
        text_key: bytes = b"",
        *,
        end_is_done: bool = False,
    ) -> None:
        """`text_key`: the JSON key of plain text, where reads may be compared instead of parsed (`repeat`).
        `end_is_done`: this protocol has no other end than the body's."""
        self._status, self._split, self._read, self._whole = status, split, read, whole
        self._ledger = Ledger()
        self._repeat = Repeat(text_key)
        self._end_is_done = end_is_done
        self._streaming: bool | None = False if status >= 300 else None  # None: not known yet
        self._body: list[bytes] = []  # held: of unknown kind, a whole document, or a failure
        self._read_at_ns = 0

    @property
    def ended(self) -> bool:
        return self._ledger.ended

    def feed(self, data: bytes, at_ns: int) -> list[Chunk]:
        repeat = self._repeat
        if repeat.known and (text := repeat.text(data)):
            return [Chunk(CHUNK, at_ns, 0, text, CONTENT)]
        ledger, split = self._ledger, self._split
        if not self._streaming:
            data = self._begin(data, at_ns)
        if not data or ledger.ended:
            return []
        self._read_at_ns = at_ns
        events = split.feed(data)
        if events:
            self._read(ledger, events, at_ns)
        if split.overflow:
            ledger.fail(at_ns, "too-large", f"one event is over {MAX_EVENT_BYTES >> 20} MiB")
        chunks, ledger.chunks = ledger.chunks, []
        if split.idle and len(events) == len(chunks) == 1 and chunks[0].note == CONTENT and not chunks[0].n:
            repeat.learn(data, chunks[0].text)
        else:
            repeat.forget()
        return chunks

    def feed_reads(self, reads: Sequence[bytes], at_ns: Sequence[int]) -> list[Chunk | Texts]:
        found: list[Chunk | Texts] = []
        repeat, place = self._repeat, 0
        while place < len(reads):
            if repeat.known and (texts := repeat.texts(reads, place)):
                end = place + len(texts)
                found.append(Texts(list(at_ns[place:end]), texts))
                place = end
            else:
                found += self.feed(reads[place], at_ns[place])
                place += 1
        return found

    def close(self, at_ns: int) -> list[Chunk]:
        ledger = self._ledger
        if self._streaming and not ledger.ended:
            self._read_rest()
            ledger.ended = ledger.ended or (self._end_is_done and ledger.spoke)
        elif not self._streaming:
            self._read_body(at_ns)
        return ledger.close(at_ns, self._status)

    def _begin(self, data: bytes, at_ns: int) -> bytes:
        """Holds bytes until they are known to be a stream's; then returns them all."""
        self._body.append(data)
        self._read_at_ns = at_ns
        if self._streaming is None:
            body = b"".join(self._body)
            start = body.lstrip(BLANK)[:1]
            if start:
                self._streaming = start != b"<" and (start not in b"{[" or self._whole is None)
            if self._streaming:
                self._body = []
                return body
        return b""

    def _read_rest(self) -> None:
        """The events that no blank line closed. A torn one is no fault of its own: the stream is truncated."""
        ledger = self._ledger
        self._read(ledger, self._split.close(), self._read_at_ns)
        if ledger.failure and ledger.failure[1].startswith(MALFORMED):
            ledger.failure, ledger.ended = None, False

    def _read_body(self, at_ns: int) -> None:
        ledger, body = self._ledger, b"".join(self._body)
        at_ns = self._read_at_ns or at_ns
        if self._status >= 300:
            ledger.fail(at_ns, *explain(body, f"http {self._status}"))
        elif not body.strip():
            ledger.fail(at_ns, "truncated", "the body is empty")
        elif body.lstrip()[:1] == b"<" or self._whole is None:
            ledger.fail(at_ns, MALFORMED, explain(body, "")[1])
        else:
            self._whole(ledger, body.strip(BLANK), at_ns)
