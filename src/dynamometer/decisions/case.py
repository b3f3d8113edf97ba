"""What a user states, what a run measured and what the catalogue quotes in; every input of a bill with its range and
where it comes from out.

The first of these that knows a variable wins: the user, the run, the catalogue's line for the device, the assumption.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from dynamometer.decisions.cost import OWNED, RENTED, SHARES, VARIABLES
from dynamometer.decisions.sensitivity import Factor
from dynamometer.errors import UsageError
from dynamometer.hardware import prices
from dynamometer.hardware.gpu import Device
from dynamometer.types import Provenance

RATES = ("prefill_tokens_per_s", "decode_tokens_per_s")
COUNTED = ("gpus",)  # known exactly: no spread
DAY_HOURS = 24.0


class Input(msgspec.Struct, frozen=True):
    """One variable of a bill: base and range, whether it was measured, simulated or quoted, and by whom."""

    name: str
    low: float
    base: float
    high: float
    unit: str
    provenance: Provenance
    source: str
    law: str = "triangle"

    @property
    def factor(self) -> Factor:
        return Factor(self.name, self.low, self.base, self.high, self.law)


class Case(msgspec.Struct, frozen=True):
    """Everything that a bill needs. `power`: what energy needs, also for a rented machine; empty when unknown."""

    inputs: tuple[Input, ...]
    owned: bool
    power: tuple[Input, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def factors(self) -> tuple[Factor, ...]:
        return tuple(one.factor for one in self.inputs)

    def base(self, name: str) -> float | None:
        return next((one.base for one in (*self.inputs, *self.power) if one.name == name), None)


class Wanted(msgspec.Struct, frozen=True):
    """What the user states. `given`: variable -> text such as `2`, `1.3:4.5` or `1.3:2:4.5`."""

    given: Mapping[str, str]
    device: Device | None = None
    owned: bool = False
    basis: str = "rental"
    spread: float = 0.2  # how far a stated value without a range may move either way, as a share of it
    seen: tuple[Input, ...] = ()  # from runs


def numbers(text: str, what: str) -> tuple[float, float, float]:
    """`2` as (2, 2, 2), `1.3:4.5` with its geometric mean between, `1.3:2:4.5` as it stands."""
    try:
        found = [float(word) for word in text.split(":")]
    except ValueError:
        found = []
    if not 1 <= len(found) <= 3 or not all(math.isfinite(value) for value in found):
        raise UsageError(f"{what} is {text!r}; give a number, LOW:HIGH or LOW:BASE:HIGH")
    low, high = found[0], found[-1]
    between = math.sqrt(low) * math.sqrt(high) if low > 0 < high else (low + high) / 2
    middle = found[1] if len(found) == 3 else min(max(between, low), high)
    if not low <= middle <= high:
        raise UsageError(f"{what} is {text!r}; the numbers must not descend")
    return low, middle, high


def build(wanted: Wanted) -> Case:
    """Every input of the bill. Refuses unknown names, values outside what they can be, and a bill without a price."""
    unknown = set(wanted.given) - set(VARIABLES) - {"carbon_g_per_kwh"}
    if unknown:
        known = ", ".join((*VARIABLES, "carbon_g_per_kwh"))
        raise UsageError(f"{sorted(unknown)[0]!r} is no variable of a bill; one of {known}")
    owned = wanted.owned or any(name in wanted.given for name in OWNED[:6])
    if owned and "usd_per_gpu_hour" in wanted.given:
        raise UsageError("an hourly price and a purchase are both stated; give one of them, or the hour is paid twice")
    if not {*wanted.given, *(one.name for one in wanted.seen)} & set(RATES):
        raise UsageError(
            "no rate: give a run, or --decode-rate (output tokens/s of a replica) and --prefill-rate (input tokens/s)"
        )
    common = [name for name in VARIABLES if name not in (*RENTED, *OWNED)]
    notes: list[str] = []
    found = [one for name in (*common, *(OWNED if owned else RENTED)) if (one := _find(name, wanted, notes))]
    power = () if owned else _power(wanted)
    return Case(tuple(found), owned, power, tuple(notes))


def _power(wanted: Wanted) -> tuple[Input, ...]:
    """What energy needs, where the machine's power is known."""
    names = ("power_w", "idle_share", "pue")
    if "power_w" not in wanted.given and (wanted.device is None or _quoted("power_w", wanted) is None):
        return ()
    return tuple(one for name in names if (one := _find(name, wanted, [])))


