"""Load in, throughput or latency out: the curve families that a fit chooses among.

All are fitted to the logarithm of y with parameters as logarithms, so that errors are relative, parameters stay
positive, and a level at 20 tokens/s counts as much as one at 20,000.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np

from dynamometer.models.leastsq import Curve
from dynamometer.types import Float64

_FAR = float(np.log(1e6))


class Form(msgspec.Struct, frozen=True):
    """One family. `curve` gives the logarithm of y; its parameters are the logarithms of those named."""

    name: str
    formula: str
    names: tuple[str, ...]
    units: tuple[str, ...]  # "y": the throughput's unit, "x": concurrency, "1": none, "y/x", "x/y"
    curve: Curve
    starts: Callable[[Float64, Float64], Float64]  # (x, y) -> log parameters [s, p] to descend from
    box: Callable[[Float64, Float64], Float64]  # (x, y) -> their bounds [2, p]

    def affordable(self, x: Float64) -> bool:
        """Whether x has the levels to fit this family with one of them left out."""
        return len(np.unique(x)) > len(self.names)

    def freedom(self, x: Float64) -> int:
        """Degrees of freedom: levels, not runs, since what misses at a level misses in all its runs."""
        return max(1, len(np.unique(x)) - len(self.names))


def _part(theta: Float64, i: int) -> Float64:
    return theta[..., i : i + 1]


def _hyperbola(theta: Float64, x: Float64) -> Float64:
    a, b = _part(theta, 0), _part(theta, 1)
    return np.asarray(a + np.log(x) - np.logaddexp(b, np.log(x)))


def _usl(theta: Float64, x: Float64) -> Float64:
    g, s, k = (_part(theta, i) for i in range(3))
    return np.asarray(g + np.log(x) - np.log1p(np.exp(s) * (x - 1) + np.exp(k) * x * (x - 1)))


def _hill(theta: Float64, x: Float64) -> Float64:
    a, b, h = (_part(theta, i) for i in range(3))
    return np.asarray(a - np.logaddexp(0, -np.exp(h) * (np.log(x) - b)))


def _two_regimes(theta: Float64, x: Float64) -> Float64:
    t, s, r, b = (_part(theta, i) for i in range(4))
    knee = np.exp(b)
    step = np.exp(t) + np.exp(s) * np.minimum(x, knee) + np.exp(r) * np.maximum(x - knee, 0)
    return np.asarray(np.log(x) - np.log(step))


def _hyperbola_starts(x: Float64, y: Float64) -> Float64:
    top, middle = np.log(y.max()), np.log(np.median(x))
    return np.array([[top + 0.4, middle], [top + 1.4, np.log(x.max()) + 0.7], [top + 0.05, np.log(x.min())]])


def _usl_starts(x: Float64, y: Float64) -> Float64:
    one = np.log((y / x).max())
    return np.array([[one, -np.log(x.max()), -16], [one, -np.log(np.median(x)), -2 * np.log(x.max()) - 1]])


def _hill_starts(x: Float64, y: Float64) -> Float64:
    return np.array([[a, b, h] for a, b in _hyperbola_starts(x, y)[:2] for h in (0.0, -0.4)])


def _two_regimes_starts(x: Float64, y: Float64) -> Float64:
    step = x / y
    first, last = np.log(step[x.argmin()]), np.log(step[x.argmax()] / x.max())
    knees = np.log(np.quantile(x, (0.3, 0.5, 0.7)))
    return np.array([[first, last + tilt, last - tilt, knee] for knee in knees for tilt in (-1.0, 1.0)])


def _wide(values: Float64) -> tuple[float, float]:
    """A millionth to a million times what the data show, as logarithms."""
    return float(np.log(values.min())) - _FAR, float(np.log(values.max())) + _FAR


def _spans(*spans: tuple[float, float]) -> Float64:
    return np.array(spans).T


def _hyperbola_box(x: Float64, y: Float64) -> Float64:
    return _spans(_wide(y), _wide(x))


def _usl_box(x: Float64, y: Float64) -> Float64:
    return _spans(_wide(y), (-30.0, 2.0), (-30.0, 2.0))


def _hill_box(x: Float64, y: Float64) -> Float64:
    """A top beyond 20 times the highest level is not seen, nor an exponent outside 0.1 to 5."""
    low, high = float(np.log(x.min())), float(np.log(x.max()))
    top = float(np.log(y.max()))
    return _spans((top - 0.1, top + 3.0), (low - 3.0, high + 6.0), (float(np.log(0.1)), float(np.log(5.0))))


def _two_regimes_box(x: Float64, y: Float64) -> Float64:
    return _spans(_wide(x / y), _wide(1 / y), _wide(1 / y), (float(np.log(x.min())), float(np.log(x.max()))))


def _linear(theta: Float64, x: Float64) -> Float64:
    return np.asarray(np.logaddexp(_part(theta, 0), _part(theta, 1) + np.log(x)))


def _linear_starts(x: Float64, y: Float64) -> Float64:
    each = np.log(y.max() / x.max())
    return np.array([[np.log(y.min()), each - 1.0], [np.log(y.min()) - 1.0, each]])


def _linear_box(x: Float64, y: Float64) -> Float64:
    return _spans(_wide(y), _wide(y / x))


def _power(theta: Float64, x: Float64) -> Float64:
    t, c, p = (_part(theta, i) for i in range(3))
    return np.asarray(np.logaddexp(t, c + np.exp(p) * np.log(x)))


def _power_starts(x: Float64, y: Float64) -> Float64:
    first, last, span = np.log(y.min()), np.log(y.max()), np.log(x.max())
    return np.array([[first - 0.3, last - p * span - 0.5, np.log(p)] for p in (0.5, 1.0, 2.0)])


def _power_box(x: Float64, y: Float64) -> Float64:
    far = 6 * max(1.0, float(np.log(x.max())))
    return _spans(_wide(y), (float(np.log(y.min())) - far, float(np.log(y.max())) + far), (-2.3, 1.4))


def _queue(theta: Float64, x: Float64) -> Float64:
    t, c, limit = (_part(theta, i) for i in range(3))
    load = np.minimum(x / np.exp(limit), 0.9999)
    return np.asarray(np.logaddexp(t, c + np.log(load) - np.log1p(-load)))


def _queue_starts(x: Float64, y: Float64) -> Float64:
    return np.array([[np.log(y.min()), np.log(y.max()) - 2.0, np.log(x.max() * beyond)] for beyond in (1.05, 1.5, 4.0)])


def _queue_box(x: Float64, y: Float64) -> Float64:
    return _spans(_wide(y), _wide(y), (float(np.log(x.max() * 1.001)), float(np.log(x.max())) + 5.0))


THROUGHPUT = (
    Form(
        "hyperbola",
        "a·x/(b + x)",
        ("a", "b"),
        ("y", "x"),
        _hyperbola,
        _hyperbola_starts,
        _hyperbola_box,
    ),
    Form(
        "usl",
        "γ·x/(1 + σ·(x − 1) + κ·x·(x − 1))",
        ("gamma", "sigma", "kappa"),
        ("y", "1", "1"),
        _usl,
        _usl_starts,
        _usl_box,
    ),
    Form(
        "hill",
        "a·x^h/(b^h + x^h)",
        ("a", "b", "h"),
        ("y", "x", "1"),
        _hill,
        _hill_starts,
        _hill_box,
    ),
    Form(
        "two regimes",
        "x/(t + s·min(x, b) + r·max(x − b, 0))",
        ("t", "s", "r", "b"),
        ("x/y", "1/y", "1/y", "x"),
        _two_regimes,
        _two_regimes_starts,
        _two_regimes_box,
    ),
)

LATENCY = (
    Form("linear", "t + c·x", ("t", "c"), ("y", "y/x"), _linear, _linear_starts, _linear_box),
    Form("power", "t + c·x^p", ("t", "c", "p"), ("y", "y", "1"), _power, _power_starts, _power_box),
    Form(
        "queue", "t + c·ρ/(1 − ρ), ρ = x/limit", ("t", "c", "limit"), ("y", "y", "x"), _queue, _queue_starts, _queue_box
    ),
)
"""Latency against load. `queue` is the shape of a single queue (M/M/1): it turns up as x nears a limit."""
