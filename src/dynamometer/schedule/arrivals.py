"""A load (law, rate, options), a seed and an end in; the ascending array of due times out. Pure: no clock.

Each law is a function `(rate, options, window, chance) -> due times in seconds`; so is a plugin of kind "law".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import cast

import msgspec
import numpy as np

from dynamometer import options as opt
from dynamometer import plugins
from dynamometer.errors import UsageError
from dynamometer.schedule.window import Window, grow
from dynamometer.types import Float64, Load, Schedule

Law = Callable[[float, opt.Options, Window, np.random.Generator], Float64]

_KEEP_THE_RATE = ("constant", "poisson", "gamma", "burst")
_STREAM = 0x5C4ED  # keeps the arrival stream apart from the prompt stream of the same seed


def chance(seed: int) -> np.random.Generator:
    """The arrival stream of a seed: the same in every process and on every machine (PCG64)."""
    if seed < 0:
        raise UsageError(f"seed is {seed}; give a whole number of at least 0")
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, _STREAM])))


def build(load: Load, seed: int, requests: int = 0, duration_s: float = 0.0) -> Schedule:
    """When each request is due.

    Ends after `requests`, at `duration_s` seconds, or at whichever comes first when both are set. A window that holds
    no arrival gives an empty array. `Schedule.rate` is the asked rate where the law keeps it on average, else the rate
    that came out (ramp, step, trace).
    """
    if load.law == "closed":
        raise UsageError("law is 'closed', which has no schedule: requests are due when answers end; give an open law")
    if requests < 0 or duration_s < 0 or not math.isfinite(duration_s):
        raise UsageError(f"the load ends after {requests} requests or {duration_s:g} s; give numbers of at least 0")
    if not math.isfinite(load.rate) or load.rate < 0:
        raise UsageError(f"rate is {load.rate:g}; give requests per second above 0")
    law = cast(Law, plugins.load("law", load.law))
    due_s = law(load.rate, load.options, Window(requests, duration_s), chance(seed))
    if len(due_s) and (not np.isfinite(due_s).all() or due_s[0] < 0 or (np.diff(due_s) < 0).any()):
        raise UsageError(f"law {load.law!r} gave due times that are negative, infinite or out of order")
    rate = load.rate if load.law in _KEEP_THE_RATE else _mean_rate(due_s, duration_s)
    return Schedule(load.law, rate, seed, due_s)


def _mean_rate(due_s: Float64, duration_s: float) -> float:
    span_s = duration_s or (float(due_s[-1] - due_s[0]) if len(due_s) else 0.0)
    return len(due_s) / span_s if span_s else 0.0


def needs_rate(rate: float, law: str) -> None:
    if rate <= 0:
        raise UsageError(f"rate is {rate:g}; law {law!r} needs requests per second above 0, or take law 'closed'")


def constant(rate: float, options: opt.Options, window: Window, chance: np.random.Generator) -> Float64:
    """Request k is due at k / rate, to the last bit: no gap is added up, so nothing drifts."""
    needs_rate(rate, "constant")
    opt.known(options, (), "law 'constant'")
    window.check(rate)
    return window.cut(np.arange(math.ceil(window.expected(rate)) + 1, dtype=np.float64) / rate)


def poisson(rate: float, options: opt.Options, window: Window, chance: np.random.Generator) -> Float64:
    """Independent exponential gaps of mean 1 / rate; gap CV 1, index of dispersion 1. No rescaling to a fixed end."""
    needs_rate(rate, "poisson")
    opt.known(options, (), "law 'poisson'")
    return grow(lambda n: chance.standard_exponential(n) / rate, window, rate)


def gamma(rate: float, options: opt.Options, window: Window, chance: np.random.Generator) -> Float64:
    """Independent gamma gaps of mean 1 / rate and CV 1 / sqrt(burstiness).

    `burstiness` b is the gamma shape (scale 1 / (rate * b)): below 1 burstier than Poisson, 1 Poisson, above 1 more
    even, inf constant. The first gap is drawn from the equilibrium distribution (a uniform share of a length-biased
    gap), so that the expected number of arrivals in any window is rate × time, for every b (Cox, Renewal Theory,
    1962, ch. 5).
    """
    needs_rate(rate, "gamma")
    opt.known(options, ("burstiness",), "law 'gamma'")
    shape = opt.positive(options, "burstiness", 1.0, "law 'gamma'")
    if math.isinf(shape):
        return constant(rate, {}, window, chance)
    scale_s = 1 / (rate * shape)
    first = iter([float(chance.gamma(shape + 1) * chance.random() * scale_s)])

    def gaps(n: int) -> Float64:
        drawn = chance.gamma(shape, scale_s, n)
        for gap_s in first:
            drawn[0] = gap_s
        return drawn

    return grow(gaps, window, rate)


def burst(rate: float, options: opt.Options, window: Window, chance: np.random.Generator) -> Float64:
    """An even base load plus bursts; the mean rate over both is `rate`.

    Options: `share` of the requests that come in bursts (0 to 1, default 0.2); `size` requests in each burst (default
    10); `spread` of a burst in time, its requests uniform over it (default 0s: all at once); `bursts` "poisson"
    (default) or "even" in time; `base` "even" (default) or "poisson".
    """
    needs_rate(rate, "burst")
    shape = _burst_shape(options)
    window.check(rate)
    until_s = window.duration_s or window.requests / rate
    streams = chance.spawn(3)
    while (
        True
    ):  # by count the horizon is a guess: it doubles, and the streams start again, until enough requests lie in it
        due_s = _base_and_bursts(rate, shape, until_s, streams)
        if window.duration_s or len(due_s) >= window.requests:
            return window.cut(due_s)
        until_s *= 2
        streams = [_again(stream) for stream in streams]


class BurstShape(msgspec.Struct, frozen=True):
    """The options of law "burst", checked."""

    share: float
    size: int
    spread_s: float
    bursts: str
    base: str


def _burst_shape(options: opt.Options) -> BurstShape:
    where = "law 'burst'"
    opt.known(options, ("share", "size", "spread", "bursts", "base"), where)
    return BurstShape(
        share=opt.number(options, "share", 0.2, where, low=0, high=1),
        size=opt.whole(options, "size", 10, where, low=1),
        spread_s=opt.duration(options, "spread", 0.0, where),
        bursts=opt.choice(options, "bursts", "poisson", where, ("poisson", "even")),
        base=opt.choice(options, "base", "even", where, ("even", "poisson")),
    )


def _base_and_bursts(rate: float, shape: BurstShape, until_s: float, streams: list[np.random.Generator]) -> Float64:
    """Due times in [0, until), ascending. Bursts that start before 0 are not made up: the load starts cold."""
    base_s = _stream(shape.base, rate * (1 - shape.share), until_s, streams[0])
    starts_s = _stream(shape.bursts, rate * shape.share / shape.size, until_s, streams[1])
    inside_s = np.repeat(starts_s, shape.size)
    if shape.spread_s:
        inside_s = inside_s + streams[2].random(len(inside_s)) * shape.spread_s
    due_s = np.sort(np.concatenate([base_s, inside_s]), kind="stable")
    return due_s[: int(np.searchsorted(due_s, until_s, side="left"))]


def _again(chance: np.random.Generator) -> np.random.Generator:
    """The same stream from its start, so that a longer horizon repeats the shorter one."""
    seed = chance.bit_generator.seed_seq
    assert isinstance(seed, np.random.SeedSequence)
    return np.random.Generator(np.random.PCG64(seed))


def _stream(kind: str, rate: float, until_s: float, chance: np.random.Generator) -> Float64:
    """Even or Poisson arrivals in [0, until). Even ones start half a gap in: base and bursts do not coincide at 0."""
    if rate <= 0:
        return np.empty(0)
    if kind == "poisson":
        return poisson(rate, {}, Window(0, until_s), chance)
    even_s = (np.arange(math.ceil(rate * until_s) + 1, dtype=np.float64) + 0.5) / rate
    return Window(0, until_s).cut(even_s)
