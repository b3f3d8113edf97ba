"""A simulated replica and an objective in, the largest rate at which it meets the objective with a stated probability
out.

The probability is that of the prediction: all step times are taken as slow as the step-time model may err with that
probability (a normal law on logs with the model's spread). An exact model is judged at its own value; one that may err
by 30 % has to meet the objective 47 % slower to be 90 % sure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import NormalDist
from typing import Final

import msgspec
import numpy as np

from dynamometer.decisions.capacity import Level
from dynamometer.decisions.gate import holds, limit_of, text
from dynamometer.errors import DynoError
from dynamometer.hardware.stepcost import scaled
from dynamometer.metrics.distribution import STATISTICS
from dynamometer.sim.ledger import Tally
from dynamometer.sim.setup import Setup
from dynamometer.simulate import rehearse
from dynamometer.types import Experiment, Float64, Load, Objective, Target, Workload
from dynamometer.units import significant

FEWEST, MOST, SPAN_S = 1500, 8000, 40.0  # requests of one trial, and the seconds that they should cover
SETTLE: Final = 0.2  # of the requests, before which the engine fills
KEPT_UP: Final = 0.95
HALVINGS: Final = 7  # 64-fold range / 2^7 in logs: a step of 3 %
_METRICS: Final[Mapping[str, str]] = {
    **{"ttft": "ttft", "ttft_due": "ttft", "e2e": "e2e", "e2e_due": "e2e", "tpot": "tpot", "itl": "tpot"}
}


class Ask(msgspec.Struct, frozen=True):
    """What the replica is asked, at any rate. `burstiness`: shape of the gaps, 1 is Poisson, below 1 is burstier."""

    workload: Workload
    slo: tuple[Objective, ...]
    burstiness: float = 1.0
    seed: int = 0


class Trial(msgspec.Struct, frozen=True):
    """One simulation at one rate. `figures`: the observed value of each limit, in its unit."""

    rate_per_s: float
    met: bool
    figures: Mapping[str, float]
    failed: str  # the limit that failed, with its value; "" when all are met
    output_tokens_per_s: float


class Carried(msgspec.Struct, frozen=True):
    """What one replica carries. `levels` is empty when even the lowest rate fails; `why` says of what."""

    levels: tuple[Level, ...]
    most_per_s: float  # without any objective
    why: str


def slower(setup: Setup, spread: float, probability: float) -> Setup:
    """All step times as slow as they may be with the given probability."""
    factor = math.exp(NormalDist().inv_cdf(probability) * spread) if spread > 0 else 1.0
    return msgspec.structs.replace(setup, cost=scaled(setup.cost, factor, factor))


def trial(setup: Setup, ask: Ask, rate_per_s: float) -> Trial:
    """One simulation; the engine must keep up, or its tails would only be short because the trial is."""
    requests = int(min(MOST, max(FEWEST, rate_per_s * SPAN_S)))
    law = "poisson" if ask.burstiness == 1 else "gamma"
    options = {} if ask.burstiness == 1 else {"burstiness": f"{ask.burstiness:g}"}
    load = Load(law, rate=rate_per_s, options=options)
    tally = Tally()
    rehearse(_experiment(ask, load, requests), setup, tally)
    table = tally.table()
    if not len(table):
        return Trial(rate_per_s, False, {}, "no request was answered", 0.0)
    return _judge(table[int(SETTLE * len(table)) :], tally.failed / (len(table) + tally.failed), ask, rate_per_s)


def _experiment(ask: Ask, load: Load, requests: int) -> Experiment:
    target = Target("simulated://", api="simulated")
    return Experiment("plan", target, ask.workload, load, requests=requests, seed=ask.seed)


def _judge(table: Float64, failed_share: float, ask: Ask, rate_per_s: float) -> Trial:
    """`table`: columns index, due, sent, first, last, prompt, output of the settled requests."""
    due, first, last, output = table[:, 1], table[:, 3], table[:, 4], table[:, 6]
    values = {"ttft": (first - due) * 1e3, "e2e": (last - due) * 1e3}
    more = output > 1
    values["tpot"] = (last - first)[more] / np.maximum(output[more] - 1, 1) * 1e3
    middle, end = float(np.median(due)), float(due.max())
    served = float(((last > middle) & (last <= end)).sum()) / max(end - middle, 1e-9)
    pace = served * float(output.mean())
    offered = float((due > middle).sum()) / max(end - middle, 1e-9)
    figures, failed = {}, ""
    if served < KEPT_UP * offered:
        failed = f"it answers {significant(served)} of {significant(offered)} requests/s"
    for limit in ask.slo:
        seen = failed_share if limit.metric == "error_rate" else _statistic(values, limit)
        figures[text(limit)] = seen
        if not failed and not holds(seen, limit.op, limit_of(limit)):
            unit = "" if limit.metric == "error_rate" else " ms"
            failed = f"{text(limit)} fails with {significant(seen)}{unit}"
    return Trial(rate_per_s, not failed, figures, failed, pace)


def _statistic(values: Mapping[str, Float64], limit: Objective) -> float:
    column = values[_METRICS[limit.metric]]
    if not len(column):
        return 0.0
    return float(column.mean() if limit.statistic == "mean" else np.quantile(column, STATISTICS[limit.statistic]))


def most(setup: Setup, ask: Ask) -> float:
    """Requests a second of a replica that always has enough to do: no objective can be met above it."""
    width = setup.rules.batching.size
    requests = max(400, 4 * width)
    tally = Tally()
    rehearse(_experiment(ask, Load("closed", concurrency=width), requests), setup, tally)
    table = tally.table()
    if not len(table):
        return 0.0
    last = np.sort(table[:, 4])
    from_s, until_s = last[len(last) // 4], last[-1 - width // 2] if len(last) > 2 * width else last[-1]
    return float(((last > from_s) & (last <= until_s)).sum() / max(until_s - from_s, 1e-9))


def largest(setup: Setup, ask: Ask, top_per_s: float) -> tuple[Trial | None, Trial | None]:
    """(the trial of the highest rate that passed, the lowest that failed), by halving on logs below `top_per_s`."""
    high = trial(setup, ask, top_per_s)
    if high.met:
        return high, None
    low = trial(setup, ask, top_per_s / 64)
    if not low.met:
        return None, low
    for _ in range(HALVINGS):
        middle = trial(setup, ask, math.sqrt(low.rate_per_s * high.rate_per_s))
        low, high = (middle, high) if middle.met else (low, middle)
    return low, high


def carry(setup: Setup, spread: float, ask: Ask, probability: float) -> Carried:
    """The levels of one replica: the largest rate at the wanted probability, and at even odds."""
    sure, even = slower(setup, spread, probability), setup
    try:
        top = most(sure, ask)
        top_even = most(even, ask) if spread > 0 else top
    except DynoError as wrong:
        return Carried((), 0.0, str(wrong))
    if top <= 0:
        return Carried((), 0.0, "no request was answered: prompt and answer do not fit into the cache")
    passed, failed = largest(sure, ask, top)
    if passed is None:
        return Carried((), top, failed.failed if failed else "")
    found = [_level(passed, probability, failed)]
    if spread > 0:
        better, worse = largest(even, ask, top_even)
        if better is not None and better.rate_per_s > passed.rate_per_s:
            found.append(_level(better, 0.5, worse))
    return Carried(tuple(found), top, failed.failed if failed else "nothing but its own speed")


def _level(passed: Trial, chance: float, failed: Trial | None) -> Level:
    shown = ", ".join(f"{name}: {significant(value)}" for name, value in passed.figures.items())
    above = f", a little above {failed.failed}" if failed is not None and failed.failed else ""
    latency = next(iter(passed.figures.values()), None)
    return Level(passed.rate_per_s, chance, f"simulated {shown}{above}", latency, passed.output_tokens_per_s)


def pooled(setup: Setup, ask: Ask, replicas: int, rate_per_s: float) -> Trial:
    """So many replicas behind a least-loaded router at the whole rate."""
    together = msgspec.structs.replace(setup, replicas=replicas, routing="least-loaded")
    return trial(together, ask, rate_per_s)
