"""A run directory in, the processes that show its histograms and send its spans while it is under way out."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from dynamometer.errors import UsageError
from dynamometer.plugins import optional


@contextmanager
def shown_live(directory: Path, port: int) -> Iterator[None]:
    """Serves http://127.0.0.1:PORT/metrics until the block ends; port 0: nothing is served."""
    if not port:
        yield
        return
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("127.0.0.1", port))
        except OSError as wrong:
            raise UsageError(f"--prometheus {port} cannot be used: {wrong.strerror}; give another port") from wrong
    command = [sys.executable, "-m", "dynamometer.record.follow", str(directory), str(port)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


_PATIENCE_S = 20.0  # for the last spans


@contextmanager
def traced_live(directory: Path, url: str) -> Iterator[list[str]]:
    """Sends spans to the collector at `url` until the block ends and all are sent; "": none. In the list there is
    then what became of them."""
    said: list[str] = []
    if not url:
        yield said
        return
    command = [sys.executable, "-m", "dynamometer.report.push", str(directory), traces_url(url)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        yield said
    finally:
        try:
            told, wrong = process.communicate(timeout=_PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            told, wrong = process.communicate()
        sent, _, lost = told.decode().strip().partition(" ")
        if not sent:
            why = wrong.decode("utf-8", "replace").strip().splitlines()[-1:] or ["it took too long"]
            said.append(f"spans could not be sent to {url}: {why[0]}")
        else:
            missing = f"; it did not take {lost}" if lost != "0" else ""
            said.append(f"{sent} spans sent to {url}{missing}")


def traces_url(url: str) -> str:
    """Where the collector at `url` takes traces: /v1/traces unless the URL has a path of its own."""
    at = urlsplit(url)
    if at.scheme not in ("http", "https") or not at.hostname:
        raise UsageError(f"--otlp is {url!r}; give a collector's base URL, e.g. http://127.0.0.1:4318")
    optional("opentelemetry.exporter.otlp.proto.http", "otel")
    return url if at.path.strip("/") else url.rstrip("/") + "/v1/traces"
