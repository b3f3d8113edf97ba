"""An engine's name, a model and settings in, a real server on loopback out, up for the length of a `with` block.

The server is a child of a small leash process (leash.py), so that it ends with the block, with Ctrl-C, and with kill
-9 of this process alike. The clock is an argument.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import nan
from pathlib import Path
from typing import Final

import msgspec

from dynamometer.engines import causes, leash
from dynamometer.engines.embedded import Progress, cache_dir, silent
from dynamometer.engines.recipes import Recipe, Settings, recipe
from dynamometer.errors import TargetError, UsageError

_TAIL_BYTES: Final = 64 * 1024
_KEPT_LOGS: Final = 20
_SECOND_NS: Final = 1_000_000_000


class Served(msgspec.Struct, frozen=True):
    """A server that answers. `pid` is the engine's own process, `log` what it wrote."""

    url: str
    model: str
    pid: int
    log: Path
    facts: Mapping[str, str | int | float]


@contextmanager
def serve(
    engine: str,
    model: str = "",
    settings: Settings | None = None,
    *,
    now_ns: Callable[[], int],
    progress: Progress = silent,
) -> Iterator[Served]:
    """Starts the engine, waits until it answers, stops it at the end. `now_ns`: a monotonic clock.

    Raises TargetError with the cause in plain words and the end of the engine's log when it does not come up.
    """
    settings = settings or Settings()
    port = settings.port or free_port()
    if settings.port and not is_free(port):
        raise UsageError(f"port {port} is taken, and its server would be taken for {engine}; give another port, or 0")
    plan = recipe(engine, model, settings, port, progress)
    log = Path(settings.log) if settings.log else _new_log(engine, port)
    began_ns = now_ns()
    with _leashed(plan, settings, log) as (holder, pid):
        deadline_ns = began_ns + round(settings.start_timeout_s * _SECOND_NS)
        while not _answers(port, plan.health):
            if holder.poll() is not None:
                raise TargetError(_obituary(engine, log, holder.returncode))
            if now_ns() > deadline_ns:
                raise TargetError(_too_late(engine, log, settings.start_timeout_s))
            progress(f"starting {engine}: {_last_line(log)}", nan)
            _sleep(holder, 0.05)
        facts = {**plan.facts, "start_s": round((now_ns() - began_ns) / _SECOND_NS, 3)}
        yield Served(f"http://127.0.0.1:{port}{plan.base}", plan.model, pid, log, facts)


def alive(served: Served) -> bool:
    """False once the engine's process is gone, or dead and only not yet collected."""
    try:
        stat = Path(f"/proc/{served.pid}/stat").read_text(errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def post_mortem(served: Served) -> str:
    """Why a server that was up is gone, with the end of its log; "" while it lives."""
    return "" if alive(served) else _obituary(str(served.facts.get("engine", "the engine")), served.log, None)


def is_free(port: int) -> bool:
    """True if a server could listen there on loopback now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: a port just left is free
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """A TCP port on loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def _leashed(plan: Recipe, settings: Settings, log: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The leash process and the engine's pid. Whatever happens in the block, nothing is left running after it."""
    read_fd, write_fd = os.pipe()
    # isolated from the user's site and environment: only the standard library is needed, and it starts at once
    command = [sys.executable, "-ISs", leash.__file__, str(settings.grace_s), str(write_fd)]
    command += [json.dumps(plan.after), *plan.command]
    environment = {**os.environ, **plan.environment, **settings.environment}
    try:
        with log.open("wb") as out:
            holder = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=out, stderr=out, pass_fds=(write_fd,), env=environment,
                start_new_session=True,
            )  # fmt: skip
    except OSError as wrong:
        os.close(read_fd)
        raise UsageError(f"{log} cannot be written: {wrong}; name another file or set DYNO_CACHE") from wrong
    finally:
        os.close(write_fd)
    try:
        with os.fdopen(read_fd) as report:
            line = report.readline()
        yield holder, int(line) if line else 0
    finally:
        assert holder.stdin is not None
        holder.stdin.close()
        try:
            holder.wait(settings.grace_s + 10)
        except subprocess.TimeoutExpired:
            holder.kill()
            holder.wait()


def _answers(port: int, path: str) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _sleep(holder: subprocess.Popen[bytes], wait_s: float) -> None:
    """Returns early when the process ends."""
    try:
        holder.wait(wait_s)
    except subprocess.TimeoutExpired:
        return


def _tail(log: Path) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def _last_line(log: Path) -> str:
    lines = causes.last_lines(_tail(log)[-2000:], 1)
    return lines[0] if lines else "…"


def _obituary(engine: str, log: Path, code: int | None) -> str:
    tail = _tail(log)
    cause = causes.explain(tail, code) or "for a reason that its log may tell"
    ended = f" with exit code {code}" if code else ""
    return "\n  ".join([f"{engine} ended{ended}: {cause}; whole log: {log}", *causes.last_lines(tail)])


def _too_late(engine: str, log: Path, limit_s: float) -> str:
    tail = _tail(log)
    cause = causes.explain(tail)
    told = f": {cause}" if cause else ""
    first = f"{engine} did not answer within {limit_s:g} s{told}; raise the start timeout or see {log}"
    return "\n  ".join([first, *causes.last_lines(tail)])


def _new_log(engine: str, port: int) -> Path:
    folder = cache_dir() / "logs"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for old in sorted(folder.glob("*.log"), key=lambda path: path.stat().st_mtime)[:-_KEPT_LOGS]:
            old.unlink(missing_ok=True)
    except OSError as wrong:
        raise UsageError(f"{folder} cannot be used for logs: {wrong}; set DYNO_CACHE to a folder of yours") from wrong
    return folder / f"{engine}-{os.getpid()}-{port}.log"
