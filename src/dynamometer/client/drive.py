"""An experiment, its requests and its schedule in; frames in the log and the client's account out."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import chain
from typing import Final

import numpy as np
import uvloop

from dynamometer.client.alarm import Alarm
from dynamometer.client.budget import ClientReport, report
from dynamometer.client.closed_loop import closed_loop
from dynamometer.client.course import Course, Progress
from dynamometer.client.endpoint import Endpoint, endpoint
from dynamometer.client.open_loop import open_loop
from dynamometer.client.plan import Planner
from dynamometer.client.pool import Pool
from dynamometer.client.streams import Streams
from dynamometer.client.turns import Turns
from dynamometer.engines.dialect import Dialect
from dynamometer.errors import UsageError
from dynamometer.record.clock import now_ns
from dynamometer.record.log import WireLog
from dynamometer.schedule import rate_at
from dynamometer.types import Experiment, Request, Schedule

OnProgress = Callable[[Progress], None]

_TICK_S: Final = 0.25
_PROBE_NS: Final = 20_000_000
_SPARE_S: Final = 0.2  # an open loop holds connections ready for the arrivals of so long
_MOST_SPARE: Final = 64
_AHEAD_NS: Final = 2_000_000_000
_AHEAD_REQUESTS: Final = 4_000
_AHEAD_CHARACTERS: Final = 32_000_000


def run(
    experiment: Experiment,
    requests: Iterator[Request],
    schedule: Schedule | None,
    dialect: Dialect,
    log: WireLog,
    on_progress: OnProgress,
) -> ClientReport:
    """`drive` from outside an event loop. Ctrl-C and SIGTERM end the load in order; a second one at once."""

    async def driven() -> ClientReport:
        stop = asyncio.Event()
        with signals(stop):
            return await drive(experiment, requests, schedule, dialect, log, on_progress, stop)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(driven())


async def drive(
    experiment: Experiment,
    requests: Iterator[Request],
    schedule: Schedule | None,
    dialect: Dialect,
    log: WireLog,
    on_progress: OnProgress,
    stop: asyncio.Event,
) -> ClientReport:
    """Sends the warm-up and then the load; writes every fact to `log` and computes no metric.

    `requests`: the warm-up's first, then the load's. `schedule`: one due time a request of the load, in their order;
    None for the closed loop. Setting `stop` cancels what is in flight (`cancel: interrupt`). Raises TargetError if no
    connection can be made before the load; whatever happens during it is in the log and in the report's doubts.
    """
    check(experiment, schedule)
    async with under_way(experiment, ahead(requests), dialect, log, on_progress, stop) as course:
        await warm_up(course, experiment)
        if not course.reason:
            await _load(course, experiment, schedule)
    return report([course.tally()], open_loop=schedule is not None)


def ahead(requests: Iterator[Request]) -> Iterator[Request]:
    """The same requests, the first of them made now: a prompt that is padded to a length can take milliseconds, which
    would be missing in a loop that has sockets to read. Ends after 2 s, 4,000 requests or 32 MB."""
    made: list[Request] = []
    begun_ns, size = now_ns(), 0
    for request in requests:
        made.append(request)
        size += sum(len(message.content or "") for message in request.messages)
        if now_ns() - begun_ns > _AHEAD_NS or len(made) >= _AHEAD_REQUESTS or size > _AHEAD_CHARACTERS:
            break
    return chain(made, requests)


def _carrier(at: Endpoint) -> type[Pool] | type[Streams]:
    return Streams if at.scheme.startswith("grpc") else Pool


@asynccontextmanager
async def under_way(
    experiment: Experiment,
    requests: Iterator[Request],
    dialect: Dialect,
    log: WireLog,
    on_progress: OnProgress,
    stop: asyncio.Event,
) -> AsyncIterator[Course]:
    """A course with everything that runs beside the load: timeouts, display, the stop, the probe of the event loop."""
    _raise_file_limit()
    at = endpoint(experiment.target, os.environ)
    pool = _carrier(at)(at, experiment.target, log, now_ns)
    alarm = Alarm(now_ns)
    turns = Turns(requests, dialect)
    course = Course(pool, alarm, log, Planner(dialect, experiment.target, at, turns.texts), turns)
    works = (_watch(course, experiment.grace_s, on_progress, stop), _probe(course))
    beside = [asyncio.ensure_future(work) for work in works]
    for task in beside:
        task.add_done_callback(course.fail)
    try:
        with quiet_interpreter():
            yield course
        if course.wrong is not None:
            raise course.wrong
    finally:
        for task in beside:
            task.cancel()
        pool.cancel("interrupt")  # nothing is in flight unless an error brought us here
        await asyncio.gather(*beside, return_exceptions=True)
        alarm.close()
        await pool.close()
        log.flush()


async def warm_up(course: Course, experiment: Experiment) -> None:
    """Some requests that are logged and not counted; an endpoint that refuses them all is not put under load."""
    count = experiment.warmup_requests
    await course.pool.open(1)
    if not count:
        return
    streams = min(count, experiment.load.concurrency or 1)
    await course.pool.open(streams)
    course.begin("warmup", count)
    await closed_loop(course, streams, 0.0)
    if not course.reason and course.refused():
        course.halt("refused")


async def _load(course: Course, experiment: Experiment, schedule: Schedule | None) -> None:
    load = experiment.load
    if schedule is None:
        await course.pool.open(min(load.concurrency, experiment.requests or load.concurrency))
        course.begin("load", experiment.requests, experiment.duration_s)
        await closed_loop(course, load.concurrency, float(load.concurrency))
    else:
        await hold_spare(course, schedule.rate, len(schedule.due_s))
        course.begin("load", experiment.requests, experiment.duration_s)
        levels = rate_at(load, schedule.due_s, experiment.requests, experiment.duration_s)
        dues = zip(schedule.due_s.tolist(), levels.tolist(), strict=True)
        await asyncio.ensure_future(open_loop(course, dues))  # a task of its own: to resume it resumes no caller
    course.refused()  # fewer requests than it takes to stop, all refused: the reason is given all the same


async def hold_spare(course: Course, rate: float, most: int) -> None:
    """Opens connections for the arrivals of the next moments, and keeps as many ready from then on."""
    course.pool.spare = min(_MOST_SPARE, 1 + round(rate * _SPARE_S), most)
    await course.pool.open(course.pool.spare)


async def _watch(course: Course, grace_s: float, on_progress: OnProgress, stop: asyncio.Event) -> None:
    """Four times a second: timeouts, the deadline, the log's buffer, the display. At once: the stop."""
    stopping = asyncio.ensure_future(stop.wait())
    try:
        while not course.reason:
            done, _ = await asyncio.wait({stopping}, timeout=_TICK_S)
            course.pool.tick()
            course.flush()
            if done:
                course.halt("interrupt")
            elif course.now() > course.end_ns + grace_s * 1e9:
                course.halt("deadline")
            on_progress(course.progress())
    finally:
        stopping.cancel()


