"""The rows of a run in; what was different about its slowest requests, by how much, and how sure that is, out.

A trait is `found` when slow requests have more of it than chance would give, all traits looked at taken together
(Holm). It `coincides` when the two groups stand far apart, but in so few spells that chance alone could have laid them
over each other. Neither is a proof of cause: what goes with slowness may have the same cause as it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

import duckdb
import msgspec
import numpy as np
import numpy.typing as npt

from dynamometer.metrics import coincidence, views
from dynamometer.metrics.beside import SENSORS, beside
from dynamometer.types import Decision, Float64, Run
from dynamometer.units import significant

METRICS: Final = {"ttft": "TTFT from due", "e2e": "E2E from due", "tpot": "TPOT"}
LEVELS: Final = (0.95, 0.99, 0.999)
FEWEST: Final = 5  # slow requests, to say anything about them
ALPHA: Final = 0.05
LEAST: Final = 0.1  # rank-biserial correlation below which a difference explains nothing
FAR: Final = 0.5  # from here on one spell that falls together is worth a word
EARLY: Final = 0.05  # share of the requests that are the cold start

# trait -> (what it is, its unit, how it is shown)
TRAITS: Final[Mapping[str, tuple[str, str, float]]] = {
    "late_ms": ("the client sent late", "ms", 1),
    "prompt_tokens": ("long prompt", "tokens", 1),
    "request_bytes": ("long prompt", "bytes", 1),
    "output_tokens": ("long answer", "tokens", 1),
    "uncached_tokens": ("prompt not in the prefix cache", "tokens", 1),
    "in_flight": ("many requests in flight when it was sent", "requests", 1),
    "prompt_ahead": ("prompts of others still being read", "tokens", 1),
    "idle_ms": ("the engine had been idle before it", "ms", 1),
    "queue_ms": ("it waited in the server's queue", "ms", 1),
    "load_ms": ("the server loaded the model for it", "ms", 1),
    "preempted": ("it was preempted", "times", 1),
    "retries": ("it was sent again", "times", 1),
    "new_connection": ("new connection", "", 1),
    "cold_start": ("cold start: among the first requests", "", 1),
    "client_loop_lag_ms": ("the client's event loop stood still", "ms", 1),
    "client_gc_pause_ms": ("the client collected garbage", "ms", 1),
    "cpu_foreign_cores": ("other processes used the CPU", "cores", 1),
    "cpu_steal_cores": ("the hypervisor took the CPU away", "cores", 1),
    "cgroup_throttled_s": ("the container's CPU limit held it back", "ms", 1e3),
    "frequency_mhz": ("slow CPU clock", "MHz", 1),
    "memory_available_bytes": ("little memory left on the host", "GiB", 2**-30),
    "requests_waiting": ("queue at the server", "requests", 1),
    "requests_running": ("large batch at the server", "requests", 1),
    "kv_cache_usage_ratio": ("the server's cache was full", "%", 100),
    "preemptions_total": ("the server preempted requests", "times", 1),
    "gpu_throttled_by_power_cap": ("GPU throttled by its power limit", "", 1),
    "gpu_throttled_by_hardware": ("GPU throttled by hardware", "", 1),
    "gpu_throttled_by_heat_software": ("GPU throttled by heat (software)", "", 1),
    "gpu_throttled_by_heat_hardware": ("GPU throttled by heat (hardware)", "", 1),
    "gpu_throttled_by_power_brake": ("GPU throttled by the power brake", "", 1),
    "gpu_clock_mhz": ("slow GPU clock", "MHz", 1),
    "gpu_pcie_sent_bytes_per_s": ("much PCIe traffic from the GPU", "GB/s", 1e-9),
    "gpu_pcie_received_bytes_per_s": ("much PCIe traffic to the GPU", "GB/s", 1e-9),
}
_LOWER: Final = frozenset(sensor.name for sensor in SENSORS if sensor.worse < 0)
_BY_METRIC: Final = {  # what belongs to another part of the answer says nothing of this one
    "ttft": frozenset({"output_tokens"}),
    "tpot": frozenset({"late_ms"}),
    "e2e": frozenset[str](),
}
_LOST: Final = "select count(*) as n from answers where phase = 'load' and outcome not in ('ok', 'not sent')"
Slow = npt.NDArray[np.bool_]


class Cause(msgspec.Struct, frozen=True):
    """A trait that goes with slowness. `slow` and `others` are means in `unit`."""

    trait: str
    words: str
    slow: float
    others: float
    unit: str
    effect: float  # rank-biserial correlation, 0 to 1
    share: float  # of the slow requests: those beyond the 95th percentile of the others
    chance: float  # by Holm, over all traits, levels and metrics looked at
    alone: float  # the same chance, had nothing else been looked at
    verdict: Literal["found", "coincides"]


class Tail(msgspec.Struct, frozen=True):
    """The requests beyond one percentile of one metric. `reason`: why nothing is said, if so."""

    metric: str
    level: float
    limit_ms: float | None
    slow: int
    requests: int
    causes: tuple[Cause, ...] = ()
    where: Mapping[str, float] = {}  # ms that a slow request takes more than the median one, by part; E2E only
    reason: str = ""


class Attribution(msgspec.Struct, frozen=True):
    """What can be said of a run's slow requests. `not_seen`: traits that its record holds nothing about."""

    run: str
    driver: str
    decision: Decision
    tails: tuple[Tail, ...]
    looked_at: tuple[str, ...]
    not_seen: tuple[str, ...]
    notes: tuple[str, ...]


