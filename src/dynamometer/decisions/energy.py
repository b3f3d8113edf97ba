"""A run's power sensors, or a machine's stated power, in; joules, watt-hours and grams of CO2 per token out.

An energy counter's rise is exact and wins. A counter that does not move under power, or falls, is stale: then sampled
power is integrated by the trapezoid rule, and the reading says so. A device without either has no energy, never 0 J,
and no sum that it belongs to has a value. Boards alone, processors alone and the wall are different meters and are
never added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import duckdb
import msgspec
import numpy as np

from dynamometer.decisions.case import Case, Input
from dynamometer.metrics import views
from dynamometer.types import Estimate, Float64

J_PER_KWH: Final = 3.6e6
METERS: Final[Mapping[str, tuple[str, str]]] = {  # meter -> (counter, power) as the samplers name them
    "gpu": ("gpu_energy_j", "gpu_power_w"),
    "cpu": ("energy_j", "power_w"),
}
DIFFER: Final = 0.1  # counter and samples further apart than this are told


class Series(msgspec.Struct, frozen=True):
    """One sensor's readings in time order; arrays [n]."""

    at_s: Float64
    value: Float64


EMPTY: Final = Series(np.zeros(0), np.zeros(0))


class Reading(msgspec.Struct, frozen=True):
    """The energy of one device over a window. `joules` None: not to be had; `method` says why, or how."""

    device: str
    joules: float | None
    mean_w: float | None
    method: str


class Used(msgspec.Struct, frozen=True):
    """One meter's energy over a run's window, per token of the answers that came in it."""

    meter: str
    devices: tuple[Reading, ...]
    joules: Estimate
    joules_per_output_token: Estimate
    mean_w: float | None


def device_energy(device: str, counter: Series = EMPTY, power: Series = EMPTY) -> Reading:
    """Joules of one device from its counter (J) and its sampled power (W), whichever can be believed."""
    integrated = _integral(power)
    if len(counter.value) < 2:
        why = "integrated from power samples" if integrated is not None else "no energy counter and no power samples"
        return Reading(device, integrated, _mean(integrated, power), why)
    rise = float(counter.value[-1] - counter.value[0])
    moving = bool((np.diff(counter.value) >= 0).all()) and rise > 0
    if not moving:
        word = "counter stale" if rise == 0 else "counter fell"
        if integrated is None:
            return Reading(device, None, None, f"{word} and no power samples")
        if rise == 0 and integrated == 0:
            return Reading(device, 0.0, 0.0, "counter and power samples agree on 0")
        return Reading(device, integrated, _mean(integrated, power), f"{word}; integrated from power samples")
    method = "counter"
    if integrated is not None and abs(integrated - rise) > DIFFER * rise:
        method = f"counter; power samples say {integrated:.4g} J"
    return Reading(device, rise, _mean(rise, counter), method)


def _integral(power: Series) -> float | None:
    return float(np.trapezoid(power.value, power.at_s)) if len(power.value) >= 2 else None


def _mean(joules: float | None, series: Series) -> float | None:
    length_s = float(series.at_s[-1] - series.at_s[0]) if len(series.at_s) else 0.0
    return joules / length_s if joules is not None and length_s > 0 else None


def total(readings: Sequence[Reading]) -> Estimate:
    """The sum over devices; None with the reason when one of them has none."""
    missing = [reading for reading in readings if reading.joules is None]
    if missing or not readings:
        why = f"{missing[0].device}: {missing[0].method}" if missing else "no device"
        return Estimate(None, None, None, len(readings), "J", method=why)
    methods = dict.fromkeys(reading.method for reading in readings)
    joules = sum(reading.joules or 0.0 for reading in readings)
    return Estimate(joules, None, None, len(readings), "J", method="; ".join(methods))


