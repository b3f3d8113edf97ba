"""Vidur and this simulator on the same trace with the same step times, in one run: speed, and how far apart they are.

    python -m venv vidur && vidur/bin/pip install vidur -e '.[fit]'
    vidur/bin/python benchmarks/sim_vidur.py
    vidur/bin/python benchmarks/sim_vidur.py --requests 5000 --rate 100 --replicas 16

Vidur takes its step times from profiles on a model hub; here both take one plain law instead (a time for each step, for
each token and for each token of context), so that what is compared is the engine: scheduler, events, bookkeeping. Both
prefill in chunks of 2,048 tokens, hold at most 128 sequences and route round robin; neither has a front end. Each runs
in a process of its own on one core; Vidur's files, plots and traces are switched off.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from time import process_time

import numpy as np

STEP_S, TOKEN_S, CONTEXT_S = 0.006, 2e-5, 3e-9
BATCH, CHUNK = 128, 2048
DATE = "2026-01-01"


def trace(path: Path, requests: int, rate: float, seed: int) -> None:
    """Poisson arrivals; prompts and answers uniform."""
    chance = np.random.default_rng(seed)
    at = np.cumsum(chance.exponential(1 / rate, requests))
    prompt, answer = chance.integers(256, 769, requests), chance.integers(64, 193, requests)
    with path.open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file)
        lines.writerow(("Date", "Time", "PromptTokenCount", "CompletionTokenCount"))
        lines.writerows((DATE, f"{t:.6f}", p, a) for t, p, a in zip(at, prompt, answer, strict=True))


def rows(path: Path) -> list[tuple[float, int, int]]:
    """(arrival in seconds, prompt tokens, answer tokens)."""
    with path.open(newline="", encoding="utf-8") as file:
        return [
            (float(r["Time"]), int(r["PromptTokenCount"]), int(r["CompletionTokenCount"])) for r in csv.DictReader(file)
        ]


def vidur(path: Path, replicas: int) -> dict[str, float]:
    """Vidur's own simulator with our law in place of its profiles."""
    import vidur.scheduler.global_scheduler.base_global_scheduler as glob
    from vidur._native.entities import ExecutionTime
    from vidur.config import (
        CacheConfig,
        ClusterConfig,
        MetricsConfig,
        ReplicaConfig,
        RoundRobinGlobalSchedulerConfig,
        SarathiSchedulerConfig,
        SimulationConfig,
        TraceRequestGeneratorConfig,
    )
    from vidur.simulator import Simulator

    class Law:
        """Stands where Vidur's predictor stands."""

        def get_execution_time(self, batch: object, pipeline_stage: int) -> ExecutionTime:
            fed, known = batch.num_q_tokens, batch.num_kv_tokens  # type: ignore[attr-defined]
            context = sum(k for q, k in zip(fed, known, strict=True) if q == 1)
            ms = 1e3 * (STEP_S + TOKEN_S * sum(fed) + CONTEXT_S * context)
            return ExecutionTime(1, 0.0, 0.0, ms, *([0.0] * 11))

    glob.ExecutionTimePredictorRegistry.get = lambda *_, **__: Law()
    config = SimulationConfig(
        cluster_config=ClusterConfig(
            num_replicas=replicas,
            cache_config=CacheConfig(num_blocks=250_000),
            replica_config=ReplicaConfig(num_pipeline_stages=1, tensor_parallel_size=1),
            global_scheduler_config=RoundRobinGlobalSchedulerConfig(),
            replica_scheduler_config=SarathiSchedulerConfig(batch_size_cap=BATCH, chunk_size=CHUNK),
        ),
        request_generator_config=TraceRequestGeneratorConfig(
            trace_file=str(path), date=DATE, max_tokens=4096,
            prefill_scale_factor=1.0, decode_scale_factor=1.0, time_scale_factor=1.0,
        ),
        metrics_config=MetricsConfig(
            write_metrics=False, write_json_trace=False, enable_chrome_trace=False, store_plots=False,
            store_operation_metrics=False, store_token_completion_metrics=False, store_batch_metrics=False,
            store_utilization_metrics=False,
        ),
    )  # fmt: skip
    simulator = Simulator(config)
    asked = [event._request for _, event in simulator._event_queue]
    begun = process_time()
    simulator.run()
    spent = process_time() - begun
    e2e = np.array([one.completed_at - one.arrived_at for one in asked])
    ttft = np.array([one.prefill_completed_at - one.arrived_at for one in asked])
    return _told(spent, e2e, ttft)


def ours(path: Path, replicas: int) -> dict[str, float]:
    """This project's simulator."""
    from dynamometer.hardware.stepcost import StepCost
    from dynamometer.policies.batching import Batching
    from dynamometer.sim.ledger import Tally
    from dynamometer.sim.rules import Rules
    from dynamometer.sim.sequence import Sequence
    from dynamometer.sim.setup import Cache, Setup, cluster

    knots = (1, 16384)
    cost = StepCost(knots, tuple(STEP_S + TOKEN_S * k for k in knots), context_s=CONTEXT_S)
    rules = Rules(batching=Batching("chunked", BATCH, CHUNK), keep_tokens=False)
    tally = Tally()
    engines = cluster(Setup(cost, Cache(4_000_000), rules, replicas, "round-robin"), tally, 0)
    asked = rows(path)
    begun = process_time()
    engines.run_open(Sequence(i, at, prompt, answer) for i, (at, prompt, answer) in enumerate(asked))
    table = tally.table()
    return _told(process_time() - begun, table[:, 4] - table[:, 1], table[:, 3] - table[:, 1])


def _told(spent: float, e2e: np.ndarray, ttft: np.ndarray) -> dict[str, float]:
    return {
        "cpu_s": spent,
        "e2e_mean_ms": float(e2e.mean() * 1e3),
        "e2e_p99_ms": float(np.quantile(e2e, 0.99) * 1e3),
        "ttft_p50_ms": float(np.median(ttft) * 1e3),
        "ttft_p99_ms": float(np.quantile(ttft, 0.99) * 1e3),
    }


def main() -> None:
    """Both in processes of their own, then side by side."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--rate", type=float, default=60.0)
    parser.add_argument("--replicas", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=("vidur", "ours"), help=argparse.SUPPRESS)
    parser.add_argument("--trace", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.only:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        print(json.dumps((vidur if given.only == "vidur" else ours)(given.trace, given.replicas)))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.csv"
        trace(path, given.requests, given.rate, given.seed)
        found = {}
        for name in ("vidur", "ours"):
            size = ["--only", name, "--trace", str(path), "--replicas", str(given.replicas)]
            done = subprocess.run(
                [sys.executable, __file__, *size], check=True, capture_output=True, text=True, cwd=folder
            )
            found[name] = json.loads(done.stdout.strip().splitlines()[-1])
    print(f"{given.requests:,} requests at {given.rate:g}/s on {given.replicas} replicas, the same step times")
    print(f"{'':14} {'Vidur':>10} {'Dynamometer':>12} {'ratio':>8}")
    for key in found["ours"]:
        theirs, mine = found["vidur"][key], found["ours"][key]
        print(f"{key:14} {theirs:>10.3f} {mine:>12.3f} {theirs / mine:>8.3g}")


if __name__ == "__main__":
    main()
