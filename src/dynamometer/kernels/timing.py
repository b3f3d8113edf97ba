"""A call and a device in, its time with an interval out.

On a device with graphs the call is captured and replayed, so that the host's launches stay out of it; what cannot be
captured, or is long, is timed with events or by the clock around a synchronised call. Medians with an interval by
order statistics: no shape is assumed.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from dynamometer.kernels.backends import Backend
from dynamometer.metrics.intervals import order
from dynamometer.metrics.quantiles import weighted
from dynamometer.types import Estimate

Now = Callable[[], int]
_LEAST = 9  # runs below which a median has no interval worth the name
_LONG_S = 2e-3  # shorter calls are captured several times, so that a graph's own launch, some 9 µs, does not count


def timed(
    call: Callable[[], object], backend: Backend, now_ns: Now, budget_s: float = 0.3, graph: bool = True
) -> Estimate:
    """Median seconds of one call, over at least nine and for at most about `budget_s`; three warm it up."""
    for _ in range(3):
        call()
    backend.synchronize()
    if backend.graphs and graph:
        many = max(1, min(50, int(_LONG_S / max(min(_events(call, 0.0)), 1e-7))))
        replayed = _captured(call, backend, many)
        if replayed is not None:
            return estimate([x / many for x in _events(replayed, budget_s)], f"graph replay of {many}, events")
    if backend.graphs:
        return estimate(_events(call, budget_s), "events")
    return estimate(_clocked(call, backend, now_ns, budget_s), "clock around a synchronised call")


def wall(call: Callable[[], object], backend: Backend, now_ns: Now, budget_s: float = 0.3) -> Estimate:
    """Median seconds by the host's clock, launches included: what a program that waits for each call sees."""
    for _ in range(3):
        call()
    backend.synchronize()
    return estimate(_clocked(call, backend, now_ns, budget_s), "clock around a synchronised call")


def estimate(seconds: list[float], method: str) -> Estimate:
    """The median with its interval. `seconds`: one a run."""
    values = np.asarray(seconds, dtype=np.float64)
    found = order(weighted(values), 0.5, float(len(values)), "s", len(values))
    return Estimate(found.value, found.low, found.high, len(values), "s", found.level, f"median; {method}")


def interleaved(
    calls: dict[str, Callable[[], object]], backend: Backend, now_ns: Now, rounds: int
) -> dict[str, list[float]]:
    """Seconds of each call in each round, one after another within a round: a machine that drifts hits all alike."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(rounds + 1):
        for name, call in calls.items():
            began_ns = now_ns()
            call()
            backend.synchronize()
            if turn:  # the first round warms up
                found[name].append((now_ns() - began_ns) * 1e-9)
    return found


def _captured(call: Callable[[], object], backend: Backend, many: int) -> Callable[[], None] | None:
    """`many` calls as a replayed graph; None if they do what a graph cannot hold."""
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(many):
                call()
        graph.replay()
        backend.synchronize()
    except RuntimeError:
        backend.synchronize()
        return None
    return graph.replay


def _events(call: Callable[[], object], budget_s: float) -> list[float]:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    found: list[float] = []
    while len(found) < _LEAST or (sum(found) < budget_s and len(found) < 500):
        start.record()
        call()
        end.record()
        end.synchronize()
        found.append(start.elapsed_time(end) * 1e-3)
    return found


def _clocked(call: Callable[[], object], backend: Backend, now_ns: Now, budget_s: float) -> list[float]:
    found: list[float] = []
    while len(found) < _LEAST or (sum(found) < budget_s and len(found) < 500):
        began_ns = now_ns()
        call()
        backend.synchronize()
        found.append((now_ns() - began_ns) * 1e-9)
    return found
