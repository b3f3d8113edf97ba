"""A folder of weights or data in, a SHA-256 manifest of it out; a manifest in, what differs from the folder out."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Final

import msgspec

from dynamometer.errors import MissingPath, RecordError, UsageError
from dynamometer.record.clock import utc, wall_ns

NAME: Final = "provenance.json"
_CHUNK: Final = 4 * 2**20
_SKIPPED: Final = {".git", ".cache", "__pycache__", ".huggingface"}
_SUM: Final = re.compile(r"([0-9a-f]{64}) [ *](.+)")
Progress = Callable[[int, int], None]  # bytes done, bytes in all


class Entry(msgspec.Struct, frozen=True):
    """One file. `path` is relative to the folder, with forward slashes."""

    path: str
    bytes: int
    sha256: str


class Inventory(msgspec.Struct, frozen=True, kw_only=True):
    """The manifest. `digest`: SHA-256 over the sorted lines "sha256  bytes  path", one name for the whole."""

    format: int = 1
    kind: str = "weights"  # weights | data
    name: str
    made: str = ""  # UTC
    files: tuple[Entry, ...]
    digest: str


class Difference(msgspec.Struct, frozen=True):
    """`what`: changed | missing | added | renamed | damaged; `detail` in words."""

    what: str
    path: str
    detail: str = ""


def create(
    folder: Path, out: Path, kind: str = "weights", jobs: int = 0, progress: Progress | None = None
) -> Inventory:
    """Hashes every file in parallel and writes the manifest.

    Finished files are kept in a journal beside `out`, so an interrupted run goes on where it stopped; a file whose size
    or time changed since is hashed again.
    """
    found = files_of(folder, out)
    if not found:
        raise UsageError(f"{folder} holds no files; give a folder of weights or data shards")
    hashed, unread = _hashed(found, _journal(out), jobs, progress)
    if unread:
        name, why = min(unread.items())
        raise RecordError(f"{folder / name} cannot be read: {why}; make it readable and run again")
    entries = tuple(hashed[name] for name in sorted(hashed))
    made = f"{utc(wall_ns()):%Y-%m-%dT%H:%M:%SZ}"
    name = folder.resolve().name
    inventory = Inventory(kind=kind, name=name, made=made, files=entries, digest=digest(entries))
    try:
        write(inventory, out)
    except OSError as wrong:
        raise RecordError(f"{out} cannot be written: {wrong.strerror}; give another place with --out") from wrong
    _journal(out).unlink(missing_ok=True)
    return inventory


def _journal(out: Path) -> Path:
    return out.with_name(f".{out.name}.partial")


class _Done(msgspec.Struct, frozen=True):
    """A line of the journal."""

    path: str
    bytes: int
    mtime_ns: int
    sha256: str


def _resume(journal: Path) -> dict[str, _Done]:
    """What an interrupted run had finished; a torn last line is ignored."""
    found: dict[str, _Done] = {}
    if journal.is_file():
        for line in journal.read_bytes().splitlines():
            try:
                one = msgspec.json.decode(line, type=_Done)
            except msgspec.DecodeError:
                continue
            found[one.path] = one
    return found


def _hashed(
    found: Mapping[str, Path], journal: Path, jobs: int, progress: Progress | None
) -> tuple[dict[str, Entry], dict[str, str]]:
    """(entries, reasons of what cannot be read), both by name. What the journal holds is not read again."""
    stats = {name: path.stat() for name, path in found.items()}
    entries: dict[str, Entry] = {}
    unread: dict[str, str] = {}
    for name, one in _resume(journal).items():
        stat = stats.get(name)
        if stat and (stat.st_size, stat.st_mtime_ns) == (one.bytes, one.mtime_ns):
            entries[name] = Entry(name, one.bytes, one.sha256)
    total, finished = sum(stat.st_size for stat in stats.values()), sum(entry.bytes for entry in entries.values())
    waiting = sorted(set(found) - set(entries), key=lambda name: -stats[name].st_size)
    with _kept(journal) as keep, ThreadPoolExecutor(jobs or min(8, os.cpu_count() or 1)) as pool:
        running = {pool.submit(file_sha256, found[name]): name for name in waiting}
        try:
            for future in as_completed(running):
                name, size = running[future], stats[running[future]].st_size
                try:
                    entries[name] = Entry(name, size, future.result())
                    line = _Done(name, size, stats[name].st_mtime_ns, entries[name].sha256)
                    keep(msgspec.json.encode(line) + b"\n")
                except OSError as wrong:
                    unread[name] = wrong.strerror or str(wrong)
                finished += size
                if progress:
                    progress(finished, total)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return entries, unread


@contextmanager
def _kept(journal: Path) -> Iterator[Callable[[bytes], object]]:
    """Appends to the journal, line by line; where none can be written nothing is kept, and all is read again."""
    try:
        file = journal.open("ab", buffering=0)
    except OSError:
        yield lambda line: None
        return
    with file:
        yield file.write


def files_of(folder: Path, out: Path | None = None) -> dict[str, Path]:
    """Every file below the folder by its relative name; caches, the manifest and its journal are left out."""
    if not folder.is_dir():
        raise MissingPath(f"{folder} is not a folder; give a folder of weights or data shards")
    journals = [out.with_name(f".{out.name}.{end}") for end in ("partial", "verifying")] if out else []
    own = {path.resolve() for path in ([out, *journals] if out else [])}
    found = {}
    for root, folders, names in os.walk(folder, followlinks=False):
        folders[:] = sorted(set(folders) - _SKIPPED)
        for name in names:
            path = Path(root) / name
            if path.is_file() and path.resolve() not in own and name != NAME:
                found[path.relative_to(folder).as_posix()] = path
    return found


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, in chunks; the interpreter's lock is free meanwhile."""
    total = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK):
            total.update(chunk)
    return total.hexdigest()


