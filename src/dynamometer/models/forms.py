"""Concurrency in, throughput out: the curve families that a saturation fit chooses among.

All are fitted to the logarithm of throughput with parameters as logarithms, so that errors are relative, parameters
stay positive, and a level at 20 tokens/s counts as much as one at 20,000.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np

from dynamometer.models.leastsq import Curve
from dynamometer.types import Float64

_FAR = 1e6  # parameters may lie this factor beyond the data


class Form(msgspec.Struct, frozen=True):
    """One family. `curve` gives log throughput; `natural` turns log parameters [..., p] into those named."""

    name: str
    formula: str
    names: tuple[str, ...]
    units: tuple[str, ...]  # "y": the throughput's unit, "x": concurrency, "1": none, "y/x", "x/y"
    curve: Curve
    starts: Callable[[Float64, Float64], Float64]
    natural: Callable[[Float64], Float64]


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


FORMS = (
    Form(
        "hyperbola",
        "a·x/(b + x)",
        ("a", "b"),
        ("y", "x"),
        _hyperbola,
        _hyperbola_starts,
        np.exp,
    ),
    Form(
        "usl",
        "γ·x/(1 + σ·(x − 1) + κ·x·(x − 1))",
        ("gamma", "sigma", "kappa"),
        ("y", "1", "1"),
        _usl,
        _usl_starts,
        np.exp,
    ),
    Form(
        "hill",
        "a·x^h/(b^h + x^h)",
        ("a", "b", "h"),
        ("y", "x", "1"),
        _hill,
        _hill_starts,
        np.exp,
    ),
    Form(
        "two regimes",
        "x/(t + s·min(x, b) + r·max(x − b, 0))",
        ("t", "s", "r", "b"),
        ("x/y", "1/y", "1/y", "x"),
        _two_regimes,
        _two_regimes_starts,
        np.exp,
    ),
)


def box(form: Form, x: Float64, y: Float64) -> Float64:
    """Bounds of the log parameters, [2, p]: a millionth to a million times what the data show; exponent 0.1 to 5."""
    far = np.log(_FAR)
    log_x, log_y = np.log(x), np.log(y)
    spans = {
        "y": (log_y.min() - far, log_y.max() + far),
        "x": (log_x.min() - far, log_x.max() + far),
        "x/y": (-log_y.max() + log_x.min() - far, log_x.max() - log_y.min() + far),
        "1/y": (-log_y.max() - far, -log_y.min() + far),
        "1": (-30.0, 2.0),
    }
    if form.name == "hill":
        spans["1"] = (np.log(0.1), np.log(5.0))
        spans["y"] = (log_y.max() - 0.1, log_y.max() + 3.0)  # beyond 20 times the highest level a top is not seen
        spans["x"] = (log_x.min() - 3.0, log_x.max() + 6.0)
    if form.name == "two regimes":
        spans["x"] = (log_x.min(), log_x.max())
    return np.array([spans[unit] for unit in form.units]).T
