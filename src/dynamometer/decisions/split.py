"""A run's answers in; how much device time an input token and an output token take, measured together, out.

At every instant of the window the engine is idle, only decodes, or has a prompt to compute. The instants in which it
only decodes show what a decoded token takes: β = their length / the tokens that came in them. What is left of the
instants with a prompt, once the tokens that were decoded meanwhile are paid with β, is the time of the prompts:

    prompts = time with a prompt - β × tokens decoded in it,    decoding = all busy time - prompts

An answer's first token comes with its prompt and costs no decoding. Prompts over fresh input tokens and decoding over
all output tokens are the two times; together they are the busy time, exactly. A request that waits for a slot (as many
answers run as ever ran at once) has no prompt in work yet, and a wait in another queue costs the input nothing, for
tokens keep coming at their usual pace meanwhile. The batch is the measured one: at another load both differ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import duckdb
import msgspec
import numpy as np

from dynamometer.decisions.case import Input
from dynamometer.errors import Refused
from dynamometer.metrics import views
from dynamometer.types import Float64, Provenance, Run

BLOCKS: Final = 30
RESAMPLES: Final = 1000
LEAST_SHARE: Final = 0.01  # of the output tokens that must come while nothing is prefilled
MANY: Final = 1.5  # tokens a chunk, on average, above which chunks are no token times
_ANSWERS: Final = """
    with started as (select request, min(at_ns) as admitted_ns from events where kind = 'admit' group by request)
    select coalesce(admitted_ns, sent_ns) / 1e9 as start_s, first_ns / 1e9 as first_s, last_ns / 1e9 as last_s,
      ended_ns / 1e9 as ended_s, outcome = 'ok' as ok, phase = 'load' as load, coalesce(output_tokens, 0) as output,
      coalesce(prompt_tokens, nullif(input_tokens, 0)) as prompt, coalesce(cached_tokens, 0) as cached
    from answers left join started using (request) where sent_ns is not null and outcome <> 'not sent'
"""
_TOKENS: Final = """
    select at_ns / 1e9 as at_s, gap_ns / 1e9 as gap_s, tokens from gaps join answers using (request)
    where outcome = 'ok' and phase = 'load' and gap_ns is not null
