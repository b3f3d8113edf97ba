"""A run's directory and a format in, its rows as Parquet, CSV or JSON lines out: a file for each table."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

import duckdb

from dynamometer.errors import RecordError, UsageError
from dynamometer.record.store import TABLES, open_run, sql_text

OPTIONS: Final = {
    "parquet": "FORMAT parquet, COMPRESSION zstd",
    "csv": "FORMAT csv, HEADER",
    "jsonl": "FORMAT json",
}


def export(directory: Path, folder: Path, kind: str) -> list[Path]:
    """Writes requests, events and samples of a run into `folder`, and a copy of run.json. Returns what was written.

    Units are those of docs/record.md; `at_ns` counts from the run's origin, which run.json ties to the wall clock.
    """
    if kind not in OPTIONS:
        raise UsageError(f"export format is {kind!r}; one of {', '.join(OPTIONS)}")
    with open_run(directory) as connection:
        if folder.resolve() == directory.resolve():
            raise UsageError(f"{folder} is the run itself; give another folder, the record is not overwritten")
        written = [folder / f"{table}.{kind}" for table in TABLES]
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for table, path in zip(TABLES, written, strict=True):
                part = path.with_name(f".{path.name}.part")  # a file under its own name is a whole one
                connection.execute(f"COPY {table} TO {sql_text(part)} ({OPTIONS[kind]})")
                os.replace(part, path)
            shutil.copyfile(directory / "run.json", folder / "run.json")
        except (OSError, duckdb.Error) as wrong:
            raise RecordError(f"{folder} cannot be written: {wrong}; give another folder") from wrong
    return [*written, folder / "run.json"]
