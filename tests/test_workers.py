"""Several client processes: one schedule on one clock, each request once, and nothing lost when they stop."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from loopback import Exchange, answer, closed, experiment, request, serving, slow, started, whole

from dynamometer import schedule as schedules
from dynamometer.client.budget import ClientReport
from dynamometer.client.workers import Stock, choose, jobs, run
from dynamometer.engines.openai import chat
from dynamometer.errors import UsageError
from dynamometer.record.clock import origin
from dynamometer.record.log import (
    CANCEL,
    DUE,
    END,
    ERROR,
    PLAN,
    SENT,
    Frame,
    WireLog,
    main_log,
    next_shard,
    reached,
    read_frames,
    shards,
)
from dynamometer.types import Experiment, Load, Request, Schedule

MS = 1_000_000


async def echo(exchange: Exchange) -> None:
    await asyncio.sleep(0.02)
    await exchange.send(answer(f"re:{exchange.prompt}"))


def plan(at: Experiment) -> Schedule | None:
    return None if at.load.law == "closed" else schedules.build(at.load, at.seed, at.requests, at.duration_s)


def drive(
    at: Experiment, directory: Path, workers: int, requests: Iterator[Request] | None = None
) -> tuple[ClientReport, dict[str, list[Frame]]]:
    """The report and the frames of each shard."""
    log = WireLog(main_log(directory), origin().monotonic_ns)
    try:
        made = requests or map(request, itertools.count())
        account = run(at, made, plan(at), chat, log, lambda _: None, workers)
    finally:
        log.close()
    return account, {path.name: list(read_frames(path)) for path in shards(directory)}


def of(frames: dict[str, list[Frame]], *kinds: int) -> list[Frame]:
    return [frame for shard in frames.values() for frame in shard if frame[0] in kinds]


def test_workers_together_keep_one_schedule(tmp_path: Path) -> None:
    load = Load("poisson", rate=150)
    with serving(echo) as served:
        account, frames = drive(experiment(served.url, load, requests=150, seed=3), tmp_path, 3)
    alone = schedules.build(load, 3, 150).due_s
    due = {frame[1]: frame[2] for frame in of(frames, DUE)}
    got = np.array([due[i] for i in range(150)]) - account.start_ns
    assert np.array_equal(got, np.round(alone * 1e9))
    assert {name: sorted({f[1] for f in shard}) for name, shard in frames.items() if shard} == {
        f"wire.{i}.log": list(range(i, 150, 3)) for i in range(3)
    }
    assert account.asked == account.ended == 150
    assert account.client["workers"] == 3
    sent = {frame[1]: frame[2] for frame in of(frames, SENT)}
    assert all(sent[i] >= due[i] for i in range(150))


def test_streams_are_split_and_the_level_is_that_of_all(tmp_path: Path) -> None:
    with serving(echo) as served:
        at = experiment(served.url, closed(5), requests=40, warmup_requests=2)
        account, frames = drive(at, tmp_path, 2)
        assert len(served.seen) == 42
    rows = [json.loads(frame[3]) for frame in of(frames, PLAN)]
    assert {row["level"] for row in rows if row["phase"] == "load"} == {5.0}
    assert [row["request"] for row in rows if row["phase"] == "warmup"] == [0, 1]
    assert {frame[1] for frame in frames["wire.log"]} == {0, 1}
    assert account.asked == account.ended == 40
    assert served.connections <= 1 + 2 + 5


@pytest.mark.parametrize(("streams", "count", "shares"), [(5, 2, [3, 2]), (9, 3, [3, 3, 3]), (10, 4, [3, 3, 2, 2])])
def test_shares_add_up(streams: int, count: int, shares: list[int], tmp_path: Path) -> None:
    at = experiment("http://127.0.0.1:1/v1", closed(streams))
    log = WireLog(tmp_path / "wire.log", 0)
    made = jobs(at, Stock(at, iter(()), None, count), log)
    log.close()
    assert [job.experiment.load.concurrency for job in made] == shares


def test_a_conversation_stays_with_one_worker(tmp_path: Path) -> None:
    turns = [
        request(4 * t + s, f"t{t}", session=f"s{s}", turn=t, after=4 * (t - 1) + s if t else -1)
        for t in range(3)
        for s in range(4)
    ]
    with serving(echo) as served:
        account, frames = drive(experiment(served.url, closed(4), requests=12), tmp_path, 2, iter(turns))
    assert account.ended == 12
    homes = [{turns[f[1]].session for f in shard} for name, shard in frames.items() if name != "wire.log"]
    assert not homes[0] & homes[1]


def test_requests_that_cannot_be_made_end_all_workers_with_their_own_error(tmp_path: Path) -> None:
    def requests() -> Iterator[Request]:
        yield from map(request, range(6))
        raise UsageError("data.jsonl:7 is no request")

    with serving(echo) as served, pytest.raises(UsageError, match=r"data\.jsonl:7"):
        drive(experiment(served.url, closed(4), requests=50), tmp_path, 2, requests())


def test_a_refusal_stops_all_workers_and_is_said_in_the_servers_words(tmp_path: Path) -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.send(whole("404 Not Found", b'{"error":{"message":"no such model"}}'))

    with serving(script) as served:
        account, _ = drive(experiment(served.url, closed(4), requests=2000), tmp_path, 2)
        assert len(served.seen) < 200
    assert account.status == "invalid"
    assert any(doubt.kind == "refused" and "no such model" in doubt.message for doubt in account.doubts)


def test_a_time_limit_holds_for_workers_too(tmp_path: Path) -> None:
    with serving(echo) as served:
        account, frames = drive(experiment(served.url, closed(4), duration_s=0.5), tmp_path, 2)
    assert max(frame[2] for frame in of(frames, DUE)) - account.start_ns < 500 * MS
    assert account.ended == account.asked > 8


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_parent_ends_all_workers_in_order(kind: signal.Signals, tmp_path: Path) -> None:
    with serving(slow) as served, started(served.url, tmp_path / "wire.log", workers=2) as client:
        client.send_signal(kind)
        said, _ = client.communicate(timeout=15)
    status, ended, cancelled = said.split()[-4:-1]
    assert status == "interrupted"
    frames = {path.name: list(read_frames(path)) for path in shards(tmp_path)}
    assert len(of(frames, END)) == int(ended)
    assert [f[3] for f in of(frames, CANCEL)] == [b"interrupt"] * int(cancelled)
    assert {f[1] for f in of(frames, PLAN)} == {f[1] for f in of(frames, END, ERROR, CANCEL)}


def test_workers_end_in_order_when_their_parent_is_killed(tmp_path: Path) -> None:
    with serving(slow) as served, started(served.url, tmp_path / "wire.log", workers=2) as client:
        client.kill()
        client.communicate(timeout=10)
        frames: dict[str, list[Frame]] = {}
        for _ in range(100):
            frames = {path.name: list(read_frames(path)) for path in shards(tmp_path)}
            if {f[1] for f in of(frames, PLAN)} == {f[1] for f in of(frames, END, CANCEL)}:
                break
            asyncio.run(asyncio.sleep(0.05))
    assert len(of(frames, END)) >= 10
    assert {f[1] for f in of(frames, PLAN)} == {f[1] for f in of(frames, END, CANCEL)}
    assert len(of(frames, CANCEL)) >= 1


def test_what_is_asked_again_goes_into_a_later_shard(tmp_path: Path) -> None:
    assert (next_shard(tmp_path), main_log(tmp_path).name) == (0, "wire.log")
    for name, frames in (
        ("wire.0.log", [(PLAN, 0), (END, 0)]),
        ("wire.1.log", [(PLAN, 1), (CANCEL, 1)]),
    ):
        log = WireLog(tmp_path / name, 0)
        for kind, index in frames:
            log.append(kind, index, 5, b"interrupt" if kind == CANCEL else b"")
        log.close()
    assert main_log(tmp_path).name == "wire.2.log"
    assert reached(shards(tmp_path)).finished == {0}
    log = WireLog(main_log(tmp_path), 0)
    log.append(PLAN, 1, 6)
    log.append(END, 1, 7)
    log.close()
    assert reached(shards(tmp_path)).finished == {0, 1}


def test_the_number_of_workers_follows_the_load_and_is_explained() -> None:
    few = choose(experiment("", closed(100)), None, cores=16)
    assert few.workers == 1
    many = choose(experiment("", closed(2000)), None, cores=16)
    assert many.workers == 4
    assert "2000 streams may bring 200,000 reads/s" in many.reason
    cramped = choose(experiment("", closed(2000)), None, cores=2)
    assert cramped.workers == 1
    assert "2 cores allow 1" in cramped.reason
    at = experiment("", Load("constant", rate=1000), requests=10)
    assert choose(at, plan(at), cores=16).workers == 3  # 1,000 requests/s of 128 tokens


def test_one_worker_is_the_plain_client(tmp_path: Path) -> None:
    with serving(echo) as served:
        account, frames = drive(experiment(served.url, closed(2), requests=4), tmp_path, 0)
    assert list(frames) == ["wire.log"]
    assert account.workers_because
    assert os.path.getsize(tmp_path / "wire.log") > 0
