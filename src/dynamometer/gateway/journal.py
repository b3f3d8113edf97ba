"""Events in, JSON lines on the disk out and back: one file a day, each beginning with a snapshot of the state."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from dynamometer.errors import RecordError
from dynamometer.gateway.state import Happened, State, apply, fold
from dynamometer.record.clock import utc

_DAY_NS = 86_400 * 1_000_000_000


class Journal:
    """The live state and its log. An event changes the state only after it has reached the kernel."""

    def __init__(self, folder: Path, now_ns: int, keep_s: float) -> None:
        """`now_ns`: wall time. Takes up what is there; a second gateway on the same folder is refused."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._folder, self._keep_ns = folder, round(keep_s * 1e9)
        self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise RecordError(f"another gateway writes to {folder}; stop it or give another folder") from None
        self.state = fold(read(folder))
        self._last_ns = 0
        self._file = -1
        self._day = -1
        self._turn(now_ns)

    def append(self, event: Happened) -> State:
        """Times never go back, also when the wall clock was set: the order of the lines is the order of events."""
        event = msgspec.structs.replace(event, at_ns=max(event.at_ns, self._last_ns))
        if event.at_ns // _DAY_NS != self._day:
            self._turn(event.at_ns)
        self._write(event)
        self.state = apply(self.state, event)
        return self.state

    def close(self) -> None:
        for descriptor in (self._file, self._lock):
            os.close(descriptor)

    def _turn(self, now_ns: int) -> None:
        """A new day's file, and files beyond the time to keep go."""
        if self._file >= 0:
            os.close(self._file)
        self._day = now_ns // _DAY_NS
        path = self._folder / f"journal-{utc(now_ns):%Y%m%d}.jsonl"
        fresh = not path.exists()
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        _mend(self._file)
        if fresh:
            self._write(Happened("snapshot", max(now_ns, self._last_ns), state=self.state))
        oldest = f"journal-{utc(max(0, now_ns - self._keep_ns - _DAY_NS)):%Y%m%d}.jsonl"
        for old in self._folder.glob("journal-*.jsonl"):
            if old.name < oldest:
                old.unlink(missing_ok=True)

    def _write(self, event: Happened) -> None:
        line = msgspec.json.encode(event) + b"\n"
        try:
            if os.write(self._file, line) != len(line):
                raise OSError(28, "No space left on device")
        except OSError as full:
            raise RecordError(f"the journal in {self._folder} cannot grow: {full.strerror}") from full
        self._last_ns = event.at_ns


def read(folder: Path) -> Iterator[Happened]:
    """Every event that is kept, oldest first; a torn last line is left out."""
    decode = msgspec.json.Decoder(Happened).decode
    for path in sorted(folder.glob("journal-*.jsonl")):
        for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], 1):
            try:
                yield decode(line)
            except msgspec.DecodeError as wrong:
                raise RecordError(f"{path}:{number} is no event: {wrong}; remove the line to go on") from wrong


def _mend(descriptor: int) -> None:
    """A line that a crash cut off is taken away, so that the next one does not continue it."""
    size = os.fstat(descriptor).st_size
    back = min(size, 1 << 20)
    tail = os.pread(descriptor, back, size - back)
    if tail and not tail.endswith(b"\n"):
        os.ftruncate(descriptor, size - back + tail.rfind(b"\n") + 1)
