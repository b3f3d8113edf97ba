"""Bytes of a text/event-stream in, in any split; (event name, data) pairs out. The WHATWG rules, on bytes, no clock.

Source: HTML Living Standard, 9.2.6 "Interpreting an event stream". Two deliberate additions, because this program
measures streams instead of subscribing to them: comments and events without data are reported too (they are frames on
the wire), and what is left when the body ends is reported, not dropped (many servers leave out the last blank line).
"""

from __future__ import annotations

from typing import Final

Event = tuple[str, bytes]

COMMENT: Final = ":"  # the name under which a comment line is reported; no real event name can hold a colon first
MAX_EVENT_BYTES: Final = 64 * 2**20
_BOM: Final = b"\xef\xbb\xbf"


class Splitter:
    """Splits one body. `overflow` turns True, for good, when one event is larger than `MAX_EVENT_BYTES`."""

    __slots__ = ("_after_cr", "_data", "_head", "_held", "_name", "_tail", "idle", "overflow")

    def __init__(self) -> None:
        self._head = b""  # the first bytes, held until they are known to be a byte order mark or not
        self._after_cr = False  # the last byte was a CR: an LF that follows belongs to it
        self._tail = bytearray()  # a line that is not complete yet
        self._data: list[bytes] | None = None  # data lines of the open event
        self._name = ""
        self._held = -1  # bytes held in _data; -1: no byte was seen yet
        self.idle = False  # between two events, with nothing held
        self.overflow = False

    def feed(self, data: bytes) -> list[Event]:
        """The events that `data` completes. One without data has the data b""; a comment has the name ":"."""
        # by far the most common read is one event of one line
        one = self.idle and data[:6] == b"data: " and data[-1] == 10 and data.find(b"\n") == len(data) - 2
        if one and b"\r" not in data:
            return [("", data[6:-2])]
        if self._held < 0:
            data = self._start(data)
        if self._after_cr and data:
            self._after_cr = False
            if data[0] == 10:
                data = data[1:]
        if b"\r" in data:
            self._after_cr = data[-1] == 13
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        found: list[Event] = []
        if not self._tail and self._data is None and not self._name:
            cut = data.rfind(b"\n\n")
            if cut >= 0:
                self._blocks(data[:cut], found)
                data = data[cut + 2 :]
        if data:
            self._lines(data, found)
        self.idle = not (self._tail or self._name or self._after_cr) and self._data is None and self._held == 0
        return found

    def close(self) -> list[Event]:
        """The body ended: what was begun and not completed by a blank line."""
        found: list[Event] = []
        if self._held < 0 and self._head:
            self._held = 0
            self._lines(self._head, found)
        self._lines(b"\n\n", found)
        return found

    def _start(self, data: bytes) -> bytes:
        data = self._head + data
        if len(data) < len(_BOM) and _BOM.startswith(data):
            self._head = data
            return b""
        self._held = 0
        return data.removeprefix(_BOM)

    def _blocks(self, data: bytes, found: list[Event]) -> None:
        """Whole events, the common case: nearly all are one line that starts with "data: "."""
        for block in data.split(b"\n\n"):
            if block[:6] == b"data: " and b"\n" not in block:
                found.append(("", block[6:]))
            else:
                self._lines(block + b"\n\n", found)

    def _lines(self, data: bytes, found: list[Event]) -> None:
        lines = data.split(b"\n")
        rest = lines.pop()
        for number, line in enumerate(lines):
            if number == 0 and self._tail:
                line = bytes(self._tail + line)
                self._tail.clear()
            self._line(line, found)
        self._tail += rest
        if len(self._tail) + self._held > MAX_EVENT_BYTES:
            self.overflow = True
            self._tail.clear()
            self._data, self._held = None, 0

    def _line(self, line: bytes, found: list[Event]) -> None:
        if not line:
            if self._data is not None:
                found.append((self._name, b"\n".join(self._data)))
            elif self._name:
                found.append((self._name, b""))
            self._data, self._name, self._held = None, "", 0
            return
        field, _, value = line.partition(b":")
        if value[:1] == b" ":
            value = value[1:]
        if field == b"data":
            self._data = [] if self._data is None else self._data
            self._data.append(value)
            self._held += len(value) + 1
        elif field == b"event":
            self._name = value.decode("utf-8", "replace")
        elif not field:
            found.append((COMMENT, value))
        elif field == b"error":
            # no field of the standard: llama.cpp wrote its failures so until 2025
            found.append(("error", value))
        # `id` and `retry` serve reconnection, which a measured request never does; unknown fields are ignored by rule
