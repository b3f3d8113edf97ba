"""The wire client against a real server on loopback: what it sends, what it logs, how each kind of ending is told."""

from __future__ import annotations

import asyncio
import datetime
import gzip
import ipaddress
import json
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
from loopback import (
    DONE,
    LAST,
    STREAM,
    Driven,
    Exchange,
    Script,
    answer,
    chunk,
    closed,
    drive,
    event,
    experiment,
    request,
    serving,
    whole,
)

from dynamometer.client.endpoint import endpoint
from dynamometer.client.pool import retry_after_s
from dynamometer.errors import TargetError, UsageError
from dynamometer.record.log import BODY, CANCEL, DUE, END, ERROR, HEADERS, PLAN, RETRY, SENT
from dynamometer.types import Target

MS = 1_000_000


def says(*parts: bytes, pause_s: float = 0.0, close: bool = False) -> Script:
    """A server that answers every request with these writes."""

    async def script(exchange: Exchange) -> None:
        for part in parts:
            await exchange.send(part)
            await asyncio.sleep(pause_s)
        if close:
            exchange.close()

    return script


def one(script: Script, tmp_path: Path, requests: int = 1, **target: object) -> Driven:
    """Drives some requests, one after the other."""
    with serving(script) as served:
        return drive(experiment(served.url, closed(), target, requests=requests), None, tmp_path)


def body(driven: Driven, index: int = 0) -> bytes:
    return b"".join(frame[3] for frame in driven.of(index, BODY))


# --- framing ---


@pytest.mark.parametrize(
    "reply",
    [
        answer("a", "b"),
        whole("200 OK", event("a") + event("b", "stop") + DONE),
        b"HTTP/1.1 200 OK\r\n\r\n" + event("a") + event("b", "stop") + DONE,
        b"HTTP/1.0 200 OK\r\n\r\n" + event("a") + event("b", "stop") + DONE,
        b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n" + answer("a", "b"),
        b"HTTP/1.1 100 Continue\r\n\r\n" + answer("a", "b"),
        STREAM + chunk(event("a") + event("b", "stop") + DONE) + b"0\r\nx-trailer: 1\r\n\r\n",
    ],
    ids=["chunked", "length", "until-close", "http-1.0", "103", "100", "trailer"],
)
def test_every_framing_of_http_gives_the_same_body(reply: bytes, tmp_path: Path) -> None:
    until_close = b"content-length" not in reply and b"chunked" not in reply
    driven = one(says(reply, close=until_close), tmp_path)
    assert body(driven) == event("a") + event("b", "stop") + DONE
    assert driven.end(0) == (END, "")
    assert [json.loads(frame[3])["status"] for frame in driven.of(0, HEADERS)] == [200]


def test_each_read_is_one_frame_stamped_when_it_came_however_the_bytes_were_cut(tmp_path: Path) -> None:
    reply = answer("a", "b")
    cut = len(STREAM) + 20
    driven = one(says(reply[:cut], reply[cut:], pause_s=0.03), tmp_path)
    frames = driven.of(0, BODY)
    assert len(frames) == 2
    assert 25 * MS < frames[1][2] - frames[0][2] < 200 * MS
    assert body(driven) == event("a") + event("b", "stop") + DONE


def test_frames_of_a_request_come_in_the_order_of_its_life(tmp_path: Path) -> None:
    driven = one(says(answer("a")), tmp_path)
    kinds = [frame[0] for frame in driven.of(0)]
    assert kinds == [PLAN, DUE, SENT, HEADERS, BODY, END]
    times = [frame[2] for frame in driven.of(0)]
    assert times == sorted(times)


def test_one_event_of_a_megabyte_is_taken_whole(tmp_path: Path) -> None:
    text = "k" * 1_000_000
    driven = one(says(answer(text)), tmp_path)
    assert body(driven) == event(text, "stop") + DONE
    assert driven.end(0)[0] == END


def test_a_request_of_a_megabyte_arrives_whole(tmp_path: Path) -> None:
    text = "p" * 1_000_000
    with serving(says(answer("a"))) as served:
        drive(experiment(served.url, closed(), requests=1), iter([request(0, text)]), tmp_path)
        assert served.seen[0].prompt == text


def test_bytes_that_are_no_http_are_an_error_of_class_protocol(tmp_path: Path) -> None:
    kind, note = one(says(b"SSH-2.0-OpenSSH_9.6\r\n"), tmp_path).end(0)
    assert kind == ERROR
    assert note.startswith("protocol: ")


# --- what is sent ---


