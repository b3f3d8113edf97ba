"""A folder in, a PostgreSQL cluster of its own out: Debian's binaries, a socket in the folder, no port."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def binaries() -> Path | None:
    """The newest PostgreSQL of this machine."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[4]))
    if found:
        return found[-1].parent
    there = shutil.which("initdb")
    return Path(there).resolve().parent if there else None


class Cluster:
    def __init__(self, bin_dir: Path, folder: Path) -> None:
        self._bin, self.folder = bin_dir, folder
        self.url = f"postgresql://postgres@/postgres?host={folder}"
        # the server refuses to run as root
        self._user = pwd.getpwnam("postgres" if _has("postgres") else "nobody") if os.getuid() == 0 else None
        if self._user:
            os.chown(folder, self._user.pw_uid, self._user.pw_gid)
        self._run("initdb", "-D", str(folder / "data"), "-A", "trust", "-U", "postgres", "-N")

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [self._bin / program, *arguments],
            user=self._user.pw_uid if self._user else None,
            group=self._user.pw_gid if self._user else None,
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
        assert not done.returncode, done.stderr

    def start(self) -> None:
        options = f"-k {self.folder} -c listen_addresses='' -c shared_buffers=16MB"
        log = str(self.folder / "log")
        self._run("pg_ctl", "-D", str(self.folder / "data"), "-w", "-l", log, "-o", options, "start")

    def kill(self) -> None:
        """SIGKILL to the server and to every process of it, as when a machine loses its power."""
        server = int((self.folder / "data" / "postmaster.pid").read_text().split()[0])
        children = Path(f"/proc/{server}/task/{server}/children").read_text().split()
        for pid in (server, *map(int, children)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        while any(map(_lives, (server, *map(int, children)))):
            time.sleep(0.01)
        # where nobody reaps orphans the dead server keeps its number, which the next one would take for its life
        for lock in (self.folder / "data" / "postmaster.pid", *self.folder.glob(".s.PGSQL.*")):
            lock.unlink()

    def stop(self) -> None:
        if (self.folder / "data" / "postmaster.pid").exists():
            self._run("pg_ctl", "-D", str(self.folder / "data"), "-m", "immediate", "stop")


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _has(name: str) -> bool:
    return any(user.pw_name == name for user in pwd.getpwall())


@contextmanager
def running(bin_dir: Path) -> Iterator[Cluster]:
    # a socket's path has 107 characters at most, so not the test's own folder
    with tempfile.TemporaryDirectory(prefix="pg-") as name:
        cluster = Cluster(bin_dir, Path(name))
        cluster.start()
        try:
            yield cluster
        finally:
            cluster.stop()
