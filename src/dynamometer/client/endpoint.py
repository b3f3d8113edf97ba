"""A target in, what a connection needs out: address, TLS context and the head of each request. No I/O.

Proxy variables of the environment (`http_proxy` and the like) are not read: a proxy would be measured with the engine.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from functools import lru_cache
from typing import Final
from urllib.parse import urlsplit

import msgspec

from dynamometer import __version__
from dynamometer.engines.dialect import HttpRequest
from dynamometer.errors import UsageError
from dynamometer.types import Target

Headers = tuple[tuple[str, str], ...]

_PORTS: Final = {"http": 80, "https": 443, "grpc": 8001, "grpcs": 8001}  # Triton's for gRPC


class Endpoint(msgspec.Struct, frozen=True):
    """Where to connect and what every request carries."""

    host: str
    port: int
    authority: str  # the Host header
    tls: ssl.SSLContext | None
    ours: Headers  # sent unless the dialect names the same header
    users: Headers  # sent in place of whatever the dialect says
    scheme: str = "http"  # http | https | grpc | grpcs


def endpoint(target: Target, environ: Mapping[str, str]) -> Endpoint:
    """Checks the URL, takes the API key from the variable that the target names, and loads the trusted certificates."""
    url = urlsplit(target.url)
    if url.scheme not in _PORTS or not url.hostname:
        raise UsageError(f"the target's URL is {target.url!r}; give http://HOST:PORT/v1, https://… or grpc://HOST:PORT")
    if url.username or url.password:
        raise UsageError("the target's URL holds a user name; records keep URLs, so name the secret with --api-key-env")
    try:
        port = url.port or _PORTS[url.scheme]
    except ValueError as wrong:
        raise UsageError(f"the target's URL is {target.url!r}: {wrong}") from wrong
    if target.insecure and url.scheme == "grpcs":
        raise UsageError("gRPC knows no --insecure; name the authorities to trust with SSL_CERT_FILE")
    host = f"[{url.hostname}]" if ":" in url.hostname else url.hostname
    return Endpoint(
        host=url.hostname,
        port=port,
        authority=host if url.port is None else f"{host}:{port}",
        tls=_tls(target.insecure) if url.scheme == "https" else None,
        ours=(
            ("user-agent", f"dynamometer/{__version__}"),
            ("accept-encoding", "identity"),
            *_authorization(target.api_key_env, environ),
        ),
        users=tuple(target.headers.items()),
        scheme=url.scheme,
    )


def address(at: Endpoint) -> str:
    """HOST:PORT, as gRPC takes it."""
    return f"[{at.host}]:{at.port}" if ":" in at.host else f"{at.host}:{at.port}"


def metadata(at: Endpoint) -> Headers:
    """What every gRPC call carries: the key and the user's own headers. Names are in lower case there."""
    users = tuple((name.lower(), value) for name, value in at.users)
    taken = {name for name, _ in users}
    return tuple((name, value) for name, value in at.ours if name == "authorization" and name not in taken) + users


def serialize(http: HttpRequest, at: Endpoint) -> bytes:
    """The request as it goes over the wire."""
    return head(http.method, http.path, http.headers, at) + b"content-length: %d\r\n\r\n" % len(http.body) + http.body


@lru_cache(maxsize=64)
def head(method: str, path: str, headers: Headers, at: Endpoint) -> bytes:
    """Request line and headers, up to the length. The same for nearly every request of a run, hence the cache."""
    taken = {name.lower() for name, _ in at.users}
    chosen = [(name, value) for name, value in headers if name.lower() not in taken]
    taken |= {name.lower() for name, _ in chosen}
    if taken & {"api-key", "x-api-key"}:
        taken.add("authorization")  # the dialect carries the key its own way; a second credential can be refused
    chosen += [(name, value) for name, value in at.ours if name not in taken]
    lines = [f"{method} {path} HTTP/1.1", f"host: {at.authority}"]
    lines += [f"{name}: {value}" for name, value in (*chosen, *at.users)]
    for line in lines:
        if "\r" in line or "\n" in line or "\0" in line:
            raise UsageError(f"the header {line.partition(':')[0]!r} holds a line break; give one line")
    try:
        return "\r\n".join(lines).encode("latin-1") + b"\r\n"
    except UnicodeEncodeError as wrong:
        raise UsageError(
            f"a header or the path holds {wrong.object[wrong.start]!r}; HTTP allows Latin-1 only"
        ) from wrong


def _authorization(variable: str, environ: Mapping[str, str]) -> Headers:
    if not variable:
        return ()
    key = environ.get(variable, "").strip()
    if not key:
        raise UsageError(f"{variable} is not set, and --api-key-env says that it holds the API key; export it first")
    return (("authorization", f"Bearer {key}"),)


def _tls(insecure: bool) -> ssl.SSLContext:
    """Verification is on unless the user asked for it to be off."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
