"""One client process while it drives: what is under way, what was counted, why it stops. The two loops run on it."""

from __future__ import annotations

import asyncio
from array import array
from collections import Counter, deque
from typing import Final

import msgspec

from dynamometer.client.alarm import Alarm
from dynamometer.client.budget import Tally, rss_peak_bytes
from dynamometer.client.plan import Planner
from dynamometer.client.pool import Pool
from dynamometer.client.streams import Streams
from dynamometer.client.turns import Turns
from dynamometer.client.wire import Answer, Ended
from dynamometer.engines.fault import explain
from dynamometer.record.clock import Now, cpu_ns
from dynamometer.record.log import CANCEL, DUE, PLAN, WireLog
from dynamometer.types import Doubt, Request

_REFUSALS: Final = 20  # so many first answers, all the same refusal, stop the run
_LOST: Final = 100  # so many requests in a row that find no server stop it too
_NOT_FINAL: Final = frozenset((408, 425, 429))  # refusals that a later request may not meet
_FOREVER_NS: Final = 1 << 62
LATEST: Final = 40  # requests of which a display shows the latency


class Progress(msgspec.Struct, frozen=True):
    """What a display may show twice a second."""

    phase: str  # warmup | load
    asked: int
    ended: int
    failed: int
    in_flight: int
    body_bytes: int
    elapsed_s: float
    lag_ns: int = 0  # the event loop's worst lateness to a timer since the progress before
    first_ms: tuple[float, ...] = ()  # from sent to the first bytes of the answer, of the latest ones
    late_ms: tuple[float, ...] = ()  # from due to sent, of the latest requests
    last_error: str = ""


