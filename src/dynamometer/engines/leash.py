"""A command line in, the same command run as a child that cannot outlive the holder of the leash: stdin's other end.

Run as a program: `python leash.py GRACE_S REPORT_FD AFTER command…`. The child's pid goes to REPORT_FD as a line.
AFTER is a JSON list, a command that is run once all have ended (to remove a container, whose processes are nobody's
children here). When stdin closes (the holder closed it, or died in any way, kill -9 included) the child and
everything that it started get SIGTERM, and SIGKILL after the grace. If this process is killed itself, the kernel
kills the child. Standard library only, so that it starts in milliseconds.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h


def main(arguments: list[str]) -> int:
    """Exit code: the child's own, or 128 + signal; 0 when stopped through the leash; 127 when it cannot be started."""
    grace_s, report_fd, after, command = float(arguments[0]), int(arguments[1]), json.loads(arguments[2]), arguments[3:]
    holder = os.getppid()
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # only the leash decides, so that Ctrl-C reaches the holder first
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # children of the engine that detach become ours, not init's
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write)
    signal.signal(signal.SIGCHLD, lambda *_: None)

    def before_exec() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)

    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=before_exec)
    except OSError as wrong:
        print(f"{command[0]} cannot be started: {wrong}", file=sys.stderr)
        return 127
    os.write(report_fd, f"{child.pid}\n".encode())
    os.close(report_fd)
    code = _watch(child, holder, wake_read)
    _stop(grace_s if code is None else 0.0, wake_read)
    if after:
        subprocess.run(after, stdin=subprocess.DEVNULL, timeout=60, check=False)
    return code or 0


def _watch(child: subprocess.Popen[bytes], holder: int, wake_read: int) -> int | None:
    """Until the child ends (its code, or 128 + signal) or the leash is let go (None)."""
    while child.poll() is None:
        ready, _, _ = select.select([0, wake_read], [], [], 1.0)
        if wake_read in ready:
            os.read(wake_read, 4096)
        # the pipe alone does not tell while a forked child of a dead holder still has it open
        if (0 in ready and not os.read(0, 4096)) or os.getppid() != holder:
            return None
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def _stop(grace_s: float, wake_fd: int) -> None:
    """SIGTERM to every descendant, the grace, then SIGKILL until none is left."""
    _signal_all(signal.SIGTERM)
    for _ in range(int(grace_s / 0.05)):
        if not _reaped_all():
            return
        if select.select([wake_fd], [], [], 0.05)[0]:
            os.read(wake_fd, 4096)
    while _reaped_all():
        _signal_all(signal.SIGKILL)
        select.select([wake_fd], [], [], 0.02)


def _reaped_all() -> bool:
    """Collects the dead; True while any child lives."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _signal_all(number: int) -> None:
    for pid in descendants(os.getpid()):
        try:
            os.kill(pid, number)
        except ProcessLookupError:  # gone meanwhile
            continue


def descendants(pid: int) -> list[int]:
    """Every process below `pid`, parents first."""
    parents: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = Path(f"/proc/{entry}/stat").read_text(errors="replace").rpartition(")")[2].split()
            except OSError:  # gone meanwhile
                continue
            parents.setdefault(int(fields[1]), []).append(int(entry))
    found, queue = [], [pid]
    while queue:
        below = parents.get(queue.pop(0), [])
        found += below
        queue += below
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