def test_the_request_carries_host_length_key_and_the_users_headers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_KEY", "s3cret")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with serving(says(answer("a"))) as served:
        target = {"api_key_env": "SOME_KEY", "headers": {"X-Team": "blue", "User-Agent": "me"}}
        drive(experiment(served.url, closed(), target, requests=1), None, tmp_path)
        head = served.seen[0].head
    lines = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if line)
    assert head.startswith("POST /v1/chat/completions HTTP/1.1\r\n")
    assert lines["host"] == served.url.split("/")[2]
    assert lines["content-length"] == str(len(served.seen[0].body))
    assert lines["authorization"] == "bearer s3cret"
    assert lines["accept-encoding"] == "identity"
    assert lines["x-team"] == "blue"
    assert lines["user-agent"] == "me"
    assert head.lower().count("user-agent:") == 1
    assert b"s3cret" not in (tmp_path / "wire.log").read_bytes()


def test_a_key_variable_that_is_not_set_is_said_before_anything_is_sent() -> None:
    with pytest.raises(UsageError, match="NO_SUCH_KEY is not set"):
        endpoint(Target("http://127.0.0.1/v1", api_key_env="NO_SUCH_KEY"), {})


@pytest.mark.parametrize("url", ["ftp://x/v1", "127.0.0.1:80", "http://", "http://h:99999/v1", "http://u:p@h/v1"])
def test_a_url_that_cannot_be_used_is_refused_in_one_line(url: str) -> None:
    with pytest.raises(UsageError) as refused:
        endpoint(Target(url), {})
    assert "\n" not in str(refused.value)
    assert "u:p" not in str(refused.value)


def test_a_header_with_a_line_break_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="line break"):
        one(says(answer("a")), tmp_path, headers={"x": "a\r\nevil: 1"})


# --- connections ---


def test_connections_are_opened_before_the_load_and_used_again(tmp_path: Path) -> None:
    with serving(says(answer("a"))) as served:
        driven = drive(experiment(served.url, closed(3), requests=12), None, tmp_path)
        assert served.connections == 3
    sent = [json.loads(frame[3]) for frame in driven.frames if frame[0] == SENT]
    assert [s["connection"] for s in sent].count("new") == 3
    assert [s["connection"] for s in sent].count("reused") == 9
    assert {s["bytes"] for s in sent} == {len(served.seen[0].body)}
    assert driven.report.client["waited_for_connection"] == 0


def test_a_server_that_closes_after_each_answer_gets_a_new_connection_for_each(tmp_path: Path) -> None:
    with serving(says(whole("200 OK", event("a", "stop"), "connection: close"), close=True)) as served:
        driven = drive(experiment(served.url, closed(), requests=4), None, tmp_path)
        assert served.connections == 4
    assert all(driven.end(i)[0] == END for i in range(4))
    assert driven.report.client["retries"] == 0


def test_a_pooled_connection_that_died_before_any_byte_is_replaced_once_and_the_clock_starts_at_the_first_send(
    tmp_path: Path,
) -> None:
    """Case A19: the server closes the kept connection just as the second request is on its way."""

    async def script(exchange: Exchange) -> None:
        if exchange.number == 1:
            await asyncio.sleep(0.02)
            exchange.reset()
        else:
            await asyncio.sleep(0.1)
            await exchange.send(answer("a"))

    driven = one(script, tmp_path, requests=2)
    assert [frame[3].decode() for frame in driven.of(1, RETRY)] == ["connection closed before headers"]
    sent = driven.of(1, SENT)
    assert [json.loads(frame[3])["attempt"] for frame in sent] == [1, 2]
    assert driven.end(1)[0] == END
    assert driven.report.client["retries"] == 1
    from_first_ms = (driven.of(1, BODY)[0][2] - sent[0][2]) / MS
    assert 120 <= from_first_ms < 250


def test_a_fresh_connection_that_dies_before_any_byte_is_a_failure(tmp_path: Path) -> None:
    async def script(exchange: Exchange) -> None:
        exchange.reset()

    driven = one(script, tmp_path)
    assert not driven.of(0, RETRY)
    assert driven.end(0)[0] == ERROR
    assert driven.end(0)[1].startswith("connection: ")
    assert "before headers" in driven.end(0)[1]


def test_two_dead_connections_in_a_row_are_a_failure_and_not_an_endless_retry(tmp_path: Path) -> None:
    async def script(exchange: Exchange) -> None:
        if exchange.number == 0:
            await exchange.send(answer("a"))
        else:
            await asyncio.sleep(0.01)
            exchange.reset()

    driven = one(script, tmp_path, requests=2)
    assert len(driven.of(1, RETRY)) == 1
    assert driven.end(1)[0] == ERROR


