"""`dyno bench` from end to end against servers that misbehave and users who mistype: what is promised is kept."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from loopback import DONE, LAST, STREAM, Exchange, answer, chunk, event, serving, whole

from dynamometer.cli import dyno

SECRET = "Bearer s3cret"


def bench(where: Path, *args: str) -> Result:
    return CliRunner().invoke(dyno, ["bench", "--quiet", "-o", str(where / "run"), "--api", "openai.chat", *args])


async def fast(exchange: Exchange) -> None:
    """Three tokens at once, to whoever asks for an answer; every other page is not there."""
    if exchange.head.startswith("POST") and "completions" in exchange.head:
        await exchange.send(answer("one", " two", " three"))
    else:
        await exchange.send(whole("404 Not Found", b""))


def test_the_load_carries_the_header_that_the_record_leaves_out(tmp_path: Path) -> None:
    with serving(fast) as server:
        done = bench(tmp_path, "--url", server.url, "-n", "6", "-c", "2", "--header", f"Authorization={SECRET}")
    assert done.exit_code == 0, done.output
    posts = [one.head.lower() for one in server.seen if one.head.startswith("POST") and "completions" in one.head]
    assert len(posts) >= 6
    assert all(f"authorization: {SECRET.lower()}" in head for head in posts)
    for name in ("run.json", "report.html", "summary.json"):
        assert "s3cret" not in (tmp_path / "run" / name).read_text()


def test_a_server_that_trickles_for_ever_is_given_up_in_time(tmp_path: Path) -> None:
    async def trickle(exchange: Exchange) -> None:
        if not exchange.head.startswith("POST"):
            await exchange.send(whole("404 Not Found", b""))
            return
        await exchange.send(STREAM)
        for _ in range(600):
            await exchange.send(chunk(b":"))
            await asyncio.sleep(0.1)

    begun = time.monotonic()
    with serving(trickle) as server:
        done = bench(tmp_path, "--url", server.url, "-n", "4", "--timeout", "2s")
    assert (getattr(done.exception, "exit_code", 0), time.monotonic() - begun < 30) == (3, True), done.output
    assert "no whole answer in 2 s" in str(done.exception)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--url", "http://127.0.0.1:99999/v1"], "port out of range"),
        (["--url", ""], "--url is ''"),
        (["--url", "http://127.0.0.1:1/v1", "--timeout", "0s"], "--timeout is '0s'"),
        (["--url", "http://127.0.0.1:1/v1", "--name", "../../evil"], "plain name"),
        (["--url", "http://127.0.0.1:1/v1", "-n", "5", "-c", "9"], "can't keep 9 in flight"),
        (["--url", "http://127.0.0.1:1/v1", "--quantization", "Q4_0"], "--quantization"),
        (["--url", "http://127.0.0.1:1/v1", "--body", "stop=["], "is not JSON"),
        (["--url", "http://127.0.0.1:1/v1", "--warmup", "1000000000"], "are a slip"),
        (["--url", "http://127.0.0.1:1/v1", "--slo", ""], "objective is empty"),
    ],
)
def test_bad_usage_is_told_before_anything_is_asked(tmp_path: Path, args: list[str], said: str) -> None:
    done = bench(tmp_path, *args)
    assert said in str(done.exception), done.output
    assert getattr(done.exception, "exit_code", 0) == 2
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--workload", "code", "--data", "nowhere.csv"], "reads no file"),
        (["--workload", "jsonl", "--data", "bad.jsonl"], "bad.jsonl"),
        (["--workload", "synthetic", "--input-tokens", "1"], "shortest prompt"),
    ],
)
def test_a_workload_that_cannot_be_made_leaves_no_folder_behind(tmp_path: Path, args: list[str], said: str) -> None:
    (tmp_path / "bad.jsonl").write_text('{"prompt": 5}\n')
    args = [str(tmp_path / "bad.jsonl") if one == "bad.jsonl" else one for one in args]
    with serving(fast) as server:
        done = bench(tmp_path, "--url", server.url, "-n", "2", *args)
    assert said in str(done.exception), done.output
    assert getattr(done.exception, "exit_code", 0) == 2
    assert not (tmp_path / "run").exists()


def test_the_name_of_the_answers_limit_can_be_chosen(tmp_path: Path) -> None:
    with serving(fast) as server:
        args = ["--url", server.url, "-n", "2", "--no-sense-check", "--tokens-field", "max_completion_tokens"]
        done = bench(tmp_path, *args)
    assert done.exit_code == 0, done.output
    bodies = [one.body for one in server.seen if b"messages" in one.body and b"Count" not in one.body]
    assert bodies
    assert all(b"max_completion_tokens" in body and b'"max_tokens"' not in body for body in bodies)


def test_a_server_that_sheds_load_misses_the_objective_however_quick_the_rest_is(tmp_path: Path) -> None:
    async def shedding(exchange: Exchange) -> None:
        if exchange.number % 4 == 3 and "completions" in exchange.head:
            await exchange.send(whole("500 Internal Server Error", b'{"error":"shed"}'))
        else:
            await fast(exchange)

    with serving(shedding) as server:
        args = ["--url", server.url, "-n", "40", "-c", "1", "--no-sense-check", "--slo", "ttft_p90<60s"]
        done = bench(tmp_path, *args)
    assert done.exit_code == 1, done.output
    assert "so no time holds for 90 % of them" in done.output
    assert "It misses the objective" in done.output
    assert "shed" in done.output  # the server's words stand in the terminal too


TOKEN_S, TOKENS, STREAMS = 0.02, 10, 4


async def paced(exchange: Exchange) -> None:
    """Ten tokens, one each 20 ms."""
    if not exchange.head.startswith("POST") or "completions" not in exchange.head:
        await exchange.send(whole("404 Not Found", b""))
        return
    await exchange.send(STREAM)
    for i in range(TOKENS):
        await asyncio.sleep(TOKEN_S)
        await exchange.send(chunk(event(f" {i}", "stop" if i == TOKENS - 1 else None)))
    await exchange.send(chunk(DONE) + LAST)


def test_a_killed_run_is_sound_and_its_rates_are_those_of_a_run_once_it_is_resumed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with serving(paced) as server:
        args = [
            "bench",
            "--api",
            "openai.chat",
            "--url",
            server.url,
            "-n",
            "120",
            "-c",
            str(STREAMS),
            "--output-tokens",
            str(TOKENS),
        ]
        args += ["-o", str(run), "--header", "x-tok=1", "--quiet", "--workers", "1"]
        process = subprocess.Popen([sys.executable, "-m", "dynamometer", *args], stdout=subprocess.DEVNULL)
        log, deadline = run / "wire.log", time.monotonic() + 60
        while (not log.exists() or log.read_bytes().count(b"[DONE]") < 60) and time.monotonic() < deadline:
            time.sleep(0.02)
        listed = CliRunner().invoke(dyno, ["runs", str(tmp_path), "--json"])
        assert json.loads(listed.output)[0]["status"] == "running"
        process.send_signal(signal.SIGKILL)
        process.wait()
        listed = CliRunner().invoke(dyno, ["runs", str(tmp_path), "--json"])
        assert json.loads(listed.output)[0]["status"] == "interrupted"
        half = json.loads(CliRunner().invoke(dyno, ["show", str(run), "--json"]).output)
        assert not [doubt for doubt in half["doubts"] if doubt["fatal"]]
        without = CliRunner().invoke(dyno, ["bench", "--resume", str(run)])
        assert "give --header x-tok" in str(without.exception)
        changed = CliRunner().invoke(dyno, ["bench", "--resume", str(run), "-c", "9"])
        assert "leave out --concurrency" in str(changed.exception)
        done = CliRunner().invoke(dyno, ["bench", "--resume", str(run), "--header", "x-tok=1", "--quiet"])
    assert done.exit_code == 0, done.output
    whole_run = json.loads((run / "summary.json").read_text())
    metrics = whole_run["metrics"]
    assert (metrics["requests_ok"], metrics["requests_failed"]) == (120, 0)
    assert metrics["e2e_ms"]["n"] == 120  # latencies are those of both stretches
    assert whole_run["window"]["state"] == "resumed"
    stay_s = metrics["e2e_ms"]["mean"] / 1e3
    assert metrics["requests_per_s"] == pytest.approx(STREAMS / stay_s, rel=0.12)
    assert metrics["concurrency_mean"] == pytest.approx(STREAMS, rel=0.12)
    assert not [doubt for doubt in whole_run["doubts"] if doubt["fatal"]]


def test_the_live_view_is_fed_with_what_it_draws(tmp_path: Path) -> None:
    """On a terminal: latency of the latest answers, the client's lateness, and why requests fail."""

    async def half(exchange: Exchange) -> None:
        if exchange.number % 2 and "completions" in exchange.head:
            await exchange.send(whole("503 Service Unavailable", b'{"error":"shedding"}'))
        else:
            await paced(exchange)

    with serving(half) as server:
        args = ["bench", "--api", "openai.chat", "--url", server.url, "-n", "40", "-c", "2", "--no-sense-check"]
        env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120"}
        primary, secondary = pty.openpty()
        words = [sys.executable, "-m", "dynamometer", *args, "-o", str(tmp_path / "run")]
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=secondary, env=env)
        os.close(secondary)
        seen = b""
        try:
            while piece := os.read(primary, 65536):
                seen += piece
        except OSError:  # the other end is closed
            pass
        process.wait(30)
        os.close(primary)
    text = seen.decode("utf-8", "replace")
    assert "first bytes" in text
    assert "client late" in text
    assert "shedding" in text


