"""One client's request in, its answer out: sent once more elsewhere while no byte has gone out, recorded."""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

from dynamometer.gateway.back import Back, Headers, Replica
from dynamometer.gateway.front import Asked, Front, error_body
from dynamometer.gateway.segment import Ticket
from dynamometer.gateway.trace import Trace
from dynamometer.record.log import BODY, CANCEL, END, ERROR, HEADERS, RETRY, SENT

_encode: Final = msgspec.json.Encoder().encode
NOT_PASSED: Final = frozenset(
    (
        *("host", "content-length", "transfer-encoding", "connection", "keep-alive", "te", "trailer", "upgrade"),
        *("expect", "proxy-authorization", "proxy-connection", "accept-encoding", "cookie"),
        *("authorization", "api-key", "x-api-key"),
        *("traceparent", "tracestate"),
    )
)


class Outcome(msgspec.Struct, frozen=True):
    """How a request ended, for breaker, gates, metrics and the structured log."""

    replica: str
    side: str
    status: int
    error: str  # empty: a complete answer with a status below 500; "cancel: …": the client's doing, or ours
    asked_ns: int
    sent_ns: int
    first_ns: int  # first body byte; 0: none
    end_ns: int
    reads: int
    body_bytes: int
    attempts: int


class Ways(Protocol):
    """What an exchange needs of the gateway."""

    def elsewhere(self, tried: tuple[Replica, ...]) -> Replica | None:
        """Another replica that takes requests."""
        ...

    def message(self, replica: Replica, asked: Asked, headers: Headers) -> bytes: ...
    def tried(self, replica: Replica, status: int, reason: str) -> None:
        """An attempt ended, well if `reason` is empty: for breaker and gates, whatever becomes of the request."""
        ...

    def over(self, exchange: Exchange, outcome: Outcome) -> None: ...


