"""Prices, rates and habits of a fleet in, US dollars per million tokens out, with every term that makes them.

There is one clock: everything is summed over the duty hours of one year, the bill above and the tokens below, so no
hour is counted twice and none is left out. Input and output tokens share the bill by the device time that they take,

    time of a request = (fresh input + cached input × cached_cost) / prefill rate + output / decode rate

so that tokens × prices add up to the bill, whatever the mix. All arguments are arrays of one length: one row is one
case, many rows are many cases at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
import numpy as np

from dynamometer.types import Float64

Values = Mapping[str, Float64]

# variable -> (unit, what it is). Every variable of a bill, in the order in which a person would ask for it.
VARIABLES: Final[Mapping[str, tuple[str, str]]] = {
    "gpus": ("", "devices of one replica"),
    "prefill_tokens_per_s": ("tokens/s", "input tokens a second of a replica that only prefills"),
    "decode_tokens_per_s": ("tokens/s", "output tokens a second of a replica that only decodes"),
    "input_tokens": ("tokens", "input tokens of a request"),
    "output_tokens": ("tokens", "output tokens of a request"),
    "cached_share": ("", "share of the input tokens that a cache already holds"),
    "cached_cost": ("", "time of a cached input token, as a share of a fresh one's"),
    "utilization": ("", "share of the duty hours' capacity that does work"),
    "duty_hours": ("h/day", "hours a day in which the fleet is on"),
    "failed_share": ("", "share of the work that gives no answer"),
    "interruptions_per_day": ("1/day", "spot interruptions of a replica"),
    "lost_minutes": ("min", "paid minutes that an interruption wastes"),
    "usd_per_gpu_hour": ("USD/h", "rent of a device and hour"),
    "purchase_usd": ("USD", "price of a device with its share of the server"),
    "life_years": ("years", "years until it is written off"),
    "residual_share": ("", "what it still sells for then, as a share of its price"),
    "capital_rate": ("1/year", "cost of capital"),
    "operations_share": ("1/year", "staff, space and network a year, as a share of the purchase price"),
    "spares_share": ("", "devices bought beyond those in use"),
    "power_w": ("W", "power of a device under load with its share of the host"),
    "idle_share": ("", "power of an idle device, as a share of that"),
    "pue": ("", "power of the site over power of the machines"),
    "usd_per_kwh": ("USD/kWh", "electricity"),
}
RENTED: Final = ("usd_per_gpu_hour",)
OWNED: Final = (
    *("purchase_usd", "life_years", "residual_share", "capital_rate", "operations_share", "spares_share"),
    *("power_w", "idle_share", "pue", "usd_per_kwh"),
)
SHARES: Final = (
    *("cached_share", "cached_cost", "utilization", "failed_share", "residual_share", "spares_share", "idle_share"),
    *("operations_share", "capital_rate"),
)
DAYS: Final = 365.0


class Bill(msgspec.Struct, frozen=True):
    """One year of one replica; arrays of one length. A price whose tokens cost no time is NaN."""

    terms: Mapping[str, Float64]  # USD a year, what the money is paid for; they add up to the bill
    uses: Mapping[str, Float64]  # USD a year, what becomes of it: work, idle, failed, interrupted; the same sum
    requests: Float64  # a year, answered
    usd_per_request: Float64
    usd_per_million_input_tokens: Float64  # over all input tokens, cached ones too
    usd_per_million_fresh_input_tokens: Float64
    usd_per_million_cached_input_tokens: Float64
    usd_per_million_output_tokens: Float64
    input_share: Float64  # of the bill

    @property
    def usd_per_year(self) -> Float64:
        return added(self.terms)


def added(parts: Mapping[str, Float64]) -> Float64:
    """The sum of the parts, case by case."""
    found: Float64 = np.sum(list(parts.values()), axis=0)
    return found


def bill(values: Values) -> Bill:
    """The year's bill and what it buys. `values`: the common variables, and those of RENTED or of OWNED.

    Without `prefill_tokens_per_s` (or `decode_tokens_per_s`) the other kind of token carries the whole bill.
    """
    hours = DAYS * values["duty_hours"]
    terms = _rented(values, hours) if "usd_per_gpu_hour" in values else _owned(values, hours)
    total = added(terms)
    kept = 1 / (1 + values["interruptions_per_day"] / 24 * values["lost_minutes"] / 60)
    useful = values["utilization"] * kept * (1 - values["failed_share"])
    seconds = 3600 * hours * useful
    fresh = values["input_tokens"] * (1 - values["cached_share"])
    held = values["input_tokens"] - fresh
    prefill_s = _time(fresh + held * values["cached_cost"], values.get("prefill_tokens_per_s"))
    decode_s = _time(values["output_tokens"], values.get("decode_tokens_per_s"))
    taken_s = np.where(prefill_s + decode_s > 0, prefill_s + decode_s, np.nan)  # no rate at all: nothing has a price
    per_request = total * taken_s / seconds
    share = prefill_s / taken_s
    fresh_usd = 1e6 * total / seconds * _time(np.ones_like(total), values.get("prefill_tokens_per_s"))
    return Bill(
        terms,
        {
            "work": total * useful,
            "failed answers": total * values["utilization"] * kept * values["failed_share"],
            "interruptions": total * values["utilization"] * (1 - kept),
            "idle": total * (1 - values["utilization"]),
        },
        seconds / taken_s,
        per_request,
        _per_million(per_request * share, values["input_tokens"], prefill_s),
        np.where(prefill_s > 0, fresh_usd, np.nan),
        np.where(held > 0, fresh_usd * values["cached_cost"], np.nan),
        _per_million(per_request * (1 - share), values["output_tokens"], decode_s),
        share,
    )


def _time(tokens: Float64, rate: Float64 | None) -> Float64:
    return np.zeros_like(tokens) if rate is None else tokens / rate


def _per_million(usd: Float64, tokens: Float64, time_s: Float64) -> Float64:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where((tokens > 0) & (time_s > 0), 1e6 * usd / tokens, np.nan)


def _rented(values: Values, hours: Float64) -> dict[str, Float64]:
    return {"rent": values["gpus"] * values["usd_per_gpu_hour"] * hours}


def _owned(values: Values, hours: Float64) -> dict[str, Float64]:
    price, gpus = values["purchase_usd"], values["gpus"]
    depreciation = price * (1 - values["residual_share"]) / values["life_years"]
    yearly = annuity(price, price * values["residual_share"], values["capital_rate"], values["life_years"])
    load = values["utilization"] + values["idle_share"] * (1 - values["utilization"])
    electricity = values["power_w"] / 1000 * load * hours * values["pue"] * values["usd_per_kwh"]
    return {
        "depreciation": gpus * depreciation,
        "cost of capital": gpus * (yearly - depreciation),
        "spares": gpus * yearly * values["spares_share"],
        "electricity": gpus * electricity,
        "operations": gpus * price * values["operations_share"],
    }


def annuity(price: Float64, residual: Float64, rate: Float64, years: Float64) -> Float64:
    """The even yearly payment that repays `price` less the discounted `residual`, at `rate` a year, in `years`."""
    growth = (1 + rate) ** years
    safe = np.where(rate > 1e-9, rate, 1.0)
    factor = np.where(rate > 1e-9, safe / (1 - 1 / np.where(rate > 1e-9, growth, 2.0)), 1 / years)
    return (price - residual / growth) * factor
