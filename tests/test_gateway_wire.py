"""What passes through the gateway, and what becomes of every fault on either side: real sockets, real processes."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import threading
from pathlib import Path

import pytest
from gateway_run import KEY, base, gateway
from loopback import LAST, STREAM, Exchange, answer, chunk, event, serving, whole

from dynamometer.gateway.back import SPARE
from dynamometer.record.clock import now_ns
from dynamometer.record.store import open_run, read_run


async def plain(exchange: Exchange) -> None:
    await exchange.send(answer("Hel", "lo"))


def one(url: str, more: str = "") -> str:
    """The file's text for a single baseline. `more` begins with top-level fields or tables."""
    return f'{more}\n[baseline]\nurls = ["{base(url)}"]\n'


def test_a_streamed_answer_passes_byte_for_byte_with_a_trace_and_without_the_clients_key(tmp_path: Path) -> None:
    with serving(plain) as engine, gateway(tmp_path, one(engine.url)) as up:
        trace = "0af7651916cd43dd8448eb211c80319c"
        headers = {"authorization": f"Bearer {KEY}", "traceparent": f"00-{trace}-b7ad6b7169203331-01"}
        status, body, told = up.ask(headers=headers)
        assert status == 200
        assert body == event("Hel") + event("lo", "stop") + b"data: [DONE]\n\n"
        assert told["x-dyno-trace"] == trace
        (seen,) = engine.seen
        assert f"traceparent: 00-{trace}-" in seen.head
        assert KEY not in seen.head
        assert up.stop() == 0
    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.name != "gateway.toml")
    assert KEY.encode() not in kept
    assert b'"hello"' not in kept  # no prompt unless asked


def test_the_record_is_a_run_that_is_read_like_a_bench(tmp_path: Path) -> None:
    with serving(plain) as engine, gateway(tmp_path, one(engine.url)) as up:
        for _ in range(3):
            up.ask()
        assert up.stop() == 0
    (directory,) = (path.parent for path in (tmp_path / "state" / "record").glob("*/run.json"))
    assert read_run(directory).status == "complete"
    with open_run(directory) as rows:
        kinds = rows.execute("select kind, count(*) from events group by 1 order by 1").fetchall()
    assert dict(kinds)["done"] == 3
    assert dict(kinds)["chunk"] == 6
    lines = [json.loads(line) for line in (directory / "access.jsonl").read_text().splitlines()]
    assert [line["status"] for line in lines] == [200, 200, 200]
    assert len({line["trace"] for line in lines}) == 3


@pytest.mark.parametrize(
    "reply", [whole("200 OK", b'{"choices":[]}'), whole("404 Not Found", b"{}"), whole("204 No Content", b"")]
)
def test_answers_of_known_length_keep_status_and_length(tmp_path: Path, reply: bytes) -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.send(reply)

    with serving(script) as engine, gateway(tmp_path, one(engine.url)) as up:
        status, body, _ = up.ask(stream=False)
        assert reply.startswith(f"HTTP/1.1 {status}".encode())
        assert reply.endswith(b"\r\n\r\n" + body)


def test_a_request_without_a_byte_is_answered_elsewhere_when_its_engine_dies(tmp_path: Path) -> None:
    async def dies(exchange: Exchange) -> None:
        await exchange.send(STREAM)  # headers only: no byte of an answer
        exchange.reset()

    with serving(dies) as bad, serving(plain) as good:
        text = f'[baseline]\nurls = ["{base(bad.url)}", "{base(good.url)}"]\nrouting = "round-robin"\n'
        with gateway(tmp_path, text) as up:
            assert all(up.ask()[0] == 200 for _ in range(4))
            assert len(bad.seen) >= 1
            assert len(good.seen) == 4


def test_an_answer_that_breaks_off_ends_with_a_clear_error_event(tmp_path: Path) -> None:
    async def breaks(exchange: Exchange) -> None:
        await exchange.send(STREAM + chunk(event("one")) + b"ff\r\ndata: half an ev")
        await asyncio.sleep(0.05)
        exchange.reset()

    with serving(breaks) as engine, gateway(tmp_path, one(engine.url)) as up:
        status, body, _ = up.ask()
        assert status == 200
        last = body.strip().split(b"\n\n")[-1]
        assert json.loads(last.removeprefix(b"data: "))["error"]["type"] == "upstream_error"
        assert body.startswith(event("one"))


