"""A read in, its text out, when the read repeats the last one in everything but the text.

Nearly all reads of a load are such repeats: one event whose only change is one JSON string. Comparing bytes around that
string costs a fifth of splitting and parsing it, and gives the same text: what is equal outside the string was parsed
before, and a string without quotes, backslashes and control characters stands for itself.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice, takewhile
from typing import Final

_ITSELF: Final = re.compile(rb'[^"\\\x00-\x1f]+')
_PATIENCE: Final = 16  # reads without a repeat after which looking for one stops: each event differs (ids, padding)


class Repeat:
    """The last read, as what stands before and after its text. `key` is the text's key in JSON, e.g. b'"content"'."""

    __slots__ = ("_after", "_before", "_key", "_patience", "known")

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._before = self._after = b""
        self._patience = _PATIENCE
        self.known = False  # the last read can be repeated

    def text(self, data: bytes) -> str:
        """The text of a read that is a repeat; "" for any other."""
        if data.startswith(self._before) and data.endswith(self._after):
            found = _ITSELF.fullmatch(data, len(self._before), len(data) - len(self._after))
            if found:
                self._patience = _PATIENCE
                try:
                    return found[0].decode()
                except UnicodeDecodeError:
                    return ""
        self._patience -= 1
        return ""

    def texts(self, reads: Sequence[bytes], start: int) -> list[bytes]:
        """The texts of the reads from `start` on, up to the first that is no repeat."""
        before, after = self._before, self._after
        begin, last, least = len(before), -len(after), len(before) + len(after)
        found: list[bytes] = []
        add = found.append
        for data in islice(reads, start, None):
            if len(data) <= least or not data.startswith(before) or not data.endswith(after):
                break
            add(data[begin:last])
        whole = b"".join(found)
        if not (whole.isascii() and _ITSELF.fullmatch(whole)):
            found = list(takewhile(_stands_for_itself, found))
        if found:
            self._patience = _PATIENCE
        return found

    def learn(self, data: bytes, text: str) -> None:
        """`data` was one whole event and gave `text`, nothing else. Its only `key` must hold that text as it stands."""
        self.known = False
        opening = self._key + b':"'
        literal = text.encode("utf-8", "replace")
        start = data.find(opening) + len(opening)
        end = start + len(literal)
        held = self._key != b"" and data[start : end + 1] == literal + b'"'
        if self._patience > 0 and held and data.count(self._key) == 1 and data.count(b"\n") == 2:
            self._before, self._after = data[:start], data[end:]
            self.known = True

    def forget(self) -> None:
        self.known = False


def _stands_for_itself(text: bytes) -> bool:
    try:
        return _ITSELF.fullmatch(text) is not None and text.decode() != ""
    except UnicodeDecodeError:
        return False
