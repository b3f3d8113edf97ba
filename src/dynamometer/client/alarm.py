"""A moment on CLOCK_MONOTONIC in, a coroutine resumed within some 0.1 ms of it out, without spinning.

The event loop's own timers are whole milliseconds. Linux's timerfd is exact to the kernel's timers and wakes the loop
as a socket does, so waiting costs no core that the engine needs.
"""

from __future__ import annotations

import asyncio
import ctypes
import heapq
import os
from collections.abc import Callable
from functools import cache, partial
from typing import Final

from dynamometer.record.clock import Now

_NS: Final = 1_000_000_000
_CLOCK_MONOTONIC: Final = 1
_ABSOLUTE: Final = 1  # TFD_TIMER_ABSTIME


class _TimerSpec(ctypes.Structure):
    """struct itimerspec: interval, then value, each seconds and nanoseconds."""

    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("value_s", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    )


class Alarm:
    """One timerfd and a heap of those who wait for it."""

    def __init__(self, now: Now) -> None:
        self._now = now
        self._heap: list[tuple[int, int, asyncio.Future[None]]] = []
        self._count = 0  # breaks ties in the heap
        self._spec = _TimerSpec()
        self._loop = asyncio.get_running_loop()
        self._descriptor = _timerfd()
        settime: Callable[..., int] = _libc().timerfd_settime
        self._set_timer = partial(settime, self._descriptor, _ABSOLUTE, ctypes.byref(self._spec), None)
        self._loop.add_reader(self._descriptor, self._ring)

    def until(self, at_ns: int) -> asyncio.Future[None]:
        """Done at `at_ns`; a moment that has passed is done at once."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        if at_ns <= self._now() or self._descriptor < 0:
            waiter.set_result(None)
            return waiter
        self._count += 1
        heapq.heappush(self._heap, (at_ns, self._count, waiter))
        if self._heap[0][2] is waiter:
            self._spec.value_s, self._spec.value_ns = divmod(at_ns, _NS)
            self._set_timer()
        return waiter

    def close(self) -> None:
        """Wakes everybody: nothing is waited for any more."""
        if self._descriptor < 0:
            return
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
        self._descriptor = -1
        for _, _, waiter in self._heap:
            if not waiter.done():
                waiter.set_result(None)
        self._heap.clear()

    def _ring(self) -> None:
        try:
            os.read(self._descriptor, 8)
        except BlockingIOError:
            return
        now_ns, heap = self._now(), self._heap
        while heap and heap[0][0] <= now_ns:
            waiter = heapq.heappop(heap)[2]
            if not waiter.done():
                waiter.set_result(None)
        if heap:
            self._spec.value_s, self._spec.value_ns = divmod(heap[0][0], _NS)
            self._set_timer()


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _timerfd() -> int:
    descriptor: int = _libc().timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
    if descriptor < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return descriptor
