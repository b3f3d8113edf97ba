"""A real engine in, what joining text completions gives and costs out: through the gateway with batching and without.

    python benchmarks/gateway_batch.py [--clients 32] [--rounds 3] [--slots 8]

llama.cpp with the packaged model answers text completions of 16 tokens that do not stream. Everything shares this
machine; the load average says what else ran.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from gateway import port, started

from dynamometer.engines.recipes import Settings
from dynamometer.engines.serve import serve
from dynamometer.record.clock import now_ns


def ask(url: str, number: int) -> float:
    """Milliseconds of one request."""
    fields = {"prompt": f"The number {number} is", "max_tokens": 16, "temperature": 0}
    request = urllib.request.Request(f"{url}/completions", json.dumps(fields).encode())
    begun = now_ns()
    with urllib.request.urlopen(request, timeout=120) as answer:
        assert json.load(answer)["choices"][0]["text"]
    return (now_ns() - begun) / 1e6


def through(engine: str, batching: bool, clients: int, rounds: int) -> str:
    with TemporaryDirectory() as place:
        at = port()
        (Path(place) / "gateway.toml").write_text(
            f'listen = "127.0.0.1:{at}"\nadmin = "127.0.0.1:{port()}"\nfolder = "state"\n'
            f'[baseline]\nurls = ["{engine.removesuffix("/v1")}"]\n[batch]\nenabled = {str(batching).lower()}\n'
        )
        command = [sys.executable, "-m", "dynamometer", "gateway", str(Path(place) / "gateway.toml")]
        with started(command, f"http://127.0.0.1:{at}/health"), ThreadPoolExecutor(clients) as pool:
            begun = now_ns()
            times = list(pool.map(lambda n: ask(f"http://127.0.0.1:{at}/v1", n), range(clients * rounds)))
            rate = len(times) / ((now_ns() - begun) * 1e-9)
    name = "joined" if batching else "pass-through"
    p95 = sorted(times)[int(0.95 * len(times))]
    return f"| {name} | {rate:.2f} | {statistics.median(times):.0f} ms | {p95:.0f} ms |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--slots", type=int, default=8)
    given = parser.parse_args()
    with serve("llamacpp", "", Settings(slots=given.slots, context=256), now_ns=now_ns) as up:
        print(f"{given.clients} clients, {given.slots} slots; load average before: {os.getloadavg()[0]:.2f}")
        print("| way | answers/s | p50 | p95 |\n|---|---|---|---|")
        for batching in (False, True, False, True):
            print(through(up.url, batching, given.clients, given.rounds), flush=True)


if __name__ == "__main__":
    main()
