"""A number of streams in; what `--prometheus` costs the load out: the same load without the page, and with it read.

    python benchmarks/live_page.py [--streams 200] [--rounds 4] [--repeats 3] [--every 1.0]

The load is that of `wire.py`: `truthd.c` streams 100 tokens a second to each connection. With and without alternate, so
that what else the machine does meets both alike. Each figure is the median of the repeats.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import socket
import statistics
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.request import urlopen

from wire import TOKENS, truth

from dynamometer.client.workers import run as drive
from dynamometer.engines.openai import chat
from dynamometer.record import manifest
from dynamometer.record.clock import origin
from dynamometer.record.live_page import shown_live
from dynamometer.record.log import WireLog
from dynamometer.types import Experiment, Load, Message, Provenance, Request, Target, Workload


def once(url: str, folder: Path, streams: int, rounds: int, every_s: float) -> Mapping[str, float]:
    """One load; `every_s` 0: without the page. CPU seconds of the page's process are those of waited-for children."""
    at = Experiment(
        "page", Target(url, "truth"), Workload(), Load("closed", concurrency=streams), requests=streams * rounds
    )
    begun = origin()
    run = manifest.begin(at, begun, Provenance.MEASURED, {}, "")
    manifest.write(folder, run)
    requests = (Request(i, (Message("user", "Say tok."),), TOKENS, ignore_eos=True) for i in itertools.count())
    log = WireLog(folder / "wire.log", begun.monotonic_ns)
    before = os.times()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    stop, read = threading.Event(), [0]

    def scrape() -> None:
        while not stop.wait(every_s):
            try:
                with urlopen(f"http://127.0.0.1:{port}/metrics") as page:
                    read[0] += page.read().count(b"dyno_requests_total")
            except OSError:
                continue  # it is still starting

    reader = threading.Thread(target=scrape)
    with shown_live(folder, port if every_s else 0):
        if every_s:
            reader.start()
        client = drive(at, requests, None, chat, log, lambda _: None, 1).client
        stop.set()
        if every_s:
            reader.join()
            assert read[0], "the page was never read"
    log.close()
    after = os.times()
    page_s = after.children_user + after.children_system - before.children_user - before.children_system
    tokens = streams * rounds * TOKENS
    return {
        "client CPU, us a token": client["cpu_s"] / tokens * 1e6,
        "page's CPU, us a token": page_s / tokens * 1e6,
        "sent late, p99 ms": client["lateness_p99_ms"],
        "event loop late, p99 ms": client["loop_lag_p99_ms"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two readings")
    given = parser.parse_args()
    compiler = shutil.which("cc")
    assert compiler, "needs a C compiler"
    found: dict[float, list[Mapping[str, float]]] = {0.0: [], given.every: []}
    with TemporaryDirectory() as place:
        program = Path(place) / "truthd"
        subprocess.run([compiler, "-O2", "-o", program, Path(__file__).parent / "truthd.c"], check=True)
        for _, every_s in itertools.product(range(given.repeats), found):
            with TemporaryDirectory() as folder, truth(program, Path(place) / "truth.csv") as url:
                found[every_s].append(once(url, Path(folder), given.streams, given.rounds, every_s))
    told = {
        "page read" if every_s else "no page": {
            name: round(statistics.median(r[name] for r in runs), 3) for name in runs[0]
        }
        for every_s, runs in found.items()
    }
    print(json.dumps({**told, "load average": os.getloadavg()[0], "streams": given.streams}, indent=2))


if __name__ == "__main__":
    main()
