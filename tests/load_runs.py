"""A concurrency in, a run directory of a closed loop of known throughput out: x streams at a step of (b + x)/a s.

No engine is behind it, so the manifest says `simulated`.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from dynamometer.record.rows import KIND_CODE, Events
from dynamometer.record.store import write_rows
from dynamometer.types import Experiment, Load, Provenance, Run, Sample, Target, Workload

A, B = 2000.0, 20.0  # tokens/s at any load, requests in flight at half of it
TOKENS = 50
NOTES = ("", "content", "prompt", "output", "length", "new")


def step_s(x: float) -> float:
    return (B + x) / A


def write_closed(directory: Path, x: int, seed: int = 0, rounds: int = 12, model: str = "m", **changes: object) -> Path:
    """x streams, each `rounds` answers of TOKENS tokens; the first token takes a step as every other."""
    directory.mkdir(parents=True, exist_ok=True)
    chance = np.random.default_rng([seed, x])
    rows: list[tuple[int, str, int, int, int]] = []
    request = 0
    run_factor = np.exp(0.01 * chance.standard_normal())  # runs of one engine differ by about as much
    for stream in range(x):
        at_s = 0.001 + stream * step_s(x) / x
        for _ in range(rounds):
            gaps = run_factor * step_s(x) * np.exp(0.02 * chance.standard_normal(TOKENS))
            ends = np.round((at_s + np.cumsum(gaps)) * 1e9).astype(np.int64)
            start, last = round(at_s * 1e9), int(ends[-1])
            rows += [(request, "due", start, 0, 0), (request, "sent", start, 1, 5), (request, "headers", start, 200, 0)]
            rows += [(request, "chunk", int(end), 0, 1) for end in ends]
            rows += [
                (request, "usage", last, 60, 2),
                (request, "usage", last, TOKENS, 3),
                (request, "finish", last, 0, 4),
            ]
            rows.append((request, "done", last, 0, 0))
            request, at_s = request + 1, last / 1e9
    ids, kinds, at, n, note = zip(*rows, strict=True)
    events = Events(
        np.array(ids, np.int32),
        np.array([KIND_CODE[kind] for kind in kinds], np.uint8),
        np.array(at, np.int64),
        np.array(n, np.int64),
        np.full(len(ids), 4, np.int64),
        np.array(note, np.uint32),
        NOTES,
    )
    write_rows(directory, {"request": np.arange(request, dtype=np.int32)}, [events])
    experiment = Experiment(
        "e", Target("http://127.0.0.1:9/v1", model), Workload(), Load("closed", x), requests=request
    )
    run = Run(
        directory.name, 1, "complete", Provenance.SIMULATED, experiment, {}, {"cores": 2}, {"slots": 64},
        1_796_095_320_000_000_000, 0, end_ns=max(at),
    )  # fmt: skip
    run = msgspec.structs.replace(run, **changes)
    (directory / "run.json").write_bytes(msgspec.json.encode(run))
    samples = [
        Sample("prometheus", name, "", at_ns, value)
        for at_ns in range(0, max(at), 100_000_000)
        for name, value in (("requests_waiting", 0.0), ("requests_running", float(x)), ("kv_cache_usage_ratio", 0.1))
    ]
    (directory / "samples.jsonl").write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in samples))
    return directory
