"""A seed in, a run directory with realistic rows out: Poisson arrivals, lognormal latencies, stalls, a few failures.

No engine is behind it, so the manifest says `simulated`.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from dynamometer.record.rows import KIND_CODE, Events
from dynamometer.record.store import write_rows
from dynamometer.types import Doubt, Experiment, Load, Objective, Provenance, Run, Sample, Target, Workload

FAMILIES = ("python-completion", "sql", "javascript")
NOTES = ("", "content", "prompt", "output", "length", "new", "server-error: <img src=x onerror=alert(1)>", "deadline")


def manifest(requests: int, **changes: object) -> Run:
    experiment = Experiment(
        name="smollm2-q8-poisson-12",
        target=Target(
            "http://user:secret@127.0.0.1:8080/v1", "SmolLM2-135M-Instruct", headers={"X-Team-Key": "hunter2"}
        ),
        workload=Workload(),
        load=Load("poisson", rate=12.0),
        requests=requests,
        warmup_requests=4,
        seed=7,
        slo=(Objective("ttft", "p99", "<", 500.0, "ms"),),
    )
    run = Run(
        id="20261201-032200-k3f9",
        format=1,
        status="complete",
        driver=Provenance.SIMULATED,
        experiment=experiment,
        versions={"dynamometer": "0.1.0", "python": "3.11.9", "msgspec": "0.19.0"},
        machine={"cpu": "AMD EPYC 9B14", "cores": 2, "memory_bytes": 24 * 2**30, "kernel": "6.1.0"},
        engine={"name": "llama.cpp", "version": "b7777", "slots": 8, "quantization": "Q8_0"},
        origin_wall_ns=1_796_095_320_000_000_000,
        origin_monotonic_ns=5_000_000_000,
        client={"lateness_p99_ms": 0.8, "cpu_share": 0.11},
        doubts=(Doubt("noisy-machine", "other processes used 0.42 cores", "stop them and run again"),),
        command="dyno bench --rate 12 --seed 7 --header 'Authorization: Bearer abc.def' <b>bold</b>",
    )
    return msgspec.structs.replace(run, **changes)


def write_sample(directory: Path, requests: int = 400, tokens: int = 64, seed: int = 7, **changes: object) -> Path:
    """Writes run.json, requests.parquet, events.parquet and samples.jsonl; `changes`: other values of the manifest."""
    directory.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(seed)
    due = 100_000_000 + (np.cumsum(random.exponential(1 / 12, requests)) * 1e9).astype(np.int64)
    sent = due + (random.lognormal(-1.5, 0.8, requests) * 1e6).astype(np.int64)
    cold = 1 + 2.5 * np.exp(-(due - due[0]) / 2e9)
    first = sent + (random.lognormal(4.3, 0.35, requests) * cold * 1e6).astype(np.int64)
    gaps = random.lognormal(2.1, 0.2, (requests, tokens)) * np.where(random.random((requests, tokens)) < 0.01, 8, 1)
    gaps[:, 0] = 0
    at = first[:, None] + np.cumsum(gaps * 1e6, axis=1).astype(np.int64)
    last = at[:, -1]
    state = random.choice(4, requests, p=(0.96, 0.02, 0.01, 0.01))  # ok, error, empty, stopped
    ok = state == 0
    ids = np.arange(requests, dtype=np.int32)
    parts = [
        _rows(ids, "due", due),
        _rows(ids, "sent", sent, n=1, size=900, note=5),
        _rows(ids[state != 3], "headers", sent[state != 3] + 900_000, n=200),
        _rows(np.repeat(ids[ok], tokens), "chunk", at[ok].ravel(), size=4, note=1),
        _rows(ids[ok], "usage", last[ok], n=180, note=2),
        _rows(ids[ok], "usage", last[ok], n=tokens, note=3),
        _rows(ids[ok], "finish", last[ok], note=4),
        _rows(ids[(state == 0) | (state == 2)], "done", last[(state == 0) | (state == 2)] + 50_000, size=tokens * 180),
        _rows(ids[state == 1], "error", first[state == 1], n=500, note=6),
        _rows(ids[state == 3], "cancel", last[state == 3], note=7),
    ]
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    order = np.lexsort((columns[2], columns[0]))
    names = np.array(FAMILIES, dtype=object)[ids % len(FAMILIES)]
    write_rows(directory, {"request": ids, "family": names}, [Events(*(c[order] for c in columns), NOTES)])
    run = manifest(requests, end_ns=int(last.max()), **changes)
    (directory / "run.json").write_bytes(msgspec.json.encode(run))
    _write_samples(directory, random, int(last.max()))
    return directory


def _rows(
    ids: np.ndarray, kind: str, at: np.ndarray, n: int = 0, size: int = 0, note: int = 0
) -> tuple[np.ndarray, ...]:
    many = len(ids)
    return (
        ids.astype(np.int32),
        np.full(many, KIND_CODE[kind], np.uint8),
        at.astype(np.int64),
        np.full(many, n, np.int64),
        np.full(many, size, np.int64),
        np.full(many, note, np.uint32),
    )


def _write_samples(directory: Path, random: np.random.Generator, end_ns: int) -> None:
    lines = []
    for at_ns in range(0, end_ns, 1_000_000_000):
        lines.append(Sample("host", "cpu_foreign_cores", "", at_ns, float(random.gamma(2, 0.05))))
        lines.append(Sample("host", "memory_used_bytes", "", at_ns, 2.1e9 + at_ns / 1e3))
    (directory / "samples.jsonl").write_bytes(b"\n".join(msgspec.json.encode(line) for line in lines) + b"\n")
