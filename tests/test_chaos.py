"""A disk that is really full and a network that is really cut: each in a namespace of its own, the whole verb in it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dynamometer.decisions.account import account
from dynamometer.record.store import open_run, read_run

TESTS = Path(__file__).parent


def _allowed() -> bool:
    try:
        return not subprocess.run(["unshare", "-n", "-m", "true"], capture_output=True, timeout=10).returncode
    except OSError:
        return False


pytestmark = pytest.mark.skipif(not _allowed(), reason="namespaces of one's own need root's rights here")

# serves slow answers on loopback, runs the verb, and does the harm while the load is under way
PROGRAM = """
import asyncio, subprocess, sys, threading
from loopback import DONE, LAST, STREAM, chunk, event, serving, whole

async def slow(exchange):
    if "completions" not in exchange.head:
        await exchange.send(whole("404 Not Found", b""))
        return
    await exchange.send(STREAM)
    for i in range(10):
        await asyncio.sleep(0.02)
        await exchange.send(chunk(event(" x" * int(sys.argv[2]), "stop" if i == 9 else None)))
    await exchange.send(chunk(DONE) + LAST)

with serving(slow) as served:
    if sys.argv[3]:
        threading.Timer(3.0, lambda: subprocess.run(sys.argv[3], shell=True)).start()
    command = [sys.executable, "-m", "dynamometer", "bench", "--url", served.url, "--model", "m", "--api",
               "openai.chat", "-d", "6s", "-c", "4", "--warmup", "1", "--no-sense-check", "--quiet", "--json",
               "--timeout", "2s",
               "-o", sys.argv[1]]
    done = subprocess.run(command, capture_output=True, text=True)
    print(done.stderr, file=sys.stderr)
sys.exit(done.returncode)
"""


def broken(shell: str, run: Path, words: int, harm: str) -> subprocess.CompletedProcess[str]:
    """The program in namespaces that `shell` prepares."""
    script = f'{shell} && "$@"'
    inside = [sys.executable, "-c", PROGRAM, str(run), str(words), harm]
    return subprocess.run(
        ["unshare", "-n", "-m", "sh", "-c", f"ip link set lo up && {script}", "sh", *inside],
        cwd=TESTS, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


def outcomes(run: Path) -> dict[str, int]:
    with open_run(run) as connection:
        query = "select kind, count(distinct request) from events where kind in ('sent', 'done', 'error') group by all"
        return dict(connection.execute(query).fetchall())


def test_a_network_that_is_cut_costs_only_what_was_in_flight_and_after_it(tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = broken("true", run, 1, "ip link set lo down")
    assert done.returncode in (0, 1, 5), done.stderr
    assert "Traceback" not in done.stderr
    counted = outcomes(run)
    assert counted["done"] > 20  # two seconds and more of four streams of 0.2 s
    assert counted["error"] >= 4  # what was in flight
    assert counted["sent"] <= counted["done"] + counted["error"]
    assert account(run).summary.metrics.requests_ok


def test_a_full_disk_stops_the_load_and_keeps_what_was_written(tmp_path: Path) -> None:
    place, kept = tmp_path / "small", tmp_path / "kept"
    place.mkdir()
    mount = f"mount -t tmpfs -o size=1m none {place}"
    # the namespace goes with its disk, so what is on it is copied out first
    script = f"{mount} && trap 'cp -r {place}/run {kept}' EXIT"
    done = broken(script, place / "run", 2000, "")
    assert "Traceback" not in done.stderr
    assert done.returncode == 4, done.stderr
    assert "No space left on device" in done.stderr
    assert read_run(kept).status == "interrupted"  # there was no room even for the manifest's last word
    assert outcomes(kept)["done"] > 10
