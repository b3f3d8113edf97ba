"""A script for each exchange in, a real HTTP server on loopback out, in a thread with an event loop of its own."""

from __future__ import annotations

import asyncio
import itertools
import json
import ssl
import subprocess
import sys
import textwrap
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dynamometer import schedule as schedules
from dynamometer.client.budget import ClientReport
from dynamometer.client.drive import run
from dynamometer.engines.openai import chat
from dynamometer.record.clock import origin
from dynamometer.record.log import CANCEL, END, ERROR, Frame, WireLog, read_frames
from dynamometer.types import Experiment, Load, Message, Request, Target, Workload

STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"


def chunk(body: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(body), body)


def event(text: str, finish: str | None = None) -> bytes:
    """One token as OpenAI's chat streams it."""
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


def whole(status: str, body: bytes, *headers: str) -> bytes:
    """An answer of known length."""
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def answer(*texts: str) -> bytes:
    """A complete streamed answer."""
    events = [event(text) for text in texts[:-1]] + [event(texts[-1], "stop"), DONE]
    return STREAM + b"".join(map(chunk, events)) + LAST


class Exchange:
    """One request as the server got it, and the way to answer it."""

    def __init__(self, head: str, body: bytes, number: int, connection: int, writer: asyncio.StreamWriter) -> None:
        self.head, self.body, self.number, self.connection = head, body, number, connection
        self._writer = writer

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    def close(self) -> None:
        """FIN."""
        self._writer.close()

    def reset(self) -> None:
        """RST."""
        self._writer.transport.abort()

    @property
    def prompt(self) -> str:
        return str(json.loads(self.body)["messages"][-1]["content"])


Script = Callable[[Exchange], Awaitable[None]]


class Served:
    """`url` of the server, and what it has seen."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.seen: list[Exchange] = []
        self.connections = 0


@contextmanager
def serving(script: Script, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> Iterator[Served]:
    """Runs `script` for each request that comes in, until the block ends."""
    served = Served("")
    numbers = itertools.count()
    loop = asyncio.new_event_loop()

    writers: list[asyncio.StreamWriter] = []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = len(writers)
        writers.append(writer)
        served.connections = len(writers)
        try:
            while not writer.is_closing():
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
                body = await reader.readexactly(int(fields.get("content-length", "0")))
                exchange = Exchange(head, body, next(numbers), connection, writer)
                served.seen.append(exchange)
                await script(exchange)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass

    server = loop.run_until_complete(asyncio.start_server(connected, host, 0, ssl=tls, backlog=1024))
    port = server.sockets[0].getsockname()[1]
    shown = f"[{host}]" if ":" in host else host
    served.url = f"{'https' if tls else 'http'}://{shown}:{port}/v1"
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield served
    finally:
        asyncio.run_coroutine_threadsafe(_stop(server, writers), loop).result(5)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(5)
        loop.close()


async def _stop(server: asyncio.Server, writers: list[asyncio.StreamWriter]) -> None:
    await asyncio.sleep(0.02)  # a connection that was just accepted must reach its handler before the server is closed
    server.close()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    for writer in writers:
        writer.transport.abort()
    await asyncio.sleep(0.01)


def request(index: int, text: str = "hello", **more: object) -> Request:
    return Request(index, (Message("user", text),), 8, **more)  # type: ignore[arg-type]


def experiment(url: str, load: Load, target: dict[str, object] | None = None, **more: object) -> Experiment:
    return Experiment("test", Target(url, "m", **(target or {})), Workload(), load, **more)  # type: ignore[arg-type]


def closed(concurrency: int = 1) -> Load:
    return Load("closed", concurrency=concurrency)


class Driven:
    """A load that was driven: the client's report and the frames of its log."""

    def __init__(self, report: ClientReport, frames: list[Frame]) -> None:
        self.report, self.frames = report, frames

    def of(self, index: int, *kinds: int) -> list[Frame]:
        """Frames of one request, of these kinds if any are named."""
        return [f for f in self.frames if f[1] == index and (not kinds or f[0] in kinds)]

    def end(self, index: int) -> tuple[int, str]:
        """How a request ended: the kind of its only last frame, and its note."""
        ((kind, _, _, note),) = self.of(index, END, ERROR, CANCEL)
        return kind, note.decode()


def drive(at: Experiment, requests: Iterator[Request] | None, directory: Path) -> Driven:
    """Drives the experiment with the real client and the real dialect and reads the log back."""
    plan = None
    if at.load.law != "closed":
        plan = schedules.build(at.load, at.seed, at.requests, at.duration_s)
    path = directory / "wire.log"
    log = WireLog(path, origin().monotonic_ns)
    try:
        report = run(at, requests or map(request, itertools.count()), plan, chat, log, lambda _: None)
    finally:
        log.close()
    return Driven(report, list(read_frames(path)))


CLIENT = """
    import itertools, sys
    from pathlib import Path
    from dynamometer.client.workers import run
    from dynamometer.engines.openai import chat
    from dynamometer.record.clock import origin
    from dynamometer.record.log import WireLog
    from dynamometer.types import Experiment, Load, Message, Request, Target, Workload

    url, path, workers, count = sys.argv[1:]
    log = WireLog(Path(path), origin().monotonic_ns)
    load = Load("closed", concurrency=4)
    at = Experiment("t", Target(url, "m"), Workload(), load, requests=int(count), duration_s=0 if int(count) else 60)
    requests = (Request(i, (Message("user", "x"),), 8) for i in itertools.count())
    account = run(at, requests, None, chat, log, lambda p: print(p.ended, flush=True), int(workers))
    log.close()
    print(account.status, account.ended, account.cancelled, account.client["rss_peak_bytes"], flush=True)
"""


def client(url: str, path: Path, workers: int, requests: int = 0) -> list[str]:
    """The command of a client of 4 streams in a process of its own; 0 requests: for a minute."""
    return [sys.executable, "-c", textwrap.dedent(CLIENT), url, str(path), str(workers), str(requests)]


def started(url: str, path: Path, workers: int) -> subprocess.Popen[str]:
    """Such a client, once it has finished ten requests."""
    process = subprocess.Popen(client(url, path, workers), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    while int(process.stdout.readline()) < 10:
        pass
    return process


async def slow(exchange: Exchange) -> None:
    """Answers in 50 ms."""
    await exchange.send(STREAM + chunk(event("a")))
    await asyncio.sleep(0.05)
    await exchange.send(chunk(event("b", "stop")) + LAST)
