"""What the simulator's tests share: a ledger that keeps everything, and one engine fed from a list."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from dynamometer.hardware.stepcost import StepCost
from dynamometer.policies.batching import Batching
from dynamometer.sim.cluster import Cluster, Outcome
from dynamometer.sim.paged import Memory, Paged
from dynamometer.sim.replica import Replica
from dynamometer.sim.rules import Rules, Sink
from dynamometer.sim.sequence import Sequence


class Kept:
    """Keeps finished and refused sequences."""

    def __init__(self) -> None:
        self.done: list[Sequence] = []
        self.failed: list[Sequence] = []

    def finished(self, sequence: Sequence) -> None:
        self.done.append(sequence)

    def refused(self, sequence: Sequence, now_s: float) -> None:
        self.failed.append(sequence)


def one_engine(
    cost: StepCost, asked: Iterable[Sequence], rules: Rules | None = None, memory: Memory | None = None, seed: int = 0
) -> tuple[Kept, Replica, Outcome]:
    """Runs an open load on one engine to its end."""
    kept = Kept()
    store = memory or Paged(1_000_000)
    rules = rules or Rules(batching=Batching("chunked", 256, 8192))

    def make(sink: Sink, place: int) -> Replica:
        return Replica(cost, rules, store, sink, seed + place)

    cluster = Cluster(make, 1, "round-robin", kept)
    outcome = cluster.run_open(iter(asked))
    return kept, cluster.replicas[0], outcome


def poisson(chance: np.random.Generator, rate: float, outputs: Iterable[int], prompt: int = 1) -> list[Sequence]:
    """Requests with exponential gaps and the given answer lengths."""
    lengths = list(outputs)
    due_s = np.cumsum(chance.exponential(1 / rate, len(lengths)))
    return [Sequence(i, float(at_s), prompt, int(n)) for i, (at_s, n) in enumerate(zip(due_s, lengths, strict=True))]


def sojourn_s(kept: Kept) -> np.ndarray:
    """Time from due to the last token, by request."""
    return np.array([s.last_s - s.at_s for s in sorted(kept.done, key=lambda s: s.index)])
