"""Several devices of one host in; seconds of collectives, fits of latency and bandwidth, a split decode step out.

Run: python benchmarks/device/topology.py --backend gloo --processes 2 -o topology.csv
     NCCL_NVLS_ENABLE=0 python benchmarks/device/topology.py --backend nccl --processes 2 --layers 80 --most 1GiB
     NCCL_NVLS_ENABLE=0 NCCL_P2P_DISABLE=1 python benchmarks/device/topology.py --backend nccl ...   (through the host)

The fit is that of `hardware/links.py`: time = alpha + moved bytes / bandwidth. The decode step is a stack of layers
with Llama-70B's widths over `--narrow`, split by columns and rows as tensor parallelism does, two all-reduces a layer.
The fit's prediction of the step, by the function that `dyno simulate` calls, stands beside what the step took.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click
import msgspec
import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as processes

from dynamometer.hardware.links import Link, all_reduce_s
from dynamometer.kernels.backends import reach
from dynamometer.kernels.found import Found, Row, as_csv, exactly, in_unit, scaled
from dynamometer.kernels.machine import describe
from dynamometer.kernels.timing import estimate
from dynamometer.record.clock import now_ns
from dynamometer.types import Estimate, Float64
from dynamometer.units import byte_size

QUESTION = "What do collectives cost between the devices of this host, and does that foretell a split decode step?"
MOVED: dict[str, Callable[[int], float]] = {  # share of the message that crosses a device's link
    "all-reduce": lambda n: 2 * (n - 1) / n,
    "all-gather": lambda n: (n - 1) / n,
    "all-to-all": lambda n: (n - 1) / n,
}


class Chosen(msgspec.Struct, frozen=True):
    backend: str
    processes: int
    most_bytes: int
    layers: int
    narrow: int
    batches: tuple[int, ...]
    rounds: int
    port: int


def collectives(n: int, size: int, device: str) -> dict[str, Callable[[], object]]:
    """The three, on a message of so many bytes; every one is given its buffers once."""
    count = max(n, size // 4 // n * n)
    whole, other = torch.zeros(count, device=device), torch.zeros(count, device=device)
    part = torch.zeros(count // n, device=device)
    return {
        "all-reduce": partial(dist.all_reduce, whole),
        "all-gather": partial(dist.all_gather_into_tensor, whole, part),
        "all-to-all": partial(dist.all_to_all_single, whole, other),
    }


def slowest(call: Callable[[], object], device: str, rounds: int) -> list[float]:
    """Seconds of each round on the slowest device; they start together, and two rounds warm up."""
    took = []
    for _ in range(rounds + 2):
        dist.barrier()
        began_ns = now_ns()
        call()
        if device != "cpu":
            torch.cuda.synchronize()
        took.append((now_ns() - began_ns) * 1e-9)
    seconds = torch.tensor(took[2:], dtype=torch.float64, device=device)
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    found: list[float] = seconds.tolist()
    return found


def stack(chosen: Chosen, batch: int, device: str, speak: bool) -> Callable[[], None]:
    """One decode step's products, this device's share of them, with the sums between devices if it may `speak`."""
    hidden, feed = 8192 // chosen.narrow, 28672 // chosen.narrow
    mine = (hidden // 4 + hidden) // chosen.processes  # queries, and an eighth as many keys and values
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    shapes = (
        (mine, hidden),
        (hidden, mine),
        (2 * feed // chosen.processes, hidden),
        (hidden, feed // chosen.processes),
    )
    layers = [[torch.randn(shape, device=device).to(dtype) * 0.01 for shape in shapes] for _ in range(chosen.layers)]
    x = torch.randn((batch, hidden), device=device).to(dtype)

    def step() -> None:
        y = x
        for qkv, out, gate_up, down in layers:
            y = (y @ qkv.T) @ out.T
            if speak:
                dist.all_reduce(y)
            gate, up = (y @ gate_up.T).chunk(2, -1)
            y = (torch.nn.functional.silu(gate) * up) @ down.T
            if speak:
                dist.all_reduce(y)

    return step


def member(rank: int, chosen: Chosen, outbox: processes.SimpleQueue[object]) -> None:
    """One device's process. The first sends what was found."""
    os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(chosen.port)})
    device = "cpu" if chosen.backend == "gloo" else f"cuda:{rank}"
    torch.set_num_threads(1)
    if device != "cpu":
        torch.cuda.set_device(rank)
    dist.init_process_group(chosen.backend, rank=rank, world_size=chosen.processes)
    messages: dict[tuple[str, int], list[float]] = {}
    for power in range(10, chosen.most_bytes.bit_length()):
        for name, call in collectives(chosen.processes, 2**power, device).items():
            messages[name, 2**power] = slowest(call, device, chosen.rounds)
    steps: dict[tuple[int, bool], list[float]] = {}
    with torch.inference_mode():
        for batch in chosen.batches:
            for speak in (False, True):
                steps[batch, speak] = slowest(stack(chosen, batch, device, speak), device, chosen.rounds)
    if rank == 0:
        outbox.put((messages, steps))
    dist.barrier()
    dist.destroy_process_group()


def fit(sizes: Float64, runs: Float64) -> tuple[Float64, Float64]:
    """(alpha in s, seconds a moved byte) of the medians, and [400, 2] of both over resampled runs [sizes, runs].

    Relative errors count alike. Neither is below 0.
    """
    chance = np.random.default_rng(0)

    def once(times: Float64) -> Float64:
        terms = np.stack((np.ones_like(sizes), sizes), axis=1) / times[:, None]
        scale = np.linalg.norm(terms, axis=0)
        found, *_ = np.linalg.lstsq(terms / scale, np.ones_like(times), rcond=None)
        return np.asarray(np.maximum(found / scale, 0.0), dtype=np.float64)

    drawn = chance.integers(0, runs.shape[1], (400, runs.shape[1]))
    return once(np.median(runs, axis=1)), np.stack([once(np.median(runs[:, one], axis=1)) for one in drawn])