def test_a_client_that_hangs_up_cancels_the_engine(tmp_path: Path) -> None:
    gone = threading.Event()

    async def endless(exchange: Exchange) -> None:
        try:
            await exchange.send(STREAM)
            for _ in range(500):
                await exchange.send(chunk(event("x")))
                await asyncio.sleep(0.01)
        except (ConnectionError, asyncio.CancelledError):
            gone.set()
            raise

    with serving(endless) as engine, gateway(tmp_path, one(engine.url)) as up:
        with up.raw() as client:
            body = b'{"messages":[],"stream":true}'
            client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
            assert client.recv(100).startswith(b"HTTP/1.1 200")
        assert gone.wait(3)
        up.until(lambda s: s.in_flight == 0)
        assert 'outcome="cancelled"} 1' in up.metrics()


LIMITS = "[limits]\nrequest_s = 0.5\nhead_bytes = 2000\nbody_bytes = 5000\nkeep_s = 1.0\n"
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (HEAD + b"x-slow: ", 408),  # and then nothing more
        (HEAD + b"content-length: 100\r\n\r\n{", 408),
        (HEAD + b"x-huge: " + b"a" * 3000, 431),
        (HEAD + b"x-huge: " + b"a" * 1950 + b"\r\nx-more: " + b"b" * 500 + b"\r\ncontent-length: 0\r\n\r\n", 431),
        (HEAD + b"content-length: 999999\r\n\r\n", 413),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n" + b"1000\r\n" + b"a" * 4096 + b"\r\n1000\r\n" + b"a" * 4096, 413),
        (HEAD + b"content-length: 8\r\n\r\n{not js}", 400),
        (HEAD + b"content-length: 2\r\n\r\n[]", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00", 400),
        (HEAD + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),  # smuggling
        (b"GET /admin HTTP/1.1\r\nhost: x\r\n\r\n", 404),
        (b"DELETE /v1/models HTTP/1.1\r\nhost: x\r\n\r\n", 405),
    ],
)
def test_what_no_good_client_sends_gets_one_clear_answer_and_no_engine(
    tmp_path: Path, sent: bytes, status: int
) -> None:
    with serving(plain) as engine, gateway(tmp_path, one(engine.url) + LIMITS) as up:
        with up.raw() as client:
            client.sendall(sent)
            said = b""
            while piece := client.recv(65536):
                said += piece
                if said.startswith(b"HTTP/1.1 40") and b"}}" in said:
                    break
        assert said.startswith(f"HTTP/1.1 {status} ".encode()), said[:200]
        assert "message" in json.loads(said.partition(b"\r\n\r\n")[2])["error"]
        assert not engine.seen
        assert up.ask()[0] == 200  # and the next one is served


def test_a_client_that_does_not_read_holds_the_engine_back_and_is_cut_off(tmp_path: Path) -> None:
    sent = 0

    async def floods(exchange: Exchange) -> None:
        nonlocal sent
        await exchange.send(STREAM)
        for _ in range(4000):
            await exchange.send(chunk(b"x" * 65536))
            sent += 65536

    with serving(floods) as engine, gateway(tmp_path, one(engine.url) + "[limits]\nstall_s = 1.0\n") as up:
        with up.raw() as client:
            client.sendall(HEAD + b"content-length: 2\r\n\r\n{}")
            up.until(lambda s: s.in_flight == 1)
            up.until(lambda s: s.in_flight == 0, 8)
        assert sent < 64 << 20  # sockets' buffers, not our memory


