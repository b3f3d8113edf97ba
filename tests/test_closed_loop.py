"""The closed loop: as many in flight as asked, each next one when an answer has ended, and an orderly end."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from loopback import (
    Driven,
    Exchange,
    answer,
    client,
    closed,
    drive,
    event,
    experiment,
    request,
    serving,
    slow,
    started,
    whole,
)

from dynamometer.client.course import Progress
from dynamometer.client.drive import ahead, run
from dynamometer.engines.openai import chat
from dynamometer.errors import UsageError
from dynamometer.record.clock import origin
from dynamometer.record.log import BODY, CANCEL, DUE, END, ERROR, PLAN, SENT, WireLog, read_frames
from dynamometer.types import Doubt, Load, Message, Request

MS = 1_000_000


async def prompt_reply(exchange: Exchange) -> None:
    await exchange.send(answer("a"))


def test_exactly_as_many_requests_are_in_flight_as_asked(tmp_path: Path) -> None:
    now = most = 0

    async def script(exchange: Exchange) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.02)
        now -= 1
        await exchange.send(answer("a"))

    with serving(script) as served:
        driven = drive(experiment(served.url, closed(7), requests=70), None, tmp_path)
    assert most == 7
    assert driven.report.ended == 70
    assert driven.report.status == "complete"
    levels = {json.loads(frame[3])["level"] for frame in driven.frames if frame[0] == PLAN}
    assert levels == {7.0}


def test_a_request_is_due_when_the_answer_before_it_ended(tmp_path: Path) -> None:
    with serving(prompt_reply) as served:
        driven = drive(experiment(served.url, closed(), requests=5), None, tmp_path)
    for i in range(1, 5):
        assert driven.of(i, DUE)[0][2] == driven.of(i - 1, END)[0][2]
        assert driven.of(i, SENT)[0][2] >= driven.of(i, DUE)[0][2]


def test_the_warm_up_is_logged_under_its_name_and_is_in_no_count(tmp_path: Path) -> None:
    """Case B06."""
    with serving(prompt_reply) as served:
        driven = drive(experiment(served.url, closed(2), requests=6, warmup_requests=3), None, tmp_path)
        assert len(served.seen) == 9
    phases = [json.loads(driven.of(i, PLAN)[0][3])["phase"] for i in range(9)]
    assert phases == ["warmup"] * 3 + ["load"] * 6
    assert driven.report.asked == 6
    assert max(driven.of(i, END)[0][2] for i in range(3)) < driven.report.start_ns
    assert driven.report.start_ns == min(driven.of(i, DUE)[0][2] for i in range(3, 9))
    assert driven.report.end_ns == max(driven.of(i, END)[0][2] for i in range(3, 9))


def test_a_load_by_time_stops_sending_then_and_lets_answers_end(tmp_path: Path) -> None:
    async def script(exchange: Exchange) -> None:
        await asyncio.sleep(0.05)
        await exchange.send(answer("a"))

    with serving(script) as served:
        driven = drive(experiment(served.url, closed(2), duration_s=0.4), None, tmp_path)
    last_due_ns = max(frame[2] for frame in driven.frames if frame[0] == DUE)
    assert last_due_ns < driven.report.start_ns + 400 * MS
    assert driven.report.asked == driven.report.ended
    assert 8 <= driven.report.asked <= 16


def test_fewer_requests_than_streams_is_no_trouble(tmp_path: Path) -> None:
    with serving(prompt_reply) as served:
        driven = drive(experiment(served.url, closed(8)), map(request, range(3)), tmp_path)
    assert driven.report.ended == 3


def test_no_request_at_all_is_an_empty_run(tmp_path: Path) -> None:
    with serving(prompt_reply) as served:
        driven = drive(experiment(served.url, closed(2)), iter(()), tmp_path)
    assert (driven.report.asked, driven.report.status) == (0, "complete")


@pytest.mark.parametrize(("size", "at_first"), [(1, 4000), (10_000_000, 4)])
def test_the_first_requests_are_made_before_the_load_within_limits_and_none_is_lost(size: int, at_first: int) -> None:
    text = "x" * size
    made: list[int] = []

    def requests() -> Iterator[Request]:
        for i in range(at_first + 5):
            made.append(i)
            yield request(i, text)

    given = ahead(requests())
    assert len(made) == at_first
    assert [r.index for r in given] == list(range(at_first + 5))


# --- conversations ---


def conversation(first: int, name: str) -> list[Request]:
    """Three turns that quote the engine's own answers."""
    ask = [Message("user", f"{name} {turn}") for turn in range(3)]
    said = Message("assistant", None)
    return [
        Request(first, (ask[0],), 8, session=name),
        Request(first + 1, (ask[0], said, ask[1]), 8, session=name, turn=1, after=first),
        Request(first + 2, (ask[0], said, ask[1], said, ask[2]), 8, session=name, turn=2, after=first + 1),
    ]


