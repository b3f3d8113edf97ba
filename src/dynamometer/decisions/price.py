"""A case in; the price of a million tokens with its terms, interval, sensitivity, break-even and provenance out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import msgspec
import numpy as np

from dynamometer.decisions.case import Case, Input
from dynamometer.decisions.cost import DAYS, VARIABLES, Bill, Values, added, bill
from dynamometer.decisions.energy import Footprint, Used, footprint
from dynamometer.decisions.flip import Flip, Sensitivity, flips, sensitivity
from dynamometer.decisions.sensitivity import Factor, Model, at_base, draw, quantile
from dynamometer.hardware.prices import Api, Quote
from dynamometer.types import Decision, Estimate, Float64
from dynamometer.units import significant

INPUT, OUTPUT = "usd_per_million_input_tokens", "usd_per_million_output_tokens"
FIGURES: Final[Mapping[str, str]] = {
    INPUT: "USD/M input tokens",
    OUTPUT: "USD/M output tokens",
    "usd_per_million_fresh_input_tokens": "USD/M fresh input tokens",
    "usd_per_million_cached_input_tokens": "USD/M cached input tokens",
    "usd_per_request": "USD",
}


class Settings(msgspec.Struct, frozen=True):
    level: float = 0.9  # of the interval
    draws: int = 20_000
    sobol: int = 1024  # a power of two; 0: none
    seed: int = 0


class Term(msgspec.Struct, frozen=True):
    """One part of the bill of a replica. The parts of `terms` add up to the bill, and so do those of `uses`."""

    name: str
    usd_per_year: float
    usd_per_duty_hour: float
    share: float
    usd_per_million_input_tokens: float | None
    usd_per_million_output_tokens: float | None


class Interval(msgspec.Struct, frozen=True):
    """(low, high) of each figure; None where it has no value."""

    level: float
    method: str
    usd_per_million_input_tokens: tuple[float, float] | None
    usd_per_million_output_tokens: tuple[float, float] | None
    usd_per_request: tuple[float, float] | None


class Against(msgspec.Struct, frozen=True):
    """The same request bought from a provider. `chance_own_cheaper`: over both sides' ranges."""

    model: str
    usd_per_request: float
    own_usd_per_request: float
    chance_own_cheaper: float
    break_even_utilization: float | None  # None: at no load
    break_even_requests_per_day: float | None  # that pay for one replica that is on in its duty hours, whatever it does
    capacity_requests_per_day: float  # of that replica at full utilization
    flips: tuple[Flip, ...]
    sources: tuple[str, ...]


class Fleet(msgspec.Struct, frozen=True):
    """What a day's tokens need at the stated utilization. `replicas` is exact, `whole_replicas` what stands there."""

    input_tokens_per_day: float
    output_tokens_per_day: float
    replicas: float
    whole_replicas: int
    gpus: float
    usd_per_day: float  # of the exact number, as a mean over a day that scales
    usd_per_day_whole: float


class Priced(msgspec.Struct, frozen=True):
    """The answer; its fields are the keys of `dyno price --json`. A price that can't be told is None, with a note."""

    usd_per_million_input_tokens: float | None
    usd_per_million_output_tokens: float | None
    usd_per_million_fresh_input_tokens: float | None
    usd_per_million_cached_input_tokens: float | None
    usd_per_request: float | None
    usd_per_duty_hour: float
    usd_per_year: float
    requests_per_day: float
    input_share_of_bill: float | None
    terms: tuple[Term, ...]
    uses: tuple[Term, ...]
    interval: Interval
    estimates: Mapping[str, Estimate]
    sensitivity: Sensitivity
    against: Against | None
    fleet: Fleet | None
    energy: Footprint | None
    measured_energy: tuple[Used, ...]
    provenance: Mapping[str, str]
    inputs: tuple[Input, ...]
    notes: tuple[str, ...]
    decision: Decision


class Question(msgspec.Struct, frozen=True):
    """What is asked beside the price. `tokens_per_day`: (input, output)."""

    grid: Input
    api: Api | None = None
    tokens_per_day: tuple[float, float] | None = None
    used: tuple[Used, ...] = ()
    notes: tuple[str, ...] = ()