@pytest.mark.parametrize("used", [False, True], ids=["new connection", "reused connection"])
def test_a_reset_after_the_first_byte_is_never_sent_again(used: bool, tmp_path: Path) -> None:
    broken = 1 if used else 0

    async def script(exchange: Exchange) -> None:
        if exchange.number != broken:
            await exchange.send(answer("a"))
            return
        await exchange.send(STREAM + chunk(event("a")))
        await asyncio.sleep(0.05)
        exchange.reset()

    with serving(script) as served:
        driven = drive(experiment(served.url, closed(), requests=broken + 1), None, tmp_path)
        assert len(served.seen) == broken + 1
    assert not driven.of(broken, RETRY)
    kind, note = driven.end(broken)
    assert kind == ERROR
    assert note.startswith("connection: ")
    assert f"after {len(event('a'))} body bytes" in note


def test_a_body_cut_short_of_its_length_is_a_failure(tmp_path: Path) -> None:
    driven = one(says(b"HTTP/1.1 200 OK\r\ncontent-length: 900\r\n\r\n" + event("a"), close=True), tmp_path)
    assert driven.end(0)[0] == ERROR
    assert "before the answer was complete" in driven.end(0)[1]


def test_an_eof_ends_a_body_without_length_and_the_dialect_judges_it(tmp_path: Path) -> None:
    """Case A13: at the level of HTTP the message is complete; whether the answer is, the dialect says."""
    driven = one(says(b"HTTP/1.1 200 OK\r\n\r\n" + event("a"), close=True), tmp_path)
    assert driven.end(0) == (END, "")
    assert body(driven) == event("a")


def test_bytes_on_an_idle_connection_close_it_and_touch_no_request(tmp_path: Path) -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.send(answer("a"))
        if exchange.number == 0:
            await asyncio.sleep(0.02)
            await exchange.send(whole("408 Request Timeout", b""))

    requests = iter([request(0, session="s"), request(1, session="s", after=0, think_s=0.1)])
    with serving(script) as served:
        driven = drive(experiment(served.url, closed(), requests=2), requests, tmp_path)
        assert served.connections == 2
    assert all(driven.end(i)[0] == END for i in range(2))
    assert {json.loads(f[3])["status"] for f in driven.frames if f[0] == HEADERS} == {200}


def test_nobody_listening_is_said_before_the_load(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
        with pytest.raises(TargetError, match="Connection refused; is the server up"):
            drive(experiment(url, closed(), requests=1), None, tmp_path)


def test_ipv6_works(tmp_path: Path) -> None:
    try:
        with serving(says(answer("a")), host="::1") as served:
            driven = drive(experiment(served.url, closed(), requests=1), None, tmp_path)
            assert served.seen[0].head.lower().find("\r\nhost: [::1]:") > 0
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    assert driven.end(0)[0] == END


# --- refusals ---


def test_a_redirect_is_an_error_that_names_where_to(tmp_path: Path) -> None:
    driven = one(says(whole("307 Temporary Redirect", b"", "location: http://other/v1")), tmp_path)
    assert driven.end(0) == (
        ERROR,
        "redirect: HTTP 307 to http://other/v1; give the final URL, redirects are not followed",
    )


def test_a_compressed_answer_is_an_error_because_identity_was_asked_for(tmp_path: Path) -> None:
    driven = one(says(whole("200 OK", gzip.compress(event("a")), "content-encoding: gzip")), tmp_path)
    assert driven.end(0) == (ERROR, "encoding: the answer is gzip-coded although identity was asked for")


@pytest.mark.parametrize("status", ["429 Too Many Requests", "503 Service Unavailable"])
def test_retry_after_is_not_obeyed_unless_asked(status: str, tmp_path: Path) -> None:
    with serving(says(whole(status, b'{"error":{"message":"slow down"}}', "retry-after: 1"))) as served:
        driven = drive(experiment(served.url, closed(), requests=1), None, tmp_path)
        assert len(served.seen) == 1
    assert driven.end(0) == (ERROR, f"rate-limited: HTTP {status[:3]}, Retry-After 1: slow down")
    assert driven.report.failed == 1


def test_retry_after_is_obeyed_as_often_as_asked_and_each_time_is_counted(tmp_path: Path) -> None:
    async def script(exchange: Exchange) -> None:
        busy = whole("503 Service Unavailable", b"busy", "retry-after: 0.05")
        await exchange.send(busy if exchange.number < 2 else answer("a"))

    driven = one(script, tmp_path, retries=2)
    assert [frame[3].decode() for frame in driven.of(0, RETRY)] == ["HTTP 503, Retry-After 0.05"] * 2
    assert [json.loads(frame[3])["attempt"] for frame in driven.of(0, SENT)] == [1, 2, 3]
    assert driven.of(0, SENT)[2][2] - driven.of(0, SENT)[0][2] >= 100 * MS
    assert driven.end(0)[0] == END
    assert driven.report.client["retries"] == 2


def test_retry_after_may_be_a_date() -> None:
    soon = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=30)
    assert 28 <= retry_after_s(soon.strftime("%a, %d %b %Y %H:%M:%S GMT")) <= 30
    assert retry_after_s("Wed, 21 Oct 2015 07:28:00 GMT") == 0
    assert retry_after_s("soon") == 1
    assert retry_after_s("-3") == 0