def test_beyond_the_limit_requests_wait_and_beyond_the_queue_they_are_sent_away(tmp_path: Path) -> None:
    release = threading.Event()

    async def waits(exchange: Exchange) -> None:
        while not release.is_set():
            await asyncio.sleep(0.01)
        await exchange.send(answer("ok", "."))

    limits = "[limits]\nin_flight = 1\nqueue = 1\nretry_after_s = 7\n"
    with serving(waits) as engine, gateway(tmp_path, one(engine.url) + limits) as up:
        found: list[int] = []
        threads = [threading.Thread(target=lambda: found.append(up.ask()[0])) for _ in range(2)]
        for thread in threads:
            thread.start()
        up.until(lambda s: (s.in_flight, s.queued) == (1, 1))
        status, _, headers = up.ask()
        assert (status, headers["retry-after"]) == (429, "7")
        release.set()
        for thread in threads:
            thread.join(5)
        assert found == [200, 200]


def test_sigterm_lets_what_is_under_way_end_and_takes_nothing_new(tmp_path: Path) -> None:
    async def slow(exchange: Exchange) -> None:
        await exchange.send(STREAM)
        for _ in range(20):
            await exchange.send(chunk(event("x")))
            await asyncio.sleep(0.05)
        await exchange.send(chunk(b"data: [DONE]\n\n") + LAST)

    with serving(slow) as engine, gateway(tmp_path, one(engine.url)) as up:
        found: list[bytes] = []
        client = threading.Thread(target=lambda: found.append(up.ask()[1]))
        client.start()
        up.until(lambda s: s.in_flight == 1)
        up.process.send_signal(signal.SIGTERM)
        up.until(lambda s: s.draining)
        with pytest.raises(OSError):
            up.raw()
        client.join(5)
        assert found[0].endswith(b"[DONE]\n\n")
        up.process.wait(5)
        assert up.process.returncode == 0


@pytest.mark.parametrize(
    ("limit", "wait"), [("first_byte_s = 0.3", False), ("idle_s = 0.3", True), ("total_s = 0.5", True)]
)
def test_an_engine_that_falls_silent_is_left(tmp_path: Path, limit: str, wait: bool) -> None:
    async def silent(exchange: Exchange) -> None:
        if wait:
            await exchange.send(STREAM + chunk(event("x")))
        await asyncio.sleep(60)

    with serving(silent) as engine, gateway(tmp_path, one(engine.url) + f"[limits]\n{limit}\n") as up:
        status, body, _ = up.ask()
        assert status == (200 if wait else 504)
        assert b"timeout" in body


def test_a_hedge_asks_a_second_engine_and_the_first_byte_wins(tmp_path: Path) -> None:
    async def silent(exchange: Exchange) -> None:
        await asyncio.sleep(60)

    with serving(silent) as slow, serving(plain) as quick:
        urls = f'[baseline]\nurls = ["{base(slow.url)}", "{base(quick.url)}"]\n[limits]\nhedge_s = 0.3\n'
        with gateway(tmp_path, urls) as up:
            begun = now_ns()
            assert all(up.ask()[0] == 200 for _ in range(3))
            assert now_ns() - begun < 5e9
            assert up.until(lambda s: s.in_flight == 0).in_flight == 0
            assert len(slow.seen) >= 1


def test_a_circuit_opens_is_probed_and_closes(tmp_path: Path) -> None:
    broken = threading.Event()
    broken.set()

    async def sick(exchange: Exchange) -> None:
        await exchange.send(whole("503 Service Unavailable", b"{}") if broken.is_set() else answer("ok", "."))

    rules = "[breaker]\nfailures = 3\nopen_s = 0.5\nprobes = 2\n"
    with serving(sick) as engine, gateway(tmp_path, one(engine.url) + rules) as up:
        assert [up.ask()[0] for _ in range(3)] == [503, 503, 503]
        assert up.status().replicas == {"baseline-0": "open"}
        seen = len(engine.seen)
        assert up.ask()[0] == 503
        assert len(engine.seen) == seen  # it was not asked
        broken.clear()
        up.until(lambda s: s.replicas["baseline-0"] == "half-open")
        assert [up.ask()[0] for _ in range(2)] == [200, 200]
        assert up.status().replicas == {"baseline-0": "closed"}


