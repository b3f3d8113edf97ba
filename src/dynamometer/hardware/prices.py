"""A device, a model or a place in, what is publicly asked for it out: each figure a range with its sources and dates.

Two published figures for one thing are a range from the lower to the higher; its base is their geometric mean, for
prices differ by factors. Nothing here was measured. `prices.toml` holds the lines and the units.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Sequence
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Final

import msgspec

from dynamometer.errors import UsageError

BASES: Final = ("rental", "own-hyperscaler", "own-neocloud")


class Quote(msgspec.Struct, frozen=True):
    """A published or assumed figure. `low`, `base` and `high` are equal when only one figure is known."""

    low: float
    base: float
    high: float
    sources: tuple[str, ...]  # "text, date" of each line behind it


class Api(msgspec.Struct, frozen=True):
    """A provider's list price in US dollars per million tokens. `cached` None: no price of its own for cached input."""

    model: str
    input: Quote
    output: Quote
    cached: Quote | None


class Hour(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One published price of a device and hour."""

    device: str
    basis: str
    usd: float
    by: str
    date: str


class _Device(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    device: str
    by: str
    date: str
    usd: tuple[float, ...] = ()
    watts: tuple[float, ...] = ()


class _Api(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    model: str
    input: tuple[float, ...]
    output: tuple[float, ...]
    by: str
    date: str
    cached: tuple[float, ...] = ()
    note: str = ""


class _Place(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    place: str
    by: str
    date: str
    usd: float = 0.0
    grams: float = 0.0


class _Assumed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    is_: tuple[float, float, float] = msgspec.field(name="is")
    by: str
    date: str
    note: str = ""


class _Catalogue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sources: dict[str, str]
    hour: tuple[Hour, ...]
    power: tuple[_Device, ...]
    purchase: tuple[_Device, ...]
    api: tuple[_Api, ...]
    electricity: tuple[_Place, ...]
    carbon: tuple[_Place, ...]
    assume: dict[str, _Assumed]


@cache
def _catalogue() -> _Catalogue:
    text = files("dynamometer.hardware").joinpath("prices.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), _Catalogue)


def source_text(by: str, date: str, note: str = "") -> str:
    """A line's full reference: who, when, what of it."""
    return f"{_catalogue().sources.get(by, by)}, {date}" + (f" ({note})" if note else "")


def _range(values: Sequence[float], sources: Sequence[str]) -> Quote:
    low, high = min(values), max(values)
    return Quote(low, math.sqrt(low * high), high, tuple(dict.fromkeys(sources)))


def hours(device: str) -> tuple[Hour, ...]:
    """Every published price of a device and hour; `device` is its key in gpus.toml."""
    return tuple(line for line in _catalogue().hour if line.device == device)


def hourly(device: str, basis: str = "rental") -> Quote | None:
    """US dollars for one device and hour; None when nobody quoted one here. `basis`: one of BASES."""
    if basis not in BASES:
        raise UsageError(f"the basis of a price is {basis!r}; one of {', '.join(BASES)}")
    found = [line for line in hours(device) if line.basis == basis]
    return _range([f.usd for f in found], [source_text(f.by, f.date, f.basis) for f in found]) if found else None


def power_w(device: str) -> Quote | None:
    """Watts of one device under load with its share of host, network and fans; None when unknown."""
    found = [line for line in _catalogue().power if line.device == device]
    values = [value for line in found for value in line.watts]
    return _range(values, [source_text(line.by, line.date) for line in found]) if found else None


def purchase_usd(device: str) -> Quote | None:
    """US dollars for one device with its share of the server; None when unknown."""
    found = [line for line in _catalogue().purchase if line.device == device]
    values = [value for line in found for value in line.usd]
    return _range(values, [source_text(line.by, line.date) for line in found]) if found else None


def api(model: str) -> Api:
    """A provider's list price by model name."""
    found = [line for line in _catalogue().api if line.model == model.lower()]
    if not found:
        known = api_models()
        near = get_close_matches(model.lower(), known, n=3, cutoff=0.4) or known
        raise UsageError(f"no API price of {model!r} is listed; known: {', '.join(near)}; or give INPUT,OUTPUT")
    said = [source_text(line.by, line.date, line.note) for line in found]
    cached = [value for line in found for value in line.cached]
    return Api(
        found[0].model,
        _range([value for line in found for value in line.input], said),
        _range([value for line in found for value in line.output], said),
        _range(cached, said) if cached else None,
    )


def api_models() -> tuple[str, ...]:
    """Models with a list price, in the catalogue's order."""
    return tuple(dict.fromkeys(line.model for line in _catalogue().api))


def electricity(place: str) -> Quote:
    """US dollars a kWh for industrial customers at a place."""
    line = _place(_catalogue().electricity, place, "electricity price")
    return Quote(line.usd, line.usd, line.usd, (source_text(line.by, line.date, line.place),))


def carbon(place: str) -> Quote:
    """Grams of CO2 equivalent a kWh, the yearly mean of a place's grid."""
    line = _place(_catalogue().carbon, place, "carbon intensity")
    return Quote(line.grams, line.grams, line.grams, (source_text(line.by, line.date, line.place),))


def _place(lines: Sequence[_Place], place: str, what: str) -> _Place:
    for line in lines:
        if line.place == place.lower():
            return line
    raise UsageError(f"no {what} of {place!r} is listed; known: {', '.join(line.place for line in lines)}; or a number")


def assumed(name: str) -> Quote:
    """What is taken when nobody says otherwise."""
    line = _catalogue().assume[name]
    low, base, high = line.is_
    return Quote(low, base, high, (source_text(line.by, line.date, line.note),))


class Line(msgspec.Struct, frozen=True):
    """One line of the catalogue as a person reads it."""

    kind: str
    of: str
    value: str
    source: str


def listing() -> tuple[Line, ...]:
    """Every line with its source and date."""
    book = _catalogue()
    made = [Line("USD/h", f"{h.device}, {h.basis}", f"{h.usd:g}", source_text(h.by, h.date)) for h in book.hour]
    made += [Line("W", p.device, _values(p.watts), source_text(p.by, p.date)) for p in book.power]
    made += [Line("USD", p.device, _values(p.usd), source_text(p.by, p.date)) for p in book.purchase]
    for line in book.api:
        for kind, values in (("input", line.input), ("cached input", line.cached), ("output", line.output)):
            if values:
                said = source_text(line.by, line.date, line.note)
                made.append(Line("USD/M tokens", f"{line.model}, {kind}", _values(values), said))
    made += [Line("USD/kWh", p.place, f"{p.usd:g}", source_text(p.by, p.date)) for p in book.electricity]
    made += [Line("g CO2/kWh", p.place, f"{p.grams:g}", source_text(p.by, p.date)) for p in book.carbon]
    made += [
        Line("assumed", name, _values(a.is_), source_text(a.by, a.date, a.note)) for name, a in book.assume.items()
    ]
    return tuple(made)


def _values(values: Sequence[float]) -> str:
    return " … ".join(f"{value:g}" for value in values)
