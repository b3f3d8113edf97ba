"""A request's bytes in, an engine's answer out piece by piece: keep-alive connections to one replica.

The stamp is the first statement of `data_received`, as in the client's wire; only HTTP framing is undone.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Coroutine
from typing import Final, Protocol, cast
from urllib.parse import urlsplit

import httptools

from dynamometer.record.clock import Now

Headers = dict[str, str]
SPARE: Final = 4  # connections held ready, so that a request does not wait for one to be made
_HOP: Final = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization te trailer upgrade transfer-encoding "
    b"content-length".split()
)


class Sink(Protocol):
    """Whom an answer goes to."""

    def sent(self, back: Back, at_ns: int) -> None: ...
    def head(self, back: Back, at_ns: int) -> None: ...
    def piece(self, back: Back, body: bytes, at_ns: int) -> None: ...
    def ended(self, back: Back, at_ns: int) -> None: ...
    def lost(self, back: Back | None, reason: str, at_ns: int) -> None:
        """The answer will not be completed. `back` None: no connection could be made."""
        ...


class Back(asyncio.Protocol):
    """One connection, at most one request on it."""

    def __init__(self, replica: Replica, now: Now) -> None:
        self.replica, self._now = replica, now
        self._sink: Sink | None = None
        self._pieces: list[bytes] = []
        self._raw: dict[bytes, bytes] = {}
        self.on_body: Callable[[bytes], None] = self._pieces.append  # C functions: no Python for each chunk
        self.on_header: Callable[[bytes, bytes], None] = self._raw.__setitem__
        self._parser = httptools.HttpResponseParser(self)
        self._feed: Callable[[bytes], None] = self._parser.feed_data
        self.used = self.status = self.reads = self.body_bytes = 0
        self.headers: Headers = {}
        self.length: int | None = None
        self.sent_ns = self.last_ns = now()
        self._until_close = self._complete = self._headed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=0)

    def data_received(self, data: bytes) -> None:
        at_ns = self._now()
        sink = self._sink
        if sink is None:  # bytes that nobody asked for
            self._transport.abort()
            return
        self.last_ns = at_ns
        wrong: Exception | None = None
        try:
            self._feed(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as caught:
            wrong = caught
        pieces = self._pieces
        if pieces:
            body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            pieces.clear()
            self.reads += 1
            self.body_bytes += len(body)
            sink.piece(self, body, at_ns)
        if self._sink is None:  # the sink has let go meanwhile
            return
        if wrong is not None:
            self._lose(f"protocol: {wrong}")
        elif self._complete:
            self._finish()

    def connection_lost(self, wrong: Exception | None) -> None:
        self.replica.forget(self)
        if self._sink is None:
            return
        if wrong is None and self._headed and self._until_close:
            self._finish()
        else:
            how = f"reset ({wrong})" if wrong else "closed by the engine"
            self._lose(f"connection: {how} after {self.body_bytes} body bytes")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        raw = {name.lower(): value for name, value in self._raw.items()}
        self._raw.clear()
        if status < 200:
            return
        size = raw.get(b"content-length", b"")
        self.length = int(size) if size.isdigit() else None
        self._until_close = self.length is None and b"transfer-encoding" not in raw and status not in (204, 304)
        named = {name.strip().lower() for name in raw.get(b"connection", b"").split(b",")}
        kept = {name: value for name, value in raw.items() if name not in _HOP and name not in named}
        self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in kept.items()}
        self.status, self._headed = status, True
        if self._sink is not None:
            self._sink.head(self, self.last_ns)

    def on_message_complete(self) -> None:
        if self._headed:
            self._complete = True
            self._reusable = self._parser.should_keep_alive()

    def send(self, sink: Sink, data: bytes) -> None:
        self._sink = sink
        self._complete = self._headed = self._reusable = self._until_close = False
        self.status = self.reads = self.body_bytes = 0
        self._raw.clear()
        self.used += 1
        self.sent_ns = self.last_ns = self._now()
        self._transport.write(data)
        sink.sent(self, self.sent_ns)

    def drop(self) -> None:
        """The sink wants no more: the connection closes, and the engine sees that it may stop."""
        self._sink = None
        self._transport.abort()

    def pause(self) -> None:
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def close(self) -> None:
        self._transport.abort()

    def _finish(self) -> None:
        sink, self._sink = self._sink, None
        if self._reusable and not self._until_close:
            self.replica.give(self)
        else:
            self._transport.close()
            self.replica.forget(self)
        assert sink is not None
        sink.ended(self, self.last_ns)

    def _lose(self, reason: str) -> None:
        sink, self._sink = self._sink, None
        self._transport.abort()
        if sink is not None:
            sink.lost(self, reason, self._now())


class Replica:
    """One address of an engine and its connections."""

    def __init__(self, name: str, side: str, url: str, key: str, insecure: bool, now: Now, connect_s: float) -> None:
        parts = urlsplit(url)
        self.name, self.side = name, side
        self.host, self.tls = str(parts.hostname), parts.scheme == "https"
        self.port = parts.port or (443 if self.tls else 80)
        self.prefix = parts.path.rstrip("/").removesuffix("/v1")
        self.authority, self._key = parts.netloc, key
        self._now, self._connect_s = now, connect_s
        self._context = _context(insecure) if self.tls else None
        self._idle: list[Back] = []
        self.open: set[Back] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.in_flight = self._opening = 0
        self.failures = self.probing = self.good_probes = 0  # of the circuit breaker
        self.opened_ns = 0

    def send(self, sink: Sink, data: bytes) -> None:
        while self._idle:
            back = self._idle.pop()
            if not back._transport.is_closing():
                back.send(sink, data)
                break
        else:
            self._start(self._connect(sink, data))
        if len(self._idle) + self._opening < SPARE:
            self._opening += 1
            self._start(self._open_spare())

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def message(self, method: str, path: str, headers: Headers, body: bytes) -> bytes:
        """The whole HTTP request. Our key for this engine stands in place of the client's."""
        lines = [f"{method} {self.prefix}{path} HTTP/1.1", f"host: {self.authority}", f"content-length: {len(body)}"]
        if self._key:
            lines.append(f"authorization: Bearer {self._key}")
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return "\r\n".join(lines).encode("latin-1", "replace") + b"\r\n\r\n" + body

    def give(self, back: Back) -> None:
        self._idle.append(back)

    def forget(self, back: Back) -> None:
        self.open.discard(back)
        if back in self._idle:
            self._idle.remove(back)

    def close(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()
        for back in tuple(self.open):
            back.close()

    async def _connection(self) -> Back:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(self._connect_s):
            _, back = await loop.create_connection(
                lambda: Back(self, self._now), self.host, self.port, ssl=self._context
            )
        self.open.add(back)
        return back

    async def _open_spare(self) -> None:
        """One connection ahead of need. That it can't be had is for the request to find that needs it."""
        try:
            back = await self._connection()
        except (OSError, TimeoutError, ssl.SSLError):
            return
        finally:
            self._opening -= 1
        back.used = 1  # it may be closed by the time it is needed, as any kept one: a request is then sent once more
        self._idle.insert(0, back)

    async def _connect(self, sink: Sink, data: bytes) -> None:
        try:
            back = await self._connection()
        except (OSError, TimeoutError, ssl.SSLError) as wrong:
            said = f"no connection within {self._connect_s:g} s" if isinstance(wrong, TimeoutError) else str(wrong)
            sink.lost(None, f"connect: {self.name}: {said}", self._now())
            return
        back.send(sink, data)


def _context(insecure: bool) -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    if insecure:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context
