"""Wire logs and a dialect in, the facts of each request out, and from them rows, texts and one request's time line.

Nothing is parsed while timing, so this is where bytes become events. Memory holds the requests in flight and one batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from dynamometer.engines.dialect import Dialect, Parser
from dynamometer.engines.reply import Reply, assemble
from dynamometer.errors import RecordError
from dynamometer.record.log import BODY, CANCEL, DUE, END, ERROR, HEADERS, PLAN, RETRY, SENT, Frame, read_frames
from dynamometer.record.rows import Events, Fact, Plan, Rows, flat
from dynamometer.types import Chunk, Event, EventKind, Texts

BATCH_ROWS: Final = 100_000
INTERRUPT: Final = "interrupt"
_AT_ONCE: Final = 8192  # reads of one answer that wait to be parsed: the most that memory holds of it


class Sent(msgspec.Struct, frozen=True):
    """Payload of a `sent` frame."""

    attempt: int = 1
    bytes: int = 0
    connection: str = ""


class Headers(msgspec.Struct, frozen=True):
    """Payload of a `headers` frame; names in lower case."""

    status: int
    headers: dict[str, str] = {}


class Told(msgspec.Struct, frozen=True):
    """All that is known of one request that ended: the last fact is one of kind done, error or cancel."""

    request: int
    facts: list[Fact]


class _Ended(msgspec.Struct, frozen=True):
    """The same as it is decoded, with runs of text in columns."""

    request: int
    facts: list[Fact | Texts]


_SENT: Final = msgspec.json.Decoder(Sent)
_HEADERS: Final = msgspec.json.Decoder(Headers)
_PLAN: Final = msgspec.json.Decoder(Plan)


class _Open:
    """A request in flight."""

    __slots__ = ("at_ns", "attempt", "body_bytes", "facts", "last_ns", "parser", "reads", "status")

    def __init__(self) -> None:
        self.facts: list[Fact | Texts] = []
        self.forget_answer()
        self.attempt = 1

    def forget_answer(self) -> None:
        self.parser: Parser | None = None
        self.status = self.body_bytes = 0
        self.reads: list[bytes] = []  # of the body, not parsed yet: many at once are parsed quicker
        self.at_ns: list[int] = []
        self.last_ns = 0  # of its reads

    def parse(self) -> None:
        """Turns the reads that wait into facts."""
        if self.reads and self.parser is not None:
            self.last_ns = self.at_ns[-1]
            self.body_bytes += sum(map(len, self.reads))
            self.facts += self.parser.feed_reads(self.reads, self.at_ns)
        self.reads, self.at_ns = [], []


def replay(
    paths: Iterable[Path], dialect: Dialect, plans: dict[int, Plan] | None = None, only: int | None = None
) -> Iterator[Told]:
    """Each request as it ends. Fills `plans`; `only` restricts all to one request.

    A request that was interrupted and asked again counts with its new answer. One that a crash left open is told last,
    as interrupted at the log's last moment.
    """
    for ended in _ends(paths, dialect, plans, only):
        yield Told(ended.request, flat(ended.facts))


def _ends(
    paths: Iterable[Path], dialect: Dialect, plans: dict[int, Plan] | None, only: int | None = None
) -> Iterator[_Ended]:
    opened: dict[int, _Open] = {}
    interrupted: dict[int, _Ended] = {}
    last_ns = 0
    for path in paths:
        for kind, request, at_ns, payload in read_frames(path):
            now = opened.get(request)
            if kind == BODY and now is not None:
                now.reads.append(payload)
                now.at_ns.append(at_ns)
                if len(now.reads) >= _AT_ONCE:
                    now.parse()
                continue
            if only is not None and request != only:
                continue
            last_ns = max(last_ns, at_ns)
            try:
                ended = _frame(opened, dialect, plans, (kind, request, at_ns, payload))
            except msgspec.DecodeError as wrong:
                raise RecordError(f"{path}: a frame of request {request} is damaged: {wrong}") from wrong
            if kind == PLAN:
                interrupted.pop(request, None)
            elif ended is not None and kind == CANCEL and _note(ended) == INTERRUPT:
                interrupted[request] = ended
            elif ended is not None:
                yield ended
    yield from interrupted.values()
    yield from _broken_off(opened, last_ns)


def _broken_off(opened: dict[int, _Open], last_ns: int) -> Iterator[_Ended]:
    """What a crash left open, as interrupted at the last moment that any frame tells of."""
    for now in opened.values():
        now.parse()
        last_ns = max(last_ns, now.last_ns)
    for request, now in opened.items():
        if now.facts:
            yield _Ended(request, _close(now, request, CANCEL, last_ns, INTERRUPT))


class Live:
    """The same while the log grows: frames go in one by one, a request comes out when it ends, warm-up too."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._opened: dict[int, _Open] = {}
        self.plans: dict[int, Plan] = {}

    @property
    def in_flight(self) -> int:
        """Requests that were sent and have not ended, as far as the frames tell."""
        return sum(
            any(isinstance(fact, Event) and fact.kind is EventKind.SENT for fact in now.facts)
            for now in self._opened.values()
        )

    def take(self, frame: Frame) -> Told | None:
        kind, request, at_ns, payload = frame
        now = self._opened.get(request)
        if kind == BODY and now is not None and now.parser is not None:
            now.body_bytes += len(payload)
            now.facts += now.parser.feed(payload, at_ns)
            return None
        ended = _frame(self._opened, self._dialect, self.plans, frame)
        return None if ended is None else Told(ended.request, flat(ended.facts))


