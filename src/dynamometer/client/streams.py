"""Calls in, answers out over gRPC: what `Pool` is for HTTP/1.1, with one HTTP/2 connection for all calls.

The bytes of a message are logged as the body of any answer is. A stamp is taken when Python gets the message, which is
after grpc's own thread has read and unpacked it; `sent` is when the call was handed to grpc.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Mapping

from dynamometer.client.endpoint import Endpoint, address, metadata
from dynamometer.client.wire import Answer, Call, Ended
from dynamometer.engines import channel
from dynamometer.engines.kserve import FRAME_BYTES, METHOD, framed
from dynamometer.record.clock import Now
from dynamometer.record.log import BODY, CANCEL, DUE, END, ERROR, HEADERS, PLAN, SENT, WireLog
from dynamometer.types import Target

_NS = 1_000_000_000
_HEADERS = b'{"status":200,"headers":{}}'
_NONE: Mapping[str, str] = {}


class Exchange:
    """One call under way."""

    __slots__ = ("call", "ended", "first_ns", "kept", "last_ns", "reads", "sent_ns", "stream")

    def __init__(self, call: Call, ended: Ended, stream: channel.Stream, sent_ns: int) -> None:
        self.call, self.ended, self.stream = call, ended, stream
        self.sent_ns = self.last_ns = sent_ns
        self.kept: list[bytes] = []
        self.reads = self.first_ns = 0


class Streams:
    """All calls of one client process. No call is sent twice."""

    def __init__(self, at: Endpoint, target: Target, log: WireLog, now: Now) -> None:
        self._at, self._target, self._log, self.now = at, target, log, now
        self._channel = channel.channel(address(at), at.scheme == "grpcs")
        self._begin = self._channel.stream_stream(METHOD)
        self._metadata = metadata(at)
        self._under_way: dict[asyncio.Task[None], Exchange] = {}
        self.spare = 0  # there is one connection for all, so none is held ready
        self.opened = self.retries = 0
        self.forget()

    def forget(self) -> None:
        """Counts from 0 again."""
        self.late_ns = array("q")
        self.late_connections = self.reads = self.body_bytes = 0

    async def open(self, count: int) -> None:
        """Connects, if that is still to be done. Raises TargetError if the endpoint takes no connection."""
        if not self.opened:
            await channel.ready(self._channel, address(self._at), self._target.connect_timeout_s)
            self.opened = 1

    def ask(self, call: Call, due_ns: int) -> Ended:
        """Sends now. The future always gets an `Answer`."""
        loop = asyncio.get_running_loop()
        ended: Ended = loop.create_future()
        append = self._log.append
        append(PLAN, call.request, due_ns, call.plan)
        append(DUE, call.request, due_ns)
        sent_ns = self.now()
        message = iter((call.data[FRAME_BYTES:],))
        stream = self._begin(message, timeout=self._target.timeout_s, metadata=self._metadata)
        append(SENT, call.request, sent_ns, b'{"attempt":1,"bytes":%d,"connection":"reused"}' % call.body_bytes)
        self.late_ns.append(sent_ns - due_ns)
        one = Exchange(call, ended, stream, sent_ns)
        task = loop.create_task(self._carry(one))
        self._under_way[task] = one
        task.add_done_callback(self._done)
        return ended

    def tick(self) -> None:
        """Ends what has been silent too long; the limit for a whole answer is gRPC's deadline."""
        idle_ns = self._target.idle_timeout_s * _NS
        now_ns = self.now()
        for task, one in list(self._under_way.items()):
            if now_ns - one.last_ns > idle_ns:
                self._stop(task, one, ERROR, f"timeout: no message for {self._target.idle_timeout_s:g} s")

    def cancel(self, reason: str) -> None:
        """Stops everything that is under way; each request gets a `cancel` frame with the reason."""
        for task, one in list(self._under_way.items()):
            self._stop(task, one, CANCEL, reason)

    async def close(self) -> None:
        """Closes the connection."""
        for task in list(self._under_way):
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)
        await self._channel.close()

    @property
    def in_flight(self) -> int:
        return len(self._under_way)

    # --- inside ---

    async def _carry(self, one: Exchange) -> None:
        append, request = self._log.append, one.call.request
        try:
            async for part in one.stream:
                at_ns = one.last_ns = self.now()
                if not one.reads:
                    one.first_ns = at_ns
                    append(HEADERS, request, at_ns, _HEADERS)
                body = framed(part)
                append(BODY, request, at_ns, body)
                one.reads += 1
                self.reads += 1
                self.body_bytes += len(body)
                if one.call.keep:
                    one.kept.append(body)
        except Exception as wrong:
            said = channel.failure(wrong)
            if said is None:
                raise
            one.last_ns = self.now()
            late = f"timeout: no complete answer within {self._target.timeout_s:g} s"
            self._end(one, ERROR, late if said.late else said.note, said.status)
            return
        one.last_ns = self.now()
        if not one.reads:
            append(HEADERS, request, one.last_ns, _HEADERS)
        self._end(one, END, "", 200)

    def _stop(self, task: asyncio.Task[None], one: Exchange, kind: int, note: str) -> None:
        one.last_ns = self.now()
        self._end(one, kind, note, 0)
        one.stream.cancel()
        task.cancel()

    def _end(self, one: Exchange, kind: int, note: str, status: int) -> None:
        if one.ended.done():
            return
        self._log.append(kind, one.call.request, one.last_ns, note.encode())
        error = f"cancel: {note}" if kind == CANCEL else note
        one.ended.set_result(
            Answer(status, dict(_NONE), b"".join(one.kept), one.sent_ns, one.last_ns, error, one.first_ns)
        )

    def _done(self, task: asyncio.Task[None]) -> None:
        one = self._under_way.pop(task)
        if task.cancelled():
            self._end(one, CANCEL, "interrupt", 0)
        elif (wrong := task.exception()) is not None and not one.ended.done():
            one.ended.set_exception(wrong)
