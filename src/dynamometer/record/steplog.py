"""A folder with an engine's step log and its clients' requests (CSV, gzipped) in, columns out.

`serve_steps.csv.gz`: i, t_sched, sched_us, t_done, n_ctx, tok_ctx, past_ctx, n_gen, tok_gen, past_gen, n_run, n_wait,
kv, n_new, n_pre. `serve_requests.csv.gz`: phase, id, t_sched, t_send, t_first, t_last, n_in, n_out_req, n_out,
status, chunks, deltas. One clock, seconds.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from dynamometer.errors import MissingPath, RecordError
from dynamometer.types import Float64

STEPS, REQUESTS = "serve_steps.csv.gz", "serve_requests.csv.gz"
_STEP_COLUMNS = ("i", "t_sched", "t_done", "n_ctx", "tok_ctx", "past_ctx", "n_gen", "past_gen", "n_wait", "n_new")
_REQUEST_COLUMNS = ("t_sched", "t_send", "t_first", "t_last", "n_in", "n_out")


def is_step_log(folder: Path) -> bool:
    """True if the folder holds both files."""
    return (folder / STEPS).is_file() and (folder / REQUESTS).is_file()


def read_steps(folder: Path) -> dict[str, Float64]:
    """The step log's columns, in order of the steps."""
    path = folder / STEPS
    table = np.asarray([_numbers(row, _STEP_COLUMNS, path) for row in _rows(path)], dtype=np.float64)
    if table.size == 0:
        raise RecordError(f"{path} has no steps; record a run with the engine's step log on")
    table = table[np.argsort(table[:, 0], kind="stable")]
    return {name: table[:, i].copy() for i, name in enumerate(_STEP_COLUMNS)}


def read_requests(folder: Path) -> dict[str, dict[str, Float64]]:
    """Columns of the requests of each phase but `warm…`, in order of sending; failed requests are left out."""
    path = folder / REQUESTS
    found: dict[str, list[list[float]]] = {}
    for row in _rows(path):
        name = row.get("phase", "")
        if row.get("status", "ok") == "ok" and not name.startswith("warm"):
            found.setdefault(name, []).append(_numbers(row, _REQUEST_COLUMNS, path))
    phases: dict[str, dict[str, Float64]] = {}
    for name, rows in found.items():
        table = np.asarray(rows, dtype=np.float64)
        table = table[np.argsort(table[:, 1], kind="stable")]
        phases[name] = {column: table[:, i].copy() for i, column in enumerate(_REQUEST_COLUMNS)}
    return phases


def _rows(path: Path) -> Iterator[dict[str, str]]:
    if not path.is_file():
        raise MissingPath(f"{path} is not there; a step log folder holds {STEPS} and {REQUESTS}")
    try:
        with gzip.open(path, "rt", newline="") as file:
            yield from csv.DictReader(line for line in file if not line.startswith("#"))
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as broken:
        raise RecordError(f"{path} can't be read: {broken}") from broken


def _numbers(row: dict[str, str], names: tuple[str, ...], path: Path) -> list[float]:
    try:
        return [float(row[name]) for name in names]
    except (KeyError, TypeError, ValueError) as wrong:
        raise RecordError(f"{path} has a row without {wrong}; wanted columns {', '.join(names)}") from wrong
