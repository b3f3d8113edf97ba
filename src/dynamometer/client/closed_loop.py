"""Streams in, a constant number of requests in flight out: a stream asks its next request when its answer has ended."""

from __future__ import annotations

import asyncio
from itertools import islice

from dynamometer.client.course import Course
from dynamometer.client.wire import Call
from dynamometer.types import Request

_RUN_UP_NS = 20_000_000  # from the last preparation to the first request: the first one must not be late


async def closed_loop(course: Course, streams: int, level: float, start_ns: int = 0) -> None:
    """Runs until the requests end, the time is over or the course is halted.

    `level`: the concurrency of all workers together. `start_ns`: when the first requests are due; 0: soon.
    """
    first = list(islice(iter(lambda: course.turns.ready(-1), None), streams))
    calls = [course.prepare(request, level) for request in first]
    course.start(start_ns or course.now() + _RUN_UP_NS)
    await course.alarm.until(course.start_ns)
    users = [
        asyncio.ensure_future(_stream(course, level, request, call)) for request, call in zip(first, calls, strict=True)
    ]
    try:
        await asyncio.gather(*users)
    finally:
        for user in users:  # when one fails, the others stop
            user.cancel()


async def _stream(course: Course, level: float, request: Request, call: Call) -> None:
    """One user. A turn is due when the answer before it on this stream ended, plus the pause that it asks for."""
    turn_ns = course.start_ns
    while course.taking(turn_ns):
        answer = await course.pool.ask(call, turn_ns)
        course.settle(request, answer)
        following = await _next(course, level, request.index, answer.end_ns)
        if following is None:
            return
        request, turn_ns = following
        call = course.prepare(request, level)


async def _next(course: Course, level: float, ended: int, end_ns: int) -> tuple[Request, int] | None:
    """The stream's next request and when it is due; turns of a broken conversation are passed over."""
    while course.taking(end_ns):
        request = course.turns.ready(ended)
        if request is None:
            return None
        before = course.turns.before(request)
        if before is None:
            return request, end_ns
        if before.ok:
            due_ns = max(end_ns, before.end_ns + round(request.think_s * 1e9))
            await course.alarm.until(due_ns)
            return request, due_ns
        course.skip(request, level, end_ns)
        ended = request.index
    return None
