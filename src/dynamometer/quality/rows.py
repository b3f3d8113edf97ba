"""A folder in, the rows of a comparison that were written there before out, and a way to write more.

Every answer is a line of its own, written when it came: whatever stops the run, what is there is kept, and the same
command goes on behind it. Settings that would make other answers are another comparison.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from dynamometer.errors import RecordError, UsageError
from dynamometer.quality.divergence import Along
from dynamometer.quality.finals import Outcome

Row = TypeVar("Row", bound=msgspec.Struct)


class Answered(msgspec.Struct, frozen=True):
    """One side's answer to one question."""

    side: str
    question: str
    outcome: Outcome
    said: str  # the answer as it is compared: a number, a letter; else the end of the text
    finish: str = ""
    tokens: int = 0
    note: str = ""  # why not: an error, a limit


class AlongRow(msgspec.Struct, frozen=True):
    """One text read by both."""

    way: str
    along: Along


def same_settings(folder: Path, settings: Mapping[str, object]) -> bool:
    """True when the folder holds rows of the same settings to go on with; else it is begun, or refused."""
    path = folder / "settings.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_bytes(msgspec.json.format(msgspec.json.encode(settings), indent=2))
            return False
        before = msgspec.json.decode(path.read_bytes(), type=dict[str, object])
    except (OSError, msgspec.DecodeError) as wrong:
        raise RecordError(f"{path} cannot be used: {wrong}; give another folder with --out") from wrong
    now = msgspec.json.decode(msgspec.json.encode(settings), type=dict[str, object])
    other = sorted(key for key in {*before, *now} if before.get(key) != now.get(key))
    if other:
        told = ", ".join(f"{key} {before.get(key)!r} then, {now.get(key)!r} now" for key in other[:3])
        raise UsageError(f"{folder} holds another comparison ({told}); give another folder with --out")
    return True


def load(path: Path, kind: type[Row]) -> list[Row]:
    """The rows of a file; the half line of a killed run is left out and cut off, so that the next begins a line."""
    if not path.exists():
        return []
    raw = path.read_bytes()
    whole = raw[: raw.rfind(b"\n") + 1]
    if whole != raw:
        path.write_bytes(whole)
    try:
        return [msgspec.json.decode(line, type=kind) for line in whole.splitlines() if line.strip()]
    except msgspec.DecodeError as wrong:
        raise RecordError(f"{path} holds a line that is no row: {wrong}; give another folder with --out") from wrong


def append(path: Path, row: msgspec.Struct) -> None:
    """Adds one row at the end of the file, at once."""
    try:
        with path.open("ab") as file:
            file.write(msgspec.json.encode(row) + b"\n")
    except OSError as wrong:
        raise RecordError(f"{path} cannot be written: {wrong}") from wrong
