"""A script in, the same script run under limits that it cannot lift: the sandbox's own child.

Run as a program: `python confine.py REPORT_FD LIMITS_JSON SCRIPT`. What could be confined goes to
REPORT_FD as one line of words. Standard library only.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys

CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000  # linux/sched.h
PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38  # linux/prctl.h


def main(arguments: list[str]) -> int:
    """Exit code: the script's own, or 128 + signal."""
    report_fd, limits, script = int(arguments[0]), json.loads(arguments[1]), arguments[2]
    libc, root = ctypes.CDLL(None), not os.geteuid()  # asked now: inside a namespace of its own everyone is nobody
    held = ["cpu", "memory", "file-size", "open-files"]
    apart = 0
    for flags, words in (
        (CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET, ["no-network", "own-processes"]),
        (CLONE_NEWPID | CLONE_NEWNET, ["no-network", "own-processes"]),
        (CLONE_NEWNET, ["no-network"]),
    ):
        if libc.unshare(flags) == 0:
            apart, held = flags, held + words
            break
    if not root:  # the kernel does not count root's processes
        held.append("processes")
    os.write(report_fd, (" ".join(held) + "\n").encode())
    os.close(report_fd)
    child = os.fork()  # the first child is the first process of the new namespace: all of it ends with it
    if not child:
        _become(libc, limits, script, bool(apart & CLONE_NEWPID))
    signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGKILL))
    status = os.waitpid(child, 0)[1]
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


def _become(libc: ctypes.CDLL, limits: dict[str, float], script: str, apart: bool) -> None:
    """Turns this process into the script's interpreter. Hard limits are for good."""
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if not apart:
        os.setpgid(0, os.getpgid(os.getppid()))
    for name, most in (
        (resource.RLIMIT_CPU, limits["cpu_s"]),
        (resource.RLIMIT_AS, limits["memory_bytes"]),
        (resource.RLIMIT_FSIZE, limits["file_bytes"]),
        (resource.RLIMIT_NOFILE, limits["files"]),
        (resource.RLIMIT_NPROC, limits["processes"]),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(name, (int(most), int(most)))
    os.execv(sys.executable, [sys.executable, "-ISsB", script])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