def test_an_interrupted_runs_rates_end_where_its_record_begins_to_lack_answers(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with serving(paced) as server:
        args = ["bench", "--api", "openai.chat", "--url", server.url, "-n", "4000", "-c", str(STREAMS)]
        args += ["--output-tokens", str(TOKENS), "-o", str(run), "--quiet", "--workers", "1", "--warmup", "0"]
        process = subprocess.Popen([sys.executable, "-m", "dynamometer", *args], stdout=subprocess.DEVNULL)
        log, deadline = run / "wire.log", time.monotonic() + 60
        while (not log.exists() or log.read_bytes().count(b"[DONE]") < 60) and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        process.wait()
    summary = json.loads((run / "summary.json").read_text())
    metrics = summary["metrics"]
    assert metrics["requests_cancelled"] == STREAMS
    assert metrics["e2e_ms"]["censored"] == STREAMS  # they count for latency as what they are
    assert metrics["requests_per_s"] == pytest.approx(STREAMS / (metrics["tpot_ms"]["mean"] * TOKENS / 1e3), rel=0.1)
    assert metrics["output_tokens_per_s"] == pytest.approx(TOKENS * metrics["requests_per_s"], rel=0.05)


def test_a_run_that_cannot_be_believed_is_listed_as_such(tmp_path: Path) -> None:
    async def page(exchange: Exchange) -> None:
        await exchange.send(whole("200 OK", b"<html><title>Welcome</title></html>", "content-type: text/html"))

    with serving(page) as server:
        done = bench(tmp_path, "--url", server.url, "--model", "m", "-n", "8", "-c", "2", "--no-sense-check")
    assert done.exit_code == 5, done.output
    listed = json.loads(CliRunner().invoke(dyno, ["runs", str(tmp_path), "--json"]).output)
    assert listed[0]["status"] == "invalid"
    assert [doubt["kind"] for doubt in listed[0]["doubts"] if doubt["fatal"]]
