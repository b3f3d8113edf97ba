"""Token ids one by one in, the text that each adds out: a character that several tokens make comes with its last."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Decode = Callable[[Sequence[int]], str]


class Words:
    """The text of one answer as it grows. Only the last few tokens are decoded again, so the cost does not grow."""

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._ids: list[int] = []  # from the last token before what was not given out yet
        self._given = ""  # the text of those that were given out

    def add(self, token: int) -> str:
        """The text that this token completes; "" while a character is not whole."""
        self._ids.append(token)
        text = self._decode(self._ids)
        if text.endswith("\ufffd") and len(self._ids) < 12:
            return ""
        new = text[len(self._given) :]
        self._ids = self._ids[-4:]
        self._given = self._decode(self._ids)
        return new
