"""Bytes of newline-delimited JSON in, in any split; one event a line out, as `sse.Splitter` gives them."""

from __future__ import annotations

from dynamometer.engines import sse
from dynamometer.engines.sse import Event


class Splitter:
    """Splits one body. `overflow` turns True, for good, when one line is larger than `sse.MAX_EVENT_BYTES`."""

    __slots__ = ("_tail", "idle", "overflow")

    def __init__(self) -> None:
        self._tail = bytearray()
        self.idle = True
        self.overflow = False

    def feed(self, data: bytes) -> list[Event]:
        lines = data.split(b"\n")
        rest = lines.pop()
        if lines and self._tail:
            lines[0] = bytes(self._tail + lines[0])
            self._tail.clear()
        self._tail += rest
        if len(self._tail) > sse.MAX_EVENT_BYTES:
            self.overflow = True
            self._tail.clear()
        self.idle = not self._tail
        return [("", line) for line in lines if line.strip()]

    def close(self) -> list[Event]:
        """The last line, which may lack its end."""
        rest = bytes(self._tail)
        self._tail.clear()
        return [("", rest)] if rest.strip() else []
