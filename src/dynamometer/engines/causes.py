"""The end of an engine's log and its exit code in, the cause in plain words with what to do next out."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib.resources import files
from typing import Final

_EXIT_CODES: Final = {
    132: "the engine uses instructions that this CPU lacks (SIGILL): install a build for this CPU",
    134: "the engine aborted itself: see its log",
    137: "it was killed (SIGKILL), most likely by the kernel for want of memory: use fewer slots or a smaller model",
    139: "the engine crashed (SIGSEGV): see its log",
    143: "something told it to stop (SIGTERM)",
}


@cache
def known() -> tuple[tuple[str, str], ...]:
    """The table of causes.toml: (what the log says, as a regular expression; what it means)."""
    table = tomllib.loads(files("dynamometer.engines").joinpath("causes.toml").read_text(encoding="utf-8"))
    return tuple((row["says"], row["means"]) for row in table["cause"])


def explain(log_tail: str, exit_code: int | None = None) -> str:
    """One sentence; "" when the log tells nothing known."""
    for says, means in known():
        match = re.search(says, log_tail, re.IGNORECASE)
        if match:
            return match.expand(means)
    return _EXIT_CODES.get(exit_code or 0, "")


def last_lines(log_tail: str, most: int = 6) -> list[str]:
    """The last lines that say something, each cut to 200 characters, terminal colours removed."""
    plain = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", log_tail)
    return [line.strip()[:200] for line in plain.splitlines() if line.strip()][-most:]
