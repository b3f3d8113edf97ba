"""The chunks of one answer in, its texts out: what was said, thought, refused and called."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from dynamometer.engines.ledger import CONTENT, REASONING, REFUSAL, TOOL
from dynamometer.types import Chunk, EventKind


class Reply(msgspec.Struct, frozen=True):
    """Whole texts of one answer. Each of `calls` is a function's name followed by its arguments as JSON."""

    text: str
    reasoning: str = ""
    refusal: str = ""
    calls: tuple[str, ...] = ()
    finish: str = ""
    error: str = ""


def assemble(chunks: Iterable[Chunk]) -> Reply:
    """Joins pieces by channel; parallel calls by their index."""
    texts: dict[str, list[str]] = {}
    finish = error = ""
    for chunk in chunks:
        if chunk.kind is EventKind.CHUNK:
            texts.setdefault(chunk.note, []).append(chunk.text)
        elif chunk.kind is EventKind.FINISH:
            finish = chunk.note
        elif chunk.kind is EventKind.ERROR:
            error = chunk.note
    whole = {channel: _paired("".join(pieces)) for channel, pieces in texts.items()}
    return Reply(
        text=whole.get(CONTENT, ""),
        reasoning=whole.get(REASONING, ""),
        refusal=whole.get(REFUSAL, ""),
        calls=tuple(text for channel, text in whole.items() if channel.startswith(TOOL)),
        finish=finish,
        error=error,
    )


def _paired(text: str) -> str:
    """Joins the halves of surrogate pairs that came in two chunks; a half that stays alone becomes U+FFFD."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
