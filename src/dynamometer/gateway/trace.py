"""A `traceparent` in, this hop's own out, and spans as OTLP/JSON to a collector (W3C Trace Context)."""

from __future__ import annotations

import json
import re
import secrets
import threading
import urllib.request
from collections import deque
from typing import Final

import msgspec

_PARENT: Final = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_MOST: Final = 10_000  # spans that wait for the collector; more are dropped and counted


class Trace(msgspec.Struct, frozen=True):
    """Ids of one request. `above`: the caller's span, or empty."""

    id: str
    span: str
    above: str
    flags: str

    @property
    def parent(self) -> str:
        """What the engine gets."""
        return f"00-{self.id}-{self.span}-{self.flags}"


def trace_of(header: str) -> Trace:
    """Goes on with the caller's trace; what is malformed begins a new one, as the standard asks."""
    found = _PARENT.fullmatch(header.strip())
    if found and set(found[1]) != {"0"} and set(found[2]) != {"0"}:
        return Trace(found[1], secrets.token_hex(8), found[2], found[3])
    return Trace(secrets.token_hex(16), secrets.token_hex(8), "", "01")


class Spans:
    """Hands spans to a collector from a thread of its own; a collector that is away costs spans, never requests."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/") + "/v1/traces" if url else ""
        self._waiting: deque[dict[str, object]] = deque()
        self.dropped = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._post, daemon=True) if url else None
        if self._thread:
            self._thread.start()

    def add(self, trace: Trace, times_ns: tuple[int, int], facts: dict[str, str | int], error: str) -> None:
        """`times_ns`: start and end, wall clock."""
        if self._thread is None:
            return
        if len(self._waiting) >= _MOST:
            self.dropped += 1
            return
        span: dict[str, object] = {
            "traceId": trace.id,
            "spanId": trace.span,
            "name": "chat",
            "kind": 3,
            "startTimeUnixNano": str(times_ns[0]),
            "endTimeUnixNano": str(times_ns[1]),
            "attributes": [{"key": k, "value": _value(v)} for k, v in facts.items()],
            "status": {"code": 2, "message": error} if error else {},
        }
        self._waiting.append({**span, "parentSpanId": trace.above} if trace.above else span)

    def close(self) -> None:
        self._stop.set()
        if self._thread:
            self._thread.join(3.0)

    def _post(self) -> None:
        while True:
            last = self._stop.wait(1.0)
            spans = [self._waiting.popleft() for _ in range(min(1000, len(self._waiting)))]
            if spans:
                self._send(spans)
            if last:
                return

    def _send(self, spans: list[dict[str, object]]) -> None:
        name = [{"key": "service.name", "value": {"stringValue": "dyno-gateway"}}]
        scope = {"scope": {"name": "dynamometer"}, "spans": spans}
        body = json.dumps({"resourceSpans": [{"resource": {"attributes": name}, "scopeSpans": [scope]}]}).encode()
        request = urllib.request.Request(self._url, body, {"content-type": "application/json"})
        try:
            urllib.request.urlopen(request, timeout=2.0).close()
        except (OSError, ValueError):
            self.dropped += len(spans)


def _value(value: str | int) -> dict[str, str]:
    return {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}
