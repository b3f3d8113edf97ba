"""The pool learns what a server does with a connection after an answer."""

from __future__ import annotations

from pathlib import Path

from loopback import Exchange, answer, closed, drive, experiment, serving

from dynamometer.record.log import END, RETRY, SENT


def test_a_server_that_closes_after_each_answer_is_not_asked_twice_on_one_connection(tmp_path: Path) -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.send(answer("a", "b"))
        exchange.close()  # without a word in the headers, as llama.cpp does after a stream

    with serving(script) as server:
        at = experiment(server.url, closed(2), requests=20, warmup_requests=2)
        driven = drive(at, None, tmp_path)
    ends = [frame for frame in driven.frames if frame[0] == END]
    assert len(ends) == 22
    retries = [frame for frame in driven.frames if frame[0] == RETRY]
    assert len(retries) <= 2, "two connections may be lost before it is known; none after"
    late = [frame for frame in driven.frames if frame[0] == SENT and frame[1] >= 12]
    assert late
    assert all(b'"new"' in payload for *_, payload in late)


def test_a_server_that_keeps_connections_is_asked_again_on_them(tmp_path: Path) -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.send(answer("a", "b"))

    with serving(script) as server:
        driven = drive(experiment(server.url, closed(2), requests=20, warmup_requests=2), None, tmp_path)
        assert server.connections <= 3
    assert sum(frame[0] == END for frame in driven.frames) == 22