async def _probe(course: Course) -> None:
    """How late the event loop is to a timer, 50 times a second: a stamp can be as late as that."""
    while not course.reason:
        at_ns = course.now() + _PROBE_NS
        await course.alarm.until(at_ns)
        course.lag_ns.append(course.now() - at_ns)


@contextmanager
def quiet_interpreter() -> Iterator[None]:
    """Keeps Python's own pauses away from the load: what lives now is never scanned again, and another thread gives the
    interpreter back after 0.5 ms instead of 5."""
    thresholds, interval_s = gc.get_threshold(), sys.getswitchinterval()
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 100)
    sys.setswitchinterval(0.0005)
    try:
        yield
    finally:
        sys.setswitchinterval(interval_s)
        gc.set_threshold(*thresholds)
        gc.unfreeze()


@contextmanager
def signals(stop: asyncio.Event) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    kinds = (signal.SIGINT, signal.SIGTERM)

    def first() -> None:
        stop.set()
        for kind in kinds:
            loop.remove_signal_handler(kind)

    for kind in kinds:
        loop.add_signal_handler(kind, first)
    try:
        yield
    finally:
        for kind in kinds:
            loop.remove_signal_handler(kind)


def check(experiment: Experiment, schedule: Schedule | None) -> None:
    load = experiment.load
    if schedule is None and load.law != "closed":
        raise UsageError(f"law {load.law!r} needs a schedule; schedule.build makes it")
    if schedule is None and load.concurrency < 1:
        raise UsageError(f"concurrency is {load.concurrency}; give at least 1")
    if schedule is not None and not np.all(np.diff(schedule.due_s) >= 0):
        raise UsageError("the schedule's due times are not ascending; sort them")


def _raise_file_limit() -> None:
    """Each connection is a file; the soft limit of 1,024 is below what the hard limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
