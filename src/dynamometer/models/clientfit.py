"""Step times from what clients saw: runs of one's own in, a `StepCost` out. Pure.

Without a step log the batch is rebuilt from the answers: a request prefills from its sending to its first token and
decodes from then on. Two kinds of spans show a step: gaps between tokens while nobody prefills (a decode step of that
many sequences), and first tokens of requests that found the engine idle (their prompt). All others test the fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import msgspec
import numpy as np

from dynamometer.errors import MissingExtra, Refused
from dynamometer.hardware.stepcost import Host, StepCost
from dynamometer.types import Float64

_LEAST = 20


class RunsFit(msgspec.Struct, frozen=True):
    """`misfit`: median relative error of the spans fitted to; `spread`: the same on a run left out (or the misfit,
    with one run)."""

    cost: StepCost
    misfit: float
    spread: float
    slots: int  # most sequences that decoded at once


class _Spans(msgspec.Struct, frozen=True):
    """Decode gaps and idle prompts."""

    gap_s: Float64
    decoding: Float64
    context: Float64
    idle_s: Float64
    prompt: Float64


def calibrate_runs(runs: list[Mapping[str, Float64]]) -> RunsFit:
    """Fits the runs together; refuses if they show too little."""
    spans = [_spans(run) for run in runs]
    cost, misfit = _fit(spans)
    missed = []
    for i in range(len(spans)) if len(spans) > 1 else ():
        try:
            other, _ = _fit(spans[:i] + spans[i + 1 :])
        except Refused:
            continue
        missed.append(_miss(other, spans[i]))
    slots = int(max(float(s.decoding.max()) for s in spans if len(s.decoding)))
    return RunsFit(cost, misfit, max(missed) if missed else misfit, slots)


def _spans(run: Mapping[str, Float64]) -> _Spans:
    """The spans of one run that show a step alone."""
    sent, first, last = run["sent_s"], run["first_s"], run["last_s"]
    owner, at_s = run["owner"].astype(int), run["token_s"]
    same = owner[1:] == owner[:-1]
    start, end, who = at_s[:-1][same], at_s[1:][same], owner[1:][same]
    middle = (start + end) / 2
    decoding = _inside(first, last, middle)
    quiet = (_inside(sent, first, start) == 0) & (_inside(sent, first, end) == 0) & (end > start)
    quiet &= (_count(sent, start, end) == 0) & (_count(last, start, end) == 0)
    rate = (run["output"] - 1) / np.maximum(1e-9, last - first)
    context = _context(run, rate, middle[quiet], first, last)
    idle = (_inside(sent, last, sent - 1e-9) == 0) & (run["cached"] == 0) & (_count(sent, sent, first) == 0)
    del who
    return _Spans(
        (end - start)[quiet], np.maximum(1, decoding[quiet]), context, (first - sent)[idle], run["prompt"][idle]
    )


def _inside(begin: Float64, end: Float64, at_s: Float64) -> Float64:
    """How many spans [begin, end) hold each moment."""
    count: Float64 = np.asarray(
        np.searchsorted(np.sort(begin), at_s, "right") - np.searchsorted(np.sort(end), at_s, "right"), dtype=np.float64
    )
    return count


def _count(moments: Float64, start: Float64, end: Float64) -> Float64:
    """Moments strictly inside each span."""
    ordered = np.sort(moments)
    count: Float64 = np.asarray(
        np.searchsorted(ordered, end, "left") - np.searchsorted(ordered, start, "right"), dtype=np.float64
    )
    return count


def _context(run: Mapping[str, Float64], rate: Float64, at_s: Float64, first: Float64, last: Float64) -> Float64:
    """Cached tokens of everyone who decodes at each moment: prompt, and tokens at the answer's own mean pace."""
    moments = np.concatenate([first, last])
    level = np.concatenate([run["prompt"] - rate * first, -(run["prompt"] - rate * first)])
    slope = np.concatenate([rate, -rate])
    order = np.argsort(moments, kind="stable")
    where = np.searchsorted(moments[order], at_s, "right")
    levels = np.concatenate([[0.0], np.cumsum(level[order])])[where]
    slopes = np.concatenate([[0.0], np.cumsum(slope[order])])[where]
    total: Float64 = levels + slopes * at_s
    return total


def _fit(spans: list[_Spans]) -> tuple[StepCost, float]:
    """Decode: level and slope between batch sizes, and context. Prompts: a line over the first decode step."""
    gap = np.concatenate([s.gap_s for s in spans])
    n = np.concatenate([s.decoding for s in spans])
    context = np.concatenate([s.context for s in spans])
    if len(gap) < _LEAST:
        raise Refused(f"only {len(gap)} token gaps without a prompt in between; calibrate on a longer or lighter run")
    knots, level, context_s = _decode(gap, n, context)
    idle = np.concatenate([s.idle_s for s in spans])
    prompt = np.concatenate([s.prompt for s in spans])
    if len(idle) < 3 or np.ptp(prompt) < 1:
        if not len(idle):
            raise Refused(
                "no request found the engine idle, so a prompt's time does not show; add a run at concurrency 1"
            )
        per_token, overhead = max(0.0, float(np.median((idle - level[0]) / prompt))), 0.0
    else:
        slope, base = np.polyfit(prompt, idle, 1)
        per_token, overhead = max(0.0, float(slope)), max(0.0, float(base) - level[0])
    top = knots[-1]
    far = max(2 * top, 4096)
    cost = StepCost(
        tokens=(*knots, far),
        linear_s=(*level, level[-1] + per_token * (far - top)),
        context_s=context_s,
        host=Host(reply_first_s=overhead),
        depth=1,
        largest_tokens=int(max(top, float(prompt.max(initial=0.0)))),
        largest_context=int(float(context.max())),
        source="fitted to runs of this machine, as clients saw them",
    )
    misses = [_miss(cost, s) for s in spans if len(s.gap_s)]
    return cost, float(np.median(misses))


def _decode(gap: Float64, n: Float64, context: Float64) -> tuple[tuple[int, ...], tuple[float, ...], float]:
    """Non-negative, non-decreasing step times at the batch sizes seen, and the time of a context token."""
    try:
        from scipy.optimize import nnls
    except ModuleNotFoundError as missing:
        raise MissingExtra("scipy", "fit") from missing
    seen, counts = np.unique(np.round(n), return_counts=True)
    knots = [int(v) for v, c in zip(seen, counts, strict=True) if c >= min(10, len(gap) // 4)] or [1]
    columns = [np.ones(len(gap))]
    for low, high in pairwise(knots):
        columns.append(
            np.asarray(np.clip((n - low) / (high - low), 0, None if high == knots[-1] else 1), dtype=np.float64)
        )
    columns.append(context)
    design = np.stack(columns, axis=1) / gap[:, None]
    size = np.linalg.norm(design, axis=0) + 1e-30
    weight = np.ones(len(gap))
    solution = np.zeros(design.shape[1])
    for _ in range(10):
        solution = nnls(design / size * weight[:, None], weight, maxiter=500)[0] / size
        weight = 1 / np.sqrt(np.maximum(np.abs(design @ solution - 1), 0.01))
    level = np.cumsum(solution[:-1])
    return tuple(knots), tuple(float(v) for v in level), float(solution[-1])


def _miss(cost: StepCost, spans: _Spans) -> float:
    """Median relative error of the decode gaps."""
    if not len(spans.gap_s):
        return float("nan")
    guess = np.interp(spans.decoding, cost.tokens, cost.linear_s) + cost.context_s * spans.context
    return float(np.median(np.abs(guess / spans.gap_s - 1)))
