"""Arrival or send times in; what kind of process they are out: rate, gap CV, index of dispersion, lag-1 correlation.

Applied to due times it checks a law, applied to sent times it checks the client that had to keep to it.
"""

from __future__ import annotations

import msgspec
import numpy as np

from dynamometer.types import Float64

_PER_WINDOW = 20  # arrivals in each counting window: enough for a count to vary, few enough for many windows
_FEWEST_WINDOWS = 10


class Shape(msgspec.Struct, frozen=True):
    """None: too few arrivals to tell. Poisson: CV 1, dispersion 1, correlation 0. Even: 0, 0 and 0."""

    n: int
    rate: float | None  # 1 / mean gap, requests per second
    gap_cv: float | None  # standard deviation / mean of the gaps
    dispersion: float | None  # variance / mean of counts in equal windows of some 20 arrivals
    lag1: float | None  # correlation of one gap with the next


def shape(at_s: Float64) -> Shape:
    """Describes ascending times in seconds."""
    gaps_s = np.diff(at_s)
    mean_s = float(gaps_s.mean()) if len(gaps_s) else 0.0
    if len(gaps_s) < 3 or not mean_s:
        return Shape(len(at_s), None, None, None, None)
    cv = float(gaps_s.std(ddof=1)) / mean_s
    return Shape(len(at_s), 1 / mean_s, cv, _dispersion(at_s), _lag1(gaps_s) if cv > 1e-6 else 0.0)


def _dispersion(at_s: Float64) -> float | None:
    windows = len(at_s) // _PER_WINDOW
    if windows < _FEWEST_WINDOWS:
        return None
    # half a gap on either side, so that even arrivals do not sit on the edges of the windows
    half_s = (at_s[-1] - at_s[0]) / (len(at_s) - 1) / 2
    counts, _ = np.histogram(at_s, bins=windows, range=(float(at_s[0] - half_s), float(at_s[-1] + half_s)))
    return float(counts.var(ddof=1) / counts.mean())


def _lag1(gaps_s: Float64) -> float:
    centred = gaps_s - gaps_s.mean()
    return float((centred[1:] * centred[:-1]).sum() / (centred**2).sum())
