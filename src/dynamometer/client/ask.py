"""One question in, one whole answer out: for looking at an endpoint before and after the load, never during it."""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
from collections.abc import Mapping
from contextlib import suppress
from urllib.parse import urlsplit

import msgspec

from dynamometer.client.endpoint import Endpoint, address, metadata
from dynamometer.engines import channel
from dynamometer.engines.dialect import HttpRequest
from dynamometer.engines.fault import line
from dynamometer.engines.kserve import FRAME_BYTES, framed
from dynamometer.errors import TargetError

_MOST_BYTES = 64 * 1024 * 1024


class Reply(msgspec.Struct, frozen=True):
    """One whole answer. `headers`: names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def ask(at: Endpoint, question: HttpRequest, timeout_s: float) -> Reply:
    """Sends the question on a connection of its own. TargetError says why there is no answer.

    `timeout_s` is for the whole of it: a server that trickles is cut off too.
    """
    if at.scheme.startswith("grpc"):
        return Reply(200, {}, b"".join(map(framed, call(at, question.path, question.body[FRAME_BYTES:], timeout_s))))
    connection = _connection(at, timeout_s)
    late, watch = threading.Event(), None
    taken = {name.lower() for name, _ in (*question.headers, *at.users)}
    headers = dict([*((n, v) for n, v in at.ours if n not in taken), *question.headers, *at.users])
    try:
        connection.connect()
        watch = threading.Timer(timeout_s, _cut_off, (connection.sock, late))
        watch.daemon = True
        watch.start()
        connection.request(question.method, question.path, question.body or None, {"host": at.authority, **headers})
        response = connection.getresponse()
        found = {name.lower(): value for name, value in response.getheaders()}
        body = response.read(_MOST_BYTES)
        if response.length and len(body) < _MOST_BYTES:  # a limited read takes a short body for a whole one
            raise http.client.IncompleteRead(body, response.length)
        return Reply(response.status, found, body)
    except (OSError, http.client.HTTPException) as wrong:
        why = f"no whole answer in {timeout_s:g} s" if late.is_set() else _why(wrong)
        raise TargetError(f"{at.authority} did not answer {question.method} {question.path}: {why}") from wrong
    finally:
        if watch:
            watch.cancel()
        connection.close()


def call(at: Endpoint, method: str, message: bytes, timeout_s: float = 10.0) -> list[bytes]:
    """A gRPC call's whole answer, message by message."""
    return channel.ask(address(at), at.scheme == "grpcs", method, message, metadata(at), timeout_s)


def _cut_off(connection: socket.socket, late: threading.Event) -> None:
    late.set()
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _why(wrong: Exception) -> str:
    if isinstance(wrong, http.client.IncompleteRead):
        return f"it closed the connection in mid-answer, after {len(wrong.partial)} bytes"
    if isinstance(wrong, http.client.BadStatusLine) and not isinstance(wrong, http.client.RemoteDisconnected):
        return f"it does not speak HTTP; it sent {line(str(wrong), 60)!r}"
    said = line(str(wrong)) or type(wrong).__name__
    if isinstance(wrong, ssl.SSLCertVerificationError):
        return f"{said}; --insecure does not verify it, SSL_CERT_FILE names the authorities to trust"
    if isinstance(wrong, ssl.SSLError) or "handshake" in said:
        return f"{said}; does it speak TLS? Try http://"
    return said


def get(at: Endpoint, path: str, timeout_s: float = 5.0) -> Reply:
    """A GET of one page."""
    return ask(at, HttpRequest("GET", path, (("accept", "*/*"),), b""), timeout_s)


def post_json(at: Endpoint, path: str, value: object, timeout_s: float = 30.0) -> Reply:
    """A POST of a JSON document."""
    headers = (("content-type", "application/json"), ("accept", "application/json"))
    return ask(at, HttpRequest("POST", path, headers, msgspec.json.encode(value)), timeout_s)


def base_path(url: str) -> str:
    """Path of the base URL without a closing slash: "/v1" of http://host:8000/v1/."""
    return urlsplit(url).path.rstrip("/")


def root_path(url: str) -> str:
    """The same without a version at its end: where /health, /metrics and /props stand."""
    path = base_path(url)
    return path.removesuffix("/v1")


def _connection(at: Endpoint, timeout_s: float) -> http.client.HTTPConnection:
    if at.tls:
        return http.client.HTTPSConnection(at.host, at.port, timeout=timeout_s, context=at.tls)
    return http.client.HTTPConnection(at.host, at.port, timeout=timeout_s)
