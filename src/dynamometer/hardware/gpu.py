"""A device's name in, its published figures out, each with its source; figures that conflict keep every value.

Rates are dense FLOPS (or integer operations) a second, bandwidth and links bytes a second, memory bytes, power watts.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Final

import msgspec

from dynamometer.errors import UsageError
from dynamometer.hardware import prices
from dynamometer.units import GB, GIB

_VISIBLE: Final = (
    0.985  # of nominal memory a process sees where nobody measured it; H100 98.98 %, H200 99.1 %, RTX 4090 98.0 %
)


class Figure(msgspec.Struct, frozen=True):
    """Published values of one quantity, ascending, and who says so. `low` is for what must fit, `high` for what may not
    be exceeded."""

    values: tuple[float, ...]
    sources: tuple[str, ...]

    @property
    def low(self) -> float:
        return self.values[0]

    @property
    def high(self) -> float:
        return self.values[-1]

    @property
    def conflict(self) -> bool:
        return self.high > self.low


class Device(msgspec.Struct, frozen=True):
    name: str
    label: str
    kind: str  # gpu | npu | tpu | edge | soc | cpu
    memory_bytes: Figure
    usable_bytes: Figure  # what a process sees
    bandwidth: Figure
    rates: Mapping[str, Figure]  # by precision
    tdp_w: Figure | None = None
    link: Figure | None = None  # device to device, one direction
    link_name: str = ""
    pcie: Figure | None = None
    price_usd_h: Figure | None = None
    sparse: bool = False  # 2:4 sparsity doubles the tensor rates
    note: str = ""


class _Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    label: str
    kind: str
    bandwidth: dict[str, list[float | str]]
    memory_gib: dict[str, list[float | str]] | None = None
    memory_gb: dict[str, list[float | str]] | None = None
    usable_gib: dict[str, list[float | str]] | None = None
    tdp_w: dict[str, list[float | str]] | None = None
    link: dict[str, list[float | str]] | None = None
    link_name: str = ""
    pcie: dict[str, list[float | str]] | None = None
    rates: dict[str, dict[str, list[float | str]]] = {}
    aliases: tuple[str, ...] = ()
    sparse: bool = False
    note: str = ""


@cache
def _table() -> tuple[Mapping[str, str], Mapping[str, _Row]]:
    raw = tomllib.loads(files("dynamometer.hardware").joinpath("gpus.toml").read_text(encoding="utf-8"))
    return raw["sources"], msgspec.convert(raw["devices"], dict[str, _Row])


def source_text(key: str) -> str:
    """The full reference behind a source's short name."""
    return _table()[0].get(key, key)


def _figure(row: dict[str, list[float | str]] | None, scale: float = 1.0) -> Figure | None:
    if row is None:
        return None
    values = sorted(float(value) * scale for value in row["is"])
    return Figure(tuple(values), tuple(str(by) for by in row["by"]))


@cache
def load(key: str) -> Device:
    """A device by its key in gpus.toml."""
    row = _table()[1][key]
    memory = _figure(row.memory_gib, GIB) or _figure(row.memory_gb, GB)
    bandwidth = _figure(row.bandwidth, GB)
    assert memory is not None
    assert bandwidth is not None
    share = _VISIBLE if row.kind in ("gpu", "npu", "tpu") else 1.0
    usable = _figure(row.usable_gib, GIB) or Figure(tuple(v * share for v in memory.values), memory.sources)
    rates = {name: figure for name, cell in row.rates.items() if (figure := _figure(cell, 1e12)) is not None}
    return Device(
        name=key,
        label=row.label,
        kind=row.kind,
        memory_bytes=memory,
        usable_bytes=usable,
        bandwidth=bandwidth,
        rates=rates,
        tdp_w=_figure(row.tdp_w),
        link=_figure(row.link, GB),
        link_name=row.link_name,
        pcie=_figure(row.pcie, GB),
        price_usd_h=_price(key),
        sparse=row.sparse,
        note=row.note,
    )


def _price(key: str) -> Figure | None:
    """Every published price of the device and hour, whoever owns it; prices.py tells them apart."""
    lines = sorted(prices.hours(key), key=lambda line: line.usd)
    if not lines:
        return None
    said = dict.fromkeys(prices.source_text(line.by, line.date) for line in lines)
    return Figure(tuple(dict.fromkeys(line.usd for line in lines)), tuple(said))


def devices() -> list[Device]:
    """Every known device, in the file's order."""
    return [load(key) for key in _table()[1]]


@cache
def spellings() -> Mapping[str, str]:
    """Every spelling, reduced to letters and digits, to the device's key."""
    found: dict[str, str] = {}
    for key, row in _table()[1].items():
        for spelling in (key, row.label, *row.aliases):
            found.setdefault(_reduce(spelling), key)
    return found


def _reduce(text: str) -> str:
    text = re.sub(r"\bhbm\w*", "", text.lower())
    text = re.sub(r"\b(nvidia|amd|intel|google|huawei|tesla|geforce|instinct|cambricon|rockchip)\b", "", text)
    return re.sub(r"[^a-z0-9+]", "", text)


def find(name: str) -> Device | None:
    """A device by any spelling. A memory size in the name that no listed variant has ("Orin NX 4GB") is kept as
    stated, with a note; None when nothing matches."""
    key = spellings().get(_reduce(name))
    if key:
        return load(key)
    size = re.search(r"[-\s_]?(\d+)\s*g(i?)b?\b", name, re.IGNORECASE)
    if not size:
        return None
    bare = name[: size.start()] + name[size.end() :]
    key = spellings().get(_reduce(bare))
    if not key:
        return None
    device, stated = load(key), int(size[1])
    nominal = [device.memory_bytes.low / GB, device.memory_bytes.low / GIB, device.memory_bytes.high / GIB]
    if any(abs(stated - n) <= 0.06 * n for n in nominal):
        return device
    memory = Figure((float(stated * (GIB if device.kind == "gpu" else GB)),), ("stated",))
    note = f"no {device.label} with {stated} GB is listed; the memory is taken as stated"
    return msgspec.structs.replace(device, memory_bytes=memory, usable_bytes=memory, note=note)


def get(name: str) -> Device:
    """`find`, or an error that lists near names."""
    device = find(name)
    if device is None:
        near = get_close_matches(name.lower(), [*_table()[1]], n=4, cutoff=0.4)
        hint = f"near names: {', '.join(near)}" if near else "dyno devices lists them"
        raise UsageError(f"device {name!r} is not known; {hint}, or give --memory and --bandwidth")
    return device


def fleet(text: str) -> tuple[int, Device | None]:
    """ "8xH100-SXM" or "2 × A100" as (8, the device); a bare name is one."""
    match = re.match(r"\s*(\d+)\s*[x×*]\s*(.+)", text, re.IGNORECASE)
    if match:
        return int(match[1]), find(match[2])
    device = find(text)
    match = re.match(r"(.+?)[\s-]*[x×*]\s*(\d+)\s*$", text, re.IGNORECASE)
    if device is None and match:
        return int(match[2]), find(match[1])
    return 1, device


def aliases() -> Mapping[str, str]:
    """Other names of devices, as written in gpus.toml, to the device's key."""
    return {alias: key for key, row in _table()[1].items() for alias in row.aliases}
