"""Frames of what the client saw in, an append-only file out, and back again (docs/record.md has the format).

`kill -9` at any moment leaves every finished request readable: its frames reach the kernel when it ends. A torn tail is
ignored by the readers and cut off when the run goes on.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from dynamometer.errors import MissingPath, RecordError
from dynamometer.types import Sample

PLAN, DUE, SENT, HEADERS, BODY, END, ERROR, RETRY, CANCEL = range(1, 10)
TERMINAL: Final = frozenset((END, ERROR, CANCEL))

HEAD: Final = struct.Struct("<BIqI")  # kind, request, at_ns, length
Frame = tuple[int, int, int, bytes]  # kind, request, at_ns, payload

_FLUSH_BYTES: Final = 256 * 1024
_RELEASE_BYTES: Final = 8 * 1024 * 1024
_pack = HEAD.pack


class WireLog:
    """Appends frames. Times come in on CLOCK_MONOTONIC and are written from the run's origin.

    A disk that fills up does not raise here, where the load would die of it: `failed` says why, what was written stays
    whole, and no more is written.
    """

    __slots__ = ("_buffer", "_descriptor", "_origin_ns", "failed", "path")

    def __init__(self, path: Path, origin_ns: int) -> None:
        """`origin_ns`: CLOCK_MONOTONIC at the run's 0. An existing file is taken up after its last whole frame."""
        self.path = path
        self.failed = ""
        self._buffer = bytearray()
        self._origin_ns = origin_ns
        self._descriptor = _open_alone(path)
        if os.fstat(self._descriptor).st_size:
            _cut(path, self._descriptor, whole_bytes(path))

    @property
    def origin_ns(self) -> int:
        """CLOCK_MONOTONIC at the run's 0."""
        return self._origin_ns

    def append(self, kind: int, request: int, now_ns: int, payload: bytes = b"") -> None:
        """One frame at `now_ns` (CLOCK_MONOTONIC). A frame that ends a request goes to the kernel at once."""
        buffer = self._buffer
        buffer += _pack(kind, request, now_ns - self._origin_ns, len(payload))
        buffer += payload
        if kind > BODY or len(buffer) > _FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Hands the buffered frames to the kernel: at each end, every 256 KiB, and twice a second by the driver."""
        if not self._buffer:
            return
        left = memoryview(self._buffer)
        try:
            while left and not self.failed:
                left = left[os.write(self._descriptor, left) :]
        except OSError as full:
            self.failed = _cannot_grow(self.path, full)
        left.release()
        self._buffer.clear()

    def close(self) -> None:
        if self._descriptor >= 0:
            self.flush()
            os.close(self._descriptor)
            self._descriptor = -1


class SampleLog:
    """Appends telemetry readings, one JSON line each. Same promise as `WireLog` when the disk is full."""

    __slots__ = ("_descriptor", "failed", "path")

    def __init__(self, path: Path) -> None:
        self.path = path
        self.failed = ""
        self._descriptor = _open_alone(path)
        _cut(path, self._descriptor, _whole_lines(path))

    def append(self, samples: Iterable[Sample]) -> None:
        lines = b"".join(msgspec.json.encode(sample) + b"\n" for sample in samples)
        try:
            while lines and not self.failed:
                lines = lines[os.write(self._descriptor, lines) :]
        except OSError as full:
            self.failed = _cannot_grow(self.path, full)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def read_frames(path: Path) -> Iterator[Frame]:
    """Every whole frame in the order written; a torn tail is left out. Memory does not grow with the file."""
    unpack, head = HEAD.unpack_from, HEAD.size
    for view in _mapped(path):
        size, at, released = len(view), 0, 0
        while at + head <= size:
            if at - released > _RELEASE_BYTES:  # pages that were read stay resident until they are given back
                end = at // mmap.PAGESIZE * mmap.PAGESIZE
                view.madvise(mmap.MADV_DONTNEED, released, end - released)
                released = end
            kind, request, at_ns, length = unpack(view, at)
            begin = at + head
            if not 1 <= kind <= CANCEL:
                if _only_zeros(view, at):
                    return
                raise RecordError(f"{path} is damaged at byte {at}: frame kind {kind}; 1 to 9 are known")
            at = begin + length
            if at > size:
                return
            yield kind, request, at_ns, view[begin:at]


def read_samples(path: Path) -> Iterator[Sample]:
    """Every whole line; a torn last one is left out. No file, no samples."""
    if not path.exists():
        return
    decode = msgspec.json.Decoder(Sample).decode
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                yield decode(line)
            except msgspec.DecodeError as wrong:
                raise RecordError(f"{path}:{number} is not a sample: {wrong}") from wrong


def shards(directory: Path) -> list[Path]:
    """The wire logs of a run: `wire.log`, and `wire.<i>.log` of several workers. Each request is in one of them."""
    one = [directory / "wire.log"] if (directory / "wire.log").exists() else []
    return one + sorted(directory.glob("wire.[0-9]*.log"), key=lambda path: int(path.name.split(".")[1]))


def next_shard(directory: Path) -> int:
    """The first free number for `wire.<i>.log`. What is asked again goes into a later shard than what it replaces."""
    return max((int(path.name.split(".")[1]) + 1 for path in directory.glob("wire.[0-9]*.log")), default=0)


def main_log(directory: Path) -> Path:
    """Where one process writes: `wire.log`, unless there are shards: what is new must come after them."""
    number = next_shard(directory)
    return directory / (f"wire.{number}.log" if number else "wire.log")


class Reached(msgspec.Struct, frozen=True):
    """How far a log got."""

    finished: frozenset[int]  # requests that ended by themselves or at the deadline; interrupted ones are not finished
    last_at_ns: int
    whole_until_ns: int  # when the first unfinished one was sent: asked again, they are missing from here on


def reached(paths: Iterable[Path]) -> Reached:
    """Reads the shards of a run that is to be resumed."""
    finished: set[int] = set()
    sent_ns: dict[int, int] = {}
    last_ns = 0
    for path in paths:
        for kind, request, at_ns, payload in read_frames(path):
            last_ns = max(last_ns, at_ns)
            if kind in (END, ERROR) or (kind == CANCEL and payload != b"interrupt"):
                finished.add(request)
                sent_ns.pop(request, None)
            elif kind == PLAN:
                finished.discard(request)  # asked again: what counts is the new answer
                sent_ns.pop(request, None)
            elif kind == SENT:
                sent_ns.setdefault(request, at_ns)
    return Reached(frozenset(finished), last_ns, min(sent_ns.values(), default=last_ns))


def whole_bytes(path: Path) -> int:
    """Length of the file up to the end of its last whole frame."""
    return sum(HEAD.size + len(payload) for _, _, _, payload in read_frames(path))


def _whole_lines(path: Path) -> int:
    for view in _mapped(path):
        return view.rfind(b"\n") + 1
    return 0


def _mapped(path: Path) -> Iterator[mmap.mmap]:
    """The file as memory, or nothing when it is empty (an empty file cannot be mapped)."""
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size:
                with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
                    yield view
    except FileNotFoundError:
        raise MissingPath(f"there is no log {path}; a run directory holds wire.log or wire.0.log") from None
    except OSError as wrong:
        raise RecordError(f"{path} cannot be read: {wrong.strerror}") from wrong


def _only_zeros(view: mmap.mmap, at: int) -> bool:
    """A power cut can leave a file longer than what was written, with zeros at its end."""
    return not any(view[start : start + 65536].strip(b"\0") for start in range(at, len(view), 65536))


def _open_alone(path: Path) -> int:
    """Opens for appending; two writers of one log would interleave, so the second is refused."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    except OSError as wrong:
        raise RecordError(f"{path} cannot be written: {wrong.strerror}; give another --out") from wrong
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as held:
        os.close(descriptor)
        raise RecordError(f"{path} is being written by another process; give another --out or wait") from held
    return descriptor


def held(path: Path) -> bool:
    """Whether a process writes the log now."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _cannot_grow(path: Path, full: OSError) -> str:
    return f"{path} cannot grow: {full.strerror}; the record holds what came before"


def _cut(path: Path, descriptor: int, whole: int) -> None:
    """Takes a torn tail off."""
    if os.fstat(descriptor).st_size > whole:
        try:
            os.ftruncate(descriptor, whole)
        except OSError as wrong:
            os.close(descriptor)
            raise RecordError(f"{path}: the torn tail cannot be cut off: {wrong.strerror}") from wrong