def test_a_plain_server_error_is_a_complete_message_for_the_dialect_to_judge(tmp_path: Path) -> None:
    driven = one(says(whole("500 Internal Server Error", b'{"error":{"message":"boom"}}')), tmp_path)
    assert driven.end(0) == (END, "")
    assert body(driven) == b'{"error":{"message":"boom"}}'
    assert driven.report.failed == 1


# --- timeouts ---


def test_silence_ends_a_request_but_a_keep_alive_comment_does_not(tmp_path: Path) -> None:
    """Case A08: comments reset the idle timeout."""

    async def script(exchange: Exchange) -> None:
        await exchange.send(STREAM)
        for _ in range(6 if exchange.prompt == "pings" else 1):
            await asyncio.sleep(0.2)
            await exchange.send(chunk(b": ping\n\n"))
        if exchange.prompt == "pings":
            await exchange.send(chunk(event("a", "stop")) + LAST)
        else:
            await asyncio.sleep(30)

    with serving(script) as served:
        at = experiment(served.url, closed(2), {"idle_timeout_s": 0.5}, requests=2)
        driven = drive(at, iter([request(0, "pings"), request(1, "silent")]), tmp_path)
    assert driven.end(0)[0] == END
    assert driven.end(1) == (ERROR, "timeout: no byte for 0.5 s")


def test_an_answer_that_never_ends_is_cut_at_the_whole_timeout(tmp_path: Path) -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.send(STREAM)
        while True:
            await exchange.send(chunk(event("a")))
            await asyncio.sleep(0.05)

    driven = one(script, tmp_path, timeout_s=0.4)
    assert driven.end(0) == (ERROR, "timeout: no complete answer within 0.4 s")
    assert len(driven.of(0, BODY)) > 3


def test_a_listener_that_never_accepts_tls_runs_into_the_connect_timeout(tmp_path: Path) -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        url = f"https://127.0.0.1:{deaf.getsockname()[1]}/v1"
        with pytest.raises(TargetError, match=r"did not accept a connection within 0\.3 s"):
            drive(experiment(url, closed(), {"connect_timeout_s": 0.3}, requests=1), None, tmp_path)


# --- TLS ---


@pytest.fixture
def certificate(tmp_path: Path) -> Callable[[], tuple[ssl.SSLContext, Path]]:
    """Makes a certificate for 127.0.0.1 that nobody has signed but itself."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    def make() -> tuple[ssl.SSLContext, Path]:
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "loopback")])
        now = datetime.datetime.now(datetime.UTC)
        day = datetime.timedelta(days=1)
        address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        made = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - day)
            .not_valid_after(now + day)
            .add_extension(x509.SubjectAlternativeName([address]), critical=False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(key, hashes.SHA256())
        )
        pem = tmp_path / "certificate.pem"
        pem.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        secret = tmp_path / "key.pem"
        secret.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pem, secret)
        return context, pem

    return make


def test_a_certificate_that_is_not_trusted_is_refused_unless_insecure_was_asked(
    certificate: Callable[[], tuple[ssl.SSLContext, Path]], tmp_path: Path
) -> None:
    context, _ = certificate()
    with serving(says(answer("a", "b")), tls=context) as served:
        with pytest.raises(TargetError, match=r"is not trusted: .*; --insecure skips this"):
            drive(experiment(served.url, closed(), requests=1), None, tmp_path)
        driven = drive(experiment(served.url, closed(), {"insecure": True}, requests=4), None, tmp_path)
        assert served.seen[0].prompt == "hello"
    assert body(driven) == event("a") + event("b", "stop") + DONE
    assert driven.end(3)[0] == END


def test_a_trusted_certificate_needs_no_switch(
    certificate: Callable[[], tuple[ssl.SSLContext, Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, pem = certificate()
    monkeypatch.setenv("SSL_CERT_FILE", str(pem))
    with serving(says(answer("a")), tls=context) as served:
        driven = drive(experiment(served.url, closed(), requests=2), None, tmp_path)
    assert driven.end(1)[0] == END


def test_a_cancelled_request_keeps_what_it_had(tmp_path: Path) -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.send(STREAM + chunk(event("a")))
        await asyncio.sleep(30)

    with serving(script) as served:
        at = experiment(served.url, closed(), requests=0, duration_s=0.2, grace_s=0.1)
        driven = drive(at, None, tmp_path)
    assert driven.end(0) == (CANCEL, "deadline")
    assert body(driven) == event("a")
    assert driven.report.cancelled == 1