def fitted(name: str, n: int, messages: dict[tuple[str, int], list[float]]) -> tuple[Row, float, float]:
    """The row of a collective's fit, its alpha in s and its bandwidth in B/s."""
    sizes = sorted(size for one, size in messages if one == name)
    moved = np.asarray(sizes, dtype=np.float64) * MOVED[name](n)
    runs = np.asarray([messages[name, size] for size in sizes])
    (alpha, slope), drawn = fit(moved, runs)
    low, high = np.quantile(drawn, (0.025, 0.975), axis=0)
    miss = np.abs((alpha + slope * moved) / np.median(runs, axis=1) - 1)
    how, count = "relative least squares; bootstrap over runs", runs.shape[1]
    rate = Estimate(None, None, None, count, "GB/s", method="these sizes show no slope")
    if low[1] > 0:
        rate = Estimate(1e-9 / slope, 1e-9 / high[1], 1e-9 / low[1], count, "GB/s", 0.95, how)
    figures = {
        "alpha_us": Estimate(alpha * 1e6, low[0] * 1e6, high[0] * 1e6, count, "µs", 0.95, how),
        "rate": rate,
        "misfit": exactly(float(np.median(miss)), "", "median over sizes of the fit's relative error"),
    }
    return Row({"what": "fit", "of": name, "devices": n}, figures), float(alpha), 1 / max(float(slope), 1e-15)


def told(
    chosen: Chosen, messages: dict[tuple[str, int], list[float]], steps: dict[tuple[int, bool], list[float]]
) -> Found:
    n = chosen.processes
    rows = []
    for (name, size), seconds in messages.items():
        time = estimate(seconds, "slowest device")
        figures = {"time_us": in_unit(time, 1e6, "µs"), "rate": scaled(time, size * MOVED[name](n) / 1e9, "GB/s")}
        rows.append(Row({"what": "message", "of": name, "devices": n, "bytes": size}, figures))
    fits = {name: fitted(name, n, messages) for name in MOVED}
    rows += [row for row, _, _ in fits.values()]
    link = Link("measured here", {n: fits["all-reduce"][1]}, {n: fits["all-reduce"][2]})
    width = (8192 // chosen.narrow) * (4 if chosen.backend == "gloo" else 2)
    said = []
    for batch in chosen.batches:
        silent, whole = (estimate(steps[batch, speak], "slowest device") for speak in (False, True))
        talk_s = 2 * chosen.layers * all_reduce_s(link, n, batch * width)
        foretold_s = (silent.value or 0.0) + talk_s
        miss = foretold_s / (whole.value or float("nan")) - 1
        figures = {
            "time_ms": in_unit(whole, 1e3, "ms"),
            "rate": scaled(whole, batch, "tokens/s"),
            "share": exactly(1 - (silent.value or 0.0) / (whole.value or float("nan")), "", "1 - silent over whole"),
            "predicted_ms": exactly(foretold_s * 1e3, "ms", "silent step and the fit's all-reduces"),
            "error": exactly(miss, "", "predicted over measured, less 1"),
        }
        rows.append(Row({"what": "decode step", "of": f"batch {batch}", "devices": n}, figures))
        said.append(f"Batch {batch}: the step is foretold with {miss:+.0%}.")
    backend = reach("cpu" if chosen.backend == "gloo" else "cuda", torch)
    layers = f"{chosen.layers} of Llama-70B, widths over {chosen.narrow}"
    machine = {**describe(backend), "collectives": chosen.backend, "layers": layers}
    machine |= {key: os.environ[key] for key in ("NCCL_NVLS_ENABLE", "NCCL_P2P_DISABLE") if key in os.environ}
    return Found("topology", QUESTION, tuple(said), tuple(rows), machine)


@click.command()
@click.option("--backend", type=click.Choice(["gloo", "nccl"]), default="gloo", show_default=True)
@click.option("--processes", "count", type=click.IntRange(2, 8), default=2, show_default=True)
@click.option("--most", default="16MiB", show_default=True, help="The largest message; they start at 1 KiB and double.")
@click.option("--layers", type=click.IntRange(1, 80), default=8, show_default=True)
@click.option("--narrow", type=click.Choice(["1", "2", "4", "8", "16"]), default="8", show_default=True)
@click.option("--rounds", type=click.IntRange(9, 1000), default=25, show_default=True)
@click.option("--out", "-o", type=click.Path(path_type=Path, dir_okay=False), required=True)
def main(backend: str, count: int, most: str, layers: int, narrow: str, rounds: int, out: Path) -> None:
    if backend == "nccl" and torch.cuda.device_count() < count:
        raise click.UsageError(f"{torch.cuda.device_count()} CUDA devices here, {count} asked for; gloo needs none")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    chosen = Chosen(backend, count, byte_size(most, "--most"), layers, int(narrow), (1, 16, 64), rounds, port)
    outbox: processes.SimpleQueue[object] = processes.get_context("spawn").SimpleQueue()
    running = processes.spawn(member, (chosen, outbox), count, join=False)
    messages, steps = outbox.get()
    while not running.join():
        pass
    found = told(chosen, messages, steps)
    out.write_text(as_csv(found), encoding="utf-8")
    click.echo("\n".join((*found.verdict, f"written: {out}")))


if __name__ == "__main__":
    sys.exit(main())