"""


class Sums(msgspec.Struct, frozen=True):
    """What happened in each block of the window; arrays of one length. Seconds and tokens."""

    prompt_s: Float64  # at least one prompt was waiting or computed
    decode_s: Float64  # tokens only
    idle_s: Float64
    output_beside: Float64  # tokens that were decoded while a prompt was there
    output_alone: Float64
    firsts: Float64  # first tokens: they come with the prompt
    fresh: Float64  # input tokens that no cache held
    cached: Float64
    requests: Float64  # answered


class Split(msgspec.Struct, frozen=True):
    """Measured together. `prefill_tokens_per_s` None: the run does not say how long its prompts are."""

    prefill_tokens_per_s: tuple[float, float, float] | None  # low, value, high of a 95 % interval
    decode_tokens_per_s: tuple[float, float, float]
    busy_s: float
    prompt_s: float  # device time of the prompts
    input_tokens: float  # a request
    output_tokens: float
    cached_share: float
    requests: int
    busy_share: float  # of the window


def sums(connection: duckdb.DuckDBPyConnection) -> Sums:
    """Sums by block of the measured window. `connection` has the views, with the window set (metrics.summary)."""
    rows = views.columns_of(connection, _ANSWERS)
    span = views.columns_of(connection, "select from_ns / 1e9 as from_s, until_ns / 1e9 as until_s from span")
    if not len(rows["start_s"]) or not np.isfinite(rows["first_s"]).any():
        raise Refused("no answer of this run has a first token of its own, so prefill and decode can't be told apart")
    edges = np.linspace(float(span["from_s"][0]), float(span["until_s"][0]), BLOCKS + 1)
    return _by_block(rows, views.columns_of(connection, _TOKENS), edges)


def _by_block(rows: Mapping[str, Float64], tokens: Mapping[str, Float64], edges: Float64) -> Sums:
    ended = rows["ended_s"]
    first = np.where(np.isfinite(rows["first_s"]), rows["first_s"], ended)
    last = np.maximum(np.where(np.isfinite(rows["last_s"]), rows["last_s"], ended), first)
    start = np.maximum(np.minimum(rows["start_s"], first), _slot_free(first, last))
    times = np.unique(np.concatenate([start, first, last, edges]))
    times = times[(times >= edges[0]) & (times <= edges[-1])]
    length = np.diff(times)
    has_prompt = _level(times, start, first, np.ones(len(start))) > 0.5
    decoding = _level(times, first, last, np.ones(len(start))) > 0.5
    decoded = _decoded(times, tokens)
    block = np.clip(np.searchsorted(edges, times[:-1], side="right") - 1, 0, BLOCKS - 1)
    counted = (rows["ok"] > 0) & (rows["load"] > 0)
    prompt = np.nan_to_num(rows["prompt"])
    cached = np.minimum(rows["cached"], prompt)

    def summed(values: Float64) -> Float64:
        return np.bincount(block, values, BLOCKS).astype(np.float64)

    def at(when: Float64, values: Float64) -> Float64:
        inside = (when >= edges[0]) & (when <= edges[-1]) & counted
        place = np.clip(np.searchsorted(edges, when[inside], side="right") - 1, 0, BLOCKS - 1)
        return np.bincount(place, values[inside], BLOCKS).astype(np.float64)

    return Sums(
        summed(length * has_prompt),
        summed(length * (decoding & ~has_prompt)),
        summed(length * ~(decoding | has_prompt)),
        summed(decoded * has_prompt),
        summed(decoded * ~has_prompt),
        at(first, np.minimum(rows["output"], 1.0)),
        at(first, prompt - cached),
        at(first, cached),
        at(last, np.ones(len(last))),
    )


def _decoded(times: Float64, tokens: Mapping[str, Float64]) -> Float64:
    """Tokens after the first of an answer, by the piece of time that ends with them. Where a chunk holds many tokens
    (a server that collects, a thinned simulation) they are spread over the time since the chunk before."""
    at_s, gap_s, count = tokens["at_s"], np.maximum(tokens["gap_s"], 1e-9), tokens["tokens"]
    if len(count) and float(count.mean()) > MANY:
        return _level(times, at_s - gap_s, at_s, count / gap_s) * np.diff(times)
    place = np.searchsorted(times, at_s, side="left") - 1
    inside = (place >= 0) & (place < len(times) - 1)
    return np.bincount(place[inside], count[inside], len(times) - 1).astype(np.float64)


def _slot_free(first: Float64, last: Float64) -> Float64:
    """When the last full moment before each first token ended: full is, when as many answers run as ever did."""
    times = np.unique(np.concatenate([first, last]))
    running = _level(times, first, last, np.ones(len(first)))
    full = running > running.max(initial=0.0) - 0.5
    # the end of each full piece, carried on to the pieces after it; a piece that is full itself does not count as over
    ends = np.maximum.accumulate(np.where(full, times[1:], -np.inf)) if len(full) else np.zeros(0)
    place = np.searchsorted(times, first) - 1  # the piece that ends with the first token
    return np.where(place >= 0, ends[np.maximum(place, 0)], -np.inf) if len(ends) else np.full(len(first), -np.inf)


def _level(times: Float64, begin: Float64, end: Float64, weight: Float64) -> Float64:
    """The sum of the weights of the intervals that cover each piece between neighbouring times."""
    low, high = np.searchsorted(times, begin), np.searchsorted(times, end)
    change = np.zeros(len(times) + 1)
    np.add.at(change, low, weight)
    np.add.at(change, high, -weight)
    return np.cumsum(change)[: len(times) - 1]


def split(parts: Sequence[Sums], seed: int = 0) -> Split:
    """One split from one or several runs of the same machine; intervals by drawing blocks again."""
    table = np.concatenate(
        [np.array([getattr(part, name) for name in Sums.__struct_fields__]) for part in parts], axis=1
    )
    whole = Sums(*table.sum(axis=1, keepdims=True))
    output = float((whole.output_beside + whole.output_alone + whole.firsts)[0])
    requests, fresh = float(whole.requests[0]), float(whole.fresh[0])
    if requests < 1 or output <= 0:
        raise Refused("no answer was completed in the measured window, so no token has a cost")
    if whole.output_alone[0] < LEAST_SHARE * output:
        raise Refused(
            f"a prompt was always waiting: {float(whole.output_alone[0] / output):.1%} of the tokens came without one, "
            "so prefill and decode can't be told apart; add a run at a lower load, or state both rates"
        )
    chance = np.random.default_rng(seed)
    weights = chance.multinomial(table.shape[1], np.full(table.shape[1], 1 / table.shape[1]), size=RESAMPLES)
    drawn = Sums(*np.asarray(table @ weights.T, dtype=np.float64))
    busy_s, prompt_s = float((whole.prompt_s + whole.decode_s)[0]), float(_prompt_time(whole)[0])
    prompts = fresh + float(whole.cached[0])
    (alpha, beta), (alphas, betas) = _times(whole), _times(drawn)
    return Split(
        _rate(float(alpha[0]), alphas) if prompt_s > 0 else None,
        _rate(float(beta[0]), betas),
        busy_s,
        prompt_s,
        prompts / requests,
        output / requests,
        float(whole.cached[0]) / prompts if prompts else 0.0,
        round(requests),
        busy_s / (busy_s + float(whole.idle_s[0])),
    )


def _prompt_time(s: Sums) -> Float64:
    """Device seconds of the prompts: what decoding does not explain of the time with a prompt. 0 when the length of no
    prompt is known: then output carries all."""
    with np.errstate(divide="ignore", invalid="ignore"):
        left = s.prompt_s - s.decode_s / s.output_alone * s.output_beside
    return np.where((s.fresh > 0) & (left > 0), left, 0.0)


def _times(s: Sums) -> tuple[Float64, Float64]:
    """Seconds a fresh input token, seconds an output token."""
    prompt_s = _prompt_time(s)
    with np.errstate(divide="ignore", invalid="ignore"):
        alpha = prompt_s / s.fresh
        beta = (s.prompt_s + s.decode_s - prompt_s) / (s.output_beside + s.output_alone + s.firsts)
    return alpha, beta


def _rate(value_s: float, drawn_s: Float64) -> tuple[float, float, float]:
    """(low, value, high) tokens a second from seconds a token."""
    good = drawn_s[np.isfinite(drawn_s) & (drawn_s > 0)]
    low, high = np.quantile(good, [0.025, 0.975]) if len(good) else (value_s, value_s)
    return 1 / max(float(high), value_s), 1 / value_s, 1 / min(float(low), value_s)


def inputs(found: Split, runs: Sequence[Run]) -> tuple[Input, ...]:
    """The split as inputs of a bill, marked with how the rows came about."""
    drivers = {run.driver for run in runs}
    if len(drivers) > 1:
        raise Refused("some runs are measured and some simulated; price one kind at a time")
    provenance = drivers.pop()
    source = f"{provenance.value}: {', '.join(run.id for run in runs)}"
    wrong = _model_error(runs)
    made = [
        ("decode_tokens_per_s", "tokens/s", _widened(found.decode_tokens_per_s, wrong)),
        ("input_tokens", "tokens", (found.input_tokens,) * 3),
        ("output_tokens", "tokens", (found.output_tokens,) * 3),
        ("cached_share", "", (found.cached_share,) * 3),
        ("failed_share", "", (0.0,) * 3),
    ]
    if found.prefill_tokens_per_s is not None:
        made.insert(0, ("prefill_tokens_per_s", "tokens/s", _widened(found.prefill_tokens_per_s, wrong)))
    if wrong:
        source += f"; its step times may be wrong by {wrong:.0%}"
    remark = {"failed_share": "; the time of failed answers is in the rates already"}
    return tuple(
        Input(name, low, value, high, unit, Provenance(provenance), source + remark.get(name, ""), "interval")
        for name, unit, (low, value, high) in made
    )


def _model_error(runs: Sequence[Run]) -> float:
    """How far a simulation's step times may be wrong, one standard deviation; 0 for measured runs."""
    spreads = [run.engine.get("step_cost_spread", 0.0) for run in runs if run.driver is Provenance.SIMULATED]
    return max((float(spread) for spread in spreads if isinstance(spread, int | float)), default=0.0)


def _widened(rate: tuple[float, float, float], wrong: float) -> tuple[float, float, float]:
    """The 95 % interval with the model's error added in quadrature, on logs."""
    low, value, high = rate
    extra = 1.96 * wrong
    down, up = math.hypot(math.log(value / low), extra), math.hypot(math.log(high / value), extra)
    return value * math.exp(-down), value, value * math.exp(up)
