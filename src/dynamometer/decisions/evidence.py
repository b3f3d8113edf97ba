"""An option of a decision in, its figures out: each with its interval, and whether measured, simulated or quoted.

A run's own figure wins over one that the file states; a price follows from rates by the bill of decisions/cost.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from dynamometer.decisions import case, gate, seen
from dynamometer.decisions.account import Account, account
from dynamometer.decisions.case import Case, Input
from dynamometer.decisions.cost import OWNED, RENTED, VARIABLES
from dynamometer.decisions.flip import plain
from dynamometer.decisions.price import OUTPUT, Priced, Question, Settings, price
from dynamometer.decisions.wish import Option, Told, Wish
from dynamometer.errors import Refused, UsageError
from dynamometer.hardware import gpu
from dynamometer.hardware import memory as memories
from dynamometer.hardware.gpu import Device
from dynamometer.hardware.reserve import engine
from dynamometer.hardware.source import resolve
from dynamometer.types import Estimate, Objective, Provenance

RATES: Final = ("prefill_tokens_per_s", "decode_tokens_per_s")
DAYS_PER_MONTH: Final = 365 / 12
DRAWS: Final = 4000
_MONEY: Final = (RENTED[0], OWNED[0])
_MORE_IS_BETTER: Final = ("output_tokens_per_s", "input_tokens_per_s", "requests_per_s", "goodput", "attainment")
_USUAL: Final = (  # what is read of a run beside the figures of the limits
    *((metric, statistic) for metric in ("ttft", "tpot", "e2e") for statistic in ("p50", "p95")),
    *(("output_tokens_per_s", ""), ("error_rate", "")),
)


class Figure(msgspec.Struct, frozen=True):
    """One number of an option. `provenance`: measured, simulated or quoted; of a derived number the kinds that it
    rests on, e.g. "measured and quoted". `source`: run ids, or who is quoted."""

    name: str
    estimate: Estimate
    provenance: str
    source: str


class Evidence(msgspec.Struct, frozen=True):
    """All that is known of an option. `accounts` of its runs; `case` the bill's inputs; `fits` None: not asked or not
    known."""

    option: Option
    figures: tuple[Figure, ...]
    accounts: tuple[Account, ...] = ()
    case: Case | None = None
    fits: bool | None = None
    fits_why: str = ""
    notes: tuple[str, ...] = ()

    def figure(self, name: str) -> Figure | None:
        return next((one for one in self.figures if one.name == name), None)


def gather(option: Option, wish: Wish, slo: Sequence[Objective]) -> Evidence:
    """Reads the runs, prices the option, looks whether it fits."""
    accounts = tuple(account(Path(run), slo or None) for run in option.runs)
    for one in accounts:
        if one.invalid:
            doubt = next(doubt for doubt in one.summary.doubts if doubt.fatal)
            raise Refused(f"{one.run.id} of {option.name!r} can't be believed: {doubt.message}; {doubt.remedy}")
    found = _of_runs(accounts, slo)
    found |= {name: _told(name, told) for name, told in option.figures.items() if name not in found}
    notes = [f"{one.run.id}: {doubt.message}" for one in accounts for doubt in one.summary.doubts]
    built, priced = _priced(option, wish, found, notes)
    if priced and built:
        found |= {one.name: one for one in _prices(priced, built) if one.name not in found}
    found |= {one.name: one for one in _power(option, priced) if one.name not in found}
    fits, why = _fits(option)
    return Evidence(option, tuple(found.values()), accounts, built, fits, why, tuple(dict.fromkeys(notes)))


def _told(name: str, told: Told) -> Figure:
    low = None if told.low is None else float(told.low)
    high = None if told.high is None else float(told.high)
    stated = Estimate(float(told.value), low, high, told.n, told.unit or unit_of(name), method="as stated")
    return Figure(name, stated, told.provenance, told.source)


def unit_of(name: str) -> str:
    """A figure's unit, from its name."""
    for ending, unit in (("_ms", "ms"), ("_s", "tokens/s"), ("_w", "W"), ("_bytes", "B"), ("_per_month", "USD/month")):
        if name.endswith(ending):
            return unit
    if name.startswith("usd_per_million"):
        return "USD/M tokens"
    return "J/token" if name.startswith("joules") else ""


def _of_runs(accounts: Sequence[Account], slo: Sequence[Objective]) -> dict[str, Figure]:
    """Of several runs the worst figure: what is promised must hold in each of them."""
    found: dict[str, Figure] = {}
    if not accounts:
        return found
    source = ", ".join(one.run.id for one in accounts)
    simulated = any(one.run.driver is Provenance.SIMULATED for one in accounts)
    driver = Provenance.SIMULATED if simulated else Provenance.MEASURED
    for metric, statistic in dict.fromkeys([*((one.metric, one.statistic) for one in slo), *_USUAL]):
        seen_ = [gate.observed_in(one.summary, metric, statistic) for one in accounts]
        known = [one for one in seen_ if one.value is not None]
        if known:
            pick = min if metric in _MORE_IS_BETTER else max
            worst = pick(known, key=lambda one: one.value or 0.0)
            name = f"{metric}_{statistic}_ms" if statistic else metric
            found[name] = Figure(name, worst, driver, source)
    return found


