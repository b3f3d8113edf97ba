"""Requests in, requests that may be asked now out: turns of one conversation wait for each other's answers.

Turns of a conversation name their `session`; `after` names the turn whose answer must be complete first.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from itertools import islice

import msgspec

from dynamometer.client.wire import Answer
from dynamometer.engines.dialect import Dialect
from dynamometer.errors import UsageError
from dynamometer.types import EventKind, Request


class Past(msgspec.Struct, frozen=True, gc=False):
    """How the turn before ended."""

    end_ns: int
    ok: bool


class Turns:
    """The conversations of one run. Their answers are held to its end: a later turn may quote any of them."""

    def __init__(self, requests: Iterator[Request], dialect: Dialect) -> None:
        self._requests, self._dialect = requests, dialect
        self._past: dict[int, Past] = {}
        self.texts: dict[str, dict[int, str]] = {}  # answers of each conversation so far, in the order of the turns
        self._parked: dict[int, list[Request]] = {}  # by the turn they wait for
        self._ready: deque[Request] = deque()
        self._listeners: dict[int, asyncio.Future[None]] = {}
        self.source = requests  # the phase's requests in the order given, ready or not

    def allow(self, requests: int) -> None:
        """How many more to hand out; 0: as many as there are."""
        self.source = islice(self._requests, requests) if requests else self._requests

    def ready(self, ended: int) -> Request | None:
        """The next request that may be asked, for a stream whose request `ended` has just ended (-1: none yet).

        The stream goes on with the same conversation if it can, as a person would.
        """
        if ended in self._parked:
            self._ready.extendleft(reversed(self._parked.pop(ended)))
        if self._ready:
            return self._ready.popleft()
        for request in self.source:
            if request.after < 0 or request.after in self._past:
                return request
            _check(request)
            self._parked.setdefault(request.after, []).append(request)
        return None

    def before(self, request: Request) -> Past | None:
        """How the turn before ended; None for a first turn and while that turn is under way."""
        return self._past.get(request.after)

    async def over(self, request: Request) -> Past:
        """Waits for the turn before."""
        _check(request)
        while request.after not in self._past:
            await self._listeners.setdefault(request.after, asyncio.get_running_loop().create_future())
        return self._past[request.after]

    def ended(self, request: Request, answer: Answer) -> None:
        """Takes note of a conversation's answer; no other is parsed during the run."""
        text = text_of(self._dialect, answer) if answer.ok else None
        if text is not None:
            self.texts.setdefault(request.session, {})[request.index] = text
        self._past[request.index] = Past(answer.end_ns, text is not None)
        listener = self._listeners.pop(request.index, None)
        if listener is not None:
            listener.set_result(None)

    def skipped(self, request: Request, at_ns: int) -> None:
        """A turn that could not be asked: those after it can't either."""
        self.ended(request, Answer(0, {}, b"", 0, at_ns, "cancel: predecessor"))


def _check(request: Request) -> None:
    if not request.session:
        raise UsageError(f"request {request.index} follows {request.after} but names no session; give it one")


def text_of(dialect: Dialect, answer: Answer) -> str | None:
    """What the engine said, without its reasoning; None if the answer is a failure."""
    parser = dialect.parser(answer.status, answer.headers)
    chunks = [*parser.feed(answer.body, answer.end_ns), *parser.close(answer.end_ns)]
    if chunks[-1].kind is EventKind.ERROR:
        return None
    return "".join(chunk.text for chunk in chunks if chunk.kind is EventKind.CHUNK and chunk.note == "content")
