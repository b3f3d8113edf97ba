"""A surge driven over a real server on loopback, recorded, and set beside the replay of the same traffic."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from loopback import DONE, LAST, STREAM, Exchange, chunk, event, serving, whole

from dynamometer.cli.study import command
from dynamometer.record.store import read_run


async def engine(exchange: Exchange) -> None:
    """Answers in 20 ms; knows no page but the chat's."""
    if not exchange.head.startswith("POST /v1/chat/completions"):
        await exchange.send(whole("404 Not Found", b"{}"))
        return
    await asyncio.sleep(0.02)
    usage = json.dumps({"choices": [], "usage": {"prompt_tokens": 40, "completion_tokens": 2}}).encode()
    parts = (event("Paris"), event(".", "stop"), b"data: " + usage + b"\n\n", DONE)
    await exchange.send(STREAM + b"".join(map(chunk, parts)) + LAST)


SURGE = [
    "--from",
    "10",
    "--to",
    "60",
    "--before",
    "1s",
    "--over",
    "1s",
    "--hold",
    "1s",
    "--model",
    "m",
    "--api",
    "openai.chat",
    "-w",
    "synthetic",
]


def test_a_surge_on_an_endpoint_stands_beside_the_replay_of_its_own_traffic(tmp_path: Path) -> None:
    out = tmp_path / "surge"
    with serving(engine) as served:
        words = ["surge", "--url", served.url, *SURGE, "-i", "64", "--output-tokens", "2", "--out", str(out), "--json"]
        done = CliRunner().invoke(command, [*words, "--", "--policy", "ray", "--profile", "llama.cpp"])
    assert done.exit_code == 0, done.output + repr(done.exception)
    told = json.loads(done.stdout)
    seen, replayed = told["replays"]["measured"], told["replays"]["ray"]
    assert (seen["provenance"], replayed["provenance"]) == ("measured", "simulated")
    sent = sum("chat/completions" in exchange.head for exchange in served.seen)
    assert 70 < seen["requests"] == replayed["requests"] < sent  # the rest: first questions and warm-up
    assert seen["answered"] == seen["requests"]
    assert seen["surge_at_s"] == 1
    assert "no sensor saw how many replicas" in " ".join(seen["notes"])
    assert any("32.1 s" in text for text in told["quoted"].values())
    run = read_run(out)
    assert run.experiment.load.options["after"] == "1s"
    assert (out / "surge.html").exists()
    assert (out / "report.html").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--over", "0s"], "--over must be above 0s"),
        (["--", "--polcy", "ray"], "No such option '--polcy'"),
        (["--from", "0"], "--from"),
    ],
)
def test_a_wrong_option_is_told_before_the_load(words: list[str], said: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(command, ["surge", "--url", "http://127.0.0.1:9/v1", "-o", str(tmp_path / "s"), *words])
    assert done.exit_code == 2 or said in repr(done.exception)
    assert said in done.output + repr(done.exception)
    assert not (tmp_path / "s").exists()


def test_without_an_endpoint_the_study_is_the_simulated_one() -> None:
    done = CliRunner().invoke(command, ["surge", "--quick", "-k", "2", "--json"])
    assert json.loads(done.stdout)["driver"] == "simulated"