class Exchange:
    """A `Sink` for the answer and the `Serving` of its client."""

    __slots__ = (
        "_backs", "_dead", "_first_ns", "_joined", "_sent_ns", "_tried", "_ways", "asked", "attempts", "begun_ns",
        "front", "kept", "limit_bytes", "ticket", "trace", "try_ns", "wanted_side", "winner",
    )  # fmt: skip

    def __init__(self, ways: Ways, front: Front, asked: Asked, trace: Trace, ticket: Ticket | None) -> None:
        self._ways, self.front, self.asked, self.trace, self.ticket = ways, front, asked, trace, ticket
        self.wanted_side = "baseline"
        self._backs: list[Back] = []  # more than one only while a hedge runs
        self._tried: list[Replica] = []
        self.winner: Back | None = None  # whose bytes go to the client
        self.kept: list[bytes] | None = None  # the body, where it is to be compared
        self.attempts = self._sent_ns = self._first_ns = 0
        self.try_ns = 0  # when the newest attempt began
        self.limit_bytes = 1 << 62
        self.begun_ns = 0
        self._dead = self._joined = False

    @property
    def replica(self) -> Replica | None:
        """Whose answer it is, or who was asked last; None: nobody yet."""
        if self.winner is not None:
            return self.winner.replica
        return self._tried[-1] if self._tried else None

    @property
    def waits(self) -> bool:
        """No byte has gone to the client yet."""
        return self.winner is None and not self._dead

    @property
    def last_ns(self) -> int:
        """The last sign of life from the engine."""
        return self.winner.last_ns if self.winner is not None else self.try_ns

    def start(self, replica: Replica, now_ns: int) -> None:
        """Sends it; also for a retry and a hedge."""
        self._count(replica, now_ns)
        self._joined = False
        headers = {name: value for name, value in self.asked.headers.items() if name not in NOT_PASSED}
        headers["traceparent"], headers["accept-encoding"] = self.trace.parent, "identity"
        replica.send(self, self._ways.message(replica, self.asked, headers))

    def join(self, replica: Replica, now_ns: int) -> None:
        """It goes out as one of a batch."""
        self._count(replica, now_ns)
        self._joined = True

    def _count(self, replica: Replica, now_ns: int) -> None:
        self.begun_ns = self.begun_ns or now_ns
        self.try_ns = now_ns
        self.attempts += 1
        self._tried.append(replica)
        replica.in_flight += 1

    def hedge(self, now_ns: int) -> None:
        """Asks a second replica as well; whose first byte comes first answers."""
        other = self._ways.elsewhere(tuple(self._tried))
        if other is not None:
            self.start(other, now_ns)

    # --- a Sink ---

    def sent(self, back: Back, at_ns: int) -> None:
        if self._dead:
            back.drop()
            return
        self._backs.append(back)
        self._sent_ns = self._sent_ns or at_ns
        detail = b'{"attempt":%d,"bytes":%d,"connection":"%s"}'
        fresh = b"reused" if back.used > 1 else b"new"
        self._log(SENT, at_ns, detail % (self.attempts, len(self.asked.body), fresh))

    def head(self, back: Back, at_ns: int) -> None:
        """Held back until there is a body: until then the request may still be answered elsewhere."""

    def piece(self, back: Back, body: bytes, at_ns: int) -> None:
        if back is self.winner:
            self.front.body(body)
            ticket = self.ticket
            if ticket is not None:
                ticket.append(BODY, ticket.number, at_ns, body)
            if self.kept is not None:
                self.kept.append(body)
            if back.body_bytes > self.limit_bytes:
                self.fail(f"too-large: the answer is over {self.limit_bytes} bytes", at_ns, 502)
        else:
            self._win(back, body, at_ns)

    def ended(self, back: Back, at_ns: int) -> None:
        if self.winner is None:
            self._win(back, b"", at_ns)
        back.replica.in_flight -= 1
        self._backs.remove(back)
        self._complete(back, at_ns)

    def lost(self, back: Back | None, reason: str, at_ns: int) -> None:
        if self._dead:
            return
        replica = back.replica if back is not None else self._tried[-1]
        replica.in_flight -= 1
        self._ways.tried(replica, 0, reason)
        if back is not None and back in self._backs:
            self._backs.remove(back)
        if back is self.winner and back is not None:
            self._broken(reason, at_ns)
            return
        if self._backs:  # the hedge goes on
            return
        other = self._ways.elsewhere(tuple(self._tried)) if self.attempts < 2 else None
        if other is None and self.attempts < 2 and back is not None and back.used > 1:
            other = replica  # a kept connection that the engine had closed: nothing is wrong with the engine
        if other is None:
            self.fail(reason, at_ns, 502)
            return
        self._log(RETRY, at_ns, reason.encode())
        self.start(other, at_ns)

    # --- one of a batch ---

    def joined_sent(self, back: Back, at_ns: int) -> None:
        self._sent_ns = self._sent_ns or at_ns
        self._log(
            SENT, at_ns, b'{"attempt":%d,"bytes":%d,"connection":"reused"}' % (self.attempts, len(self.asked.body))
        )

    def joined_answer(self, back: Back, body: bytes, at_ns: int) -> None:
        """Its part of the answer."""
        if self._dead:
            return
        self._joined = False
        back.replica.in_flight -= 1
        back.length = len(body)
        self._win(back, body, at_ns)
        self._complete(back, at_ns)

    def joined_lost(self, reason: str, at_ns: int) -> None:
        if not self._dead:
            self._joined = False
            self.lost(None, reason, at_ns)

    # --- a Serving ---

    def hung_up(self) -> None:
        self._stop("cancel: the client hung up", self.last_ns, 499)

    def pause(self) -> None:
        if self.winner is not None:
            self.winner.pause()

    def resume(self) -> None:
        if self.winner is not None:
            self.winner.resume()

    # --- endings ---

    def fail(self, reason: str, at_ns: int, status: int) -> None:
        """The request cannot be answered, or not to its end."""
        if self.winner is not None:
            winner = self.winner
            self._leave(winner)
            self._broken(reason, at_ns)
            return
        self._stop(reason, at_ns, status)
        self.front.say(status, reason, "upstream_error", (("x-dyno-trace", self.trace.id),))

    def time_out(self, reason: str, at_ns: int) -> None:
        """The engine's fault: it took too long."""
        if self.replica is not None:
            self._ways.tried(self.replica, 0, reason)
        self.fail(reason, at_ns, 504)

    def _complete(self, back: Back, at_ns: int) -> None:
        error = f"status: HTTP {back.status}" if back.status >= 500 else ""
        self._log(END, at_ns)
        self.front.end()
        self._ways.tried(back.replica, back.status, error)
        self._over(back.status, error, at_ns)

    def _win(self, back: Back, first: bytes, at_ns: int) -> None:
        """The first bytes: from here on this replica answers."""
        self.winner, self._first_ns = back, at_ns if first else 0
        for other in [one for one in self._backs if one is not back]:
            self._leave(other)
        headers = [*back.headers.items(), ("x-dyno-trace", self.trace.id)]
        # a HEAD or 204 has no body of its own; its length is that of nothing
        self.front.begin(back.status, headers, back.length if first else 0, first)
        if self.ticket is not None:
            shown = {name: value for name, value in back.headers.items() if name != "set-cookie"}
            self._log(HEADERS, at_ns, _encode({"status": back.status, "headers": shown}))
            if first:
                self._log(BODY, at_ns, first)
        if self.kept is not None:
            self.kept.append(first)
        if self.front.stalled_ns:
            back.pause()

    def _broken(self, reason: str, at_ns: int) -> None:
        """After bytes went out: an event stream ends with an error event, another body with its connection."""
        assert self.winner is not None
        streams = "text/event-stream" in self.winner.headers.get("content-type", "")
        if streams:
            event = b"\n\ndata: " + error_body(reason, "upstream_error", 502) + b"\n\n"
            self.front.body(event)
        self.front.end(keep=streams)
        if not streams:
            self.front.abort()
        self._log(ERROR, at_ns, reason.encode())
        self._over(self.winner.status, reason, at_ns)

    def cancel(self, reason: str, at_ns: int) -> None:
        """We stop it: the time to drain is over."""
        self.fail(f"cancel: {reason}", at_ns, 503)

    def _stop(self, reason: str, at_ns: int, status: int) -> None:
        if self._dead:
            return
        for back in tuple(self._backs):
            self._leave(back)
        if self._joined:
            self._tried[-1].in_flight -= 1
        cancelled = reason.startswith("cancel: ")
        self._log(CANCEL if cancelled else ERROR, at_ns, reason.removeprefix("cancel: ").encode())
        self._over(status, reason, at_ns)

    def _leave(self, back: Back) -> None:
        self._backs.remove(back)
        back.replica.in_flight -= 1
        back.drop()

    def _over(self, status: int, error: str, at_ns: int) -> None:
        self._dead = True
        winner = self.winner
        replica = self.replica
        name, side = (replica.name, replica.side) if replica is not None else ("", "")
        reads, size = (winner.reads, winner.body_bytes) if winner else (0, 0)
        times = (self.asked.at_ns, self._sent_ns, self._first_ns, at_ns)
        self._ways.over(self, Outcome(name, side, status, error, *times, reads, size, self.attempts))

    def _log(self, kind: int, at_ns: int, payload: bytes = b"") -> None:
        if self.ticket is not None:
            self.ticket.append(kind, self.ticket.number, at_ns, payload)