def used(connection: duckdb.DuckDBPyConnection) -> tuple[Used, ...]:
    """Energy by meter over the measured window. `connection` has the views, with the window set; meters that no sampler
    read are left out."""
    tokens = views.rows(connection, "select output_tokens from throughput")[0]["output_tokens"]
    count = float(tokens) if isinstance(tokens, int | float) else 0.0
    found = []
    for meter, (counter, power) in METERS.items():
        readings = _readings(connection, counter, power)
        if not readings:
            continue
        joules = total(readings)
        watts = [reading.mean_w for reading in readings]
        mean_w = None if any(w is None for w in watts) else float(sum(w or 0.0 for w in watts))
        found.append(Used(meter, readings, joules, per_token(joules, count), mean_w))
    return tuple(found)


def _readings(connection: duckdb.DuckDBPyConnection, counter: str, power: str) -> tuple[Reading, ...]:
    # one sampler's word, or a device that two of them read would count twice
    seen = f"select * from samples, span where name in ('{counter}', '{power}') and at_ns between from_ns and until_ns"
    query = (
        f"with seen as ({seen}) select device, name, at_ns / 1e9, value from seen"
        " where source = (select min(source) from seen) order by device, name, at_ns"
    )
    series: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for row in connection.execute(query).fetchall():
        series.setdefault((str(row[0]), str(row[1])), []).append((float(row[2]), float(row[3])))
    arrays = {key: Series(*(np.array(column) for column in zip(*rows, strict=True))) for key, rows in series.items()}
    devices = dict.fromkeys(device for device, _ in arrays)
    return tuple(device_energy(d, arrays.get((d, counter), EMPTY), arrays.get((d, power), EMPTY)) for d in devices)


def per_token(joules: Estimate, tokens: float) -> Estimate:
    """Joules a token; None without joules or without tokens."""
    if joules.value is None or tokens <= 0:
        why = joules.method if joules.value is None else "no token came in the window"
        return Estimate(None, None, None, joules.n, "J/token", method=why)
    return Estimate(joules.value / tokens, None, None, joules.n, "J/token", method=joules.method)


def watt_hours(joules: float) -> float:
    return joules / 3600


class Footprint(msgspec.Struct, frozen=True):
    """Energy and carbon of a million tokens at the site's meter (PUE included); None: no such token, or no power known.

    `low` and `high` of the energies follow the ranges of power and PUE, `grams` also that of the grid.
    """

    kwh_per_million_input_tokens: float | None
    kwh_per_million_output_tokens: float | None
    joules_per_output_token: float | None
    grams_co2_per_million_input_tokens: float | None
    grams_co2_per_million_output_tokens: float | None
    grams_co2_range: tuple[float, float] | None  # per million output tokens (input ones where only those are known)
    inputs: tuple[Input, ...]


def footprint(case: Case, seconds_per_million: Mapping[str, float | None], grid: Input) -> Footprint | None:
    """From a case's power and the duty time that a million tokens take; None when the power is unknown.

    `seconds_per_million`: "input" and "output", seconds of duty of one replica, idle time included.
    """
    named = {one.name: one for one in (*case.inputs, *case.power)}
    if "power_w" not in named:
        return None
    base = {name: one.base for name, one in named.items()}
    load = base["utilization"] + base["idle_share"] * (1 - base["utilization"])
    site_w = base["gpus"] * base["power_w"] * load * base["pue"]
    kwh = {kind: None if s is None else site_w * s / J_PER_KWH for kind, s in seconds_per_million.items()}
    grams = {kind: None if value is None else value * grid.base for kind, value in kwh.items()}
    told = kwh["output"] if kwh["output"] is not None else kwh["input"]
    span = None
    if told is not None:
        power, pue = named["power_w"], named["pue"]
        least = told * power.low / power.base * pue.low / pue.base * grid.low
        most = told * power.high / power.base * pue.high / pue.base * grid.high
        span = (least, most)
    joules = None if kwh["output"] is None else kwh["output"] * J_PER_KWH / 1e6
    return Footprint(
        kwh["input"], kwh["output"], joules, grams["input"], grams["output"], span, (*_used_inputs(named), grid)
    )


def _used_inputs(named: Mapping[str, Input]) -> tuple[Input, ...]:
    return tuple(named[name] for name in ("power_w", "idle_share", "pue"))