async def echo(exchange: Exchange) -> None:
    await exchange.send(answer(f"re:{exchange.prompt}"))


def test_turns_quote_the_answers_that_came_before(tmp_path: Path) -> None:
    turns = [*conversation(0, "x"), *conversation(3, "y")]
    with serving(echo) as served:
        driven = drive(experiment(served.url, closed(2), requests=6), iter(turns), tmp_path)
        bodies = [json.loads(exchange.body)["messages"] for exchange in served.seen]
    assert driven.report.ended == 6
    (last,) = [messages for messages in bodies if messages[-1]["content"] == "y 2"]
    assert [m["content"] for m in last] == ["y 0", "re:y 0", "y 1", "re:y 1", "y 2"]


@pytest.mark.parametrize("streams", [1, 2, 3, 9])
@pytest.mark.parametrize("order", ["by session", "by turn"])
def test_no_turn_is_sent_before_its_predecessor_has_ended(order: str, streams: int, tmp_path: Path) -> None:
    turns = [turn for i in range(4) for turn in conversation(3 * i, f"s{i}")]
    if order == "by turn":
        turns.sort(key=lambda turn: turn.turn)
    with serving(echo) as served:
        driven = drive(experiment(served.url, closed(streams)), iter(turns), tmp_path)
    assert driven.report.ended == 12
    for turn in turns:
        if turn.after >= 0:
            assert driven.of(turn.index, SENT)[0][2] >= driven.of(turn.after, END)[0][2]


def test_a_user_thinks_between_turns(tmp_path: Path) -> None:
    turns = [request(0, session="s"), request(1, session="s", after=0, think_s=0.15)]
    with serving(prompt_reply) as served:
        driven = drive(experiment(served.url, closed(), requests=2), iter(turns), tmp_path)
    assert driven.of(1, DUE)[0][2] - driven.of(0, END)[0][2] == 150 * MS
    assert driven.of(1, SENT)[0][2] >= driven.of(1, DUE)[0][2]


def test_a_truncated_answer_breaks_its_conversation_and_the_stream_goes_on(tmp_path: Path) -> None:
    async def script(exchange: Exchange) -> None:
        if exchange.prompt == "x 0":
            await exchange.send(whole("200 OK", event("a"), "content-type: text/event-stream"))
        else:
            await echo(exchange)

    turns = [*conversation(0, "x"), *conversation(3, "y")]
    with serving(script) as served:
        driven = drive(experiment(served.url, closed(), requests=6), iter(turns), tmp_path)
    assert driven.end(1) == driven.end(2) == (CANCEL, "predecessor")
    assert all(driven.end(i)[0] == END for i in (3, 4, 5))


# --- when all goes wrong ---


def of_kind(driven: Driven, *kinds: str) -> list[Doubt]:
    """A machine that others use too may add a doubt of its own: that the client was late."""
    return [doubt for doubt in driven.report.doubts if doubt.kind in kinds]


def test_a_refusal_that_meets_every_request_is_shown_once_and_stops_the_run(tmp_path: Path) -> None:
    """Case A17."""
    message = "Unsupported parameter: max_tokens; use max_completion_tokens"
    reply = whole("400 Bad Request", json.dumps({"error": {"message": message}}).encode())

    async def script(exchange: Exchange) -> None:
        await exchange.send(reply)

    with serving(script) as served:
        driven = drive(experiment(served.url, closed(4), requests=1000), None, tmp_path)
        assert 20 <= len(served.seen) < 40
    (doubt,) = of_kind(driven, "refused")
    assert doubt.fatal
    assert message in doubt.message
    assert "HTTP 400" in doubt.message
    assert driven.report.status == "invalid"


def test_a_warm_up_that_is_refused_keeps_the_load_from_starting(tmp_path: Path) -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.send(whole("401 Unauthorized", b'{"error":{"message":"bad key"}}'))

    with serving(script) as served:
        driven = drive(experiment(served.url, closed(2), requests=1000, warmup_requests=2), None, tmp_path)
        assert len(served.seen) == 2
    assert "bad key" in of_kind(driven, "refused")[0].message


def test_some_refusals_among_answers_stop_nothing(tmp_path: Path) -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.send(answer("a") if exchange.number == 3 else whole("400 Bad Request", b"no"))

    with serving(script) as served:
        driven = drive(experiment(served.url, closed(2), requests=60), None, tmp_path)
    assert (driven.report.asked, driven.report.failed) == (60, 59)
    assert not of_kind(driven, "refused", "target-lost")


def test_busy_answers_stop_nothing(tmp_path: Path) -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.send(whole("429 Too Many Requests", b"slow"))

    with serving(script) as served:
        driven = drive(experiment(served.url, closed(2), requests=60), None, tmp_path)
    assert driven.report.failed == 60
    assert not of_kind(driven, "refused", "target-lost")


