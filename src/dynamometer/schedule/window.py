"""How long to go on (a number of requests, a time, or both) in; arrival times cut to it out."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np

from dynamometer.errors import UsageError
from dynamometer.types import Float64

MOST_REQUESTS = 20_000_000  # 160 MB of due times; more is a slip of the keyboard


class Window(msgspec.Struct, frozen=True):
    """Ends after `requests` arrivals or at `duration_s`, whichever comes first; 0 means that this end is not set."""

    requests: int = 0
    duration_s: float = 0.0

    @property
    def open(self) -> bool:
        return not self.requests and not self.duration_s

    def cut(self, due_s: Float64) -> Float64:
        """The arrivals inside the window; `due_s` is ascending. The end itself is outside: [0, duration)."""
        kept = due_s[: int(np.searchsorted(due_s, self.duration_s, side="left"))] if self.duration_s else due_s
        return kept[: self.requests] if self.requests else kept

    def expected(self, rate: float) -> float:
        """How many arrivals to expect at `rate` requests per second."""
        by_time = rate * self.duration_s if self.duration_s else np.inf
        return min(by_time, self.requests or np.inf)

    def check(self, rate: float) -> None:
        """Refuses a window without an end and one that no memory holds."""
        if self.open:
            raise UsageError("the load has no end; give --requests or --duration")
        if self.expected(rate) > MOST_REQUESTS:
            raise UsageError(
                f"the load asks for {self.expected(rate):.3g} requests; the most is {MOST_REQUESTS:,}: "
                "lower the rate, the duration or the number of requests"
            )


def grow(draw: Callable[[int], Float64], window: Window, rate: float) -> Float64:
    """Draws ascending arrival times in blocks until the window is full, then cuts.

    `draw(n)` returns the next n gaps in seconds and is called as often as needed. The gaps come from one stream, so a
    longer window repeats a shorter one and goes on.
    """
    window.check(rate)
    block = int(window.expected(rate) * 1.05) + 64
    gaps = [draw(block)]
    while True:
        due_s = np.cumsum(np.concatenate(gaps))
        full_by_count = bool(window.requests) and len(due_s) >= window.requests
        full_by_time = bool(window.duration_s) and bool(due_s[-1] >= window.duration_s)
        if full_by_count or full_by_time:
            return window.cut(due_s)
        gaps.append(draw(max(64, block // 8)))
