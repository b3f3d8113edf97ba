"""The open loop: requests leave when they are due, whatever the answers do."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import numpy as np
import pytest
from loopback import LAST, STREAM, Exchange, answer, chunk, closed, drive, event, experiment, request, serving

from dynamometer.client.alarm import Alarm
from dynamometer.client.budget import Tally, report
from dynamometer.errors import UsageError
from dynamometer.record.clock import now_ns
from dynamometer.record.log import CANCEL, DUE, END, PLAN, SENT
from dynamometer.types import Load

MS = 1_000_000


async def prompt_reply(exchange: Exchange) -> None:
    await exchange.send(answer("a"))


def test_a_late_answer_does_not_delay_the_next_request(tmp_path: Path) -> None:
    async def script(exchange: Exchange) -> None:
        if exchange.number == 0:
            await asyncio.sleep(0.6)
        await exchange.send(answer("a"))

    with serving(script) as served:
        driven = drive(experiment(served.url, Load("constant", rate=50), requests=20), None, tmp_path)
    first_end_ns = driven.of(0, END)[0][2]
    sent_before = sum(1 for frame in driven.frames if frame[0] == SENT and frame[2] < first_end_ns)
    assert sent_before == 20
    assert driven.report.asked == driven.report.ended == 20


def test_due_times_are_the_schedules_to_the_nanosecond_and_sent_follows_closely(tmp_path: Path) -> None:
    """Case B11: request k is due at k / rate from the start, not a gap after the one before."""
    with serving(prompt_reply) as served:
        driven = drive(experiment(served.url, Load("constant", rate=200), requests=300), None, tmp_path)
    due = np.array([driven.of(i, DUE)[0][2] for i in range(300)])
    sent = np.array([driven.of(i, SENT)[0][2] for i in range(300)])
    assert np.array_equal(due - due[0], np.round(np.arange(300) * 5 * MS))
    assert due[0] == driven.report.start_ns
    late_ms = (sent - due) / MS
    assert late_ms.min() >= 0
    assert np.median(late_ms) < 2
    # the medians of the first and the last twenty: one late request says nothing about drift
    achieved = 280 / ((np.median(sent[-20:]) - np.median(sent[:20])) / 1e9)
    assert achieved == pytest.approx(200, rel=0.01)


def test_the_first_request_is_not_late_and_finds_its_connection_open(tmp_path: Path) -> None:
    with serving(prompt_reply) as served:
        driven = drive(experiment(served.url, Load("constant", rate=10), requests=3), None, tmp_path)
    assert driven.report.client["waited_for_connection"] == 0
    assert driven.of(0, SENT)[0][2] - driven.of(0, DUE)[0][2] < 20 * MS


def test_the_plan_carries_the_rate_in_force(tmp_path: Path) -> None:
    load = Load("ramp", rate=20, options={"to": "100", "over": "0.5s", "spacing": "even"})
    with serving(prompt_reply) as served:
        driven = drive(experiment(served.url, load, duration_s=0.5), None, tmp_path)
    levels = [__import__("json").loads(f[3])["level"] for f in driven.frames if f[0] == PLAN]
    assert levels[0] == pytest.approx(20)
    assert levels == sorted(levels)
    assert 90 < levels[-1] <= 100


def test_a_follow_up_is_due_when_its_predecessor_ended_and_its_user_has_thought(tmp_path: Path) -> None:
    async def script(exchange: Exchange) -> None:
        await asyncio.sleep(0.2)
        await exchange.send(answer("a"))

    turns = [request(0, session="s"), request(1, session="s", turn=1, after=0, think_s=0.1), request(2)]
    with serving(script) as served:
        driven = drive(experiment(served.url, Load("constant", rate=100), requests=3), iter(turns), tmp_path)
    ended_ns = driven.of(0, END)[0][2]
    assert driven.of(1, DUE)[0][2] == pytest.approx(ended_ns + 100 * MS, abs=MS)
    assert driven.of(1, SENT)[0][2] >= driven.of(1, DUE)[0][2]
    assert driven.of(2, SENT)[0][2] < ended_ns  # a request of nobody's conversation does not wait


def test_a_follow_up_whose_time_has_not_come_waits_for_the_schedule(tmp_path: Path) -> None:
    turns = [request(0, session="s"), request(1, session="s", turn=1, after=0)]
    with serving(prompt_reply) as served:
        driven = drive(experiment(served.url, Load("constant", rate=4), requests=2), iter(turns), tmp_path)
    assert driven.of(1, DUE)[0][2] - driven.of(0, DUE)[0][2] == 250 * MS


def test_a_turn_after_a_failed_one_is_censored_and_not_sent(tmp_path: Path) -> None:
    async def script(exchange: Exchange) -> None:
        exchange.reset()

    turns = [request(0, session="s"), request(1, session="s", after=0), request(2, session="s", after=1)]
    with serving(script) as served:
        driven = drive(experiment(served.url, Load("constant", rate=50), requests=3), iter(turns), tmp_path)
        assert len(served.seen) == 1
    assert driven.end(1) == driven.end(2) == (CANCEL, "predecessor")
    assert (driven.report.failed, driven.report.cancelled) == (1, 2)


def test_the_schedule_ends_the_run_even_if_there_are_more_requests(tmp_path: Path) -> None:
    with serving(prompt_reply) as served:
        driven = drive(experiment(served.url, Load("constant", rate=100), duration_s=0.2), None, tmp_path)
    assert driven.report.asked == 20


def test_requests_that_run_out_end_the_run_before_the_schedule_does(tmp_path: Path) -> None:
    with serving(prompt_reply) as served:
        at = experiment(served.url, Load("constant", rate=100), requests=50)
        driven = drive(at, map(request, range(5)), tmp_path)
    assert driven.report.asked == driven.report.ended == 5


def test_what_is_in_flight_at_the_deadline_gets_a_grace_and_is_then_censored(tmp_path: Path) -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.send(STREAM + chunk(event("a")))
        await asyncio.sleep(0.3 if exchange.number == 0 else 60)
        await exchange.send(chunk(event("b", "stop")) + LAST)

    with serving(script) as served:
        at = experiment(served.url, Load("constant", rate=20), duration_s=0.1, grace_s=0.5)
        driven = drive(at, None, tmp_path)
    assert driven.end(0)[0] == END
    assert driven.end(1) == (CANCEL, "deadline")
    assert (driven.report.ended, driven.report.failed, driven.report.cancelled) == (1, 0, 1)


def test_an_open_law_without_a_schedule_is_refused(tmp_path: Path) -> None:
    from dynamometer.client.drive import run
    from dynamometer.engines.openai import chat
    from dynamometer.record.log import WireLog

    log = WireLog(tmp_path / "wire.log", 0)
    at = experiment("http://127.0.0.1:9/v1", Load("poisson", rate=1))
    with pytest.raises(UsageError, match="needs a schedule"):
        run(at, iter(()), None, chat, log, lambda _: None)
    log.close()


def test_a_follow_up_without_a_session_is_refused_in_one_line(tmp_path: Path) -> None:
    with serving(prompt_reply) as served, pytest.raises(UsageError, match="request 1 follows 0 but names no session"):
        drive(experiment(served.url, closed(), requests=2), iter([request(0), request(1, after=0)]), tmp_path)


def test_the_alarm_wakes_in_the_order_of_time_and_never_early() -> None:
    async def woken() -> list[tuple[int, int]]:
        alarm = Alarm(now_ns)
        start_ns = now_ns()
        seen: list[tuple[int, int]] = []

        async def wait(offset_ms: int) -> None:
            at_ns = start_ns + offset_ms * MS
            await alarm.until(at_ns)
            seen.append((offset_ms, now_ns() - at_ns))

        await asyncio.gather(*(wait(offset) for offset in (30, 10, 20, -5, 10)))
        alarm.close()
        return seen

    seen = asyncio.run(woken())
    assert [offset for offset, _ in seen] == [-5, 10, 10, 20, 30]
    assert all(late_ns >= 0 for _, late_ns in seen)
    assert sorted(late_ns for _, late_ns in seen[1:])[1] < 10 * MS


def test_a_closed_alarm_keeps_nobody_waiting() -> None:
    async def scene() -> None:
        alarm = Alarm(now_ns)
        waiter = alarm.until(now_ns() + 60_000 * MS)
        alarm.close()
        await asyncio.wait_for(waiter, 1)
        await asyncio.wait_for(alarm.until(now_ns() + 60_000 * MS), 1)

    asyncio.run(scene())


def tally(late_ms: float, count: int = 200, answer_ms: float = 100, reason: str = "") -> Tally:
    late_ns = np.full(count, late_ms * MS, dtype=np.int64)
    nothing = np.zeros(0, dtype=np.int64)
    return Tally(
        late_ns=late_ns.tobytes(),
        lag_ns=nothing.tobytes(),
        wall_ns=10**9,
        cpu_ns=10**8,
        rss_peak_bytes=1,
        start_ns=0,
        end_ns=10**9,
        asked=count,
        ended=count,
        failed=0,
        cancelled=0,
        answer_ns=round(answer_ms * MS) * count,
        late_connections=0,
        opened=1,
        retries=0,
        reads=0,
        body_bytes=0,
        reason=reason,
    )


def test_a_client_that_is_late_makes_an_open_run_invalid_and_says_what_to_do() -> None:
    account = report([tally(late_ms=8)], open_loop=True)
    ((kind, fatal),) = [(doubt.kind, doubt.fatal) for doubt in account.doubts]
    assert (kind, fatal, account.status) == ("late-client", True, "invalid")
    assert "8.0 ms" in account.doubts[0].message
    assert "--workers" in account.doubts[0].remedy


def test_lateness_is_let_through_up_to_5_ms_or_a_hundredth_of_the_answer() -> None:
    assert report([tally(late_ms=4)], open_loop=True).doubts == ()
    assert report([tally(late_ms=8, answer_ms=1000)], open_loop=True).doubts == ()
    assert report([tally(late_ms=8)], open_loop=False).doubts[0].fatal is False


def test_workers_samples_are_pooled_and_not_their_quantiles() -> None:
    """Case B05: 900 samples of 1 ms and 100 of 10 ms have a p99 of 10 ms; the mean of both p99s is 5.5."""
    account = report([tally(1, 900), tally(10, 100)], open_loop=False)
    assert account.client["lateness_p99_ms"] == pytest.approx(10)
    assert account.client["lateness_p50_ms"] == pytest.approx(1)
    assert account.client["workers"] == 2


def test_without_a_sample_there_is_no_quantile() -> None:
    assert "loop_lag_p50_ms" not in report([tally(1)], open_loop=False).client


def test_many_requests_at_one_moment_all_leave(tmp_path: Path) -> None:
    load = Load("burst", rate=300, options={"share": "1", "size": "100", "bursts": "even"})
    with serving(prompt_reply) as served:
        driven = drive(experiment(served.url, load, requests=300), map(request, itertools.count()), tmp_path)
    assert driven.report.ended == 300
