"""Runs of several engines in, a fair comparison of them out, or the reasons why it would not be fair.

Fair means: the same prompts, as many tokens in and out, the same stop rule, load, cache state, weights, slots,
threads and machine. What is meant to differ is named in `allow`. Which differences are real is said pair by pair,
with intervals.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import combinations
from typing import Final

import msgspec

from dynamometer.decisions.compare import Change, Measured, compare
from dynamometer.errors import Refused, UsageError
from dynamometer.types import Estimate

TOKENS: Final = 0.01  # relative difference of tokens in or out that is let through
CACHE: Final = 0.05  # difference of the share of prompt tokens that came from the cache
FIGURES: Final = (("output_tokens_per_s", ""), ("ttft", "p95"), ("tpot", "p95"), ("e2e", "p95"))
_TYPES: Final = {"BFLOAT16": "BF16", "FLOAT16": "F16", "FLOAT32": "F32", "FP16": "F16", "FP32": "F32"}


class Side(msgspec.Struct, frozen=True):
    """One engine's row. Memory: the engine's processes at their highest, or the GPU's; None: it was not seen."""

    run: str
    engine: str
    version: str
    figures: Mapping[str, Estimate]  # output_tokens_per_s, ttft_p95, tpot_p95, e2e_p95, memory_bytes


class Difference(msgspec.Struct, frozen=True):
    """One figure of two engines. `real`: the sample shows it beyond its noise."""

    engines: tuple[str, str]
    change: Change
    real: bool


class Alignment(msgspec.Struct, frozen=True):
    sides: tuple[Side, ...]
    differences: tuple[Difference, ...]
    unfair: tuple[str, ...]  # what was allowed to differ
    notes: tuple[str, ...]


def align(sides: Sequence[Measured], allow: Collection[str] = ()) -> Alignment:
    """Refused when a difference that is not allowed makes the comparison unfair; the message names each."""
    if len(sides) < 2:
        raise UsageError("an alignment takes two runs or more, one an engine")
    wrong = sorted(set(allow) - set(CHECKS))
    if wrong:
        raise UsageError(f"nothing to allow is called {wrong[0]!r}; one of {', '.join(CHECKS)}")
    found = unfairness(sides)
    bad = [f"{name}: {why}" for name, why in found if name not in allow]
    if bad:
        remedy = "run them again alike, or say what is meant to differ: --allow " + ",".join(
            dict.fromkeys(name for name, _ in found if name not in allow)
        )
        raise Refused("the comparison would not be fair: " + "; ".join(bad) + f"; {remedy}")
    rows = tuple(side(one) for one in sides)
    names = _names(rows)
    differences = tuple(
        Difference((names[i], names[j]), change, change.verdict in ("faster", "slower", "better", "worse"))
        for i, j in combinations(range(len(sides)), 2)
        for change in compare([sides[i]], [sides[j]]).changes
        if (change.metric, change.statistic) in FIGURES
    )
    tests = len(differences)
    note = f"{tests} differences at 95 %: about {tests * 0.05:.1f} would look real by chance alone"
    return Alignment(rows, differences, tuple(f"{name}: {why}" for name, why in found), (note,) if tests > 4 else ())


def unfairness(sides: Sequence[Measured]) -> list[tuple[str, str]]:
    """(check, reason) for each way in which a run differs from the first."""
    first = sides[0]
    return [
        (name, f"{_engine(other)} {why}")
        for other in sides[1:]
        for name, check in CHECKS.items()
        if (why := check(first, other))
    ]


def side(one: Measured) -> Side:
    metrics = one.summary.metrics
    figures = {
        "output_tokens_per_s": metrics.estimates["output_tokens_per_s"],
        "ttft_p95": metrics.ttft_ms.estimates["p95"],
        "tpot_p95": metrics.tpot_ms.estimates["p95"],
        "e2e_p95": metrics.e2e_ms.estimates["p95"],
        "memory_bytes": memory(one),
    }
    return Side(one.run.id, _engine(one), str(one.run.engine.get("engine_version", "")), figures)


def memory(one: Measured) -> Estimate:
    """The highest sum over the engine's processes: proportional set size, else resident; on a GPU the memory used."""
    for name in ("gpu_memory_used_bytes", "pss_bytes", "rss_bytes"):
        query = (
            "select max(total), count(*) from (select sum(value) as total from samples where name = ? group by at_ns)"
        )
        row = one.connection.execute(query, [name]).fetchone()
        if row is not None and row[0] is not None:
            return Estimate(float(row[0]), None, None, int(row[1]), "bytes", method=f"highest {name} over the run")
    return Estimate(None, None, None, 0, "bytes", method="the engine's processes were not seen from here")


def _engine(one: Measured) -> str:
    return str(one.run.engine.get("engine", one.run.experiment.target.url))


