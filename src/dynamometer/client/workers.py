"""The same in and out as `drive.run`, but with as many client processes as the load needs.

Each worker takes its slice of one schedule on one clock (open loop: every N-th request; closed loop: its share of the
streams) and writes its own shard of the log, `wire.<i>.log`.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import Iterator
from typing import Final

import msgspec
import uvloop

from dynamometer import errors
from dynamometer.client import drive
from dynamometer.client.budget import ClientReport, Tally, report
from dynamometer.client.course import Course, Progress
from dynamometer.client.drive import OnProgress, signals, under_way, warm_up
from dynamometer.client.open_loop import Due
from dynamometer.client.worker import Account, Asked, Failed, FromWorker, Job, Ready, Shown, Start, packed
from dynamometer.engines.dialect import Dialect
from dynamometer.errors import RecordError, TargetError
from dynamometer.record.clock import now_ns
from dynamometer.record.log import WireLog, next_shard
from dynamometer.schedule import rate_at
from dynamometer.types import Experiment, Request, Schedule, Workload

READS_PER_S: Final = 60_000  # what one event loop takes on a core of 2020 or later: benchmarks/wire.py
GRPC_PER_S: Final = 20_000  # the same of messages over gRPC
STREAM_TOKENS_PER_S: Final = 100  # a fast stream, for a guess before anything is measured
_LEAD_NS: Final = 300_000_000  # from the last worker's readiness to the start
_PATIENCE_S: Final = 10.0  # for a worker that was told to stop


class Choice(msgspec.Struct, frozen=True):
    """How many client processes, and why."""

    workers: int
    reason: str


def choose(experiment: Experiment, schedule: Schedule | None, cores: int) -> Choice:
    """One event loop unless more socket reads are to be expected than one can take. Half the cores are left alone."""
    load = experiment.load
    if schedule is None:
        expected, what = load.concurrency * STREAM_TOKENS_PER_S, f"{load.concurrency} streams"
    else:
        tokens = _mean_tokens(experiment.workload)
        expected, what = round(schedule.rate * tokens), f"{schedule.rate:g} requests/s of some {tokens} tokens"
    each = GRPC_PER_S if experiment.target.url.startswith("grpc") else READS_PER_S
    wanted = -(-expected // each) or 1
    most = max(1, cores // 2)
    read = f"{what} may bring {expected:,} reads/s; one process takes some {each:,}"
    if wanted > most:
        return Choice(most, f"{read}: {wanted} would be right, {cores} cores allow {most}")
    return Choice(wanted, read)


def run(
    experiment: Experiment,
    requests: Iterator[Request],
    schedule: Schedule | None,
    dialect: Dialect,
    log: WireLog,
    on_progress: OnProgress,
    workers: int = 0,
) -> ClientReport:
    """`drive.run` in `workers` processes; 0: as many as `choose` finds right. The warm-up goes into `log`."""
    chosen = Choice(workers, "as asked") if workers else choose(experiment, schedule, len(os.sched_getaffinity(0)))
    if schedule is None:
        chosen = msgspec.structs.replace(chosen, workers=min(chosen.workers, experiment.load.concurrency))
    if chosen.workers <= 1:
        account = drive.run(experiment, requests, schedule, dialect, log, on_progress)
    else:
        drive.check(experiment, schedule)
        requests = drive.ahead(requests)
        stock, board = Stock(experiment, requests, schedule, chosen.workers), Board(on_progress)

        async def driven() -> ClientReport:
            stop = asyncio.Event()
            with signals(stop):
                async with under_way(experiment, requests, dialect, log, board.show, stop) as course:
                    return await _together(course, experiment, stock, log, board)

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            account = runner.run(driven())
    return msgspec.structs.replace(account, workers_because=chosen.reason)


class Stock:
    """Hands requests to workers. A conversation stays with one worker, since its turns quote its answers.

    Otherwise each takes every N-th, which for the open loop are the schedule's slices `due[i::N]`.
    """

    def __init__(
        self, experiment: Experiment, requests: Iterator[Request], schedule: Schedule | None, workers: int
    ) -> None:
        self._requests, self._left, self.workers = requests, experiment.requests or -1, workers
        self.rate = schedule.rate if schedule is not None else 0.0
        self._held: list[deque[Asked]] = [deque() for _ in range(workers)]
        self._of_session: dict[str, int] = {}
        self._taken = 0
        self._dues: Iterator[Due] | None = None
        if schedule is not None:
            levels = rate_at(experiment.load, schedule.due_s, experiment.requests, experiment.duration_s)
            self._dues = zip(schedule.due_s.tolist(), levels.tolist(), strict=True)

    def next(self, worker: int) -> Asked | None:
        """The worker's next request; None when there are no more."""
        while not self._held[worker]:
            asked = self._pull()
            if asked is None:
                return None
            place = (self._taken - 1) % self.workers
            if asked.request.session:
                place = self._of_session.setdefault(asked.request.session, place)
            self._held[place].append(asked)
        return self._held[worker].popleft()

    def _pull(self) -> Asked | None:
        if self._left == 0:
            return None
        due = (0.0, 0.0) if self._dues is None else next(self._dues, None)
        request = next(self._requests, None) if due is not None else None
        if request is None or due is None:
            self._left = 0
            return None
        self._left -= 1
        self._taken += 1
        return Asked(request, due)


