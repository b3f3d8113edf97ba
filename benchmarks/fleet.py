"""A number of token events in; how fast the store takes them, how long the summary needs and how much memory, out.

    python benchmarks/fleet.py [--events 1000000,10000000,100000000] [--folder DIR]

The rows are made up (256 tokens a request, 32 streams, lognormal gaps) and marked as simulated: what is measured is the
store and the summary, not an engine. Each size is written and summed up in processes of their own, so that each peak of
memory is its own.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import numpy as np

from dynamometer.record import manifest
from dynamometer.record.clock import origin
from dynamometer.record.rows import KIND_CODE, Events
from dynamometer.record.store import write_rows
from dynamometer.types import Experiment, Load, Provenance, Target, Workload

TOKENS = 256
STREAMS = 32
BATCH = 4_000  # requests
NOTES = ("", "content", "output", "length")


def batches(requests: int) -> Iterator[Events]:
    """Requests in batches of columns: due, sent, headers, tokens, finish, usage, done."""
    random = np.random.default_rng(1)
    kinds = ("due", "sent", "headers", *("chunk",) * TOKENS, "finish", "usage", "done")
    code = np.array([KIND_CODE[kind] for kind in kinds], dtype=np.uint8)
    note = np.array([0, 0, 0, *(1,) * TOKENS, 3, 2, 0], dtype=np.uint32)
    n = np.array([0, 0, 200, *(0,) * TOKENS, 0, TOKENS, 0], dtype=np.int64)
    size = np.array([0, 900, 0, *(4,) * TOKENS, 0, 0, 0], dtype=np.int64)
    for first in range(0, requests, BATCH):
        count = min(BATCH, requests - first)
        index = np.arange(first, first + count, dtype=np.int32)
        start = (index // STREAMS).astype(np.int64) * 3_000_000_000 + (index % STREAMS) * 7_000_000
        gaps = (random.lognormal(np.log(8e6), 0.3, (count, len(kinds) - 2))).astype(np.int64)
        at = start[:, None] + np.concatenate([np.zeros((count, 2), np.int64), np.cumsum(gaps, axis=1)], axis=1)
        yield Events(
            np.repeat(index, len(kinds)), np.tile(code, count), at.ravel(), np.tile(n, count),
            np.tile(size, count), np.tile(note, count), NOTES,
        )  # fmt: skip


def write(directory: Path, events: int) -> None:
    directory.mkdir()
    load, requests = Load("closed", concurrency=STREAMS), events // TOKENS
    experiment = Experiment("fleet", Target("http://127.0.0.1:9/v1", "made-up"), Workload(), load, requests=requests)
    run = manifest.begin(experiment, origin(), Provenance.SIMULATED, {}, "")
    columns = {"request": np.arange(requests, dtype=np.int32), "level": np.full(requests, float(STREAMS))}
    write_rows(directory, columns, batches(requests))
    last_ns = requests // STREAMS * 3_000_000_000 + 10_000_000_000
    manifest.write(directory, manifest.finish(run, "complete", last_ns, {}, ()))


def step(name: str, directory: Path, events: int) -> dict[str, float]:
    """One step in this process: its time and its peak of memory."""
    begun = time.perf_counter()
    if name == "write":
        write(directory, events)
    else:
        from dynamometer.decisions.account import account

        account(directory)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {f"{name}_s": time.perf_counter() - begun, f"{name}_peak_bytes": peak}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", default="1000000,10000000,100000000")
    parser.add_argument("--folder", default=None)
    parser.add_argument("--step", nargs=3, default=None, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.step:
        print(json.dumps(step(given.step[0], Path(given.step[1]), int(given.step[2]))))
        return
    for events in map(int, given.events.split(",")):
        with TemporaryDirectory(dir=given.folder) as folder:
            directory = Path(folder) / "run"
            told: dict[str, float] = {"events": events}
            for name in ("write", "summary"):
                command = [sys.executable, __file__, "--step", name, str(directory), str(events)]
                done = subprocess.run(command, capture_output=True, text=True)
                if done.returncode:
                    told[f"{name}_failed"] = done.returncode
                    print(done.stderr[-2000:], file=sys.stderr)
                    break
                told |= json.loads(done.stdout.splitlines()[-1])
            told["stored_bytes"] = sum(path.stat().st_size for path in directory.iterdir())
            told["load_average_1m"] = os.getloadavg()[0]
            print(msgspec.json.encode(told).decode(), flush=True)


if __name__ == "__main__":
    main()
