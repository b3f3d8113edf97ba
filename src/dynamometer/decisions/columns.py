"""A CSV file with a head line in, its columns by name out; every fault is one line that names the file and the row."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from dynamometer.errors import MissingPath, UsageError

Columns = Mapping[str, Sequence[str]]  # name in lower case -> a text a row


def read(path: Path) -> Columns:
    """The file's columns, all of one length. Empty lines and lines that begin with # are skipped."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise MissingPath(f"{path} is not there; give a CSV file") from None
    except (OSError, UnicodeDecodeError) as wrong:
        raise UsageError(f"{path} cannot be read as text; give a CSV file in UTF-8") from wrong
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    rows = list(csv.reader(io.StringIO("\n".join(lines)), skipinitialspace=True))
    if len(rows) < 2:
        raise UsageError(f"{path} holds {len(rows)} lines; give a head line with names and a line for each measurement")
    names = [name.strip().lower() for name in rows[0]]
    if len(set(names)) < len(names) or "" in names:
        raise UsageError(f"{path}: the head line is {', '.join(names)}; give each column a name of its own")
    for at, row in enumerate(rows[1:], 2):
        if len(row) != len(names):
            raise UsageError(f"{path}, row {at}: {len(row)} cells where the head line has {len(names)}")
    return {name: [row[i].strip() for row in rows[1:]] for i, name in enumerate(names)}


def column(columns: Columns, names: Sequence[str], path: Path) -> Sequence[str]:
    """The column of the first of these names that is there."""
    for name in names:
        if name in columns:
            return columns[name]
    raise UsageError(f"{path} has no column {' or '.join(names)}; it has {', '.join(columns)}")


def numbers(columns: Columns, names: Sequence[str], path: Path) -> list[float]:
    """The same as finite numbers."""
    found = []
    for at, text in enumerate(column(columns, names, path), 2):
        value = number(text)
        if value is None:
            raise UsageError(f"{path}, row {at}: {names[0]} is {text!r}; give a number")
        found.append(value)
    return found


def number(text: str) -> float | None:
    """A finite number, or None for anything else."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
