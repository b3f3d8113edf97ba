"""A limit on memory in; a control group of the Linux kernel that holds it, and what happened inside, out.

Needs the right to make a group: root, or a delegated one. Both of the kernel's interfaces are spoken. The limit holds
for all memory: the process's own, and pages of files that it maps, which the kernel can drop and read again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from dynamometer.errors import UsageError

_ONE, _TWO = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")


class Cage(msgspec.Struct, frozen=True):
    """A control group. `enter` is called in the child before it runs."""

    folder: Path
    first: bool  # the older interface

    def enter(self) -> Callable[[], None]:
        path = str(self.folder / "cgroup.procs")

        def join() -> None:
            with open(path, "w") as file:
                file.write(str(os.getpid()))

        return join

    def peak_bytes(self) -> int:
        """The most that was ever used; 0 where this kernel does not say."""
        path = self.folder / ("memory.max_usage_in_bytes" if self.first else "memory.peak")
        return int(path.read_text()) if path.is_file() else 0

    def kills(self) -> int:
        """Processes in it that were killed for memory."""
        path = self.folder / ("memory.oom_control" if self.first else "memory.events")
        for line in path.read_text().splitlines():
            key, _, value = line.partition(" ")
            if key == "oom_kill":
                return int(value)
        return 0


@contextmanager
def cage(limit_bytes: int) -> Iterator[Cage]:
    """A group with that limit, no swap; gone afterwards. UsageError: this process may not make one."""
    first = (_ONE / "memory.limit_in_bytes").is_file()
    folder = (_ONE if first else _TWO) / f"dynamometer-{os.getpid()}"
    try:
        folder.mkdir(exist_ok=True)
        (folder / ("memory.limit_in_bytes" if first else "memory.max")).write_text(str(limit_bytes))
    except OSError as wrong:
        raise UsageError(
            f"no control group can be made here ({wrong.strerror}); run as root or in a delegated group"
        ) from wrong
    swap = folder / ("memory.memsw.limit_in_bytes" if first else "memory.swap.max")
    if swap.is_file():
        swap.write_text(str(limit_bytes) if first else "0")
    try:
        yield Cage(folder, first)
    finally:
        _remove(folder)


def _remove(folder: Path) -> None:
    for _ in range(1000):
        try:
            return folder.rmdir()
        except OSError:  # the kernel has not yet let go of a process that ended
            os.sched_yield()
    return None
