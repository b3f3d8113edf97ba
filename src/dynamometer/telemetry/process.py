"""The process table in /proc in, who is whose child, what each used and who listens on a port out."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

PROC = Path("/proc")


class Process(msgspec.Struct, frozen=True):
    """One line of the table. CPU times are in clock ticks."""

    pid: int
    parent: int
    own_ticks: int
    ticks: int  # own and of children that ended and were waited for: goes on growing evenly when a child ends
    threads: int
    rss_pages: int


def by_id(proc: Path = PROC) -> dict[int, Process]:
    """Every process now, kernel threads included."""
    found = {}
    for entry in os.listdir(proc):
        if entry.isdigit():
            process = one(int(entry), proc)
            if process is not None:
                found[process.pid] = process
    return found


def one(pid: int, proc: Path = PROC) -> Process | None:
    """None if it is gone. Fields as numbered in proc(5): the name may hold blanks and brackets, so all counts from
    its end.
    """
    try:
        with open(f"{proc}/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    user, system, children_user, children_system = (int(field) for field in fields[11:15])
    own_ticks = user + system
    ticks = own_ticks + children_user + children_system
    return Process(pid, int(fields[1]), own_ticks, ticks, int(fields[17]), int(fields[21]))


def tree(everyone: dict[int, Process], roots: Iterable[int]) -> list[Process]:
    """The roots that live and all below them, each once."""
    children: dict[int, list[int]] = {}
    for process in everyone.values():
        children.setdefault(process.parent, []).append(process.pid)
    queue, found = list(roots), dict[int, Process]()
    while queue:
        pid = queue.pop()
        if pid in everyone and pid not in found:
            found[pid] = everyone[pid]
            queue += children.get(pid, [])
    return list(found.values())


def listeners(port: int, proc: Path = PROC) -> tuple[int, ...]:
    """Processes that listen on the TCP port of this machine; of other users only if this one may look at them."""
    inodes = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = (proc / "net" / table).read_text().splitlines()[1:]
        except OSError:
            continue
        for fields in map(str.split, lines):
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:  # 0A: LISTEN
                inodes.add(f"socket:[{fields[9]}]")
    return tuple(pid for pid in by_id(proc) if inodes & _open_files(pid, proc)) if inodes else ()


def _open_files(pid: int, proc: Path) -> set[str]:
    folder = f"{proc}/{pid}/fd"
    found = set()
    try:
        for name in os.listdir(folder):
            found.add(os.readlink(f"{folder}/{name}"))
    except OSError:
        return found
    return found


def command(pid: int, proc: Path = PROC) -> str:
    """The command line in one string; "" if it is gone or a kernel thread."""
    try:
        return (proc / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""
