"""The wire logs of a run that is under way in, its histograms as a page for Prometheus out.

A process of its own: it reads what the client has written to the disk, so the receive path does no more than it did.

    python -m dynamometer.record.follow RUN PORT
"""

from __future__ import annotations

import http.server
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dynamometer.record.decode import Live, Told
from dynamometer.record.log import HEAD, Frame, shards
from dynamometer.record.manifest import read as read_run
from dynamometer.record.rows import Plan
from dynamometer.record.store import dialect_of
from dynamometer.telemetry.histograms import Board
from dynamometer.types import EventKind

EVERY_S: Final = 0.5


class Tail:
    """What was appended to a log since the last look, whole frames only."""

    def __init__(self, path: Path) -> None:
        self._path, self._at = path, 0

    def frames(self) -> list[Frame]:
        with self._path.open("rb") as file:
            file.seek(self._at)
            data = file.read()
        found, at = [], 0
        while at + HEAD.size <= len(data):
            kind, request, at_ns, length = HEAD.unpack_from(data, at)
            end = at + HEAD.size + length
            if end > len(data):
                break
            found.append((kind, request, at_ns, data[at + HEAD.size : end]))
            at = end
        self._at += at
        return found


def count(board: Board, told: Told) -> None:
    """Adds one request that ended."""
    facts = told.facts
    sent = next((fact.at_ns for fact in facts if fact.kind is EventKind.SENT), None)
    chunks = [fact.at_ns for fact in facts if fact.kind is EventKind.CHUNK]
    counts = {fact.note: fact.n for fact in facts if fact.kind is EventKind.USAGE}
    last = facts[-1].kind
    board.outcomes[{EventKind.DONE: "ok", EventKind.CANCEL: "cancelled"}.get(last, "error")] += 1
    if last is not EventKind.DONE or sent is None or not chunks:
        return
    board.tokens["prompt"] += counts.get("prompt", 0)
    tokens = counts.get("output") or len(chunks)
    board.tokens["output"] += tokens
    board.latencies["ttft"].add((chunks[0] - sent) / 1e9)
    board.latencies["e2e"].add((chunks[-1] - sent) / 1e9)
    if tokens > 1 and len(chunks) > 1:
        board.latencies["tpot"].add((chunks[-1] - chunks[0]) / (tokens - 1) / 1e9)


class Requests:
    """The requests of a run that is followed, each once, when it has ended."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._live = Live(dialect_of(read_run(directory)))
        self._tails: dict[Path, Tail] = {}

    @property
    def in_flight(self) -> int:
        """Sent and not ended, as far as the log on the disk tells."""
        return self._live.in_flight

    def look(self) -> Iterator[tuple[Told, Plan]]:
        """What is new, warm-up too. A log that began after the last look is found now."""
        for path in shards(self._directory):
            if path not in self._tails:
                self._tails[path] = Tail(path)
        for tail in self._tails.values():
            for frame in tail.frames():
                told = self._live.take(frame)
                if told is not None:
                    yield told, self._live.plans[told.request]


class Followed:
    """A run that is followed, as histograms."""

    def __init__(self, directory: Path) -> None:
        self.board = Board()
        self._requests = Requests(directory)

    def look(self) -> None:
        """Takes what is new."""
        for told, plan in self._requests.look():
            if plan.phase == "load":
                count(self.board, told)
        self.board.in_flight = self._requests.in_flight


def serve(directory: Path, port: int) -> http.server.ThreadingHTTPServer:
    """The page at /metrics on loopback, made anew for each reader. Port 0: any free one."""
    followed, alone = Followed(directory), threading.Lock()

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.split("?")[0] != "/metrics":
                self.send_error(404)
                return
            with alone:
                followed.look()
                body = followed.board.text().encode()
            self.send_response(200)
            self.send_header("content-type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: the run's own display has the terminal."""

    return http.server.ThreadingHTTPServer(("127.0.0.1", port), Page)


def main() -> None:
    """Entry point of the process. It ends when its parent does."""
    directory, port, parent = Path(sys.argv[1]), int(sys.argv[2]), os.getppid()
    os.nice(10)  # the load comes first
    server = serve(directory, port)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    rest = threading.Event()
    while os.getppid() == parent:
        rest.wait(EVERY_S)


if __name__ == "__main__":
    main()
