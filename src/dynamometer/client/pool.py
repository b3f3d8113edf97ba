"""Calls in, answers out: keep-alive connections to one endpoint, opened ahead of need, one timer for all timeouts."""

from __future__ import annotations

import asyncio
import errno
import os
import ssl
from array import array
from collections import deque
from collections.abc import Coroutine, Mapping
from email.utils import parsedate_to_datetime
from typing import Final

from dynamometer.client.endpoint import Endpoint
from dynamometer.client.wire import Answer, Call, Connection, Ended
from dynamometer.errors import TargetError
from dynamometer.record.clock import Now, wall_ns
from dynamometer.record.log import CANCEL, DUE, ERROR, PLAN, WireLog
from dynamometer.types import Target

_NS: Final = 1_000_000_000
_CLOSERS: Final = 2  # so many connections closed right after their answer, and none is used twice
_AT_ONCE_NS: Final = _NS  # "right after"
_ABREAST: Final = 64  # connections opened at once: below the usual listen backlog of 128


class Pool:
    """All connections of one client process."""

    def __init__(self, at: Endpoint, target: Target, log: WireLog, now: Now) -> None:
        self._at, self._target, self._log, self.now = at, target, log, now
        self._idle: dict[Connection, None] = {}  # in order of use: the last one back is the first one out
        self._busy: set[Connection] = set()
        self._waiting: deque[tuple[Call, Ended, int, int]] = deque()  # call, future, attempt, first sent
        self._pausing: dict[Ended, tuple[Call, int]] = {}  # as Retry-After asks; call, first sent
        self._tasks: set[asyncio.Task[None]] = set()
        self._opening = 0
        self.spare = 0  # connections to hold ready beyond those in use
        self.opened = 0
        self._closers = 0  # connections that the server closed right after an answer without having said so
        self.forget()

    def forget(self) -> None:
        """Counts from 0 again."""
        self.late_ns = array("q")  # sent − due of requests that found a connection open
        self.late_connections = self.retries = self.reads = self.body_bytes = 0

    # --- the loops call these ---

    def ask(self, call: Call, due_ns: int) -> Ended:
        """Sends now if a connection is free, else as soon as one is open. The future always gets an `Answer`."""
        ended: Ended = asyncio.get_running_loop().create_future()
        append = self._log.append
        append(PLAN, call.request, due_ns, call.plan)
        append(DUE, call.request, due_ns)
        if self._idle:
            connection, _ = self._idle.popitem()
            self._busy.add(connection)
            connection.send(call, ended, 1)
            self.late_ns.append(connection.sent_ns - due_ns)
        else:
            self.late_connections += 1
            self._waiting.append((call, ended, 1, 0))
            self._start(self._open())
        if len(self._idle) + self._opening < self.spare:
            self._start(self._open())
        return ended

    async def open(self, count: int) -> None:
        """Brings the number of open connections to `count`, so that no latency of the load holds a connection's set-up.

        Raises TargetError if the endpoint takes none.
        """
        missing = count - len(self._idle) - len(self._busy)
        for begin in range(0, missing, _ABREAST):
            await asyncio.gather(*(self._connect() for _ in range(min(_ABREAST, missing - begin))))

    def tick(self) -> None:
        """Ends what has waited too long. Called a few times a second; timeouts are as coarse as that."""
        now_ns = self.now()
        idle_ns, whole_ns = self._target.idle_timeout_s * _NS, self._target.timeout_s * _NS
        for connection in list(self._busy):
            if now_ns - connection.last_ns > idle_ns:
                connection.time_out(f"no byte for {self._target.idle_timeout_s:g} s")
            elif now_ns - connection.first_sent_ns > whole_ns:
                connection.time_out(f"no complete answer within {self._target.timeout_s:g} s")

    def cancel(self, reason: str) -> None:
        """Stops everything that is under way; each request gets a `cancel` frame with the reason."""
        for call, ended, _, sent_ns in self._waiting:
            self._settle(call, ended, CANCEL, reason, sent_ns)
        for ended, (call, sent_ns) in self._pausing.items():
            self._settle(call, ended, CANCEL, reason, sent_ns)
        self._waiting.clear()
        self._pausing.clear()
        for connection in list(self._busy):
            connection.cancel(reason)

    async def close(self) -> None:
        """Closes all connections."""
        for task in self._tasks:
            task.cancel()
        for connection in (*self._idle, *self._busy):
            connection.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)

    @property
    def in_flight(self) -> int:
        return len(self._busy) + len(self._waiting) + len(self._pausing)

    # --- connections call these ---

    def free(self, connection: Connection) -> None:
        self.reads += connection.reads
        self.body_bytes += connection.body_bytes
        connection.reads = connection.body_bytes = 0
        if connection.used and self._closers >= _CLOSERS:
            self._busy.discard(connection)
            connection.close()
            return
        waiting = self._waiting
        # a second attempt wants a fresh connection: another pooled one may be as stale as the first was
        if waiting and (waiting[0][2] == 1 or not connection.used):
            connection.send(*waiting.popleft())
            self._busy.add(connection)
        else:
            self._busy.discard(connection)
            self._idle[connection] = None

    def gone(self, connection: Connection) -> None:
        self.reads += connection.reads
        self.body_bytes += connection.body_bytes
        idle = connection in self._idle
        if idle and connection.used and self.now() - connection.last_ns < _AT_ONCE_NS:
            self._closers += 1  # llama.cpp does so after each stream: a request sent in that moment would be lost
            if self._closers == _CLOSERS:
                self._drop_used()
        self._idle.pop(connection, None)
        self._busy.discard(connection)

    def _drop_used(self) -> None:
        for connection in [one for one in self._idle if one.used]:
            del self._idle[connection]
            connection.close()

    def again(self, call: Call, ended: Ended, attempt: int, sent_ns: int, wait_s: float) -> None:
        self.retries += 1
        self._closers += not wait_s  # no Retry-After: the connection was dead, though the server is alive
        self._pausing[ended] = call, sent_ns
        self._start(self._resend(call, ended, attempt, sent_ns, wait_s))

    def wait_s(self, status: int, headers: Mapping[str, str], attempt: int) -> float | None:
        if attempt > self._target.retries or "retry-after" not in headers:
            return None
        return retry_after_s(headers["retry-after"])

    # --- inside ---

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _open(self) -> None:
        """A connection for whoever waits first; if none can be had, that request fails."""
        self._opening += 1
        try:
            await self._connect()
        except TargetError as wrong:
            if self._waiting:
                call, ended, _, sent_ns = self._waiting.popleft()
                self._settle(call, ended, ERROR, f"connect: {wrong}", sent_ns)
        finally:
            self._opening -= 1

    async def _resend(self, call: Call, ended: Ended, attempt: int, sent_ns: int, wait_s: float) -> None:
        await asyncio.sleep(wait_s)
        if self._pausing.pop(ended, None):
            self._waiting.appendleft((call, ended, attempt, sent_ns))
            await self._open()

    def _settle(self, call: Call, ended: Ended, kind: int, note: str, sent_ns: int) -> None:
        """The end of a request that is on no connection."""
        now_ns = self.now()
        self._log.append(kind, call.request, now_ns, note.encode())
        if not ended.done():
            ended.set_result(Answer(0, {}, b"", sent_ns, now_ns, f"cancel: {note}" if kind == CANCEL else note))

    async def _connect(self) -> None:
        """One more open connection. Raises TargetError with what the system said."""
        loop = asyncio.get_running_loop()
        at, limit_s = self._at, self._target.connect_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                _, connection = await loop.create_connection(
                    lambda: Connection(self, self._log, self.now), at.host, at.port, ssl=at.tls
                )
        except TimeoutError:
            raise TargetError(f"{at.authority} did not accept a connection within {limit_s:g} s") from None
        except ssl.SSLCertVerificationError as wrong:
            message = f"the certificate of {at.authority} is not trusted: {wrong.verify_message}; --insecure skips this"
            raise TargetError(message) from wrong
        except OSError as wrong:
            raise TargetError(f"cannot connect to {at.authority}: {_why(wrong)}") from wrong
        self.opened += 1
        self.free(connection)


def retry_after_s(text: str) -> float:
    """`Retry-After` as seconds from now: a number of seconds or a date; 1 s where it is neither."""
    try:
        return max(0.0, float(text))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - wall_ns() / _NS)
    except ValueError:
        return 1.0


def _why(wrong: OSError) -> str:
    """The system's words, with the remedy where it is known."""
    text = os.strerror(wrong.errno) if wrong.errno and wrong.errno > 0 else str(wrong)
    remedy = {
        errno.ECONNREFUSED: "is the server up?",
        errno.EMFILE: "raise the limit of open files (ulimit -n)",
        errno.EADDRNOTAVAIL: "this machine has no free port left; fewer connections or more addresses are needed",
    }.get(wrong.errno or 0)
    return f"{text}; {remedy}" if remedy else text
