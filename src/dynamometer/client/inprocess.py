"""An engine inside this process and an experiment in, the same log as over a wire out.

One thread hands in requests and steps the engine by turns. A request that falls due while a step runs waits for the
step's end, as it would in the engine's own server; `sent` minus `due` is that wait and no lateness of a client.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from itertools import islice

import msgspec

from dynamometer.client.budget import ClientReport, Tally, report, rss_peak_bytes
from dynamometer.client.course import Progress
from dynamometer.client.drive import check, quiet_interpreter
from dynamometer.engines.inprocess import Emission, Engine
from dynamometer.engines.inprocess.lines import line
from dynamometer.engines.prompt import turns
from dynamometer.errors import TargetError, UsageError
from dynamometer.record.clock import cpu_ns, now_ns
from dynamometer.record.log import BODY, CANCEL, DUE, END, HEADERS, PLAN, SENT, WireLog
from dynamometer.record.rows import Plan
from dynamometer.types import Doubt, Experiment, Request, Schedule

_HEADERS = msgspec.json.encode({"status": 200, "headers": {}})
_DISPLAY_NS = 500_000_000
_FOREVER_NS = 1 << 62


class Course:
    """One phase while it runs. Mutable by nature, as the driver over the wire has one."""

    def __init__(self, engine: Engine, log: WireLog, phase: str, end_ns: int) -> None:
        self.engine, self.log, self.phase, self.end_ns = engine, log, phase, end_ns
        self.begun_ns, self.begun_cpu_ns = now_ns(), cpu_ns()
        self.in_flight: set[int] = set()
        self.asked = self.ended = self.failed = self.cancelled = self.body_bytes = 0

    def ask(self, request: Request, due_ns: int, level: float) -> None:
        """Logs the plan and hands the request in."""
        if request.after >= 0:
            raise UsageError(
                f"request {request.index} continues a conversation, which engines inside this process cannot; "
                "give another --workload, or measure the engine's server"
            )
        self.log.append(PLAN, request.index, due_ns, _plan(request, self.phase, level))
        self.log.append(DUE, request.index, due_ns)
        sent_ns = now_ns()
        self.log.append(SENT, request.index, sent_ns, b'{"attempt":1,"bytes":0,"connection":"in process"}')
        self.log.append(HEADERS, request.index, sent_ns, _HEADERS)
        self.engine.submit(request, turns(request, {}))
        self.in_flight.add(request.index)
        self.asked += 1

    def step(self) -> None:
        """Lets the engine work once and logs what it made."""
        for emission in self.engine.step():
            if emission.request in self.in_flight:
                self._note(emission)

    def _note(self, emission: Emission) -> None:
        body = line(emission)
        self.body_bytes += len(body)
        self.log.append(BODY, emission.request, emission.at_ns, body)
        if emission.finish or emission.error:
            self.log.append(END, emission.request, emission.at_ns)
            self.in_flight.discard(emission.request)
            self.ended += 1
            self.failed += bool(emission.error)

    def give_up(self, reason: str) -> None:
        """What is in flight is cancelled: neither a success nor a failure."""
        for index in sorted(self.in_flight):
            self.engine.cancel(index)
            self.log.append(CANCEL, index, now_ns(), reason.encode())
            self.cancelled += 1
        self.in_flight.clear()

    def progress(self) -> Progress:
        elapsed_s = (now_ns() - self.begun_ns) / 1e9
        return Progress(
            self.phase, self.asked, self.ended, self.failed, len(self.in_flight), self.body_bytes, elapsed_s
        )


def run(
    engine: Engine,
    experiment: Experiment,
    requests: Iterator[Request],
    schedule: Schedule | None,
    log: WireLog,
    on_progress: Callable[[Progress], None],
) -> ClientReport:
    """The warm-up and then the load, as `drive.run` does over a wire. Ctrl-C cancels what is in flight and ends in
    order.
    """
    check(experiment, schedule)
    with quiet_interpreter(), _stop_on_signals() as stop:
        level = experiment.load.concurrency or int(engine.facts["slots"])
        warm = Course(engine, log, "warmup", _FOREVER_NS)
        reason = _closed(warm, islice(requests, experiment.warmup_requests), level, stop, on_progress)
        end_ns = now_ns() + round(experiment.duration_s * 1e9) if experiment.duration_s else _FOREVER_NS
        course = Course(engine, log, "load", end_ns)
        if not reason:
            wanted = islice(requests, experiment.requests or None)
            if schedule is None:
                reason = _closed(course, wanted, level, stop, on_progress)
            else:
                due_ns = [course.begun_ns + round(due_s * 1e9) for due_s in schedule.due_s.tolist()]
                reason = _open(course, zip(due_ns, wanted, strict=False), schedule.rate, stop, on_progress)
    on_progress(course.progress())
    log.flush()
    return report([_tally(course, log, reason)], open_loop=False, workers=1)


def first_answer(engine: Engine, request: Request) -> str:
    """The text of one untimed answer."""
    engine.submit(request, turns(request, {}))
    text = ""
    while True:
        for emission in engine.step():
            if emission.error:
                raise TargetError(f"the first question was not answered: {emission.error}")
            text += emission.text
            if emission.finish:
                return text


def _plan(request: Request, phase: str, level: float) -> bytes:
    """The request's row as JSON, the payload of its plan frame."""
    row = Plan(
        request=request.index,
        phase=phase,
        family=request.family,
        session=request.session,
        turn=request.turn,
        after=request.after,
        level=level,
        input_tokens=request.input_tokens,
        output_tokens=request.output_tokens,
        ignore_eos=request.ignore_eos,
        prompt_sha=sha256(msgspec.json.encode(request.messages)).hexdigest()[:16],
    )
    return msgspec.json.encode(row)