class Board:
    """What the display is shown: this process's warm-up, then the sum over the workers."""

    def __init__(self, on_progress: OnProgress) -> None:
        self._on_progress = on_progress
        self.workers: dict[int, Progress] = {}

    def show(self, own: Progress) -> None:
        self._on_progress(_sum(own, list(self.workers.values())) if self.workers else own)


class Team:
    """The worker processes of one load."""

    def __init__(self, processes: list[Process], stock: Stock, board: Board) -> None:
        self._processes, self._stock, self._board = processes, stock, board
        self._decoder: msgspec.msgpack.Decoder[FromWorker] = msgspec.msgpack.Decoder(FromWorker)

    async def work(self) -> list[Tally]:
        """Starts all at one moment, feeds them, and waits for their accounts."""
        before_ns = now_ns()
        for ready in await asyncio.gather(*map(self._ready, self._processes)):
            if not before_ns - _LEAD_NS <= ready.now_ns <= now_ns():
                raise RecordError("a worker's monotonic clock is not this process's; run with --workers 1")
        start = packed(Start(now_ns() + _LEAD_NS))
        feeders = []
        for i, process in enumerate(self._processes):
            _inlet(process).write(start)
            feeders.append(asyncio.ensure_future(self._feed(i, process)))
        try:
            listeners = [self._listen(i, process) for i, process in enumerate(self._processes)]
            tallies, _ = await asyncio.gather(asyncio.gather(*listeners), asyncio.gather(*feeders))
            return list(tallies)
        finally:
            for feeder in feeders:
                feeder.cancel()

    def stop(self) -> None:
        """Workers cancel what is in flight and give their accounts."""
        for process in self._processes:
            if process.returncode is None:
                process.terminate()

    async def gone(self) -> None:
        """Waits until no worker is left; one that does not go is killed, which its log survives."""
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await asyncio.gather(*(process.wait() for process in self._processes))
        except TimeoutError:
            for process in self._processes:
                if process.returncode is None:
                    process.kill()

    async def _feed(self, i: int, process: Process) -> None:
        inlet = _inlet(process)
        try:
            while (asked := self._stock.next(i)) is not None:
                inlet.write(packed(asked))
                await inlet.drain()
            inlet.close()
        except (BrokenPipeError, ConnectionResetError):
            return  # the worker has stopped; its account says why

    async def _ready(self, process: Process) -> Ready:
        while not isinstance(message := await self._next(process), Ready):
            pass  # progress while connections open
        return message

    async def _listen(self, i: int, process: Process) -> Tally:
        while True:
            message = await self._next(process)
            if isinstance(message, Shown):
                self._board.workers[i] = message.progress
            elif isinstance(message, Account):
                if message.tally.reason in ("refused", "disk"):
                    self.stop()
                return message.tally

    async def _next(self, process: Process) -> FromWorker:
        """The worker's next message; an error of its own is raised here."""
        assert process.stdout is not None
        try:
            length = int.from_bytes(await process.stdout.readexactly(4), "little")
            message = self._decoder.decode(await process.stdout.readexactly(length))
        except asyncio.IncompleteReadError:
            code = await process.wait()
            raise RecordError(f"a client worker ended with code {code} before its account; its log is kept") from None
        if isinstance(message, Failed):
            kind = getattr(errors, message.kind, TargetError)
            raise kind(message.message)
        return message


