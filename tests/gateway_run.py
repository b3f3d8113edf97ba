"""Settings in, a real gateway process on loopback out, and small clients for it."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from dynamometer.gateway.admin import Status
from dynamometer.gateway.call import call
from dynamometer.record.clock import now_ns

KEY = "a-long-random-key-0123456789"


def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


class Up:
    """A gateway that answers."""

    def __init__(self, process: subprocess.Popen[str], at: int, admin: str, folder: Path) -> None:
        self.process, self.port, self.admin, self.folder = process, at, admin, folder
        self.said = ""

    def status(self) -> Status:
        return msgspec.json.decode(call(self.admin, "/status"), type=Status)

    def metrics(self) -> str:
        return call(self.admin, "/metrics").decode()

    def until(self, true: Callable[[Status], bool], wait_s: float = 10.0) -> Status:
        """Waits for a state; fails with the last one."""
        end = now_ns() + wait_s * 1e9
        while not true(found := self.status()):
            assert now_ns() < end, found
            threading.Event().wait(0.05)
        return found

    def ask(
        self,
        text: str = "hello",
        path: str = "/v1/chat/completions",
        headers: Mapping[str, str] | None = None,
        **more: object,
    ) -> tuple[int, bytes, dict[str, str]]:
        """Status, body and headers. A body that ends too early raises, as for any client."""
        body = {"model": "m", "messages": [{"role": "user", "content": text}], "stream": True, **more}
        return self.post(path, json.dumps(body).encode(), headers)

    def post(
        self, path: str, body: bytes, headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes, dict[str, str]]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=15)
        try:
            connection.request("POST", path, body, dict(headers or {}))
            answer = connection.getresponse()
            return answer.status, answer.read(), {k.lower(): v for k, v in answer.getheaders()}
        finally:
            connection.close()

    def raw(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=15)

    def stop(self, sign: int = signal.SIGTERM) -> int:
        self.process.send_signal(sign)
        _, self.said = self.process.communicate(timeout=20)
        return self.process.returncode


@contextmanager
def gateway(folder: Path, text: str, environ: Mapping[str, str] | None = None, like: Up | None = None) -> Iterator[Up]:
    """`text`: the file without addresses. `like`: the same addresses as one that ran before."""
    at = like.port if like else port()
    admin = like.admin if like else f"127.0.0.1:{port()}"
    file = folder / "gateway.toml"
    file.write_text(f'listen = "127.0.0.1:{at}"\nadmin = "{admin}"\nfolder = "state"\n{text}')
    command = [sys.executable, "-m", "dynamometer", "gateway", str(file)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, **(environ or {})})
    assert process.stderr is not None
    first = process.stderr.readline()
    assert "answers at" in first, first + process.stderr.read()
    up = Up(process, at, admin, folder / "state")
    try:
        yield up
    finally:
        if process.poll() is None:
            process.kill()
        process.stderr.close() if up.process.returncode is not None else process.communicate()


def base(url: str) -> str:
    return url.removesuffix("/v1")