class Course:
    """Mutable by nature: it is the present state of a run. Its account at the end is a `Tally`."""

    def __init__(self, pool: Pool | Streams, alarm: Alarm, log: WireLog, planner: Planner, turns: Turns) -> None:
        self.pool, self.alarm, self.planner, self.turns = pool, alarm, planner, turns
        self._log = log
        self.now: Now = pool.now
        self.phase = "warmup"
        self.reason = ""  # why the run stops before its end
        self.halted = asyncio.Event()
        self.doubts: list[Doubt] = []
        self.wrong: BaseException | None = None  # what went wrong beside the loop
        self.lag_ns = array("q")
        self._lags_told = 0  # so many of them were in a progress
        self._unbroken = 0  # failures without any answer, in a row
        self.begin("warmup")

    def begin(self, phase: str, requests: int = 0, duration_s: float = 0.0) -> None:
        """Counts anew, so that nothing of the warm-up is in the load's figures.

        The phase ends after `requests`, after `duration_s` (0: not set), or when there are no more requests.
        """
        self.phase = phase
        self._duration_ns = round(duration_s * 1e9) or _FOREVER_NS
        self.turns.allow(requests)
        self.start(self.now())
        self._begun_ns = self.start_ns
        self._begun_cpu_ns = cpu_ns()
        self.asked = self.ended = self.failed = self.cancelled = self._answer_ns = 0
        self._refusals: Counter[tuple[int, str]] = Counter()
        self._first_ms: deque[float] = deque(maxlen=LATEST)
        self._last_error = ""
        self.pool.forget()
        del self.lag_ns[:]
        self._lags_told = 0

    # --- the loops call these ---

    def start(self, at_ns: int) -> None:
        """The first request is due at `at_ns`; the phase's time runs from there. No request is due after `end_ns`."""
        self.start_ns = self.last_ns = at_ns
        self.end_ns = 0 if self.reason else at_ns + self._duration_ns

    def settle(self, request: Request, ended: Ended) -> None:
        """Takes note of how a request ended."""
        answer = ended.result()
        self.asked += 1
        self.last_ns = answer.end_ns
        if request.session:
            self.turns.ended(request, answer)
        if not answer.error and 200 <= answer.status < 300:
            self.ended += 1
            self._answer_ns += answer.end_ns - answer.sent_ns
            self._unbroken = 0
            if answer.first_ns:
                self._first_ms.append((answer.first_ns - answer.sent_ns) * 1e-6)
        else:
            self._trouble(answer)

    def skip(self, request: Request, level: float, due_ns: int) -> None:
        """A turn whose predecessor failed cannot be asked as it was meant: it is censored."""
        row = self.planner.call(request, self.phase, level, sent=False).plan
        self._log.append(PLAN, request.index, due_ns, row)
        self._log.append(DUE, request.index, due_ns)
        self._log.append(CANCEL, request.index, due_ns, b"predecessor")
        self.asked += 1
        self.cancelled += 1
        self.turns.skipped(request, due_ns)

    def fail(self, task: asyncio.Future[None]) -> None:
        """Called when a task beside the loop is done: its error ends the run."""
        if not task.cancelled() and task.exception() is not None and self.wrong is None:
            self.wrong = task.exception()
            self.halt("interrupt")

    def halt(self, reason: str) -> None:
        """Stops the run now: nothing more is sent, what is in flight is cancelled for this reason."""
        if self.reason:
            return
        self.reason, self.end_ns = reason, 0
        self.halted.set()
        self.pool.cancel("deadline" if reason == "deadline" else "interrupt")
        self.alarm.close()

    # --- the driver calls these ---

    def progress(self) -> Progress:
        elapsed_s = (self.now() - self.start_ns) * 1e-9
        in_flight, received = self.pool.in_flight, self.pool.body_bytes
        lag_ns = max(self.lag_ns[self._lags_told :], default=0)
        self._lags_told = len(self.lag_ns)
        asked = self.asked + in_flight
        late_ms = tuple(late * 1e-6 for late in self.pool.late_ns[-LATEST:])
        counts = (asked, self.ended, self.failed, in_flight, received)
        return Progress(self.phase, *counts, elapsed_s, lag_ns, tuple(self._first_ms), late_ms, self._last_error)

    def flush(self) -> None:
        """The log's buffer to the kernel. A record that cannot grow ends the run: numbers without one are no use."""
        self._log.flush()
        if self._log.failed and not self.reason:
            self.doubts.append(Doubt("disk", self._log.failed, "free some space, then dyno bench --resume", fatal=True))
            self.halt("disk")

    def tally(self) -> Tally:
        """The account, on the run's clock."""
        pool, origin_ns = self.pool, self._log.origin_ns
        return Tally(
            late_ns=pool.late_ns.tobytes(),
            lag_ns=self.lag_ns.tobytes(),
            wall_ns=self.now() - self._begun_ns,
            cpu_ns=cpu_ns() - self._begun_cpu_ns,
            rss_peak_bytes=rss_peak_bytes(),
            start_ns=self.start_ns - origin_ns,
            end_ns=self.last_ns - origin_ns,
            asked=self.asked,
            ended=self.ended,
            failed=self.failed,
            cancelled=self.cancelled,
            answer_ns=self._answer_ns,
            late_connections=pool.late_connections,
            opened=pool.opened,
            retries=pool.retries,
            reads=pool.reads,
            body_bytes=pool.body_bytes,
            doubts=tuple(self.doubts),
            reason=self.reason,
        )

    # --- inside ---

    def _trouble(self, answer: Answer) -> None:
        if answer.error.startswith("cancel:"):
            self.cancelled += 1
            return
        self.failed += 1
        self._unbroken = 0 if answer.status else self._unbroken + 1
        message = answer.error or explain(answer.body, "refused")[1]
        self._last_error = f"HTTP {answer.status}: {message}" if answer.status else message
        key = (answer.status, message if answer.status else answer.error.partition(":")[0])
        self._refusals[key] += 1
        if self._unbroken >= _LOST:
            self._stop("target-lost", f"the last {_LOST} requests got no answer: {answer.error}")
        elif self.failed == _REFUSALS and self.refused():
            self.halt("refused")

    def refused(self) -> bool:
        """Whether every answer so far was the same refusal; if so the doubt says it once, in the server's words."""
        if self.ended or len(self._refusals) != 1:
            return False
        ((status, message), count), *_ = self._refusals.items()
        if status and (not 400 <= status < 500 or status in _NOT_FINAL):
            return False
        answered = f"HTTP {status}: {message}" if status else message
        self._doubt("refused", f"all of the first {count} requests were refused: {answered}")
        return True

    def _stop(self, kind: str, message: str) -> None:
        self._doubt(kind, message)
        self.halt("refused")

    def _doubt(self, kind: str, message: str) -> None:
        if kind not in {doubt.kind for doubt in self.doubts}:
            remedy = "dyno bench with one request shows whether the target, model, key and options are right"
            self.doubts.append(Doubt(kind, message, remedy, fatal=True))
