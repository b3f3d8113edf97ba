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
    calls = [course.planner.call(request, course.phase, level) for request in first]
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
    while turn_ns < course.end_ns:
        ended = course.pool.ask(call, turn_ns)
        turn_ns = (await ended).end_ns
        course.settle(request, ended)
        following = course.turns.ready(request.index) if turn_ns < course.end_ns else None
        if following is not None and following.after >= 0:
            following, turn_ns = await _turn(course, level, following, turn_ns)
        if following is None:
            return
        request = following
        call = course.planner.call(request, course.phase, level)


async def _turn(course: Course, level: float, request: Request, at_ns: int) -> tuple[Request | None, int]:
    """Waits until the user has read the answer before; turns of a broken conversation are passed over."""
    following: Request | None = request
    while following is not None and (before := course.turns.before(following)) is not None:
        if before.ok:
            due_ns = max(at_ns, before.end_ns + round(following.think_s * 1e9))
            await course.alarm.until(due_ns)
            return following, due_ns
        course.skip(following, level, at_ns)
        following = course.turns.ready(following.index) if at_ns < course.end_ns else None
    return following, at_ns