def _names(rows: Sequence[Side]) -> list[str]:
    """Engines, told apart by their runs where two are the same."""
    names = [row.engine for row in rows]
    return [f"{row.engine} ({row.run})" if names.count(row.engine) > 1 else row.engine for row in rows]


# --- the checks: a sentence that goes on after the engine's name, or "" ---


def _both(first: Measured, other: Measured, query: str) -> tuple[object, object]:
    return _ask(first, query), _ask(other, query)


def _ask(one: Measured, query: str) -> object:
    row = one.connection.execute(query).fetchone()
    return row[0] if row else None


def _prompts(first: Measured, other: Measured) -> str:
    query = "select coalesce(string_agg(prompt_sha, ',' order by request), '') from requests where phase = 'load'"
    before, after = (str(text).split(",") for text in _both(first, other, query))
    common = min(len(before), len(after))
    unlike = sum(a != b for a, b in zip(before, after, strict=False))
    if not unlike:
        return ""
    return f"was asked other prompts ({unlike} of {common}); use --same-prompts and one --seed"


def _stop(first: Measured, other: Measured) -> str:
    query = (
        "select string_agg(distinct output_tokens || ' ' || ignore_eos, ',' order by 1) from requests "
        "where phase = 'load'"
    )
    before, after = _both(first, other, query)
    return "" if before == after else "had another stop rule (answer lengths or end-of-sequence)"


def _load(first: Measured, other: Measured) -> str:
    before, after = first.run.experiment.load, other.run.experiment.load
    return "" if before == after else f"was under another load ({after.law} {after.rate or after.concurrency:g})"


def _tokens_out(first: Measured, other: Measured) -> str:
    return _tokens(first, other, "output_tokens", "made {after:,.0f} tokens an answer and not {before:,.0f}")


def _tokens_in(first: Measured, other: Measured) -> str:
    words = "counts {after:,.0f} tokens a prompt and not {before:,.0f}: another tokenizer or chat template"
    return _tokens(first, other, "prompt_tokens", words)


def _tokens(first: Measured, other: Measured, column: str, words: str) -> str:
    query = f"select avg({column}) from answers where phase = 'load' and outcome = 'ok'"
    before, after = _both(first, other, query)
    if not isinstance(before, float) or not isinstance(after, float) or abs(after - before) <= TOKENS * before:
        return ""
    return words.format(before=before, after=after)


def _cache(first: Measured, other: Measured) -> str:
    query = (
        "select sum(coalesce(cached_tokens, 0)) / nullif(sum(prompt_tokens), 0)::double from answers "
        "where phase = 'load' and outcome = 'ok'"
    )
    before, after = _both(first, other, query)
    if not isinstance(before, float) or not isinstance(after, float) or abs(after - before) <= CACHE:
        return ""
    return f"had {after:.0%} of the prompt tokens in its cache and not {before:.0%}"


def _counting(first: Measured, other: Measured) -> str:
    query = (
        "select string_agg(distinct output_tokens_source, ', ' order by 1) from answers "
        "where phase = 'load' and outcome = 'ok'"
    )
    before, after = _both(first, other, query)
    estimated = any("estimated" in str(text) for text in (before, after))
    return f"has its tokens counted by {after} and not by {before}" if before != after and estimated else ""


def _weights(first: Measured, other: Measured) -> str:
    before, after = (_type(one) for one in (first, other))
    return "" if before == after or not before or not after else f"computes in {after} and not in {before}"


def _type(one: Measured) -> str:
    told = str(one.run.engine.get("quantization", "")).upper()
    return _TYPES.get(told, told)


def _fact(name: str, words: str) -> Callable[[Measured, Measured], str]:
    def check(first: Measured, other: Measured) -> str:
        before, after = first.run.engine.get(name), other.run.engine.get(name)
        return "" if None in (before, after) or before == after else f"{words} {after} and not {before}"

    return check


def _machine(first: Measured, other: Measured) -> str:
    for name in ("cpu", "cores_usable", "cores_quota", "memory_bytes", "gpu0"):
        before, after = first.run.machine.get(name), other.run.machine.get(name)
        if before != after:
            return f"ran on another machine ({name.replace('_', ' ')}: {after} and not {before})"
    return ""


def _sound(first: Measured, other: Measured) -> str:
    for one in (other, first):
        fatal = [doubt.message for doubt in (*one.run.doubts, *one.summary.doubts) if doubt.fatal]
        if fatal:
            return f"cannot be compared, since run {one.run.id} is not valid: {fatal[0]}"
    return ""


CHECKS: Final[Mapping[str, Callable[[Measured, Measured], str]]] = {
    "prompts": _prompts,
    "stop": _stop,
    "load": _load,
    "tokens-in": _tokens_in,
    "tokens-out": _tokens_out,
    "cache": _cache,
    "counting": _counting,
    "weights": _weights,
    "slots": _fact("slots", "had slots:"),
    "threads": _fact("threads", "had threads:"),
    "machine": _machine,
    "validity": _sound,
}
