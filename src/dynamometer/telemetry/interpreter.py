"""The client's own process in, `Sample` rows of its pauses out: the event loop's lag, garbage collection.

A client that stands still stamps late, and a late stamp looks like a slow engine.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from types import TracebackType

from dynamometer.types import Sample

SOURCE = "client"


class Interpreter:
    """A sampler. As a context it listens to the garbage collector; `note` is told the loop's worst lag."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        """`now_ns`: any monotonic clock."""
        self._now_ns = now_ns
        self._began_ns = self._paused_ns = self._lag_ns = 0

    def __enter__(self) -> Interpreter:
        gc.callbacks.append(self._collected)
        return self

    def __exit__(self, kind: type[BaseException] | None, wrong: BaseException | None, at: TracebackType | None) -> None:
        gc.callbacks.remove(self._collected)

    @property
    def missing(self) -> tuple[str, ...]:
        return ()

    def note(self, lag_ns: int) -> None:
        """The worst lag of the event loop since it was told last."""
        self._lag_ns = max(self._lag_ns, lag_ns)

    def read(self, at_ns: int) -> list[Sample]:
        """Both are since the read before: the worst lag, and the sum of the collector's pauses."""
        lag_ns, paused_ns = self._lag_ns, self._paused_ns
        self._lag_ns = self._paused_ns = 0
        return [
            Sample(SOURCE, "client_loop_lag_ms", "", at_ns, lag_ns / 1e6),
            Sample(SOURCE, "client_gc_pause_ms", "", at_ns, paused_ns / 1e6),
        ]

    def _collected(self, phase: str, info: Mapping[str, int]) -> None:
        if phase == "start":
            self._began_ns = self._now_ns()
        else:
            self._paused_ns += self._now_ns() - self._began_ns
