"""The body of a failure in, its class and message out: each engine's JSON, a gateway's HTML page, plain text."""

from __future__ import annotations

import re
from typing import Final

import msgspec

MESSAGE_CHARS: Final = 500
_TAGS: Final = re.compile(r"<(?:script|style).*?</(?:script|style)>|<[^>]*>", re.DOTALL | re.IGNORECASE)
_TITLE: Final = re.compile(r"<title[^>]*>(.*?)</title>", re.DOTALL | re.IGNORECASE)


def explain(body: bytes, otherwise: str) -> tuple[str, str]:
    """(class, message), each on one line. `otherwise` is the class when the body names none. Never raises."""
    try:
        value = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        return otherwise, _plain(body) or "no message"
    return _from_json(value, otherwise)


def line(text: str, limit: int = MESSAGE_CHARS) -> str:
    """`text` on one line of at most `limit` characters; a terminal would obey control characters, so none is left."""
    flat = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in " ".join(text.split()))
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


def _from_json(value: object, otherwise: str) -> tuple[str, str]:
    if isinstance(value, list) and value:
        value = value[0]
    if not isinstance(value, dict):
        return otherwise, line(str(value)) or "no message"
    inner = value.get("error")
    if isinstance(inner, dict):
        source: dict[object, object] = {**value, **inner}
    else:
        source = value
    # Anthropic puts {"type": "error"} around the error; that word is a frame's name, not a class
    kinds = (source.get(key) for key in ("error_type", "type", "status", "code"))
    kind = next((str(k) for k in kinds if isinstance(k, str | int) and str(k) not in ("", "error")), otherwise)
    texts = (source.get(key) for key in ("message", "error", "detail", "error_message", "errors", "msg"))
    text = next((t for t in texts if t), None)
    if text is None:
        message = msgspec.json.encode(value).decode("utf-8", "replace")
    elif isinstance(text, str):
        message = text
    else:
        message = msgspec.json.encode(text).decode("utf-8", "replace")
    return line(kind.replace(":", " "), 80), line(message)


def _plain(body: bytes) -> str:
    text = body[: 64 * 1024].decode("utf-8", "replace")
    if text.lstrip()[:1] == "<":
        title = _TITLE.search(text)
        text = title[1] if title and title[1].strip() else _TAGS.sub(" ", text)
    return line(text)
