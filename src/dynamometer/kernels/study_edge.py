"""A real model and a limit on memory in; does it run, how fast, how much does it hold, does it leak, out.

The limit is the kernel's: a control group that kills what goes beyond. Weights lie on disk a tensor a file, and are
either read into memory or mapped. Mapped pages can be dropped and read again, so a model can run in less memory than
it has weights, at the speed of the disk. Batches of 1 to 8 come in turn, as a dynamic batcher forms them.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import numpy as np
import torch

from dynamometer.errors import DynoError
from dynamometer.kernels.backends import Backend
from dynamometer.kernels.cage import cage
from dynamometer.kernels.child import Child
from dynamometer.kernels.edge_child import Settings
from dynamometer.kernels.found import Found, Row, exactly, in_unit, scaled
from dynamometer.kernels.machine import describe
from dynamometer.kernels.model import build
from dynamometer.kernels.shapes import KNOWN
from dynamometer.kernels.shards import write
from dynamometer.kernels.timing import Now, estimate
from dynamometer.metrics.intervals import student
from dynamometer.types import Estimate

QUESTION = "Does a model run under a hard limit on memory, at which speed, and does it leak?"
_LEAK_MIB = 0.1  # for a thousand requests: an allocator that settles grows by less, and less each time
_RUNTIME_BYTES = 350 * 2**20  # what Python and torch themselves take; measured again in each run as "no limit"


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`limits`: of memory, as shares of the weights on top of what the runtime takes; 0 is no limit."""

    model: str = "smollm2"
    limits: tuple[float, ...] = (0.0, 1.5, 1.0, 0.5, 0.25)
    batches: tuple[int, ...] = (1, 2, 4, 8)
    context: int = 256
    steps: int = 4
    rounds: int = 12
    leak_rounds: int = 60
    threads: int = 0


QUICK: Mapping[str, str | int | tuple[float, ...]] = {
    "model": "tiny", "limits": (0.0,), "context": 32, "rounds": 9, "leak_rounds": 10,
}  # fmt: skip


def run(options: Options, backend: Backend, now_ns: Now, say: Callable[[str], None]) -> Found:
    """Every limit with weights read and with weights mapped; then a long run for the leak."""
    with tempfile.TemporaryDirectory(prefix="dynamometer-shards-") as name:
        folder = Path(name)
        size = _prepare(options.model, folder)
        rows: list[Row] = []
        for limit in options.limits:
            for mapped in (False, True):
                say(f"limit {limit:g} of the weights, {'mapped' if mapped else 'read'}")
                rows += _limited(options, folder, size, limit, mapped)
        say("long run")
        rows.append(_leak(options, folder))
    notes = (
        (
            f"Weights {size / 2**20:,.0f} MiB in bf16, one file a tensor. A limit is that share of them plus "
            f"{_RUNTIME_BYTES / 2**20:,.0f} MiB for Python and torch."
        ),
        "Under a limit a mapped model's time includes reading weights again from disk, or from the host's file cache.",
    )
    return Found("edge", QUESTION, _verdict(rows), tuple(rows), describe(backend), notes)


def _prepare(model: str, folder: Path) -> int:
    if model in KNOWN:
        return write(build(KNOWN[model], "cpu", torch.float32), 500000.0, folder)
    from dynamometer.engines.embedded import model_file
    from dynamometer.kernels.weights import load

    loaded = load(Path(model) if model.endswith(".gguf") else model_file(model))
    return write(loaded.model, loaded.rope_base, folder)


def _settings(options: Options, folder: Path, mapped: bool) -> Settings:
    threads = options.threads or len(os.sched_getaffinity(0))
    return Settings(str(folder), mapped, options.context, options.steps, threads)


def _limited(options: Options, folder: Path, size: int, limit: float, mapped: bool) -> list[Row]:
    where: dict[str, str | int | float] = {
        "what": "limit",
        "of weights": limit or "none",
        "weights": "mapped" if mapped else "read",
    }
    bound = round(size * limit) + _RUNTIME_BYTES if limit else 1 << 50
    seconds: dict[int, list[float]] = {batch: [] for batch in options.batches}
    peak = 0
    try:
        with cage(bound) as group:
            try:
                with Child("edge_child", _settings(options, folder, mapped), {}, group.enter()) as child:
                    for _ in range(options.rounds):
                        for batch in options.batches:
                            seconds[batch].append(float(str(child.ask(str(batch))["seconds"])) / options.steps)
                peak = group.peak_bytes()
            except DynoError as died:
                kills = group.kills()
                why = f"killed for memory {kills} times" if kills else str(died)
                return [Row(where, refused=f"{why}, limit {bound / 2**20:,.0f} MiB")]
    except DynoError as refused:
        return [Row(where, refused=str(refused))]
    rows = []
    for batch, times in seconds.items():
        time = estimate(times, "batches in turn")
        figures = {
            "step_ms": in_unit(time, 1e3, "ms"),
            "rate": scaled(time, batch, "tokens/s"),
            "peak_mib": exactly(peak / 2**20, "MiB", "control group, all batches"),
        }
        rows.append(Row({**where, "batch": batch}, figures))
    return rows


def _leak(options: Options, folder: Path) -> Row:
    """Slope of resident memory over rounds of all batches, with its interval; the first fifth warms up."""
    held = []
    with Child("edge_child", _settings(options, folder, False), {}) as child:
        for _ in range(options.leak_rounds):
            for batch in options.batches:
                found = child.ask(str(batch))
            held.append(float(str(found["resident"])) / 2**20)
    values = np.asarray(held[len(held) // 5 :])
    requests = sum(options.batches)
    return Row({"what": "leak"}, {"slope": slope(values, requests)})


def slope(values: np.ndarray[tuple[int], np.dtype[np.float64]], requests: int) -> Estimate:
    """MiB for a thousand requests, by least squares on rounds; Student's interval on the residuals."""
    n = len(values)
    if n < 4:
        return Estimate(None, None, None, n, "MiB per 1,000 requests", method=f"{n} rounds; 4 needed")
    x = np.arange(n) - (n - 1) / 2
    rate = float(x @ values / (x @ x))
    rest = values - values.mean() - rate * x
    half = student(n - 2) * float(np.sqrt(rest @ rest / (n - 2) / (x @ x)))
    factor = 1000 / requests
    return Estimate(
        rate * factor,
        (rate - half) * factor,
        (rate + half) * factor,
        n,
        "MiB per 1,000 requests",
        method="least squares",
    )


def _verdict(rows: list[Row]) -> tuple[str, ...]:
    said = []
    for kind in ("read", "mapped"):
        ran = [
            r.at["of weights"]
            for r in rows
            if r.at.get("weights") == kind and r.figures and r.at["of weights"] != "none"
        ]
        died = [r.at["of weights"] for r in rows if r.at.get("weights") == kind and "killed" in r.refused]
        if ran or died:
            least = (
                f"runs down to a limit of {min(float(str(x)) for x in ran):g} of its weights"
                if ran
                else "runs under none of the limits"
            )
            said.append(
                f"With weights {kind} it {least}"
                + (f"; killed at {', '.join(f'{float(str(x)):g}' for x in died)}." if died else ".")
            )
    for row in rows:
        leak = row.figures.get("slope")
        if leak is not None and leak.value is not None and leak.low is not None and leak.high is not None:
            kind = "leaks" if leak.low > _LEAK_MIB else "shows no leak"
            said.append(f"It {kind}: {leak.value:.3g} MiB for a thousand requests [{leak.low:.3g}, {leak.high:.3g}].")
    return tuple(said)
