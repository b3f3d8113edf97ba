"""Sensors in, `Sample` rows out at a steady pace beside the load, on the run's clock, from a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from dynamometer.types import Sample


class Sampler(Protocol):
    """One kind of sensor. What cannot be read is named in `missing` once and gives no row, never a 0."""

    @property
    def missing(self) -> tuple[str, ...]:
        """Names of sensors that are not there, each with the reason in brackets; complete after the first read."""
        ...

    def read(self, at_ns: int) -> list[Sample]:
        """All that the sensors say now. Rates are over the time since the read before, so the first read has none."""
        ...


Write = Callable[[list[Sample]], None]


@contextmanager
def beside(
    samplers: Sequence[Sampler], now_ns: Callable[[], int], write: Write, every_s: float = 1.0
) -> Iterator[Callable[[], tuple[str, ...]]]:
    """Reads every sampler each `every_s` until the block ends, then once more. Gives a function that names what is
    missing.

    `write` is called from the sampling thread. A sampler that fails is named as missing and not asked again:
    telemetry never stops a load. Reading takes about a millisecond; most of it is in system calls, which do not hold
    the loop up.
    """
    failed: dict[int, str] = {}
    stop = threading.Event()

    def read_all() -> None:
        rows: list[Sample] = []
        for number, sampler in enumerate(samplers):
            if number in failed:
                continue
            try:
                rows += sampler.read(now_ns())
            except Exception as wrong:
                failed[number] = f"{type(sampler).__name__} ({wrong})"
        if rows:
            write(rows)

    thread = threading.Thread(target=_pace, args=(read_all, now_ns, every_s, stop), name="telemetry", daemon=True)
    thread.start()
    try:
        yield lambda: (*(name for sampler in samplers for name in sampler.missing), *failed.values())
    finally:
        stop.set()
        thread.join(timeout=5.0)
        if not thread.is_alive():
            read_all()


def _pace(read_all: Callable[[], None], now_ns: Callable[[], int], every_s: float, stop: threading.Event) -> None:
    """Beats are counted from the start, not from the last read, so that the pace does not drift; missed ones are
    skipped.
    """
    began_ns, beat = now_ns(), 0
    while True:
        read_all()
        beat += 1
        wait_s = beat * every_s - (now_ns() - began_ns) / 1e9
        if wait_s < 0:
            beat -= int(wait_s / every_s) - 1
        if stop.wait(max(0.0, wait_s)):
            return
