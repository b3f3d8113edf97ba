"""A summary, its doubts and its judged objective in; one plain sentence and its reasons out."""

from __future__ import annotations

from collections.abc import Sequence

from dynamometer.decisions.gate import Met, holds, limit_of, text
from dynamometer.metrics.summary import Summary
from dynamometer.types import Decision, Doubt, Estimate, Provenance
from dynamometer.units import show, significant

STARTS = frozenset({"ttft", "ttft_due", "ttfa"})


def decide(summary: Summary, judged: Sequence[Met] = ()) -> Decision:
    """What was measured, whether it meets the objective, what limits it; or why not to believe it."""
    fatal = [doubt for doubt in summary.doubts if doubt.fatal]
    question = "Does it meet the objective?" if judged else "What was measured?"
    evidence = (f"{summary.driver.value}: {summary.run}",)
    if fatal:
        answer = f"Do not use this run: {fatal[0].message}. To mend it: {fatal[0].remedy}."
        return Decision(question, answer, tuple(_doubt(doubt) for doubt in summary.doubts), (), evidence)
    answer = _what(summary)
    if judged:
        answer += f" {_meets(judged)}"
        limit = _limit(summary, judged)
        answer += f" {limit}" if limit else ""
    reasons = (*(one.why for one in judged), *(_doubt(doubt) for doubt in summary.doubts))
    if summary.doubts:
        answer += f" Mind: {summary.doubts[0].message}."
    return Decision(question, answer, reasons, _flips(judged), evidence)


def _doubt(doubt: Doubt) -> str:
    return f"{doubt.message}; {doubt.remedy}"


def _what(summary: Summary) -> str:
    """`Measured: 212 tokens/s and 3.3 requests/s with 4.0 in flight; …`"""
    metrics = summary.metrics
    word = {Provenance.MEASURED: "Measured", Provenance.SIMULATED: "Simulated"}.get(summary.driver, "Quoted")
    parts = []
    if metrics.output_tokens_per_s is not None:
        parts.append(f"{significant(metrics.output_tokens_per_s)} output tokens/s")
    if metrics.requests_per_s is not None:
        parts.append(f"{significant(metrics.requests_per_s)} requests/s")
    if metrics.concurrency_mean is not None:
        parts.append(f"{significant(metrics.concurrency_mean)} in flight")
    half = []
    if metrics.ttft_ms.p50 is not None:
        half.append(f"half of the answers begin within {significant(metrics.ttft_ms.p50)} ms")
    elif metrics.e2e_ms.p50 is not None:
        half.append(f"half of the answers are complete within {significant(metrics.e2e_ms.p50)} ms")
    if metrics.tpot_ms.mean:
        half.append(f"{'then' if half else 'tokens'} come at {significant(1000 / metrics.tpot_ms.mean)} tokens/s each")
    lost = metrics.requests_failed + metrics.requests_empty
    if lost:
        half.append(f"{lost} of {lost + metrics.requests_ok} requests gave no answer")
    figures = ", ".join(parts) or "no figure"
    return f"{word}: {figures}{'; ' if half else ''}{', '.join(half)}."


def _meets(judged: Sequence[Met]) -> str:
    missed = [text(one.objective) for one in judged if one.met is False]
    unseen = [text(one.objective) for one in judged if one.met is None]
    unsure = [text(one.objective) for one in judged if one.met and not one.sure]
    if missed:
        return f"It misses the objective: {', '.join(missed)}."
    if unseen:
        return f"Whether it meets the objective can't be said: {', '.join(unseen)} was not seen."
    if unsure:
        return f"It meets the objective in this sample, which is too small to be sure of {', '.join(unsure)}."
    return "It meets the objective."


def _limit(summary: Summary, judged: Sequence[Met]) -> str:
    """What stands in the way, as far as the figures of the client can tell."""
    missed = {one.objective.metric for one in judged if one.met is False}
    metrics = summary.metrics
    if "error_rate" in missed or (missed and metrics.requests_failed > 0.05 * max(metrics.requests_ok, 1)):
        return "The limit is refusal: requests fail under this load."
    if missed & {"tpot", "itl"}:
        return "The limit is decoding: too many answers share a step, or the model is too slow for this machine."
    if missed & STARTS:
        return _begin(metrics.ttft_ms.estimates["p50"], [one for one in judged if one.objective.metric in STARTS])
    if "e2e" in missed:
        return "The limit is the length of the answers at this speed: shorter answers or a faster decode."
    return ""


def _begin(middle: Estimate, judged: Sequence[Met]) -> str:
    """A late first token: of all requests, or of some while the half of them begin in time."""
    if middle.value is None:
        return "The limit is the wait for the first token."
    missed = [one for one in judged if one.met is False]
    if all(holds(middle.value, one.objective.op, limit_of(one.objective)) for one in missed):
        return f"The limit is a queue or stalls: half begin within {show(middle)}, the slowest wait far longer."
    return "The limit is the wait that all requests share: prompt processing, or a queue that never empties."


def _flips(judged: Sequence[Met]) -> tuple[str, ...]:
    """How far each objective is from turning."""
    found = []
    for one in judged:
        value = one.observed.value
        if value and one.met is not None:
            away = 100 * (limit_of(one.objective) / value - 1)
            found.append(f"{text(one.objective)} turns if the figure changes by {away:+.0f} %")
    return tuple(found)