async def _together(course: Course, experiment: Experiment, stock: Stock, log: WireLog, board: Board) -> ClientReport:
    """Warm-up here, load in the workers, one account."""
    await warm_up(course, experiment)
    open_load = experiment.load.law != "closed"
    if course.reason:
        return report([course.tally()], open_load)
    course.begin("load")
    processes = [await _spawn(job) for job in jobs(experiment, stock, log)]
    team = Team(processes, stock, board)
    stopper = asyncio.ensure_future(_stop_with(course, team))
    try:
        tallies = await team.work()
    finally:
        stopper.cancel()
        team.stop()
        await team.gone()
    # this process's own CPU time and memory belong to the account; it asked nothing in the load
    start_ns, end_ns = min(t.start_ns for t in tallies), max(t.end_ns for t in tallies)
    own = msgspec.structs.replace(course.tally(), start_ns=start_ns, end_ns=end_ns)
    return report([*tallies, own], open_load, workers=len(tallies))


async def _stop_with(course: Course, team: Team) -> None:
    await course.halted.wait()
    team.stop()


def jobs(experiment: Experiment, stock: Stock, log: WireLog) -> list[Job]:
    """One job a worker: its share of the streams or of the rate."""
    load, count = experiment.load, stock.workers
    first = next_shard(log.path.parent)
    return [
        Job(
            experiment=msgspec.structs.replace(
                experiment,
                load=msgspec.structs.replace(
                    load,
                    concurrency=load.concurrency // count + (i < load.concurrency % count),
                    rate=stock.rate / count,
                ),
                requests=0,
                warmup_requests=0,
            ),
            log=str(log.path.parent / f"wire.{first + i}.log"),
            origin_ns=log.origin_ns,
            level=float(load.concurrency),
            open_loop=load.law != "closed",
        )
        for i in range(count)
    ]


async def _spawn(job: Job) -> Process:
    """In a session of its own: Ctrl-C reaches this process alone, which then stops the workers in order."""
    command = (sys.executable, "-m", "dynamometer.client.worker")
    process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, start_new_session=True)
    _inlet(process).write(packed(job))
    return process


def _inlet(process: Process) -> asyncio.StreamWriter:
    assert process.stdin is not None
    return process.stdin


def _sum(own: Progress, parts: list[Progress]) -> Progress:
    return Progress(
        phase="load",
        asked=sum(p.asked for p in parts),
        ended=sum(p.ended for p in parts),
        failed=sum(p.failed for p in parts),
        in_flight=sum(p.in_flight for p in parts),
        body_bytes=sum(p.body_bytes for p in parts),
        elapsed_s=own.elapsed_s,
        lag_ns=max(p.lag_ns for p in parts),
        first_ms=tuple(ms for p in parts for ms in p.first_ms),
        late_ms=tuple(ms for p in parts for ms in p.late_ms),
        last_error=next((p.last_error for p in parts if p.last_error), ""),
    )


def _mean_tokens(workload: Workload) -> int:
    """Of an answer, guessed from the length that is asked for; a distribution counts with the first number it names."""
    found = re.search(r"\d+", workload.output_tokens)
    return int(found[0]) if found else 128
