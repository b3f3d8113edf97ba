"""One of several client processes: a job and its requests on standard input, frames in its log, an account on output.

Started by `client.workers`; messages are msgpack, each behind its length (u32, little endian). It ends in order on
SIGTERM, and also when its parent dies.
"""

from __future__ import annotations

import asyncio
import ctypes
import signal
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, TypeVar, cast

import msgspec
import uvloop

from dynamometer import plugins
from dynamometer.client.budget import Tally
from dynamometer.client.closed_loop import closed_loop
from dynamometer.client.course import Progress
from dynamometer.client.drive import hold_spare, signals, under_way
from dynamometer.client.open_loop import Due, open_loop
from dynamometer.engines.dialect import Dialect
from dynamometer.errors import DynoError
from dynamometer.record.clock import now_ns
from dynamometer.record.log import WireLog
from dynamometer.types import Experiment, Request

_LENGTH_BYTES: Final = 4
_PR_SET_PDEATHSIG: Final = 1


class Job(msgspec.Struct, frozen=True):
    """What a worker is to do: `experiment` with its share of the streams or of the rate, and without a warm-up."""

    experiment: Experiment
    log: str
    origin_ns: int
    level: float  # concurrency of all workers together; open loop: not used
    open_loop: bool


class Start(msgspec.Struct, frozen=True, tag="start"):
    """When the load starts, CLOCK_MONOTONIC."""

    at_ns: int


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The connections are open. `now_ns`: the worker's clock, which must be the parent's."""

    now_ns: int


class Asked(msgspec.Struct, frozen=True, tag="asked"):
    """One request; open loop: with its due time and the rate in force."""

    request: Request
    due: Due = (0.0, 0.0)


class Shown(msgspec.Struct, frozen=True, tag="shown"):
    progress: Progress


class Account(msgspec.Struct, frozen=True, tag="account"):
    tally: Tally


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """An error that ended the worker; `kind` names its class."""

    kind: str
    message: str


FromParent = Start | Asked
FromWorker = Ready | Shown | Account | Failed
Message = TypeVar("Message")
_encode: Final = msgspec.msgpack.Encoder().encode


def packed(message: msgspec.Struct) -> bytes:
    """A message as it goes through the pipe."""
    body = _encode(message)
    return len(body).to_bytes(_LENGTH_BYTES, "little") + body


def received(pipe: BinaryIO, decoder: msgspec.msgpack.Decoder[Message]) -> Message | None:
    """The next message; None when the other side has closed the pipe."""
    head = pipe.read(_LENGTH_BYTES)
    if len(head) < _LENGTH_BYTES:
        return None
    return decoder.decode(pipe.read(int.from_bytes(head, "little")))


class Stock:
    """The requests that the parent hands out, one at a time, and beside them their due times.

    Reading blocks the event loop. The pipe is kept full by the parent, so there is nearly always something in it.
    """

    def __init__(self, pipe: BinaryIO) -> None:
        self._pipe = pipe
        self._decoder: msgspec.msgpack.Decoder[FromParent] = msgspec.msgpack.Decoder(FromParent)
        self._dues: deque[Due] = deque()

    def started_at_ns(self) -> int:
        """Waits for the start."""
        start = received(self._pipe, self._decoder)
        return start.at_ns if isinstance(start, Start) else 0

    def requests(self) -> Iterator[Request]:
        while isinstance(asked := received(self._pipe, self._decoder), Asked):
            self._dues.append(asked.due)
            yield asked.request

    def dues(self) -> Iterator[Due]:
        while self._dues:
            yield self._dues.popleft()


async def work(job: Job, stock: Stock, out: BinaryIO) -> None:
    """The worker's whole life."""
    stop = asyncio.Event()
    dialect = cast(Dialect, plugins.load("engine", job.experiment.target.api))
    log = WireLog(Path(job.log), job.origin_ns)
    experiment = job.experiment

    def tell(message: FromWorker) -> None:
        out.write(packed(message))
        out.flush()

    with signals(stop):
        async with under_way(
            experiment, stock.requests(), dialect, log, lambda progress: tell(Shown(progress)), stop
        ) as course:
            if job.open_loop:
                await hold_spare(course, experiment.load.rate, 1 << 30)
            else:
                await course.pool.open(experiment.load.concurrency)
            tell(Ready(now_ns()))
            start_ns = await asyncio.to_thread(stock.started_at_ns)
            if not course.reason and start_ns:
                course.begin("load", 0, experiment.duration_s)
                if job.open_loop:
                    await open_loop(course, stock.dues(), start_ns)
                else:
                    await closed_loop(course, experiment.load.concurrency, job.level, start_ns)
                course.refused()
            tally = course.tally()
    log.close()
    tell(Account(tally))


def main() -> None:
    """Entry point of the process."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    pipe, out = sys.stdin.buffer, sys.stdout.buffer
    job = received(pipe, msgspec.msgpack.Decoder(Job))
    if job is None:
        return
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(work(job, Stock(pipe), out))
    except DynoError as wrong:
        out.write(packed(Failed(type(wrong).__name__, str(wrong))))
        out.flush()
    except BrokenPipeError:
        sys.stdout = None  # the parent is gone; the record is what counts


if __name__ == "__main__":
    main()
