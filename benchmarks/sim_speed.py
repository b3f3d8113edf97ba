"""Speed of the simulator: an hour of 500 requests/s on 64 replicas on one core, rows written, and memory against
simulated time.

    python benchmarks/sim_speed.py                  # 10 and 60 simulated minutes
    python benchmarks/sim_speed.py --minutes 1 5    # shorter

The process pins itself to one core. Wall and CPU time cover drawing the requests, simulating and writing the rows to
Parquet. `--rows none` leaves the rows out.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter, process_time

from dynamometer.hardware import gpu, source
from dynamometer.hardware.enginecost import Split, step_cost
from dynamometer.hardware.profiles import profile
from dynamometer.policies.batching import Batching
from dynamometer.sim.rules import Rules
from dynamometer.sim.setup import Cache, Setup
from dynamometer.simulate import Wanted, rehearse, simulate
from dynamometer.types import Experiment, Load, Target, Workload


class Count:
    """Counts answers and keeps nothing."""

    def __init__(self) -> None:
        self.done = 0

    def finished(self, sequence: object) -> None:
        self.done += 1

    def refused(self, sequence: object, now_s: float) -> None:
        self.done += 1


def once(minutes: float, rate: float, replicas: int, rows: bool) -> str:
    """One simulation in this process."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    cost = step_cost(source.resolve("llama-3.1-8b"), gpu.get("h200"), Split(), profile("vllm"))
    setup = Setup(cost, Cache(900_000), Rules(batching=Batching("chunked", 256, 8192)), replicas)
    experiment = Experiment(
        "speed",
        Target("simulated://"),
        Workload("synthetic", input_tokens="uniform:256:768", output_tokens="uniform:64:192"),
        Load("poisson", rate=rate),
        duration_s=60 * minutes,
    )
    wall, cpu = perf_counter(), process_time()
    if rows:
        with tempfile.TemporaryDirectory() as folder:
            _, outcome = simulate(experiment, setup, Path(folder) / "run", Wanted(rows="answers"))
        requests = rate * 60 * minutes
    else:
        count = Count()
        outcome = rehearse(experiment, setup, count)
        requests = count.done
    wall, cpu = perf_counter() - wall, process_time() - cpu
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    steps = outcome.decode_steps + outcome.prefill_steps
    return (
        f"{minutes:g} min at {rate:g} requests/s on {replicas} replicas: {wall:.1f} s wall, {cpu:.1f} s CPU, "
        f"{cpu / requests * 1e6:.1f} µs a request, {60 * minutes / wall:,.0f} times real time, "
        f"{steps / 1e6:.1f} million steps, peak {peak_mb:.0f} MB"
    )


def main() -> None:
    """Each simulation in a process of its own, so that its memory is its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, nargs="+", default=[10, 60])
    parser.add_argument("--rate", type=float, default=500)
    parser.add_argument("--replicas", type=int, default=64)
    parser.add_argument("--rows", choices=["answers", "none"], default="answers")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.here:
        print(once(given.minutes[0], given.rate, given.replicas, given.rows == "answers"), flush=True)
        return
    for minutes in given.minutes:
        size = ["--minutes", str(minutes), "--rate", str(given.rate), "--replicas", str(given.replicas)]
        subprocess.run([sys.executable, __file__, "--here", "--rows", given.rows, *size], check=True)


if __name__ == "__main__":
    main()
