"""A rate that changes with time in, due times out: `ramp` (a straight line between two rates) and `step` (levels).

Both are a profile of straight pieces. Arrivals of unit rate are pushed through the inverse of the profile's integral
(Çınlar's time change), which is exact: no thinning, no bins.
"""

from __future__ import annotations

from itertools import accumulate

import msgspec
import numpy as np

from dynamometer import options as opt
from dynamometer import units
from dynamometer.errors import UsageError
from dynamometer.schedule.window import Window, grow
from dynamometer.types import Float64, Load


class Piece(msgspec.Struct, frozen=True):
    """From `start_s` for `length_s` (inf for the last) the rate goes straight from `rate` to `rate_end` (1/s)."""

    start_s: float
    length_s: float
    rate: float
    rate_end: float

    @property
    def requests(self) -> float:
        """Expected arrivals in the piece."""
        if np.isinf(self.length_s):
            return np.inf if self.rate else 0.0
        return (self.rate + self.rate_end) / 2 * self.length_s


Profile = tuple[Piece, ...]


def ramp(rate: float, options: opt.Options, window: Window, chance: np.random.Generator) -> Float64:
    """From `rate` straight to option `to` over option `over` (default: the duration), then on at `to`. Option `after`:
    the rise begins so late (default: at once).

    `spacing` "poisson" (default: a Poisson process of that rate) or "even" (request k when the rate's integral is k).
    """
    return _arrivals(ramp_profile(rate, options, window), options.get("spacing", "poisson"), window, chance)


def step(rate: float, options: opt.Options, window: Window, chance: np.random.Generator) -> Float64:
    """Levels one after the other: option `steps` = "2:30s,5:30s,10:1m" is 2/s for 30 s, then 5/s, then 10/s.

    Ends with the last level unless a duration or a number of requests asks for more: then the last level is held.
    `spacing` as in `ramp`. The load's own rate is not used.
    """
    return _arrivals(step_profile(options), options.get("spacing", "poisson"), window, chance)


def ramp_profile(rate: float, options: opt.Options, window: Window) -> Profile:
    """The pieces of law "ramp"."""
    where = "law 'ramp'"
    opt.known(options, ("to", "over", "after", "spacing"), where)
    opt.choice(options, "spacing", "poisson", where, ("poisson", "even"))
    if "to" not in options:
        raise UsageError(f"{where} needs the rate to reach: set option to=RATE (requests per second)")
    to = opt.number(options, "to", 0.0, where, low=0)
    if max(rate, to) <= 0 or not np.isfinite(to):
        raise UsageError(f"{where} goes from {rate:g} to {to:g} requests per second; one of them must be above 0")
    after_s = opt.duration(options, "after", 0.0, where)
    rest_s = window.duration_s - after_s if window.duration_s else 2 * window.requests / (rate + to)
    over_s = opt.duration(options, "over", rest_s, where)
    if over_s <= 0:
        raise UsageError(f"{where} has no length; give over=TIME, --duration or --requests")
    rise = Piece(after_s, over_s, rate, to), Piece(after_s + over_s, np.inf, to, to)
    return (Piece(0.0, after_s, rate, rate), *rise) if after_s else rise


def step_profile(options: opt.Options) -> Profile:
    """The pieces of law "step", the last one held for ever."""
    where = "law 'step'"
    opt.known(options, ("steps", "spacing"), where)
    opt.choice(options, "spacing", "poisson", where, ("poisson", "even"))
    text = options.get("steps", "")
    levels = [_level(part, where) for part in text.split(",") if part.strip()]
    if not levels or max(rate for rate, _ in levels) <= 0:
        raise UsageError(f"{where}: steps is {text!r}; give rate:time pairs such as steps=2:30s,5:30s,10:1m")
    starts = accumulate((length_s for _, length_s in levels), initial=0.0)
    pieces = [Piece(start_s, length_s, rate, rate) for start_s, (rate, length_s) in zip(starts, levels, strict=False)]
    end_s, last = pieces[-1].start_s + pieces[-1].length_s, levels[-1][0]
    return *pieces, Piece(end_s, np.inf, last, last)