def _priced(
    option: Option, wish: Wish, found: Mapping[str, Figure], notes: list[str]
) -> tuple[Case | None, Priced | None]:
    """The bill's inputs and the price; none where a price or rate is not known, with the reason as a note."""
    stated = {name: str(value) for name, value in {**wish.price, **option.price}.items()}
    strange = [name for name in stated if name not in VARIABLES and name != "carbon_g_per_kwh"]
    if strange:
        raise UsageError(f"[price] of {option.name!r} has {strange[0]!r}; the variables are {', '.join(VARIABLES)}")
    stated.setdefault("gpus", str(option.count))
    told = {name: _input(one) for name, one in found.items() if name in VARIABLES and name not in stated}
    read = seen.from_runs([Path(run) for run in option.runs]) if option.runs else None
    known = told | {one.name: one for one in (read.inputs if read else ())}
    wanted = case.Wanted(stated, device_of(option), wish.own, wish.market, seen=tuple(known.values()))
    try:
        built = case.build(wanted)
    except UsageError as wrong:
        notes.append(f"{option.name} has no price: {wrong}")
        return None, None
    day = (float(wish.traffic.input_tokens_per_day), float(wish.traffic.output_tokens_per_day))
    question = Question(
        grid=case.carbon(wanted), tokens_per_day=day if any(day) else None, used=read.used if read else ()
    )
    return built, price(built, question, Settings(sobol=0, draws=DRAWS, seed=wish.seed))


def device_of(option: Option) -> Device | None:
    """The catalogue's device; None for a machine that it does not know."""
    return gpu.find(option.device) if option.device else None


def _input(one: Figure) -> Input:
    e = one.estimate
    value = e.value or 0.0
    low, high = value if e.low is None else e.low, value if e.high is None else e.high
    return Input(one.name, low, value, high, e.unit, Provenance(one.provenance), one.source, "interval")


def _prices(priced: Priced, built: Case) -> list[Figure]:
    """Price of a million tokens, and of a month of the fleet that the traffic needs; before them what they rest on."""
    rates = [one for one in built.inputs if one.name in RATES]
    resting = [*rates, *(one for one in built.inputs if one.name in (*_MONEY, "utilization"))]
    kind = " and ".join(dict.fromkeys(str(one.provenance) for one in resting))
    whence = "the bill of " + ", ".join(f"{plain(one.name)} ({one.provenance})" for one in resting)
    names = (OUTPUT, "usd_per_million_input_tokens", "usd_per_request")
    found = [_stated_input(one) for one in resting]
    found += [Figure(name, priced.estimates[name], kind, whence) for name in names]
    if priced.fleet is not None:
        found += _fleet(priced, kind, whence)
    return [one for one in found if one.estimate.value is not None]


def _stated_input(one: Input) -> Figure:
    low, high = (one.low, one.high) if one.high > one.low else (None, None)
    estimate = Estimate(one.base, low, high, 0, one.unit, method="range of the input")
    return Figure(one.name, estimate, one.provenance, one.source.removeprefix(f"{one.provenance}: "))


def _fleet(priced: Priced, kind: str, whence: str) -> list[Figure]:
    """The whole replicas that the traffic needs, and their month; its interval is that of the price."""
    assert priced.fleet is not None
    unit_price = priced.estimates[OUTPUT]
    month = priced.fleet.usd_per_day_whole * DAYS_PER_MONTH
    ends = [
        month * end / unit_price.value if end is not None and unit_price.value else None
        for end in (unit_price.low, unit_price.high)
    ]
    cost = Estimate(month, ends[0], ends[1], unit_price.n, "USD/month", unit_price.level, unit_price.method)
    count = Estimate(float(priced.fleet.whole_replicas), None, None, 0, "", method="rounded up")
    return [Figure("usd_per_month", cost, kind, whence), Figure("replicas", count, kind, whence)]


def _power(option: Option, priced: Priced | None) -> list[Figure]:
    """Measured power of the runs; else the devices' published limit."""
    watts = [used.mean_w for used in (priced.measured_energy if priced else ()) if used.mean_w]
    if watts:
        mean = Estimate(max(watts), None, None, len(watts), "W", method="mean over the run")
        return [Figure("power_w", mean, Provenance.MEASURED, ", ".join(Path(run).name for run in option.runs))]
    device = device_of(option)
    if device is None or device.tdp_w is None:
        return []
    low, high = device.tdp_w.low * option.count, device.tdp_w.high * option.count
    limit = Estimate(high, low, high, 0, "W", method="power limit of the devices alone")
    return [Figure("power_w", limit, Provenance.QUOTED, "; ".join(map(gpu.source_text, device.tdp_w.sources)))]


def _fits(option: Option) -> tuple[bool | None, str]:
    """Whether weights and cache fit into the devices' memory, from the config and the published size."""
    if not (option.model and option.device and option.context and option.concurrency):
        return None, ""
    device = device_of(option)
    if device is None:
        return None, f"memory of {option.device} is not known here"
    try:
        model = resolve(option.model, online=False)
    except UsageError as wrong:
        return None, f"what {option.name} needs is not known: {wrong}"
    placed = memories.Deployment(
        context=option.context,
        concurrency=option.concurrency,
        weights=option.weights,
        kv=option.kv,
        tp=option.count,
        pp=1,
        memory_bytes=device.usable_bytes.low,
        engine=engine(option.engine),
    )
    verdict = memories.judge(model, placed, memories.breakdown(model, placed))
    return verdict.fits, f"{device.label}, computed from the config: {verdict.why}"