def _note(ended: _Ended) -> str:
    last = ended.facts[-1]
    return "" if isinstance(last, Texts) else last.note


def _frame(
    opened: dict[int, _Open], dialect: Dialect, plans: dict[int, Plan] | None, frame: tuple[int, int, int, bytes]
) -> _Ended | None:
    """One frame but a body's. Returns the request's facts when the frame ends it."""
    kind, request, at_ns, payload = frame
    if kind == PLAN:
        opened[request] = _Open()
        if plans is not None:
            plans[request] = _PLAN.decode(payload)
        return None
    now = opened.setdefault(request, _Open())
    now.parse()
    if plans is not None and request not in plans:
        plans[request] = Plan(request)
    if kind in (END, ERROR, CANCEL):
        facts = _close(now, request, kind, at_ns, payload.decode("utf-8", "replace"))
        del opened[request]
        return _Ended(request, facts)
    now.facts += _wire(now, request, dialect, (kind, at_ns, payload))
    return None


def _wire(now: _Open, request: int, dialect: Dialect, frame: tuple[int, int, bytes]) -> list[Fact]:
    """What the wire did, as rows."""
    kind, at_ns, payload = frame
    if kind == DUE:
        return [Event(request, EventKind.DUE, at_ns)]
    if kind == SENT:
        sent = _SENT.decode(payload)
        now.attempt = sent.attempt
        return [Event(request, EventKind.SENT, at_ns, sent.attempt, sent.bytes, sent.connection)]
    if kind == HEADERS:
        head = _HEADERS.decode(payload)
        now.forget_answer()
        now.status, now.parser = head.status, dialect.parser(head.status, head.headers)
        return [Event(request, EventKind.HEADERS, at_ns, head.status)]
    if kind == RETRY:
        now.forget_answer()
        return [Event(request, EventKind.RETRY, at_ns, now.attempt, 0, payload.decode("utf-8", "replace"))]
    return []  # a body without headers: nothing can be made of it, and the end says what went wrong


def _close(now: _Open, request: int, kind: int, at_ns: int, note: str) -> list[Fact | Texts]:
    """The facts with the one that ends them: by the protocol, by the wire's failure, or by us.

    An answer whose end marker was read is complete, whatever the connection did afterwards.
    """
    ended = now.parser is not None and now.parser.ended
    rest: list[Chunk] = now.parser.close(at_ns) if now.parser is not None else []
    facts: list[Fact | Texts] = [*now.facts, *rest[:-1]]
    if rest and (kind == END or ended):
        last = rest[-1]
        if last.kind is EventKind.DONE:
            facts.append(Event(request, EventKind.DONE, last.at_ns, 0, now.body_bytes))
        else:
            facts.append(last)
    elif kind == CANCEL:
        facts.append(Event(request, EventKind.CANCEL, at_ns, 0, 0, note))
    else:
        note = note if kind == ERROR else "malformed: the exchange ended before any answer"
        facts.append(Event(request, EventKind.ERROR, at_ns, now.status, 0, note))
    return facts


def decode(paths: Iterable[Path], dialect: Dialect, emit: Callable[[Events], None]) -> list[Plan]:
    """All rows of a run. `emit` gets the events in batches of about a million; the plans come back at the end."""
    plans: dict[int, Plan] = {}
    rows = Rows()
    for told in _ends(paths, dialect, plans):
        rows.add(told.request, told.facts)
        if len(rows) >= BATCH_ROWS:
            emit(rows.take())
    emit(rows.take())
    return list(plans.values())


def replies(paths: Iterable[Path], dialect: Dialect) -> Iterator[tuple[int, Reply]]:
    """Every answer's texts by request, as the requests ended."""
    for told in replay(paths, dialect):
        yield told.request, assemble(fact for fact in told.facts if isinstance(fact, Chunk))
