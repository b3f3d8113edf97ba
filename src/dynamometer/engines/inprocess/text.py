"""Token ids one by one in, the text that each adds out: a character that several tokens make comes with its last."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Decode = Callable[[Sequence[int]], str]


class Words:
    """The text of one answer as it grows. Only the last few tokens are decoded again, so the cost does not grow."""

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._ids: list[int] = []  # some that were given out, for the decoder's sake, and those that were not
        self._given = ""  # the text of the former

    def add(self, token: int) -> str:
        """The text that this token completes; "" while its character is not whole."""
        self._ids.append(token)
        text = self._decode(self._ids)
        whole = text.rstrip("\ufffd")  # what decoders put for a character that is not whole yet
        new = whole[len(self._given) :]
        self._given += new
        if whole == text:
            # a character is at most four bytes, so four tokens hold the last one from its beginning
            self._ids = self._ids[-4:]
            self._given = self._decode(self._ids)
        return new