def price(case: Case, question: Question, settings: Settings = Settings()) -> Priced:  # noqa: B008 - frozen
    """The whole answer."""
    base = bill(at_base(case.factors))
    drawn = bill(draw(case.factors, settings.draws, settings.seed))
    estimates = {name: _estimate(name, base, drawn, case, settings) for name in FIGURES}
    of = OUTPUT if estimates[OUTPUT].value is not None else INPUT
    factors = case.factors if estimates[of].value is not None else ()
    moved = sensitivity(_figure(of), factors, of, settings.sobol, settings.seed)
    hours = DAYS * _base(case, "duty_hours")
    priced = estimates[of].value is not None
    against = _against(case, question.api, base, settings) if question.api and priced else None
    values = {name: one.value for name, one in estimates.items()}
    answer = Priced(
        **values,
        usd_per_duty_hour=float(base.usd_per_year[0]) / hours,
        usd_per_year=float(base.usd_per_year[0]),
        requests_per_day=float(np.nan_to_num(base.requests[0])) / DAYS,
        input_share_of_bill=float(base.input_share[0]) if priced else None,
        terms=_terms(base.terms, base, hours),
        uses=_terms(base.uses, base, hours),
        interval=_interval(estimates, settings),
        estimates=estimates,
        sensitivity=moved,
        against=against,
        fleet=_fleet(case, base, question.tokens_per_day) if question.tokens_per_day and priced else None,
        energy=footprint(case, _seconds(case, base), question.grid),
        measured_energy=question.used,
        provenance={one.name: one.provenance.value for one in (*case.inputs, *case.power)},
        inputs=(*case.inputs, *case.power),
        notes=(*question.notes, *case.notes, *_notes(case)),
        decision=Decision("", "", ()),
    )
    return msgspec.structs.replace(answer, decision=_decide(answer))


def _base(case: Case, name: str) -> float:
    found = case.base(name)
    return 0.0 if found is None else found


def _figure(name: str) -> Model:
    def figure(values: Values) -> Float64:
        found: Float64 = getattr(bill(values), name)
        return found

    return figure


def _mixed(case: Case) -> bool:
    """The mix of a request was stated or measured."""
    return any("one token of each kind" not in one.source for one in case.inputs if one.name == "output_tokens")


def _estimate(name: str, base: Bill, drawn: Bill, case: Case, settings: Settings) -> Estimate:
    value, cases = float(getattr(base, name)[0]), getattr(drawn, name)
    unit = FIGURES[name]
    if name == "usd_per_request" and not _mixed(case):
        return Estimate(None, None, None, 0, unit, settings.level, "the tokens of a request are not stated")
    if not math.isfinite(value):
        why = "no cached input is stated" if "cached" in name else "no rate of such tokens is known"
        return Estimate(None, None, None, 0, unit, settings.level, why)
    tail = (1 - settings.level) / 2
    low, high = np.quantile(cases[np.isfinite(cases)], [tail, 1 - tail])
    method = f"Monte Carlo over the inputs' ranges, {settings.draws:,} cases"
    return Estimate(
        value, min(float(low), value), max(float(high), value), settings.draws, unit, settings.level, method
    )


def _interval(estimates: Mapping[str, Estimate], settings: Settings) -> Interval:
    def ends(name: str) -> tuple[float, float] | None:
        one = estimates[name]
        return (one.low, one.high) if one.low is not None and one.high is not None else None

    method = (
        f"Monte Carlo over the inputs' ranges, taken as independent; {settings.draws:,} cases, seed {settings.seed}"
    )
    return Interval(settings.level, method, ends(INPUT), ends(OUTPUT), ends("usd_per_request"))


def _terms(parts: Mapping[str, Float64], whole: Bill, hours: float) -> tuple[Term, ...]:
    total = float(added(parts)[0])
    prices = [getattr(whole, name)[0] for name in (INPUT, OUTPUT)]
    found = []
    for name, usd in parts.items():
        share = float(usd[0]) / total
        by_token = [float(p) * share if math.isfinite(p) else None for p in prices]
        found.append(Term(name, float(usd[0]), float(usd[0]) / hours, share, by_token[0], by_token[1]))
    return tuple(found)


def _seconds(case: Case, base: Bill) -> dict[str, float | None]:
    """Duty seconds of one replica that a million tokens take, idle time and failures included."""
    per_second = float(base.usd_per_year[0]) / (DAYS * _base(case, "duty_hours") * 3600)
    prices = {"input": float(getattr(base, INPUT)[0]), "output": float(getattr(base, OUTPUT)[0])}
    return {kind: usd / per_second if math.isfinite(usd) and per_second > 0 else None for kind, usd in prices.items()}


def _against(case: Case, api: Api, base: Bill, settings: Settings) -> Against:
    """Request by request, so that the mix and the cache count on both sides."""
    own = float(base.usd_per_request[0])
    theirs = float(_bought(at_base(case.factors), api, None)[0])
    values = draw(case.factors, settings.draws, settings.seed)
    chance = np.random.default_rng([settings.seed, 1]).random(settings.draws)
    cheaper = float(np.mean(bill(values).usd_per_request < _bought(values, api, chance)))

    def ratio(values: Values) -> Float64:
        return np.asarray(bill(values).usd_per_request / _bought(values, api, None))

    turned = flips(ratio, case.factors, 1.0, most=99)
    load = next((flip.at for flip in turned if flip.name == "utilization"), None)
    full = bill(at_base(case.factors) | {"utilization": np.ones(1)})
    sources = tuple(dict.fromkeys((*api.input.sources, *api.output.sources)))
    return Against(
        api.model,
        theirs,
        own,
        cheaper,
        load,
        _even_requests(case, theirs),
        float(full.requests[0]) / DAYS,
        turned[:6],
        sources,
    )