def digest(entries: Iterable[Entry]) -> str:
    """One SHA-256 for all: over the lines "sha256  bytes  path", sorted by path."""
    lines = (f"{one.sha256}  {one.bytes}  {one.path}\n" for one in sorted(entries, key=lambda one: one.path))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def write(inventory: Inventory, out: Path) -> None:
    """As JSON; with a name that ends in .sha256 or SHA256SUMS as lines that `sha256sum -c` takes."""
    if _is_sums(out):
        text = "".join(f"{one.sha256}  {one.path}\n" for one in inventory.files).encode()
    else:
        text = msgspec.json.format(msgspec.json.encode(inventory), indent=2) + b"\n"
    partial = out.with_name(f".{out.name}.{os.getpid()}")
    partial.write_bytes(text)
    partial.replace(out)


def _is_sums(path: Path) -> bool:
    return path.suffix == ".sha256" or path.name.upper() in ("SHA256SUMS", "SHA256SUMS.TXT")


def read(path: Path) -> Inventory:
    """A manifest of ours, or lines of `sha256sum`. Names that leave the folder are refused."""
    if not path.is_file():
        raise MissingPath(f"{path} is not there; make it with dyno provenance create FOLDER")
    raw = path.read_bytes()
    inventory = (
        _from_sums(raw, path)
        if _is_sums(path) or _SUM.match(raw[:200].decode("utf-8", "replace"))
        else _from_json(raw, path)
    )
    for one in inventory.files:
        parts = PurePosixPath(one.path).parts
        if one.path.startswith(("/", "\\")) or ".." in parts or "\0" in one.path or not parts:
            raise UsageError(f"{path} names {one.path!r}, which leaves the folder; do not trust this manifest")
    return inventory


def _from_json(raw: bytes, path: Path) -> Inventory:
    try:
        inventory = msgspec.json.decode(raw, type=Inventory)
    except msgspec.DecodeError as wrong:
        raise UsageError(f"{path} is no manifest ({wrong}); make one with dyno provenance create FOLDER") from wrong
    if inventory.format != 1:
        raise UsageError(f"{path} has format {inventory.format}; this version reads format 1")
    if digest(inventory.files) != inventory.digest:
        raise UsageError(f"{path} does not add up to its own digest: it was changed by hand; get it again")
    return inventory


def _from_sums(raw: bytes, path: Path) -> Inventory:
    entries = []
    for at, line in enumerate(raw.decode("utf-8", errors="replace").splitlines(), 1):
        if line.strip():
            match = _SUM.fullmatch(line.rstrip())
            if not match:
                raise UsageError(f"{path}:{at} is {line[:60]!r}; wanted 64 hex digits, two spaces and a name")
            entries.append(Entry(match[2].removeprefix("./"), -1, match[1]))
    return Inventory(name=path.parent.name, files=tuple(entries), digest=digest(entries))


def verify(
    inventory: Inventory, folder: Path, place: Path, jobs: int = 0, progress: Progress | None = None
) -> tuple[Difference, ...]:
    """Hashes the folder again; nothing: it is what the manifest says. A size that differs is told without hashing.

    `place`: the manifest's own path; the journal of an interrupted run is kept beside it, as for `create`.
    """
    found = files_of(folder, place)
    listed = {one.path: one for one in inventory.files}
    problems = [Difference("missing", name) for name in listed if name not in found]
    problems += [Difference("added", name, "not in the manifest") for name in found if name not in listed]
    sized = {}
    for name, one in listed.items():
        if name in found:
            size = found[name].stat().st_size
            if one.bytes >= 0 and size != one.bytes:
                problems.append(Difference("changed", name, f"{size:,} bytes instead of {one.bytes:,}"))
            else:
                sized[name] = found[name]
    journal = place.with_name(f".{place.name}.verifying")
    hashed, unread = _hashed(sized, journal, jobs, progress)
    journal.unlink(missing_ok=True)
    problems += [Difference("damaged", name, f"cannot be read: {why}") for name, why in unread.items()]
    for name, entry in hashed.items():
        if entry.sha256 != listed[name].sha256:
            detail = "same size, other SHA-256" if listed[name].bytes >= 0 else "other SHA-256"
            problems.append(Difference("changed", name, detail))
    return tuple(sorted(problems, key=lambda one: (one.what, one.path)))


def compare(before: Inventory, after: Inventory) -> tuple[Difference, ...]:
    """What changed between two manifests; a file that moved with the same content is renamed."""
    old, new = ({one.path: one for one in side.files} for side in (before, after))
    gone, come = sorted(set(old) - set(new)), sorted(set(new) - set(old))
    found = []
    for name in list(gone):
        moved = next((other for other in come if new[other].sha256 == old[name].sha256), None)
        if moved:
            found.append(Difference("renamed", name, f"to {moved}"))
            gone.remove(name)
            come.remove(moved)
    found += [Difference("missing", name) for name in gone] + [Difference("added", name) for name in come]
    for name in sorted(set(old) & set(new)):
        if old[name].sha256 != new[name].sha256:
            found.append(Difference("changed", name, _sizes(old[name], new[name])))
    return tuple(sorted(found, key=lambda one: (one.what, one.path)))


def _sizes(old: Entry, new: Entry) -> str:
    if min(old.bytes, new.bytes) < 0:  # lines of sha256sum hold no sizes
        return "other content"
    return f"{old.bytes:,} to {new.bytes:,} bytes" if old.bytes != new.bytes else "same size, other content"
