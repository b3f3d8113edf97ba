"""Runs and a rule of retention in, the runs that it gives up out; and their removal."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

import msgspec

from dynamometer.errors import RecordError
from dynamometer.record.log import held, shards
from dynamometer.record.store import list_runs
from dynamometer.types import Provenance, Run

_DERIVED = ("requests.parquet", "events.parquet", "summary.json", "report.html")


class Rule(msgspec.Struct, frozen=True):
    """What stays: the newest `keep`, and whatever is younger than `older_than_s`. 0: that part gives up nothing."""

    keep: int = 0
    older_than_s: float = 0.0
    derived: bool = False  # only what can be made again from the wire log


class Doomed(msgspec.Struct, frozen=True):
    """A run, or its derived files, that the rule gives up."""

    path: Path
    run: str
    bytes: int
    files: tuple[str, ...] = ()  # empty: the whole folder


def doomed(folder: Path, rule: Rule, now_wall_ns: int) -> list[Doomed]:
    """Oldest first. A run that is being written, or whose manifest cannot be read, is never among them."""
    runs = [(path, run) for path, run in list_runs(folder) if isinstance(run, Run)]
    kept = len(runs) - rule.keep if rule.keep else len(runs)
    found = []
    for path, run in runs[: max(0, kept)]:
        age_s = (now_wall_ns - run.origin_wall_ns) / 1e9
        if (rule.older_than_s and age_s < rule.older_than_s) or any(map(held, shards(path))):
            continue
        files = derived_files(path, run) if rule.derived else ()
        holds_others = any(path in other.parents for other, _ in runs)
        if files or not (rule.derived or holds_others):
            found.append(Doomed(path, run.id, _size(path, files), files))
    return found


def derived_files(path: Path, run: Run) -> tuple[str, ...]:
    """Files that `dyno report` makes again: none where there is no log to make them from."""
    if run.driver is not Provenance.MEASURED or not shards(path):
        return ()
    return tuple(name for name in _DERIVED if (path / name).is_file())


def _size(path: Path, files: tuple[str, ...]) -> int:
    chosen: Iterable[Path] = [path / name for name in files] if files else path.rglob("*")
    return sum(one.lstat().st_size for one in chosen if one.is_file() and not one.is_symlink())


def remove(one: Doomed) -> None:
    """The manifest goes first: a removal that is cut short leaves no run that looks whole."""
    try:
        if one.files:
            for name in one.files:
                (one.path / name).unlink(missing_ok=True)
            return
        if one.path.is_symlink():
            os.unlink(one.path)
            return
        (one.path / "run.json").unlink(missing_ok=True)
        shutil.rmtree(one.path)
    except OSError as wrong:
        raise RecordError(f"{one.path} cannot be removed: {wrong.strerror}") from wrong