class _Looked(msgspec.Struct, frozen=True):
    """One trait against one tail, before the correction."""

    tail: int
    trait: str
    slow: Slow
    rank: Float64
    value: Float64
    alone: float


def attribute(
    connection: duckdb.DuckDBPyConnection, run: Run, metrics: tuple[str, ...] = ("ttft", "e2e"), seed: int = 0
) -> Attribution:
    """All of a run's load but the tagged warm-up, also what a steady-state rule would cut: a cold start is a cause.

    `connection` has the views of `metrics.views.install`.
    """
    rows = views.columns_of(connection, "select * from traits")
    tails: list[Tail] = []
    looked: list[_Looked] = []
    seen: dict[str, None] = {}
    for metric in metrics:
        known = np.isfinite(rows[f"{metric}_ms"])
        part = {name: column[known] for name, column in rows.items()}
        for level in LEVELS:
            tail, slow = _tail(part, metric, level)
            tails.append(tail)
            if tail.limit_ms is None:
                continue
            traits = _traits(connection, part, metric)
            seen.update(dict.fromkeys(traits))
            looked += _look(len(tails) - 1, traits, slow, seed)
    causes = _causes(looked, tails)
    told = tuple(msgspec.structs.replace(tail, causes=causes[at]) for at, tail in enumerate(tails))
    lost = int(views.columns_of(connection, _LOST)["n"][0])
    notes = (f"{lost:,} requests that failed, were stopped or came empty are not among these",) if lost else ()
    not_seen = tuple(dict.fromkeys(TRAITS[name][0] for name in TRAITS if name not in seen)) if looked else ()
    decision = decide(told, run)
    return Attribution(run.id, run.driver.value, decision, told, tuple(seen), not_seen, notes)


def _tail(rows: Mapping[str, Float64], metric: str, level: float) -> tuple[Tail, Slow]:
    value = rows[f"{metric}_ms"]
    n = len(value)
    needs = round(FEWEST / (1 - level))
    if n < needs:
        why = f"{n:,} answers; P{100 * level:g} needs {needs:,}"
        return Tail(metric, level, None, 0, n, reason=why), np.zeros(n, np.bool_)
    limit_ms = float(np.quantile(value, level))
    slow = value > limit_ms
    if int(slow.sum()) < FEWEST:
        return Tail(metric, level, None, 0, n, reason="all answers take equally long"), slow
    where = _where(rows, slow) if metric == "e2e" else {}
    return Tail(metric, level, limit_ms, int(slow.sum()), n, where=where), slow


def _where(rows: Mapping[str, Float64], slow: Slow) -> dict[str, float]:
    """Medians of the slow minus medians of the others: before the first token, in the longest pause, in the rest."""
    first, pause = rows["ttft_ms"], rows["longest_gap_ms"]
    parts = {
        "until the first token": first,
        "longest pause": pause,
        "rest of the answer": rows["e2e_ms"] - first - pause,
    }
    found = {}
    for name, value in parts.items():
        if np.isfinite(value[slow]).any() and np.isfinite(value[~slow]).any():
            found[name] = float(np.nanmedian(value[slow]) - np.nanmedian(value[~slow]))
    return found


def _traits(connection: duckdb.DuckDBPyConnection, rows: Mapping[str, Float64], metric: str) -> dict[str, Float64]:
    """Traits that differ between requests, each as one array; unknown is nan."""
    names = [name for name in TRAITS if name in rows and name not in _BY_METRIC[metric]]
    found = {name: rows[name] for name in names if not (name == "request_bytes" and _varies(rows["prompt_tokens"]))}
    found["cold_start"] = (np.arange(len(rows["sent_ns"])) < EARLY * len(rows["sent_ns"])).astype(np.float64)
    # whatever makes a request slow meets it before it would have been over
    usual_ms = float(np.median(rows[f"{'e2e' if metric == 'tpot' else metric}_ms"]))
    found.update(beside(connection, rows["sent_ns"], usual_ms * 1e6))
    return {name: value for name, value in found.items() if _varies(value)}


