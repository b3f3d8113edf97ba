"""A request that was answered in, asked of canary and baseline again, and how far their answers differ, out.

The baseline is asked a second time too: how much its own answers vary is what the canary's difference is held against.
"""

from __future__ import annotations

import asyncio
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable
from typing import Final

import msgspec

from dynamometer.engines.openai import chat
from dynamometer.engines.reply import assemble
from dynamometer.gateway.back import Back, Replica
from dynamometer.gateway.exchange import Outcome
from dynamometer.gateway.segment import Ticket
from dynamometer.record.log import BODY, END, ERROR, HEADERS, SENT
from dynamometer.types import Chunk

_WORD: Final = re.compile(r"\w+")
_encode: Final = msgspec.json.Encoder().encode


class Heard(msgspec.Struct, frozen=True):
    """A shadow's answer."""

    text: str
    outcome: Outcome


class Echo:
    """A `Sink` that keeps the answer and gives it to nobody."""

    def __init__(self, replica: Replica, asked_ns: int, ticket: Ticket, done: asyncio.Future[Heard]) -> None:
        self.replica, self._asked_ns, self._ticket, self._done = replica, asked_ns, ticket, done
        self._body: list[bytes] = []
        self._first_ns = self.sent_ns = 0
        self.back: Back | None = None

    def sent(self, back: Back, at_ns: int) -> None:
        self.sent_ns, self.back = at_ns, back
        self._log(SENT, at_ns, b'{"attempt":1,"bytes":0,"connection":"%s"}' % (b"reused" if back.used > 1 else b"new"))

    def head(self, back: Back, at_ns: int) -> None:
        self._log(HEADERS, at_ns, _encode({"status": back.status, "headers": back.headers}))

    def piece(self, back: Back, body: bytes, at_ns: int) -> None:
        self._first_ns = self._first_ns or at_ns
        self._body.append(body)
        self._log(BODY, at_ns, body)

    def ended(self, back: Back, at_ns: int) -> None:
        self._log(END, at_ns)
        text = said(back.status, back.headers, b"".join(self._body))
        self._over(back, "" if back.status < 400 else f"status: HTTP {back.status}", at_ns, text)

    def lost(self, back: Back | None, reason: str, at_ns: int) -> None:
        self._log(ERROR, at_ns, reason.encode())
        self._over(back, reason, at_ns, "")

    def give_up(self, at_ns: int) -> None:
        """It took too long."""
        if self.back is not None and not self._done.done():
            self.back.drop()
            self.lost(self.back, "timeout: no whole answer", at_ns)

    def _over(self, back: Back | None, error: str, at_ns: int, text: str) -> None:
        self.replica.in_flight -= 1
        reads, size, status = (back.reads, back.body_bytes, back.status) if back is not None else (0, 0, 0)
        times = (self._asked_ns, self.sent_ns, self._first_ns, at_ns)
        status = (
            0 if error and status < 500 else status
        )  # a refused shadow is the engine's failure: the original passed
        outcome = Outcome(self.replica.name, self.replica.side, status, error, *times, reads, size, 1)
        self._ticket.close()
        if not self._done.done():
            self._done.set_result(Heard(text, outcome))

    def _log(self, kind: int, at_ns: int, payload: bytes = b"") -> None:
        self._ticket.append(kind, self._ticket.number, at_ns, payload)


def said(status: int, headers: dict[str, str], body: bytes) -> str:
    """The text of an answer, whatever its form: reasoning, content, refusal and calls."""
    parser = chat.parser(status, headers)
    facts = [*parser.feed(body, 0), *parser.close(0)]
    reply = assemble(fact for fact in facts if isinstance(fact, Chunk))
    return "\n".join(part for part in (reply.reasoning, reply.text, reply.refusal, *reply.calls) if part)


def difference(how: str, one: str, other: str) -> float:
    """0 where the answers are the same by that measure, 1 where they have nothing in common."""
    if how == "exact":
        return float(one != other)
    if how == "normalized":
        return float(normal(one) != normal(other))
    return 1.0 - cosine(Counter(_WORD.findall(normal(one))), Counter(_WORD.findall(normal(other))))


def normal(text: str) -> str:
    """One case, one spacing, one Unicode form, no punctuation at the ends."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split()).strip(" .!\"'`")


def cosine(one: Counter[str], other: Counter[str]) -> float:
    if not one or not other:
        return float(one == other)
    dot = sum(count * other[word] for word, count in one.items())
    return dot / math.sqrt(sum(c * c for c in one.values()) * sum(c * c for c in other.values()))


def length_difference(one: str, other: str) -> float:
    """Share by which the shorter is shorter."""
    longest = max(len(one), len(other))
    return 0.0 if longest == 0 else 1.0 - min(len(one), len(other)) / longest


def model_request(how: str, model: str, texts: tuple[str, str]) -> tuple[str, bytes]:
    """Path and body of the question to an embedding model or a judge."""
    if how == "embedding":
        return "/v1/embeddings", _encode({"model": model, "input": [text or " " for text in texts]})
    ask = (
        "Two answers to the same question follow. Reply with one word: SAME if a user would be served equally well by "
        f"both, else DIFFERENT.\n\n<one>\n{texts[0]}\n</one>\n\n<two>\n{texts[1]}\n</two>"
    )
    message = {"role": "user", "content": ask}
    return "/v1/chat/completions", _encode({"model": model, "messages": [message], "max_tokens": 8, "temperature": 0})


class _Embedding(msgspec.Struct):
    embedding: list[float]


class _Embeddings(msgspec.Struct):
    data: list[_Embedding]


def model_answer(how: str, body: bytes) -> float | None:
    """The difference that the model says; None: its answer is none."""
    if how == "judge":
        word = said(200, {"content-type": "application/json"}, body).upper()
        return 0.0 if "SAME" in word and "DIFFERENT" not in word else 1.0 if "DIFFERENT" in word else None
    try:
        one, other = (row.embedding for row in msgspec.json.decode(body, type=_Embeddings).data)
        norms = math.sqrt(sum(x * x for x in one) * sum(x * x for x in other))
        return min(1.0, max(0.0, 1.0 - sum(x * y for x, y in zip(one, other, strict=True)) / norms))
    except (msgspec.DecodeError, ValueError, ZeroDivisionError):
        return None


Ask = Callable[[str, bytes], "asyncio.Future[bytes]"]
