"""A run's rows in; the figures that another tool would print for the same bytes out, with one line why they differ.

The rules were read in each tool's source, at the version that `title` names. They answer "your TTFT is not what tool
X says": both are computed from one record. Quantiles here are plain sample quantiles, as those tools print them.
"""

from __future__ import annotations

from collections.abc import Mapping

import duckdb
import msgspec
import numpy as np

from dynamometer.errors import UsageError
from dynamometer.metrics import views
from dynamometer.metrics.quantiles import Weighted, weighted
from dynamometer.metrics.views import columns_of
from dynamometer.types import Float64


class Rule(msgspec.Struct, frozen=True):
    """How a tool counts. Clock readings name columns of the view milestones."""

    title: str
    why: str
    start: str = ""  # "" the request was sent; "due"
    first: str = "first"  # first | first_answer
    end: str = "last"  # of E2E: last | last_answer | usage | done
    tpot_end: str = ""  # "" no TPOT; else as `end`
    tpot_over: str = "rest"  # rest: time after the first token by n - 1; all: that by n; whole: from the start by n
    itl: str = ""  # "" none; gaps | split | burst | mean | events
    icl: bool = False  # gaps are shown too, under a name of their own
    tokens: str = "tokens"  # tokens (usage) | text_tokens (a tokenizer on the text)


class Figure(msgspec.Struct, frozen=True):
    """Plain sample figures in ms; None: the tool prints none."""

    mean: float | None = None
    p50: float | None = None
    p99: float | None = None
    n: int = 0


class Counted(msgspec.Struct, frozen=True):
    """One run as one tool counts it."""

    tool: str
    title: str
    ttft_ms: Figure
    tpot_ms: Figure
    itl_ms: Figure
    icl_ms: Figure
    e2e_ms: Figure
    output_tokens: int
    why: str


_ALL_CHANNELS = "clock stops at the last token; one ITL sample a chunk, whatever number of tokens it holds"
_STREAM_END = "E2E and TPOT run to the end of the stream, so the usage chunk and the end marker are decode time"

TOOLS: dict[str, Rule] = {
    "vllm": Rule("vLLM 0.33 bench serve (server sends `reasoning`)", _ALL_CHANNELS, tpot_end="last", itl="gaps"),
    "vllm-reasoning-content": Rule(
        "vLLM 0.33 bench serve (server sends `reasoning_content`)",
        "reasoning is not seen: it counts as waiting in TTFT, but its tokens divide the rest in TPOT",
        first="first_answer",
        end="last_answer",
        tpot_end="last_answer",
        itl="gaps",
    ),
    "sglang": Rule("SGLang 0.5.23 bench_serving", _STREAM_END, end="done", tpot_end="done", itl="gaps"),
    "sglang-spec": Rule(
        "SGLang 0.5.23 bench_serving with speculative decoding",
        f"{_STREAM_END}; ITL is split over the tokens of each chunk",
        end="done",
        tpot_end="done",
        itl="split",
    ),
    "guidellm": Rule(
        "GuideLLM 0.8.1",
        "its time per output token holds TTFT too; what others call TPOT is its inter-token latency",
        tpot_end="last",
        tpot_over="whole",
        itl="mean",
    ),
    "aiperf": Rule(
        "AIPerf 0.13 (server token counts)",
        "ITL is one average a request, so its quantiles know no stalls; the gaps are its inter-chunk latency",
        itl="mean",
        icl=True,
    ),
    "inference-perf": Rule(
        "inference-perf, August 2026",
        "reasoning is not seen; tokens that come together give gaps of 0 and a long one; E2E ends with the stream",
        first="first_answer",
        end="done",
        tpot_end="last_answer",
        itl="burst",
        tokens="text_tokens",
    ),
    "evalscope": Rule("EvalScope 1.14", _STREAM_END, end="done", tpot_end="done", itl="gaps"),
    "genai-bench": Rule(
        "genai-bench 0.0.5", "E2E and TPOT run to the usage chunk; it prints no ITL", end="usage", tpot_end="usage"
    ),
    "llmperf": Rule(
        "LLMPerf",
        "reasoning is not seen; ITL is the whole time, TTFT included, by the number of events of any kind",
        first="first_answer",
        end="done",
        itl="events",
        tokens="text_tokens",
    ),
    "hf": Rule(
        "Hugging Face inference-benchmarker",
        "reasoning is not seen; ITL is one average a request over a tokenizer's count",
        first="first_answer",
        end="done",
        itl="mean",
        tokens="text_tokens",
    ),
    "fw-ai": Rule(
        "Fireworks load test",
        "latency per token divides the time after the first token by all tokens, to the end of the stream",
        end="done",
        tpot_end="done",
        tpot_over="all",
    ),
    "loadgen": Rule(
        "MLPerf LoadGen",
        "every clock starts when the request was scheduled, so the client's own delay counts",
        start="due",
        end="done",
        tpot_end="done",
    ),
}