def test_a_server_that_goes_away_ends_the_run_and_does_not_spin(tmp_path: Path) -> None:
    async def script(exchange: Exchange) -> None:
        if exchange.number < 5:
            await exchange.send(answer("a"))
        else:
            exchange.reset()

    with serving(script) as served:
        driven = drive(experiment(served.url, closed(2), duration_s=30), None, tmp_path)
    (doubt,) = of_kind(driven, "target-lost")
    assert doubt.fatal
    assert driven.report.ended == 5
    assert driven.report.failed < 150


def test_a_record_that_cannot_grow_ends_the_run_with_a_doubt(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    log = WireLog(Path("/dev/full"), origin().monotonic_ns)
    with serving(prompt_reply) as served:
        account = run(
            experiment(served.url, closed(), duration_s=30),
            map(request, itertools.count()),
            None,
            chat,
            log,
            lambda _: None,
        )
    log.close()
    assert account.status == "interrupted"
    assert account.doubts[0].kind == "disk"
    assert "No space left on device" in account.doubts[0].message


@pytest.mark.parametrize("load", [closed(2), Load("constant", rate=100)], ids=["closed", "open"])
def test_requests_that_cannot_be_made_end_the_run_with_their_own_error(load: Load, tmp_path: Path) -> None:
    async def script(exchange: Exchange) -> None:
        await asyncio.sleep(0.05)
        await exchange.send(answer("a"))

    def requests() -> Iterator[Request]:
        yield from map(request, range(6))
        raise UsageError("data.jsonl:7 is no request")

    with serving(script) as served, pytest.raises(UsageError, match=r"data\.jsonl:7"):
        drive(experiment(served.url, load, requests=50), requests(), tmp_path)
    frames = list(read_frames(tmp_path / "wire.log"))
    assert {f[1] for f in frames if f[0] == PLAN} == {f[1] for f in frames if f[0] in (END, CANCEL)}


def test_a_display_that_fails_ends_the_run_with_its_own_error(tmp_path: Path) -> None:
    def show(_: Progress) -> None:
        raise BrokenPipeError

    log = WireLog(tmp_path / "wire.log", origin().monotonic_ns)
    with serving(slow) as served, pytest.raises(BrokenPipeError):
        run(experiment(served.url, closed(2), duration_s=30), map(request, itertools.count()), None, chat, log, show)
    log.close()


# --- the end by hand ---


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_close_the_log_and_censor_what_was_in_flight(kind: signal.Signals, tmp_path: Path) -> None:
    path = tmp_path / "wire.log"
    with serving(slow) as served, started(served.url, path, workers=1) as client:
        client.send_signal(kind)
        said, _ = client.communicate(timeout=10)
    status, ended, cancelled = said.split()[-4:-1]
    assert client.returncode == 0
    assert status == "interrupted"
    frames = list(read_frames(path))
    assert sum(f[0] == END for f in frames) == int(ended)
    notes = [f[3] for f in frames if f[0] == CANCEL]
    assert notes == [b"interrupt"] * int(cancelled)
    assert 1 <= int(cancelled) <= 4
    plans, ends = ({f[1] for f in frames if f[0] in kinds} for kinds in ((PLAN,), (END, ERROR, CANCEL)))
    assert plans == ends


def test_kill_9_leaves_all_finished_answers_whole(tmp_path: Path) -> None:
    path = tmp_path / "wire.log"
    with serving(slow) as served, started(served.url, path, workers=1) as client:
        client.send_signal(signal.SIGKILL)
        client.communicate(timeout=10)
    frames = list(read_frames(path))
    finished = [f[1] for f in frames if f[0] == END]
    assert len(finished) >= 10
    reply = event("a") + event("b", "stop")
    for index in finished:
        assert b"".join(f[3] for f in frames if f[0] == BODY and f[1] == index) == reply


def test_progress_is_told_while_the_load_runs(tmp_path: Path) -> None:
    seen: list[Progress] = []
    log = WireLog(tmp_path / "wire.log", origin().monotonic_ns)
    with serving(slow) as served:
        run(
            experiment(served.url, closed(2), requests=30),
            map(request, itertools.count()),
            None,
            chat,
            log,
            seen.append,
        )
    log.close()
    assert len(seen) >= 2
    assert seen[-1].ended > 0
    assert {p.phase for p in seen} == {"load"}
    assert all(p.in_flight <= 2 for p in seen)


def test_memory_of_the_client_does_not_grow_with_the_answers(tmp_path: Path) -> None:
    """60 answers of 1 MB instead of 6: what was read is on disk, not in memory."""
    reply = answer("k" * 1_000_000)

    async def script(exchange: Exchange) -> None:
        await exchange.send(reply)

    def peak_bytes(requests: int) -> float:
        path = tmp_path / f"{requests}.log"
        with serving(script) as served:
            said = subprocess.run(client(served.url, path, 1, requests), capture_output=True, text=True, check=True)
        assert os.path.getsize(path) > requests * 1_000_000
        return float(said.stdout.split()[-1])

    assert peak_bytes(60) - peak_bytes(6) < 10e6
