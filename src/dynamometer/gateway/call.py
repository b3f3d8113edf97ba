"""A word to a running gateway in, its answer out: plain HTTP to the loopback address of its admin side."""

from __future__ import annotations

import http.client

import msgspec

from dynamometer.errors import TargetError, UsageError
from dynamometer.gateway.config import address


def call(admin: str, path: str, body: bytes | None = None, wait_s: float = 10.0) -> bytes:
    """GET, or POST where there is a body. Raises TargetError when nobody answers, UsageError when it refuses."""
    host, port = address(admin)
    connection = http.client.HTTPConnection(host, port, timeout=wait_s)
    try:
        connection.request("GET" if body is None else "POST", path, body, {"x-dyno-admin": "1"})
        answer = connection.getresponse()
        text = answer.read()
    except (OSError, http.client.HTTPException) as wrong:
        raise TargetError(f"no gateway answers at {admin}: {wrong}; start it with: dyno gateway FILE") from wrong
    finally:
        connection.close()
    if answer.status != 200:
        try:
            said = msgspec.json.decode(text)["error"]["message"]
        except (msgspec.DecodeError, LookupError, TypeError):
            said = f"HTTP {answer.status}"
        raise UsageError(f"the gateway at {admin} refused: {said}")
    return text