def names() -> tuple[str, ...]:
    return tuple(TOOLS)


def rule(tool: str) -> Rule:
    if tool not in TOOLS:
        raise UsageError(f"there is no tool {tool!r} to count as; known: {', '.join(TOOLS)}")
    return TOOLS[tool]


def count_as(connection: duckdb.DuckDBPyConnection, tool: str) -> Counted:
    """The run as `tool` counts it. The views must be installed; the window is that of the views."""
    rules = rule(tool)
    at = columns_of(connection, "select * from milestones")
    start = at["due"] if rules.start else np.zeros_like(at["first"])
    first, n = at[rules.first], at[rules.tokens]
    return Counted(
        tool,
        rules.title,
        _figure(first - start),
        _figure(_tpot(rules, at, start)),
        _figure(*_itl(connection, rules, at)),
        _figure(*_gaps(connection, rules, "gaps")) if rules.icl else Figure(),
        _figure(at[rules.end] - start),
        round(float(np.nansum(n))),
        rules.why,
    )


def ours(connection: duckdb.DuckDBPyConnection) -> Counted:
    """The same plain figures by this product's own rules, to stand beside another tool's."""
    found = {}
    for name in ("ttft", "tpot", "itl", "icl", "e2e"):
        samples = views.samples(connection, name)
        seen = np.ones(len(samples.value), dtype=np.bool_) if samples.censored is None else ~samples.censored
        found[f"{name}_ms"] = _figure(samples.value[seen], None if samples.weight is None else samples.weight[seen])
    tokens = columns_of(connection, "select sum(output_tokens) as tokens from kept where outcome = 'ok'")["tokens"][0]
    return Counted(
        tool="dynamometer",
        title="Dynamometer",
        output_tokens=round(float(np.nan_to_num(tokens))),
        why="see the glossary; unfinished requests are left out here, as the other tools do",
        **found,
    )


def _figure(values: Float64, weights: Float64 | None = None) -> Figure:
    known = np.isfinite(values)
    kept = weighted(values[known], None if weights is None else weights[known])
    if kept.total <= 0:
        return Figure()
    return Figure(_mean(kept), kept.quantile(0.5), kept.quantile(0.99), round(kept.total))


def _mean(kept: Weighted) -> float:
    weights = np.diff(np.concatenate(([0.0], kept.upto)))
    return float(np.average(kept.values, weights=weights))


def _tpot(rule: Rule, at: Mapping[str, Float64], start: Float64) -> Float64:
    """One value a request; answers of one token have none."""
    if not rule.tpot_end:
        return np.empty(0)
    n = at[rule.tokens]
    many = n >= 2
    began = start if rule.tpot_over == "whole" else at[rule.first]
    over = n - 1 if rule.tpot_over == "rest" else n
    return ((at[rule.tpot_end] - began) / np.where(many, over, 1))[many]


def _itl(
    connection: duckdb.DuckDBPyConnection, rule: Rule, at: Mapping[str, Float64]
) -> tuple[Float64, Float64 | None]:
    """Values and their weights."""
    last = at["last_answer" if rule.first == "first_answer" else "last"]
    if rule.itl == "mean":
        many = at[rule.tokens] >= 2
        return ((last - at[rule.first]) / np.where(many, at[rule.tokens] - 1, 1))[many], None
    if rule.itl == "events":
        return last / at["events"], None
    return _gaps(connection, rule, rule.itl) if rule.itl else (np.empty(0), None)


def _gaps(connection: duckdb.DuckDBPyConnection, rule: Rule, kind: str) -> tuple[Float64, Float64 | None]:
    """Gaps between the chunks that the tool sees: as they are, split over their tokens, or with zeros for tokens that
    come together."""
    only = "and is_answer" if rule.first == "first_answer" else ""
    rows = columns_of(
        connection,
        "select request, at_ns, tokens from gaps join kept using (request)"
        f" where outcome = 'ok' and streamed {only} order by request, at_ns",
    )
    same = np.diff(rows["request"]) == 0
    gaps, tokens = np.diff(rows["at_ns"])[same] / 1e6, rows["tokens"][1:][same]
    if kind == "split":
        return gaps / np.maximum(tokens, 1e-9), tokens
    if kind == "burst":
        more = np.maximum(rows["tokens"] - 1, 0.0)
        return np.concatenate((gaps, np.zeros_like(more))), np.concatenate((np.ones_like(gaps), more))
    return gaps, None