def _even_requests(case: Case, theirs: float) -> float | None:
    """Requests a day that pay for one replica; on a fine grid, for an owned one's electricity depends on them."""
    load = np.linspace(0.001, 1, 1000)
    found = bill(at_base(case.factors, 1000) | {"utilization": load})
    pays = np.flatnonzero(found.usd_per_request <= theirs)
    return float(found.requests[pays[0]]) / DAYS if len(pays) else None


def _bought(values: Values, api: Api, chance: Float64 | None) -> Float64:
    """USD a request from the provider. `chance` in 0…1: where in its prices' ranges; None: at base."""

    def usd(quote: Quote) -> Float64:
        factor = Factor("", quote.low, quote.base, quote.high)
        return np.full(len(values["output_tokens"]), quote.base) if chance is None else quantile(factor, chance)

    held = values["input_tokens"] * values["cached_share"]
    fresh = values["input_tokens"] - held
    cached = usd(api.input if api.cached is None else api.cached)
    return np.asarray((fresh * usd(api.input) + held * cached + values["output_tokens"] * usd(api.output)) / 1e6)


def _fleet(case: Case, base: Bill, tokens: tuple[float, float]) -> Fleet:
    """Each kind of token takes its own device time; the fleet is the sum."""
    seconds = _seconds(case, base)
    taken = sum(n / 1e6 * (seconds[kind] or 0.0) for n, kind in zip(tokens, ("input", "output"), strict=True))
    replicas = taken / (3600 * _base(case, "duty_hours"))
    per_day = float(base.usd_per_year[0]) / DAYS
    whole = math.ceil(replicas - 1e-9)
    gpus = replicas * _base(case, "gpus")
    return Fleet(tokens[0], tokens[1], replicas, whole, gpus, replicas * per_day, whole * per_day)


def _notes(case: Case) -> tuple[str, ...]:
    notes = []
    names = {one.name for one in case.inputs}
    if "prefill_tokens_per_s" not in names and "decode_tokens_per_s" in names:
        notes.append("no prefill rate: output tokens carry the whole bill, input tokens are not priced apart")
    if "decode_tokens_per_s" not in names and "prefill_tokens_per_s" in names:
        notes.append("no decode rate: input tokens carry the whole bill")
    notes += [
        f"{one.name} {one.base:g} [{one.low:g}, {one.high:g}] is assumed; state your own"
        for one in case.inputs
        if "assumed by this package" in one.source and one.name in ("utilization", "life_years")
    ]
    return tuple(notes)


def _decide(answer: Priced) -> Decision:
    shown = [
        f"{significant(one.value)} USD per million {word} tokens [{significant(one.low)}, {significant(one.high)}]"
        for word, one in (("input", answer.estimates[INPUT]), ("output", answer.estimates[OUTPUT]))
        if one.value is not None and one.low is not None and one.high is not None
    ]
    said = " and ".join(shown) + "." if shown else f"No price: {'; '.join(answer.notes)}."
    if not shown:
        return Decision("What does a million tokens cost?", said, ())
    because = tuple(f"{term.name}: {term.share:.0%} of the bill" for term in answer.terms)
    lost = [f"{use.name} {use.share:.0%}" for use in answer.uses if use.name != "work" and use.share > 0.005]
    if lost:
        because += (f"of the money, this does no work: {', '.join(lost)}",)
    turned: tuple[str, ...] = ()
    if answer.against is not None:
        side = answer.against
        cheaper = "own" if side.own_usd_per_request < side.usd_per_request else side.model
        ratio = side.own_usd_per_request / side.usd_per_request
        times = f"{significant(max(ratio, 1 / ratio))} times"  # never below 1
        said += f" {'Own' if cheaper == 'own' else cheaper} is {times} cheaper a request"
        said += f", own is cheaper in {side.chance_own_cheaper:.0%} of the cases."
        turned = tuple(flip.text for flip in side.flips)
    said += f" {answer.sensitivity.words}"
    evidence = tuple(f"{one.provenance.value}: {VARIABLES[one.name][1]}, {one.source}" for one in answer.inputs)
    return Decision("What does a million tokens cost?", said, because, turned, evidence)
