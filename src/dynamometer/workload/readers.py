"""A file in; its records, each with its place, out. JSON lines, a JSON array, CSV. Errors name file and line."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from dynamometer.errors import MissingPath, UsageError

_BOM = b"\xef\xbb\xbf"


class Line(msgspec.Struct, frozen=True):
    """One record. `at`: "file:line" for messages. `fault`: why it could not be read, when faults are counted."""

    at: str
    fields: Mapping[str, object] = {}
    fault: str = ""


def existing(path: str, where: str) -> Path:
    """The named file, which must be there."""
    if not path:
        raise UsageError(f"{where} needs a file; give its path")
    if not Path(path).is_file():
        raise MissingPath(f"{where}: there is no file {path}")
    return Path(path)


def json_lines(path: Path, lenient: bool = False) -> Iterator[Line]:
    """Records end at LF alone: CR is white space, U+2028 is text. A byte-order mark and blank lines are skipped.

    A line that is no JSON object stops the run with its number, or is a fault to count when `lenient`.
    """
    with path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            line = raw.removeprefix(_BOM) if number == 1 else raw
            if not line.strip():
                continue
            at = f"{path}:{number}"
            try:
                yield Line(at, msgspec.json.decode(line, type=dict[str, object]))
            except (msgspec.DecodeError, UnicodeDecodeError) as wrong:
                if not lenient:
                    raise UsageError(f"{at}: not a JSON object ({wrong}); mend it, or set lenient = yes") from wrong
                yield Line(at, fault="not a JSON object")


def json_array(path: Path, lenient: bool = False) -> Iterator[Line]:
    """The objects of one JSON array; a file of JSON lines is taken as well."""
    raw = path.read_bytes().removeprefix(_BOM)
    if not raw.lstrip().startswith(b"["):
        yield from json_lines(path, lenient)
        return
    try:
        records = msgspec.json.decode(raw, type=list[object])
    except (msgspec.DecodeError, UnicodeDecodeError) as wrong:
        raise UsageError(f"{path}:{_json_fault(raw, str(wrong))}; the file may be cut off") from wrong
    for number, record in enumerate(records, 1):
        at = f"{path}: record {number}"
        yield Line(at, record) if isinstance(record, dict) else Line(at, fault="not a JSON object")


def _json_fault(raw: bytes, otherwise: str) -> str:
    """The standard parser is slower but knows the line."""
    try:
        json.loads(raw)
    except json.JSONDecodeError as wrong:
        return f"{wrong.lineno}: {wrong.msg}"
    except UnicodeDecodeError as wrong:
        return f"{raw[: wrong.start].count(10) + 1}: not UTF-8"
    return f"1: {otherwise}"


def csv_rows(path: Path) -> Iterator[Line]:
    """Rows by column name. A row with more or fewer cells than the header stops the run with its line."""
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))  # prompts are longer than the default of 128 KiB a cell
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(file)
            header = [name.strip() for name in next(rows, [])]
            if not any(header):
                raise UsageError(f"{path}:1: the header is missing; the first line must name the columns")
            for row in rows:
                if not any(cell.strip() for cell in row):
                    continue
                if len(row) != len(header):
                    raise UsageError(f"{path}:{rows.line_num}: {len(row)} cells, the header has {len(header)}")
                yield Line(f"{path}:{rows.line_num}", dict(zip(header, row, strict=True)))
    except UnicodeDecodeError as wrong:
        raise UsageError(f"{path}: not UTF-8 ({wrong.reason} at byte {wrong.start}); save it as UTF-8") from wrong
    except csv.Error as wrong:
        raise UsageError(f"{path}: not CSV ({wrong})") from wrong
