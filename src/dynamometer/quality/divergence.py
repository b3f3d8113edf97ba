"""Two models' log-probabilities along the same text in; divergence, agreement and perplexity with intervals out.

KL(baseline ‖ candidate) in nats a token. From whole vocabularies it is exact. From the top N of each it is a lower
bound: what is not in both lists is one event, and merging events can only lower a divergence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from dynamometer.errors import UsageError
from dynamometer.types import Estimate, Float64

Float32 = npt.NDArray[np.float32]
Top = Mapping[str, float]  # token -> log-probability, of the most likely ones
DRAWS: Final = 2_000
BANDS: Final = (0, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 1 << 30)  # tokens into a text


class Along(msgspec.Struct, frozen=True):
    """One text read by both. Each list has one value a predicted token, from the text's second on."""

    text: str
    kl: list[float]
    agree: list[bool]  # the most likely token is the same
    baseline: list[float]  # log-probability of the token that the text has
    candidate: list[float]
    exact: bool = True


class Band(msgspec.Struct, frozen=True):
    """Drift at a depth: candidate's log-probability of the text less the baseline's, nats a token."""

    first: int
    last: int
    drift: Estimate
    kl: Estimate


class Divergence(msgspec.Struct, frozen=True):
    """What the texts say together. Intervals: bootstrap over texts, for tokens of one text are alike."""

    texts: int
    tokens: int
    exact: bool
    kl: Estimate
    kl_p99: float
    agreement: Estimate
    perplexity: tuple[Estimate, Estimate]  # baseline, candidate
    perplexity_ratio: Estimate
    drift_slope: Estimate  # nats a token for each 100 tokens of depth
    bands: tuple[Band, ...]


def log_softmax(logits: Float32) -> Float32:
    """Rows of logits as log-probabilities, in place."""
    logits -= logits.max(axis=1, keepdims=True)
    logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True, dtype=np.float64)).astype(np.float32)
    return logits


def along(text: str, tokens: Sequence[int], baseline: Float32, candidate: Float32) -> Along:
    """From log-probabilities of the whole vocabulary, one row a position: exact.

    `baseline`, `candidate`: [len(tokens), vocabulary]; row i predicts token i + 1.
    """
    if baseline.shape != candidate.shape:
        raise UsageError(f"the vocabularies differ: {baseline.shape[1]:,} and {candidate.shape[1]:,} tokens")
    rows, here = np.arange(len(tokens) - 1), np.asarray(tokens[1:])
    p, q = baseline[:-1], candidate[:-1]
    kl = np.einsum("ij,ij->i", np.exp(p), p - q, dtype=np.float64)
    return Along(
        text,
        np.maximum(kl, 0.0).tolist(),  # rounding of 32 bits makes a divergence of nothing a little negative
        (p.argmax(axis=1) == q.argmax(axis=1)).tolist(),
        p[rows, here].astype(np.float64).tolist(),
        q[rows, here].astype(np.float64).tolist(),
    )


def kl_at_least(baseline: Top, candidate: Top) -> float:
    """The divergence of two cut lists, nats: a lower bound of the true one."""
    shared = baseline.keys() & candidate.keys()
    p = [math.exp(min(0.0, baseline[token])) for token in shared]
    terms = [p_i * (baseline[token] - candidate[token]) for p_i, token in zip(p, shared, strict=True)]
    rest_p = 1 - math.fsum(p)
    rest_q = 1 - math.fsum(math.exp(min(0.0, candidate[token])) for token in shared)
    if rest_p > 1e-9 and rest_q > 1e-12:
        terms.append(rest_p * math.log(rest_p / rest_q))
    return max(0.0, math.fsum(terms))