def test_a_key_is_asked_for_and_a_wrong_one_is_refused(tmp_path: Path) -> None:
    more = '[auth]\nkeys_env = "GATEWAY_KEYS"\n'
    with (
        serving(plain) as engine,
        gateway(tmp_path, one(engine.url) + more, {"GATEWAY_KEYS": f"other-key-0123456789,{KEY}"}) as up,
    ):
        assert up.ask()[0] == 401
        assert up.ask(headers={"authorization": f"Bearer {KEY}x"})[0] == 401
        assert up.ask(headers={"authorization": f"Bearer {KEY}"})[0] == 200
        assert up.ask(headers={"x-api-key": KEY})[0] == 200
        assert len(engine.seen) == 2
        assert up.stop() == 0
        assert KEY not in up.said


def test_text_completions_are_joined_and_told_apart_again(tmp_path: Path) -> None:
    async def echo(exchange: Exchange) -> None:
        prompts = json.loads(exchange.body)["prompt"]
        prompts = prompts if isinstance(prompts, list) else [prompts]
        choices = [{"index": i, "text": f"<{text}>"} for i, text in reversed(list(enumerate(prompts)))]
        await exchange.send(whole("200 OK", json.dumps({"id": "b", "choices": choices}).encode()))

    more = "[batch]\nenabled = true\nwait_s = 0.2\nmost = 4\n"
    with serving(echo) as engine, gateway(tmp_path, one(engine.url) + more) as up:
        found: dict[str, str] = {}

        def ask(text: str) -> None:
            _, body, _ = up.post("/v1/completions", json.dumps({"prompt": text, "max_tokens": 3}).encode())
            found[text] = json.loads(body)["choices"][0]["text"]

        threads = [threading.Thread(target=ask, args=(f"p{i}",)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert found == {f"p{i}": f"<p{i}>" for i in range(6)}
        assert len(engine.seen) <= 3
        assert 'size="4"} 1' in up.metrics()


def test_nothing_leaks_over_many_requests_good_and_bad(tmp_path: Path) -> None:
    async def mixed(exchange: Exchange) -> None:
        if exchange.number % 7 == 3:
            exchange.reset()
        else:
            await exchange.send(answer("ok", "."))

    with serving(mixed) as engine, gateway(tmp_path, one(engine.url) + "[breaker]\nfailures = 1000000\n") as up:

        def round_() -> int:
            for i in range(150):
                if i % 5 == 0:
                    with up.raw() as client:
                        client.sendall(HEAD + b"content-length: 2\r\n\r\n{}")
                else:
                    up.ask()
            up.until(lambda s: s.in_flight == 0 and s.connections == 0)
            line = next(
                row for row in Path(f"/proc/{up.process.pid}/status").read_text().splitlines() if "VmRSS" in row
            )
            return int(line.split()[1])

        round_()
        files = len(list(Path(f"/proc/{up.process.pid}/fd").iterdir()))
        before = round_()
        after = round_()
        assert len(list(Path(f"/proc/{up.process.pid}/fd").iterdir())) <= files + 2
        assert after - before < 2048  # KiB in 150 requests


def test_an_old_client_gets_an_answer_that_ends_with_its_connection(tmp_path: Path) -> None:
    with serving(plain) as engine, gateway(tmp_path, one(engine.url)) as up:
        with up.raw() as client:
            client.sendall(HEAD.replace(b"HTTP/1.1", b"HTTP/1.0") + b"content-length: 2\r\n\r\n{}")
            said = b""
            while piece := client.recv(65536):
                said += piece
        assert said.endswith(b"data: [DONE]\n\n")
        assert b"transfer-encoding" not in said.lower()


def test_one_connection_serves_many_requests_and_a_few_are_held_ready(tmp_path: Path) -> None:
    with serving(plain) as engine, gateway(tmp_path, one(engine.url)) as up, up.raw() as client:
        for _ in range(12):
            client.sendall(HEAD + b"content-length: 2\r\n\r\n{}")
            said = b""
            while not said.endswith(b"0\r\n\r\n"):
                said += client.recv(65536)
        client.shutdown(socket.SHUT_RDWR)
        assert engine.connections <= 1 + SPARE
        assert len({one.connection for one in engine.seen if one.head.startswith("POST")}) <= 2
