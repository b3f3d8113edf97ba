"""Snapshots of a running load in, a view of it on the terminal out: twice a second at most, plain lines elsewhere.

The view is driven by the snapshots' own clock and computes nothing from tokens, so it costs the client next to nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import msgspec
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from dynamometer.report.table import clean
from dynamometer.units import significant

REDRAW_S = 0.5
PLAIN_S = 10.0  # between two lines where there is no terminal
BARS = "▁▂▃▄▅▆▇█"
ASCII_BARS = "_.-=*#"


class Progress(msgspec.Struct, frozen=True):
    """Where a run is. Counts since the start of the load. `planned` 0: it ends by time; `expected_s` 0: by count.

    `first_ms` (from sent to the first bytes of the answer; which of them hold a token only the record tells) and
    `late_ms` (from due to sent): those of the latest requests, oldest first.
    """

    phase: str  # e.g. "warm-up", "load", "waiting for the last answers"
    elapsed_s: float
    done: int = 0
    failed: int = 0
    in_flight: int = 0
    planned: int = 0
    expected_s: float = 0.0
    first_ms: Sequence[float] = ()
    late_ms: Sequence[float] = ()
    last_error: str = ""


Show = Callable[[Progress], None]


@contextmanager
def watch(title: str, console: Console, quiet: bool = False) -> Iterator[Show]:
    """Gives a function that shows a snapshot. It may be called as often as one likes; most calls return at once.

    On a terminal the view is redrawn in place, else a line is written every ten seconds. `quiet`: nothing is shown.
    """
    if quiet:
        yield lambda _: None
    elif console.is_terminal and not console.is_dumb_terminal:
        with Live(Text(clean(title)), console=console, auto_refresh=False, transient=True) as live:
            yield _paced(lambda now: live.update(view(title, now, console), refresh=True), REDRAW_S)
    else:
        yield _paced(lambda now: console.print(line(now), markup=False, highlight=False, soft_wrap=True), PLAIN_S)


def _paced(show: Show, every_s: float) -> Show:
    """Shows the first snapshot, those at least `every_s` after the one shown before, and each new phase."""
    last: list[tuple[str, float]] = []

    def paced(now: Progress) -> None:
        if last and last[0][0] == now.phase and 0 <= now.elapsed_s - last[0][1] < every_s:
            return
        last[:] = [(now.phase, now.elapsed_s)]
        show(now)

    return paced


def share(now: Progress) -> float | None:
    """How much of the run is over, 0 to 1; None if its end is not known. Of two ends the nearer one counts."""
    parts = []
    if now.planned:
        parts.append((now.done + now.failed) / now.planned)
    if now.expected_s:
        parts.append(now.elapsed_s / now.expected_s)
    return min(1.0, max(parts)) if parts else None


def remaining_s(now: Progress) -> float | None:
    """Seconds to the end if it goes on as so far."""
    over = share(now)
    return None if not over else now.elapsed_s * (1 - over) / over


def line(now: Progress) -> str:
    """One line for a log file."""
    total = f"/{now.planned}" if now.planned else ""
    parts = [
        f"{now.phase} {_clock(now.elapsed_s)}",
        f"{now.done}{total} answered",
        f"{now.failed} failed",
        f"{now.in_flight} in flight",
        *_rates(now),
    ]
    if now.first_ms:
        parts.append(f"first bytes {significant(_middle(now.first_ms))} ms")
    if now.late_ms:
        parts.append(f"late {significant(max(now.late_ms))} ms")
    if now.last_error:
        parts.append(_one_line(now.last_error)[:120])
    return ", ".join(parts)


def view(title: str, now: Progress, console: Console) -> Group:
    """The terminal's picture: title, bar, and one line each for pace, TTFT, lateness and errors."""
    over, left_s = share(now), remaining_s(now)
    head = Table.grid(padding=(0, 2))
    bar = ProgressBar(
        total=1.0, completed=over or 0.0, width=max(10, min(40, console.width - 40)), complete_style="cyan"
    )
    total = f"/{now.planned}" if now.planned else ""
    ends = f"{_clock(now.elapsed_s)}" + (f", {_clock(left_s)} left" if left_s is not None else "")
    head.add_row(bar, Text(f"{now.done + now.failed}{total}"), Text(ends))
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    grid.add_row("pace", Text(", ".join([*_rates(now), f"{now.in_flight} in flight"])))
    if now.first_ms:
        width = max(8, min(40, console.width - 34))
        told = f"  {significant(_middle(now.first_ms))} ms, at most {significant(max(now.first_ms))}"
        grid.add_row("first bytes", Text(sparkline(now.first_ms, width, _wide(console)) + told))
    if now.late_ms:
        grid.add_row(
            "client late", Text(f"{significant(_middle(now.late_ms))} ms, at most {significant(max(now.late_ms))}")
        )
    if now.failed:
        told = f"{now.failed} {_one_line(now.last_error)}".strip()
        grid.add_row("failed", Text(told, style="red", overflow="ellipsis", no_wrap=True))
    return Group(Text(f"{clean(title)}: {now.phase}", style="bold"), head, grid)


def _one_line(text: str) -> str:
    return " ".join(clean(text).split())


def _wide(console: Console) -> bool:
    """True if the stream can carry block characters."""
    return (console.encoding or "").lower().startswith("utf")


def sparkline(values: Sequence[float], width: int, blocks: bool = True) -> str:
    """The latest `width` values as bars from 0 to the largest of them."""
    shown = list(values)[-width:]
    bars = BARS if blocks else ASCII_BARS
    top = max(shown, default=0.0)
    if top <= 0:
        return bars[0] * len(shown)
    return "".join(bars[min(len(bars) - 1, int(max(value, 0.0) / top * len(bars)))] for value in shown)


def _rates(now: Progress) -> list[str]:
    if now.elapsed_s <= 0:
        return []
    return [f"{significant(now.done / now.elapsed_s)} answers/s"]


def _middle(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


def _clock(time_s: float) -> str:
    """`75 s` as 1:15, `4000 s` as 1:06:40."""
    whole = max(0, int(time_s))
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