def _varies(value: Float64) -> bool:
    known = value[np.isfinite(value)]
    return len(known) >= len(value) / 2 and len(known) > 0 and bool(known.min() < known.max())


def _look(tail: int, traits: Mapping[str, Float64], slow: Slow, seed: int) -> list[_Looked]:
    moved, _ = coincidence.turned(slow, seed)
    found = []
    for name, value in traits.items():
        rank = coincidence.ranks(-value if name in _LOWER else value)
        found.append(_Looked(tail, name, slow, rank, value, coincidence.chance(rank, slow, moved)))
    return found


def _causes(looked: list[_Looked], tails: list[Tail]) -> list[tuple[Cause, ...]]:
    """Corrects for all that was looked at, keeps what is found or far apart, strongest first."""
    corrected = coincidence.holm(np.array([one.alone for one in looked]))
    found: list[list[Cause]] = [[] for _ in tails]
    for one, chance in zip(looked, corrected.tolist(), strict=True):
        effect = coincidence.effect(one.rank, one.slow)
        if effect >= LEAST and (chance < ALPHA or (effect >= FAR and one.alone < ALPHA)):
            found[one.tail].append(_cause(one, effect, chance))
    return [tuple(sorted(some, key=lambda cause: (cause.verdict != "found", -cause.effect))) for some in found]


def _cause(one: _Looked, effect: float, chance: float) -> Cause:
    (words, unit, scale), slow = TRAITS[one.trait], one.slow
    with_it, without = one.value[slow] * scale, one.value[~slow] * scale
    edge = np.quantile(one.rank[~slow], 0.95)
    return Cause(
        trait=one.trait,
        words=words,
        slow=float(np.nanmean(with_it)),
        others=float(np.nanmean(without)),
        unit=unit,
        effect=effect,
        share=float((one.rank[slow] > edge).mean()),
        chance=chance,
        alone=one.alone,
        verdict="found" if chance < ALPHA else "coincides",
    )


def decide(tails: tuple[Tail, ...], run: Run) -> Decision:
    """One sentence: what goes with slowness, or that nothing was found, or why it cannot be said."""
    question = "What was different about the slow requests?"
    evidence = (f"{run.driver.value}: {run.id}",)
    told = [tail for tail in tails if tail.limit_ms is not None]
    if not told:
        return Decision(question, f"It cannot be said: {tails[0].reason}.", (), (), evidence)
    sure = _first(told, "found")
    unsure = {trait: cause for trait, cause in _first(told, "coincides").items() if trait not in sure}
    if sure:
        answer = f"Slow requests go with: {_listed(sure)}."
    else:
        answer = f"Nothing was found that goes with slow requests ({_reach(told)})."
    if unsure:
        answer += f" They also fall together with: {_listed(unsure)}; chance could have done that, so repeat the run."
    because = tuple(_because(tail, cause) for tail in told for cause in tail.causes)
    return Decision(question, answer, because, (), evidence)


def _first(tails: list[Tail], verdict: str) -> dict[str, Cause]:
    """Each trait once, as its strongest tail shows it, strongest first."""
    causes = [cause for tail in tails for cause in tail.causes if cause.verdict == verdict]
    found: dict[str, Cause] = {}
    for cause in sorted(causes, key=lambda cause: -cause.effect):
        found.setdefault(cause.trait, cause)
    return found


def _listed(causes: Mapping[str, Cause]) -> str:
    return "; ".join(f"{cause.words} ({against(cause)})" for cause in causes.values())


def against(cause: Cause) -> str:
    """`1,990 against 63 tokens`."""
    return f"{significant(cause.slow)} against {significant(cause.others)} {cause.unit}".rstrip()


def _reach(tails: list[Tail]) -> str:
    names = dict.fromkeys(f"P{100 * tail.level:g} of {METRICS[tail.metric]}" for tail in tails)
    return f"looked at {', '.join(names)}"


def _because(tail: Tail, cause: Cause) -> str:
    sure = f"chance {cause.chance:.2g}" if cause.verdict == "found" else f"not told from chance: {cause.chance:.2g}"
    return (
        f"{METRICS[tail.metric]} beyond P{100 * tail.level:g}: {cause.words}, {against(cause)},"
        f" effect {cause.effect:.2f}, {sure}"
    )