def carbon(wanted: Wanted) -> Input:
    """Grams of CO2 a kWh: a number, a range, or a place in the catalogue."""
    text = wanted.given.get("carbon_g_per_kwh", "")
    if text and not text[0].isdigit():
        return _from_quote("carbon_g_per_kwh", "g/kWh", prices.carbon(text))
    if text:
        return _stated("carbon_g_per_kwh", "g/kWh", text, wanted.spread)
    return _from_quote("carbon_g_per_kwh", "g/kWh", prices.assumed("carbon_g_per_kwh"))


def _find(name: str, wanted: Wanted, notes: list[str]) -> Input | None:
    """The input, or None for a rate that nobody knows; a rate of 0 is none, with a note."""
    unit = VARIABLES[name][0]
    seen = next((one for one in wanted.seen if one.name == name), None)
    if name in wanted.given:
        text = wanted.given[name]
        found = (
            _from_quote(name, unit, prices.electricity(text))
            if name == "usd_per_kwh" and not text[:1].isdigit() and text[:1] not in ".-"
            else _stated(name, unit, text, 0.0 if name in COUNTED else wanted.spread)
        )
    elif seen is not None:
        found = seen
    else:
        quote = _quoted(name, wanted)
        if quote is None and name in RATES:
            return None
        if quote is None:
            raise _missing(name, wanted)
        found = _from_quote(name, unit, quote)
    if name in RATES and found.base <= 0 <= found.low:
        notes.append(f"{name} is 0: no such token was made, so it has no price")
        return None
    return _checked(found)


def _missing(name: str, wanted: Wanted) -> UsageError:
    """What to say of a price that nobody knows."""
    device = f" of {wanted.device.label}" if wanted.device else ""
    if name == "usd_per_gpu_hour":
        return UsageError(f"no {wanted.basis} price{device} is known here; give --price USD an hour, or LOW:HIGH")
    return UsageError(f"{name} ({VARIABLES[name][1]}){device} is not known here; give --set {name}=…")


def _stated(name: str, unit: str, text: str, spread: float) -> Input:
    low, base, high = numbers(text, name)
    source = "stated"
    if ":" not in text and spread > 0 and base > 0:
        low, high = base * (1 - spread), base * (1 + spread)
        source = f"stated; ±{spread:.0%} taken as its range"
        if name in SHARES:
            high = min(1.0, high)
        if name == "duty_hours":
            high = min(DAY_HOURS, high)
        if name == "pue":
            low = max(1.0, low)
    return Input(name, min(low, base), base, max(high, base), unit, Provenance.QUOTED, source)


def _from_quote(name: str, unit: str, quote: prices.Quote) -> Input:
    source = "; ".join(quote.sources)
    return Input(name, quote.low, quote.base, quote.high, unit, Provenance.QUOTED, source)


def _quoted(name: str, wanted: Wanted) -> prices.Quote | None:
    """What the catalogue says of the device, else what is assumed."""
    device = wanted.device
    if name == "gpus":
        return prices.Quote(1, 1, 1, ("one device a replica",))
    if name == "usd_per_gpu_hour":
        return prices.hourly(device.name, wanted.basis) if device else None
    if name == "purchase_usd":
        return prices.purchase_usd(device.name) if device else None
    if name == "power_w":
        return _power_quote(device) if device else None
    if name in ("input_tokens", "output_tokens"):
        return prices.Quote(1, 1, 1, ("one token of each kind; give the mix of a request for a price of one",))
    return None if name in RATES else prices.assumed(name)


def _power_quote(device: Device) -> prices.Quote | None:
    """The all-in power; else the device's limit alone, which is less than the machine draws."""
    found = prices.power_w(device.name)
    if found is None and device.tdp_w is not None:
        limit = device.tdp_w
        found = prices.Quote(limit.low, limit.low, limit.high, ("power limit of the device alone, without its host",))
    return found


def _checked(one: Input) -> Input:
    name = one.name
    positive = name not in (*SHARES, "interruptions_per_day", "lost_minutes", "input_tokens", "output_tokens")
    if one.low < 0 or (positive and one.low <= 0):
        raise UsageError(f"{name} is {one.low:g}; give a number {'above 0' if positive else 'of 0 or more'}")
    top = 1.0 if name in SHARES else DAY_HOURS if name == "duty_hours" else math.inf
    if one.high > top:
        raise UsageError(f"{name} is {one.high:g}; it can be {top:g} at most")
    if name == "utilization" and one.low <= 0:
        raise UsageError("utilization is 0: a fleet that does nothing has no price per token; give a share above 0")
    if name == "pue" and one.low < 1:
        raise UsageError(f"pue is {one.low:g}; a site draws at least what its machines draw: 1 or more")
    if name in ("residual_share", "cached_share", "failed_share") and one.high >= 1 and name != "cached_share":
        raise UsageError(f"{name} is {one.high:g}; give a share below 1")
    return one