def _closed(
    course: Course, requests: Iterator[Request], streams: int, stop: threading.Event, show: Callable[[Progress], None]
) -> str:
    """Keeps `streams` requests in flight. Returns what stopped it before its end, or ""."""
    shown_ns = 0
    more = True
    while True:
        while more and len(course.in_flight) < streams and now_ns() < course.end_ns and not stop.is_set():
            request = next(requests, None)
            more = request is not None
            if request is not None:
                course.ask(request, now_ns(), float(streams))
        if stop.is_set():
            course.give_up("interrupt")
            return "interrupt"
        if not course.in_flight:
            return ""
        course.step()
        shown_ns = _show(course, shown_ns, show)


def _open(
    course: Course, arrivals: Iterator[tuple[int, Request]], rate: float, stop: threading.Event,
    show: Callable[[Progress], None],
) -> str:  # fmt: skip
    """Hands in each request when it is due, or after the step that ran then."""
    shown_ns = 0
    upcoming = next(arrivals, None)
    while upcoming is not None or course.in_flight:
        while upcoming is not None and upcoming[0] <= now_ns():
            course.ask(upcoming[1], upcoming[0], rate)
            upcoming = next(arrivals, None)
        if stop.is_set():
            course.give_up("interrupt")
            return "interrupt"
        if course.in_flight:
            course.step()
        elif upcoming is not None:
            stop.wait(max(0.0, (upcoming[0] - now_ns()) / 1e9))
        shown_ns = _show(course, shown_ns, show)
    return ""


def _show(course: Course, shown_ns: int, show: Callable[[Progress], None]) -> int:
    if now_ns() - shown_ns < _DISPLAY_NS:
        return shown_ns
    course.log.flush()
    show(course.progress())
    return now_ns()


def _tally(course: Course, log: WireLog, reason: str) -> Tally:
    """No lateness and no event loop: there is no client. A disk that is full ends the run with its doubt."""
    doubts: tuple[Doubt, ...] = ()
    if log.failed:
        doubts, reason = (Doubt("disk-full", log.failed, "free some space and run again", fatal=True),), "disk"
    end_ns = now_ns()
    return Tally(
        late_ns=b"",
        lag_ns=b"",
        wall_ns=end_ns - course.begun_ns,
        cpu_ns=cpu_ns() - course.begun_cpu_ns,
        rss_peak_bytes=rss_peak_bytes(),
        start_ns=course.begun_ns - log.origin_ns,
        end_ns=end_ns - log.origin_ns,
        asked=course.asked,
        ended=course.ended,
        failed=course.failed,
        cancelled=course.cancelled,
        answer_ns=0,
        late_connections=0,
        opened=0,
        retries=0,
        reads=0,
        body_bytes=course.body_bytes,
        doubts=doubts,
        reason=reason,
    )


@contextmanager
def _stop_on_signals() -> Iterator[threading.Event]:
    """The first Ctrl-C or SIGTERM ends the load in order; a second one at once."""
    stop = threading.Event()
    before = {kind: signal.getsignal(kind) for kind in (signal.SIGINT, signal.SIGTERM)}

    def first(number: int, frame: object) -> None:
        stop.set()
        for kind, handler in before.items():
            signal.signal(kind, handler)

    for kind in before:
        signal.signal(kind, first)
    try:
        yield stop
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
