"""A Python program in, whether it ran to its end within the limits out. It runs in a process of its own.

What holds: CPU time, memory, size of files, open files, no core, an empty environment, a folder of its own that is
removed, an end by the clock. Where the kernel allows: no network and no sight of other processes' signals
(namespaces), and a limit of processes unless this is root. What does not hold: the program may read what this user
may read and write where this user may write. Give code of strangers a container or a machine of its own.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from dynamometer.quality import confine
from dynamometer.quality.finals import Outcome

NOT_HELD: Final = "files of this user can be read and written"


class Limits(msgspec.Struct, frozen=True):
    """What a program may take."""

    cpu_s: int = 10
    wall_s: float = 20.0
    memory_bytes: int = 1 << 30
    file_bytes: int = 16 << 20
    files: int = 64
    processes: int = 64  # of this user in all


class Ran(msgspec.Struct, frozen=True):
    """`held`: what confined it, as the child itself found. `said`: the end of what it printed."""

    finished: bool
    said: str
    held: tuple[str, ...]
    why: str = ""  # of one that did not finish: the time, a signal, an exception


def run(program: str, limits: Limits = Limits()) -> Ran:  # noqa: B008 - frozen
    """Finished: the program's last line was reached, not merely that it exited with 0."""
    word = secrets.token_hex(16)
    with tempfile.TemporaryDirectory(prefix="dyno-code-", ignore_cleanup_errors=True) as folder:
        script = Path(folder) / "program.py"
        script.write_text(f"{program}\n\nprint({word!r})\n", encoding="utf-8")
        read_fd, write_fd = os.pipe()
        command = [sys.executable, "-ISs", confine.__file__, str(write_fd), msgspec.json.encode(limits).decode()]
        with tempfile.TemporaryFile() as out:
            child = subprocess.Popen(
                [*command, str(script)], cwd=folder, env={}, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                pass_fds=(write_fd,), start_new_session=True,
            )  # fmt: skip
            os.close(write_fd)
            why = _wait(child, limits.wall_s)
            with os.fdopen(read_fd) as report:
                held = tuple(report.readline().split())
            out.seek(max(0, out.seek(0, os.SEEK_END) - 4096))
            said = out.read().decode(errors="replace").strip()
    finished = child.returncode == 0 and said.endswith(word)
    if not finished and not why:
        why = _ending(child.returncode, said)
    return Ran(finished, said.removesuffix(word).strip()[-500:], held, "" if finished else why[:200])


def judge_code(answer: str, opening: str, tests: str, limits: Limits = Limits()) -> tuple[Outcome, Ran | None]:  # noqa: B008
    """The answer's code with its tests behind it."""
    code = code_of(answer)
    if not code.strip():
        return Outcome.UNPARSED, None
    names = [
        line.split("(")[0].removeprefix("def ").strip() for line in opening.splitlines() if line.startswith("def ")
    ]
    whole = code if not names or f"def {names[-1]}" in code else opening + code
    ran = run(f"{whole}\n\n{tests}", limits)
    return (Outcome.RIGHT if ran.finished else Outcome.WRONG), ran


def code_of(answer: str) -> str:
    """The last closed code block, else what stands behind an opened one, else the whole text."""
    from dynamometer.quality.finals import spoken

    parts = spoken(answer).split("```")
    if len(parts) < 2:
        return parts[0]
    block = parts[-2] if len(parts) % 2 else parts[-1]  # an odd count of parts: every block is closed
    first, _, rest = block.partition("\n")
    return rest if first.strip().lower() in ("", "python", "py", "python3") else block


def _ending(code: int, said: str) -> str:
    """In words: 128 + number is a signal's end; SIGXCPU, or SIGKILL a moment later, ends what used its CPU time."""
    if code - 128 in (signal.SIGXCPU, signal.SIGKILL):
        return "killed: its CPU time was used up, or its memory"
    return f"signal {code - 128}" if code > 128 else (said.splitlines() or ["it ended before its last line"])[-1]


def _wait(child: subprocess.Popen[bytes], wall_s: float) -> str:
    try:
        child.wait(wall_s)
    except subprocess.TimeoutExpired:
        return f"not done after {wall_s:g} s"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # also whatever the program left behind
        child.wait()
    return ""