def _level(part: str, where: str) -> tuple[float, float]:
    rate, _, length = part.partition(":")
    length_s = units.seconds(length, f"{where}: the time in {part.strip()!r}")
    if length_s <= 0:
        raise UsageError(f"{where}: the time in {part.strip()!r} must be above 0")
    return opt.number({"rate": rate.strip()}, "rate", 0.0, f"{where}: {part.strip()!r}", low=0, high=1e9), length_s


def rate_at(load: Load, due_s: Float64, requests: int = 0, duration_s: float = 0.0) -> Float64:
    """The rate in force (1/s) at each due time: what the `level` column of a ramp or a step run holds."""
    if load.law == "ramp":
        profile = ramp_profile(load.rate, load.options, Window(requests, duration_s))
    elif load.law == "step":
        profile = step_profile(load.options)
    else:
        return np.full(len(due_s), load.rate)
    at = np.searchsorted([piece.start_s for piece in profile], due_s, side="right") - 1
    return np.array([_rate_in(profile[int(i)], float(t)) for i, t in zip(at, due_s, strict=True)])


def _rate_in(piece: Piece, at_s: float) -> float:
    if np.isinf(piece.length_s):
        return piece.rate
    return piece.rate + (piece.rate_end - piece.rate) * (at_s - piece.start_s) / piece.length_s


def _arrivals(profile: Profile, spacing: str, window: Window, chance: np.random.Generator) -> Float64:
    """Unit-rate arrivals through the inverse integral; a window without an end closes when the last piece begins."""
    window = Window(0, profile[-1].start_s) if window.open else window
    total = sum(piece.requests for piece in profile)
    if window.requests > total:
        raise UsageError(
            f"the rate falls to 0 after some {total:.0f} requests and {window.requests} are asked for; "
            "ask for fewer or end on a rate above 0"
        )
    until = _integral(profile, window.duration_s)
    if window.duration_s and not until:
        return np.empty(0)
    passed = Window(window.requests, until)
    if spacing == "even":
        passed.check(1.0)
        unit = passed.cut(np.arange(int(passed.expected(1.0)) + 1, dtype=np.float64))
    else:
        unit = grow(chance.standard_exponential, passed, 1.0)
    due_s = _inverse(profile, unit)
    return window.cut(due_s[np.isfinite(due_s)])


def _integral(profile: Profile, at_s: float) -> float:
    """Expected arrivals before `at_s`."""
    total = 0.0
    for piece in profile:
        inside_s = min(max(at_s - piece.start_s, 0.0), piece.length_s)
        if inside_s:
            total += (piece.rate + _rate_in(piece, piece.start_s + inside_s)) / 2 * inside_s
    return total


def _inverse(profile: Profile, unit: Float64) -> Float64:
    """The time at which the integral of the rate reaches each of `unit` (ascending)."""
    before = np.array([0.0, *accumulate(piece.requests for piece in profile[:-1])])
    at = np.searchsorted(before, unit, side="right") - 1
    start_s, length_s, rate, rate_end = (
        np.array([getattr(piece, name) for piece in profile], dtype=np.float64)[at]
        for name in ("start_s", "length_s", "rate", "rate_end")
    )
    slope = np.where(np.isinf(length_s), 0.0, (rate_end - rate) / length_s)
    rest = unit - before[at]
    # rest = rate·x + slope·x²/2, written so that neither a slope of 0 nor a rate of 0 cancels
    root = np.sqrt(np.maximum(rate**2 + 2 * slope * rest, 0.0))
    with np.errstate(divide="ignore", invalid="ignore"):
        x_s = np.where(rest > 0, 2 * rest / (rate + root), 0.0)
    return np.asarray(np.maximum.accumulate(start_s + x_s), dtype=np.float64)
