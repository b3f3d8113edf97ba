"""The machine's clocks in, nanoseconds out: the only file that reads a clock. Latency comes from CLOCK_MONOTONIC alone.

`now_ns` is CLOCK_MONOTONIC: all processes of one machine share it and no time sync can step it; `wall_ns` only labels.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, Protocol

import msgspec

Now = Callable[[], int]  # CLOCK_MONOTONIC, ns

# The C functions themselves, not wrappers: a stamp is taken some 50,000 times a second.
now_ns: Final[Now] = time.monotonic_ns
wall_ns: Final[Now] = time.time_ns  # since 1970, UTC
cpu_ns: Final[Now] = time.process_time_ns  # CPU time of this process, user + system

_SECOND_NS: Final = 1_000_000_000


class Clock(Protocol):
    """The time of one run."""

    def now_ns(self) -> int:
        """Nanoseconds since the run's origin."""
        ...


class Origin(msgspec.Struct, frozen=True):
    """Where a run's time is 0, on both clocks."""

    wall_ns: int
    monotonic_ns: int


class RunClock(msgspec.Struct, frozen=True):
    """The real clock of a run."""

    origin: Origin

    def now_ns(self) -> int:
        return now_ns() - self.origin.monotonic_ns


class VirtualClock:
    """The clock of a simulation: it stands still until it is moved."""

    __slots__ = ("_at_ns",)

    def __init__(self, at_ns: int = 0) -> None:
        self._at_ns = at_ns

    def now_ns(self) -> int:
        return self._at_ns

    def move_to(self, at_ns: int) -> None:
        """To a later moment; a simulation that would go back in time is wrong and says so."""
        if at_ns < self._at_ns:
            raise ValueError(f"virtual time cannot go back from {self._at_ns} ns to {at_ns} ns")
        self._at_ns = at_ns


def origin() -> Origin:
    """Both clocks at one moment: the wall clock read between two monotonic readings, the tightest of five tries."""
    best: tuple[int, Origin] | None = None
    for _ in range(5):
        before_ns = now_ns()
        label_ns = wall_ns()
        width_ns = now_ns() - before_ns
        if best is None or width_ns < best[0]:
            best = width_ns, Origin(label_ns, before_ns + width_ns // 2)
    assert best is not None
    return best[1]


def continued(last_at_ns: int, gap_s: float = 1.0) -> Origin:
    """The origin for a run that is taken up again: its time goes on `gap_s` after the last event.

    So a pause of hours does not count as load, and a reboot (which sets CLOCK_MONOTONIC to 0) does no harm.
    """
    here = origin()
    passed_ns = last_at_ns + round(gap_s * _SECOND_NS)
    return Origin(here.wall_ns - passed_ns, here.monotonic_ns - passed_ns)


def utc(at_wall_ns: int) -> datetime:
    """A wall-clock reading as a date in UTC, for labels."""
    return datetime.fromtimestamp(at_wall_ns / _SECOND_NS, UTC)