def summary(found: Sequence[Along], seed: int = 0) -> Divergence:
    """Means over all tokens of all texts, resampled by text."""
    found = [one for one in found if one.kl]
    if not found:
        raise UsageError("no text holds two tokens; give longer texts")
    chance = np.random.default_rng(seed)
    kls, size = _sums([one.kl for one in found])
    agree, _ = _sums([[float(same) for same in one.agree] for one in found])
    base, _ = _sums([one.baseline for one in found])
    cand, _ = _sums([one.candidate for one in found])
    drawn = chance.integers(0, len(found), (DRAWS, len(found)))
    n = int(size.sum())

    def mean(values: Float64, unit: str, scale: float = 1.0) -> Estimate:
        return _estimate(scale * values.sum() / n, scale * values[drawn].sum(1) / size[drawn].sum(1), found, unit, n)

    def perplexity(values: Float64) -> Estimate:
        draws = np.exp(-values[drawn].sum(1) / size[drawn].sum(1))
        return _estimate(math.exp(-values.sum() / n), draws, found, "", n)

    return Divergence(
        len(found), n, all(one.exact for one in found),
        mean(kls, "nat/token"), float(np.quantile(np.concatenate([one.kl for one in found]), 0.99)),
        mean(agree, "%", 100.0), (perplexity(base), perplexity(cand)), perplexity(cand - base),
        _slope(found, drawn), bands(found, chance),
    )  # fmt: skip


def bands(found: Sequence[Along], chance: np.random.Generator) -> tuple[Band, ...]:
    """Drift and divergence by depth, each band over the texts that reach it."""
    made = []
    for first, end in pairwise(BANDS):
        deep = [one for one in found if len(one.kl) > first]
        if not deep:
            break
        drifts = [np.subtract(one.candidate, one.baseline)[first:end] for one in deep]
        kls = [np.asarray(one.kl[first:end]) for one in deep]
        last = max(min(len(one.kl), end) for one in deep)
        draws = chance.integers(0, len(deep), (DRAWS, len(deep)))
        made.append(Band(first, last, _pooled(drifts, draws), _pooled(kls, draws)))
    return tuple(made)


def _pooled(parts: Sequence[Float64], drawn: npt.NDArray[np.int64]) -> Estimate:
    sums, size = _sums([part.tolist() for part in parts])
    draws = sums[drawn].sum(1) / size[drawn].sum(1)
    return _estimate(float(sums.sum() / size.sum()), draws, parts, "nat/token", int(size.sum()))


def _slope(found: Sequence[Along], drawn: npt.NDArray[np.int64]) -> Estimate:
    """Least squares of drift over depth from each text's moments, so that a draw of texts is a sum."""
    depth = [np.arange(len(one.kl), dtype=np.float64) / 100 for one in found]
    drift = [np.subtract(one.candidate, one.baseline) for one in found]
    moments = np.array(
        [[len(x), x.sum(), y.sum(), (x * x).sum(), (x * y).sum()] for x, y in zip(depth, drift, strict=True)]
    )
    n = int(moments[:, 0].sum())
    return _estimate(float(_line(moments.sum(0)[None])[0]), _line(moments[drawn].sum(1)), found, "nat/token/100", n)


def _line(m: Float64) -> Float64:
    spread = m[:, 0] * m[:, 3] - m[:, 1] ** 2
    slope: Float64 = (m[:, 0] * m[:, 4] - m[:, 1] * m[:, 2]) / np.where(spread > 0, spread, np.inf)
    return slope


def _sums(parts: Sequence[Sequence[float]]) -> tuple[Float64, Float64]:
    return np.array([math.fsum(part) for part in parts]), np.array([float(len(part)) for part in parts])


def _estimate(value: float, draws: Float64, texts: Sequence[object], unit: str, n: int) -> Estimate:
    if len(texts) < 5:  # resampling fewer says little of how texts differ
        return Estimate(float(value), None, None, n, unit, 0.95, f"{len(texts)} texts; 5 give an interval")
    low, high = np.quantile(draws, [0.025, 0.975])
    return Estimate(float(value), float(low), float(high), n, unit, 0.95, f"bootstrap over {len(texts)} texts")
