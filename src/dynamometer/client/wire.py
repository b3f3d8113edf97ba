"""One answer over one connection: request bytes in, frames in the log and an `Answer` out.

The stamp is the first statement of `data_received`; after it only HTTP framing is undone and the raw body bytes go to
the log. Nothing is parsed, decoded or counted here: that is done from the log, after the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol, cast

import httptools
import msgspec

from dynamometer.engines.fault import explain
from dynamometer.record.clock import Now
from dynamometer.record.log import BODY, CANCEL, END, ERROR, HEADERS, RETRY, SENT, WireLog

Headers = dict[str, str]
_encode: Final = msgspec.json.Encoder().encode
_SECRET: Final = frozenset((b"set-cookie", b"set-cookie2"))  # never in a record


class Call(msgspec.Struct, frozen=True, gc=False):
    """A request that is ready to go. `data` is the whole HTTP message, `plan` the JSON of its row."""

    request: int
    data: bytes
    body_bytes: int
    plan: bytes
    keep: bool = False  # the answer's body is needed in this run, by the next turn


class Answer(msgspec.Struct, frozen=True, gc=False):
    """How a request ended. `error`: empty for a complete HTTP message, else what the log says, or "cancel: reason"."""

    status: int  # 0: none came
    headers: Headers
    body: bytes  # where it was to be kept, and of a status that is no success; else empty
    sent_ns: int  # first send, CLOCK_MONOTONIC; 0: never sent
    end_ns: int
    error: str = ""
    first_ns: int = 0  # first bytes of the body; 0: none came

    @property
    def ok(self) -> bool:
        return not self.error and 200 <= self.status < 300


Ended = asyncio.Future[Answer]


class Owner(Protocol):
    """The pool that a connection belongs to."""

    def free(self, connection: Connection) -> None:
        """The connection can take another request."""

    def gone(self, connection: Connection) -> None:
        """The connection is closed."""

    def again(self, call: Call, ended: Ended, attempt: int, sent_ns: int, wait_s: float) -> None:
        """Send it once more, on a fresh connection, after `wait_s`."""

    def wait_s(self, status: int, headers: Headers, attempt: int) -> float | None:
        """How long to wait before a refused request is sent again; None: it is not."""


class Connection(asyncio.Protocol):
    """A keep-alive HTTP/1.1 connection with at most one request on it."""

    __slots__ = (
        "_append",
        "_attempt",
        "_call",
        "_complete",
        "_ended",
        "_feed",
        "_first_sent_ns",
        "_headers",
        "_in_body",
        "_kept",
        "_now",
        "_odd",
        "_owner",
        "_parser",
        "_pieces",
        "_raw",
        "_request",
        "_reusable",
        "_status",
        "_transport",
        "body_bytes",
        "first_ns",
        "last_ns",
        "on_body",
        "on_header",
        "reads",
        "sent_ns",
        "used",
    )

    def __init__(self, owner: Owner, log: WireLog, now: Now) -> None:
        self._owner, self._now, self._append = owner, now, log.append
        self._pieces: list[bytes] = []
        self._raw: dict[bytes, bytes] = {}
        # C functions, so that no Python runs for each chunk and each header
        self.on_body: Callable[[bytes], None] = self._pieces.append
        self.on_header: Callable[[bytes, bytes], None] = self._raw.__setitem__
        self._headers: Headers = {}
        self._call: Call | None = None
        self._kept: list[bytes] | None = None
        self.used = self.reads = self.body_bytes = 0
        self._parser = httptools.HttpResponseParser(self)
        self._feed: Callable[[bytes], None] = self._parser.feed_data

    # --- asyncio calls these ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports are no subclasses of asyncio's
        # With a limit of 0 uvloop writes at once. By default it writes when the loop's round ends, and under load the
        # stamp of `sent` would lie milliseconds before the first byte.
        self._transport.set_write_buffer_limits(high=0)

    def data_received(self, data: bytes) -> None:
        at_ns = self._now()
        if self._call is None:  # bytes that nobody asked for, such as a 408 on an idle connection
            self._transport.abort()
            return
        self.last_ns = at_ns
        self.reads += 1
        wrong: Exception | None = None
        try:
            self._feed(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as caught:
            wrong = caught
        pieces = self._pieces
        if pieces:
            body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            pieces.clear()
            self._append(BODY, self._request, at_ns, body)
            if not self.body_bytes:
                self.first_ns = at_ns
            self.body_bytes += len(body)
            if self._kept is not None:
                self._kept.append(body)
        if wrong is not None:
            self._fail(f"protocol: {type(wrong).__name__}: {wrong}")
        elif self._complete:
            self._finish() if self._odd else self._end(END, b"", "")

    def eof_received(self) -> None:
        """The server sends no more; the transport closes and `connection_lost` follows."""

    def connection_lost(self, wrong: Exception | None) -> None:
        self._lose(wrong)
        self._owner.gone(self)

    # --- httptools calls these ---

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        raw = {name.lower(): value for name, value in self._raw.items()}
        self._raw.clear()
        if status < 200:  # 100 Continue, 103 Early Hints: the answer is still to come
            return
        headers = {name.decode("latin-1"): raw[name].decode("latin-1") for name in raw if name not in _SECRET}
        self._status, self._headers, self._in_body = status, headers, True
        self._append(HEADERS, self._request, self.last_ns, _encode({"status": status, "headers": headers}))
        self._odd = not 200 <= status < 300 or "content-encoding" in headers
        if self._odd and self._kept is None:
            self._kept = []

    def on_message_complete(self) -> None:
        if self._in_body:
            self._complete = True
            self._reusable = self._parser.should_keep_alive()

    # --- the pool calls these ---

    def send(self, call: Call, ended: Ended, attempt: int, first_sent_ns: int = 0) -> None:
        """Writes the request. `first_sent_ns`: when an earlier attempt was sent."""
        self._call, self._ended, self._attempt, self._request = call, ended, attempt, call.request
        self._in_body = self._complete = self._reusable = self._odd = False
        self._kept = [] if call.keep else None
        self._status = self.reads = self.body_bytes = self.first_ns = 0
        self._headers = {}
        self._raw.clear()  # trailers of the answer before
        connection = b"reused" if self.used else b"new"
        self.used += 1
        self.sent_ns = self.last_ns = now_ns = self._now()
        self._first_sent_ns = first_sent_ns or now_ns
        self._transport.write(call.data)
        detail = b'{"attempt":%d,"bytes":%d,"connection":"%s"}' % (attempt, call.body_bytes, connection)
        self._append(SENT, call.request, now_ns, detail)

    def cancel(self, reason: str) -> None:
        """Stops the request: what came so far stays in the log, censored."""
        if self._call is not None:
            self.last_ns, self._reusable = self._now(), False
            self._end(CANCEL, reason.encode(), f"cancel: {reason}")
        self._transport.abort()

    def time_out(self, message: str) -> None:
        """Ends the request as a failure."""
        self.last_ns = self._now()
        self._fail(f"timeout: {message}")

    def close(self) -> None:
        self._transport.abort()

    @property
    def first_sent_ns(self) -> int:
        return self._first_sent_ns

    # --- endings ---

    def _lose(self, wrong: Exception | None) -> None:
        call = self._call
        if call is None:
            return
        self.last_ns = self._now()
        if wrong is None and self._in_body and self._until_close():
            self._finish()
        elif self.used > 1 and self._attempt == 1 and not self.reads:
            # The server had closed the pooled connection while the request was under way. No byte of an answer came, so
            # it may be sent once more; the latency clock stays at the first send.
            self._resend(call, "connection closed before headers", 0.0)
        else:
            self._fail(self._loss(wrong))

    def _finish(self) -> None:
        """The HTTP message is complete, and it is no plain success."""
        status, headers, call = self._status, self._headers, self._call
        assert call is not None
        coding = headers.get("content-encoding", "identity").lower()
        if status in (429, 503) and (wait_s := self._owner.wait_s(status, headers, self._attempt)) is not None:
            self._resend(call, f"HTTP {status}, Retry-After {headers['retry-after']}", wait_s)
            self._owner.free(self) if self._reusable else self._transport.close()
            return
        if 300 <= status < 400:
            to = headers.get("location", "nowhere")
            error = f"redirect: HTTP {status} to {to}; give the final URL, redirects are not followed"
        elif status == 429 or (status == 503 and "retry-after" in headers):
            said = explain(b"".join(self._kept or ()), "")[1]
            error = f"rate-limited: HTTP {status}, Retry-After {headers.get('retry-after', 'not given')}: {said}"
        elif coding not in ("identity", ""):
            error = f"encoding: the answer is {coding}-coded although identity was asked for"
        else:
            error = ""
        self._end(ERROR if error else END, error.encode(), error)

    def _resend(self, call: Call, reason: str, wait_s: float) -> None:
        self._append(RETRY, call.request, self.last_ns, reason.encode())
        self._call = None
        self._owner.again(call, self._ended, self._attempt + 1, self._first_sent_ns, wait_s)

    def _fail(self, error: str) -> None:
        if self._call is not None:
            self._reusable = False
            self._end(ERROR, error.encode(), error)
        self._transport.abort()

    def _end(self, kind: int, note: bytes, error: str) -> None:
        """The request is over; the connection goes back to the pool, or is closed if the server wants it so."""
        self._append(kind, self._request, self.last_ns, note)
        body = b"".join(self._kept) if self._kept else b""
        answer = Answer(self._status, self._headers, body, self._first_sent_ns, self.last_ns, error, self.first_ns)
        self._call, self._kept = None, None
        if not self._ended.done():
            self._ended.set_result(answer)
        if self._reusable:
            self._owner.free(self)
        else:
            self._transport.close()

    def _until_close(self) -> bool:
        """The body has no length of its own and ends with the connection."""
        return "content-length" not in self._headers and "transfer-encoding" not in self._headers

    def _loss(self, wrong: Exception | None) -> str:
        how = f"reset ({wrong})" if wrong else "closed by the server"
        if not self._in_body:
            return f"connection: {how} before headers"
        return f"connection: {how} after {self.body_bytes} body bytes, before the answer was complete"
