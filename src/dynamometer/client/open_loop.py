"""Due times in, requests sent at them out. The schedule is absolute: no answer, however late, delays a request."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial

from dynamometer.client.course import Course
from dynamometer.client.wire import Ended
from dynamometer.types import Request

Pending = Ended | asyncio.Task[None]

_RUN_UP_NS = 50_000_000  # from here to the first request


Due = tuple[float, float]  # seconds from the start of the load; the rate in force then, requests per second


async def open_loop(course: Course, dues: Iterator[Due], start_ns: int = 0) -> None:
    """Runs until the schedule or the requests end, or the course is halted; then waits for what is in flight.

    `dues`: one for each request, ascending. `start_ns`: when the load starts; 0: soon.
    """
    alarm, ask, now, prepare = course.alarm, course.pool.ask, course.now, course.planner.call
    pending: set[Pending] = set()
    origin_ns = start_ns or now() + _RUN_UP_NS
    course.start(origin_ns)
    for request in course.turns.source:
        due = next(dues, None)
        if due is None:
            break
        after_s, level = due
        due_ns = origin_ns + round(after_s * 1e9)
        if request.after >= 0:
            turn = asyncio.ensure_future(_follow_up(course, request, level, due_ns))
            turn.add_done_callback(course.fail)
            ended: Pending = turn
        else:
            call = prepare(request, course.phase, level)
            if due_ns > now():
                await alarm.until(due_ns)
            if due_ns >= course.end_ns:
                break
            answer = ended = ask(call, due_ns)
            answer.add_done_callback(partial(course.settle, request))
        pending.add(ended)
        ended.add_done_callback(pending.discard)
    await _all(course, pending)


async def _follow_up(course: Course, request: Request, level: float, due_ns: int) -> None:
    """A later turn: due at the schedule's time or when its user has read the answer, whichever is later."""
    before = await course.turns.over(request)
    due_ns = max(due_ns, before.end_ns + round(request.think_s * 1e9))
    if before.ok:
        await course.alarm.until(due_ns)
    if due_ns >= course.end_ns:
        return
    if before.ok:
        ended = course.pool.ask(course.planner.call(request, course.phase, level), due_ns)
        await ended
        course.settle(request, ended)
    else:
        course.skip(request, level, due_ns)


async def _all(course: Course, pending: set[Pending]) -> None:
    """Waits until nothing is in flight. Follow-ups of a halted run may wait for an answer that will not come."""
    halted: asyncio.Task[object] = asyncio.ensure_future(course.halted.wait())
    while pending and not halted.done():
        await asyncio.wait({*pending, halted}, return_when=asyncio.FIRST_COMPLETED)
    if halted.done():
        await asyncio.sleep(0)  # lets the cancelled answers be settled
        for follow_up in list(pending):
            follow_up.cancel()
    halted.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
