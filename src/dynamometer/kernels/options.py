"""KEY=VALUE texts and a study's Options in, checked Options out; and the other way round, to be shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec

from dynamometer.errors import UsageError

_Options = TypeVar("_Options", bound=msgspec.Struct)


def parse(kind: type[_Options], defaults: Mapping[str, object], pairs: Sequence[str]) -> _Options:
    """`pairs` win over `defaults`. A list is written with commas. An unknown key or a wrong value is a UsageError."""
    given: dict[str, object] = dict(defaults)
    plain = kind()
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not hasattr(plain, key):
            known = ", ".join(kind.__struct_fields__)
            raise UsageError(f"--set takes KEY=VALUE with a key of {known}; not {pair!r}")
        listed = isinstance(getattr(plain, key), tuple)
        given[key] = [part.strip() for part in text.split(",") if part.strip()] if listed else text
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as wrong:
        raise UsageError(f"--set: {wrong}") from wrong


def shown(options: msgspec.Struct) -> str:
    """One `key=value` a line."""
    lines = []
    for key in options.__struct_fields__:
        value = getattr(options, key)
        lines.append(f"{key}={','.join(str(v) for v in value) if isinstance(value, tuple) else value}")
    return "\n".join(lines)
