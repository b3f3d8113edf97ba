"""A client's bytes in, whole requests out, and the answers back: one connection, one request on it at a time.

Every limit on what a client may do to us is held here: sizes, slowness, hang-ups, and not reading its answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final, Protocol, cast

import httptools
import msgspec

from dynamometer.gateway.config import Limits
from dynamometer.record.clock import Now

REASONS: Final = {
    200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 405: "Method Not Allowed",
    408: "Request Timeout", 413: "Content Too Large", 429: "Too Many Requests", 431: "Request Header Fields Too Large",
    500: "Internal Server Error", 502: "Bad Gateway", 503: "Service Unavailable", 504: "Gateway Timeout",
}  # fmt: skip
Headers = Iterable[tuple[str, str]]


class Asked(msgspec.Struct, frozen=True, gc=False):
    """A whole request. Header names in lower case; a header that came twice is joined with a comma."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    at_ns: int  # when its last byte was read, CLOCK_MONOTONIC
    peer: str


class Serving(Protocol):
    """What answers a request; told when the client goes, stops reading and reads again."""

    def hung_up(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...


class House(Protocol):
    """Whom connections belong to."""

    limits: Limits
    fronts: set[Front]
    draining: bool

    def serve(self, front: Front, asked: Asked) -> Serving | None:
        """Answers now and returns None, or returns what will."""
        ...


class Front(asyncio.Protocol):
    """Server side of HTTP/1.1."""

    def __init__(self, house: House, now: Now) -> None:
        self._house, self._now = house, now
        self._parser = httptools.HttpRequestParser(self)
        self._serving: Serving | None = None
        self._later = bytearray()  # pipelined bytes that came while an answer was under way
        self._busy = self._closing = self._framed = False
        self._begun = False  # a request is coming in
        self.open_answer = False  # a head was sent and its end was not
        self.since_ns = now()
        self.stalled_ns = 0  # since when the client does not read; 0: it does
        self.peer = ""
        self._start()

    def _start(self) -> None:
        self._url = b""
        self._raw: dict[bytes, bytes] = {}
        self._body: list[bytes] = []
        self._head_bytes = self._body_bytes = 0
        self._in_body = False
        self._wrong: tuple[int, str] | None = None

    # --- asyncio calls these ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=0)  # uvloop then writes at once, not when its round ends
        peer = transport.get_extra_info("peername")
        self.peer = str(peer[0]) if peer else ""
        self._house.fronts.add(self)
        if len(self._house.fronts) > self._house.limits.connections:
            self.refuse(503, "too many connections", (("retry-after", "1"),))

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        if self._busy:
            self._later += data
            if len(self._later) > self._house.limits.head_bytes:
                self.abort()
            return
        self._feed(data)

    def connection_lost(self, wrong: Exception | None) -> None:
        self._closing = True
        self._house.fronts.discard(self)
        serving, self._serving = self._serving, None
        if serving is not None:
            serving.hung_up()

    def pause_writing(self) -> None:
        self.stalled_ns = self._now()
        if self._serving is not None:
            self._serving.pause()

    def resume_writing(self) -> None:
        self.stalled_ns = 0
        if self._serving is not None:
            self._serving.resume()

    def _feed(self, data: bytes) -> None:
        if not self._begun:
            self._begun, self.since_ns = True, self._now()
        if not self._in_body:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._wrong = (400, "upgrades are not served")
        except httptools.HttpParserError as wrong:
            self._wrong = self._wrong or (400, f"no HTTP/1.1: {wrong}")
        if not self._in_body and not self._busy and self._head_bytes > self._house.limits.head_bytes:
            self._wrong = (431, f"headers are over {self._house.limits.head_bytes} bytes")
        if self._wrong is not None and not self._busy:
            self.refuse(*self._wrong)

    # --- httptools calls these ---

    def on_message_begin(self) -> None:
        if self._busy:  # pipelined in one read: answering in order would need a queue, so the connection is refused it
            self._wrong = (400, "a second request before the answer to the first; pipelining is not served")
            self._closing_after()

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        self._raw[name] = self._raw[name] + b", " + value if name in self._raw else value
        if name == b"content-length" and value.isdigit() and int(value) > self._house.limits.body_bytes:
            self._wrong = (413, f"the body is over {self._house.limits.body_bytes} bytes")

    def on_headers_complete(self) -> None:
        self._in_body = True
        size = sum(len(name) + len(value) for name, value in self._raw.items()) + len(self._url)
        if size > self._house.limits.head_bytes:
            self._wrong = (431, f"headers are over {self._house.limits.head_bytes} bytes")
        elif self._raw.get(b"expect", b"").lower() == b"100-continue" and self._wrong is None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._body_bytes > self._house.limits.body_bytes:
            self._wrong = (413, f"the body is over {self._house.limits.body_bytes} bytes")
            self._body.clear()
        elif self._wrong is None:
            self._body.append(body)

    def on_message_complete(self) -> None:
        if self._wrong is not None or self._busy:
            return
        self._busy, self._begun = True, False
        self._keep = self._parser.should_keep_alive()
        self._modern = self._parser.get_http_version() == "1.1"
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in self._raw.items()}
        method, path = self._parser.get_method().decode(), self._url.decode("latin-1")
        asked = Asked(method, path, headers, b"".join(self._body), self._now(), self.peer)
        self._start()
        serving = self._house.serve(self, asked)
        if serving is not None and not self._closing and self._busy:
            self._serving = serving

    # --- what serves calls these ---

    def begin(self, status: int, headers: Headers, length: int | None, first: bytes = b"") -> None:
        """Head, and the first piece of the body with it. `length` None: not known, so the body is framed in chunks."""
        if self._house.draining:
            self._keep = False
        self._framed = length is None and self._modern
        if length is None and not self._modern:
            self._keep = False
        lines = [f"HTTP/1.1 {status} {REASONS.get(status, 'Status')}", *(f"{k}: {v}" for k, v in headers)]
        lines.append(
            "transfer-encoding: chunked" if self._framed else "" if length is None else f"content-length: {length}"
        )
        lines.append("" if self._keep else "connection: close")
        head = "\r\n".join(line for line in lines if line).encode("latin-1", "replace") + b"\r\n\r\n"
        self.open_answer = True
        self._transport.write(head + (b"%x\r\n%b\r\n" % (len(first), first) if self._framed and first else first))

    def body(self, piece: bytes) -> None:
        """A piece of the body, not empty."""
        self._transport.write(b"%x\r\n%b\r\n" % (len(piece), piece) if self._framed else piece)

    def end(self, keep: bool = True) -> None:
        """The answer is complete. `keep` False: the connection goes, because a promised length was not reached."""
        if self._closing:
            return
        if self._framed:
            self._transport.write(b"0\r\n\r\n")
        self._serving, self._busy, self.open_answer, self._framed = None, False, False, False
        self.since_ns, self.stalled_ns = self._now(), 0
        if not (keep and self._keep) or self._wrong is not None:
            self._closing_after()
        elif self._later:
            data = bytes(self._later)
            self._later.clear()
            self._feed(data)

    def whole(self, status: int, body: bytes, headers: Headers = (("content-type", "application/json"),)) -> None:
        self.begin(status, headers, len(body), body)
        self.end()

    def say(self, status: int, message: str, kind: str, headers: Headers = ()) -> None:
        """An error as OpenAI's clients read it."""
        self.whole(status, error_body(message, kind, status), (("content-type", "application/json"), *headers))

    def refuse(self, status: int, message: str, headers: Headers = ()) -> None:
        """An answer to what was no good request; the connection closes, for what follows on it cannot be trusted."""
        self._busy, self._keep, self._modern = True, False, True
        self.say(status, message, "invalid_request_error", headers)

    def tick(self, now_ns: int) -> None:
        """Ends what is too slow."""
        limits = self._house.limits
        waited_s = (now_ns - self.since_ns) * 1e-9
        if self._busy:
            if self.stalled_ns and (now_ns - self.stalled_ns) * 1e-9 > limits.stall_s:
                self.abort()
        elif self._begun and waited_s > limits.request_s:
            self.refuse(408, f"the request was not complete after {limits.request_s:g} s")
        elif not self._begun and (waited_s > limits.keep_s or self._house.draining):
            self._closing_after()

    def abort(self) -> None:
        self._closing = True
        self._transport.abort()

    def _closing_after(self) -> None:
        self._closing = True
        self._transport.close()


def error_body(message: str, kind: str, status: int) -> bytes:
    return msgspec.json.encode({"error": {"message": message, "type": kind, "code": status}})
