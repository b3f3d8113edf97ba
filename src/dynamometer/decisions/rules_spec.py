"""Claims about a device or a link in, findings out: bandwidth, peak compute, memory, power, link, against published
figures.

Public figures that conflict all count: a claim agrees when it lies within their range. What equals another precision,
a sibling or the sparse figure is named as such.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from dynamometer.decisions.claim import byte_range
from dynamometer.decisions.finding import Finding, impossible, inconsistent, not_checkable, possible
from dynamometer.decisions.subject import Subject, cited, link_speed, same_as
from dynamometer.hardware import gpu
from dynamometer.hardware.gpu import Device, Figure
from dynamometer.units import significant as show

MEMORY_BANDWIDTH: Final = frozenset(
    {"memory_bandwidth", "bandwidth", "hbm_bandwidth", "dram_bandwidth", "mem_bandwidth"}
)
COMPUTE: Final = frozenset(
    {"peak_compute", "peak_flops", "compute", "tflops", "peak_performance", "peak_tflops", "tops"}
)
LINK: Final = frozenset({"pcie_bandwidth", "link_bandwidth", "nvlink_bandwidth", "interconnect_bandwidth"})
SIZE: Final = frozenset({"memory_capacity", "memory_size", "device_memory"})
POWER: Final = frozenset({"tdp", "power", "peak_power", "power_limit", "power_draw"})
METRICS: Final = MEMORY_BANDWIDTH | COMPUTE | LINK | SIZE | POWER

_CLOSE: Final = 0.03
_PREFIX: Final = {"k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "p": 1e15, "e": 1e18}
_PRECISIONS: Final = {
    "half": "fp16",
    "bfloat16": "bf16",
    "float16": "fp16",
    "float32": "fp32",
    "single": "fp32",
    "w8a8": "int8",
}


def judge(s: Subject) -> list[Finding]:
    """Every datasheet rule that applies."""
    claim = s.claim
    if claim.value is None or claim.value <= 0:
        return [not_checkable("the claim has no figure above 0")]
    if claim.metric in LINK:
        return [_link(s)]
    if s.device is None:
        return [
            not_checkable(
                f"device {claim.hardware or 'not stated'!r} is not in the table", "name a device of dyno devices"
            )
        ]
    if claim.metric in COMPUTE:
        return [_compute(s, s.device)]
    if claim.metric in POWER:
        return [_power(s, s.device)]
    if claim.metric in SIZE:
        span = byte_range(claim.value, claim.unit)
        if span is None:
            return [not_checkable(f"the unit {claim.unit!r} is no size")]
        # GB and GiB are mixed freely for memory, so both readings may agree
        return [_against(s, s.device, s.device.memory_bytes, (span[0] * 0.97, span[1] * 1.03), "memory")]
    speed = _bytes_per_s(claim.value, claim.unit)
    if speed is None:
        return [not_checkable(f"the unit {claim.unit!r} is no bandwidth; give GB/s or TB/s")]
    return [_against(s, s.device, s.device.bandwidth, (speed, speed), "memory bandwidth")]


def _bytes_per_s(value: float, unit: str) -> float | None:
    """Bytes a second; "Gb/s" and "Gbps" are bits."""
    match = re.match(r"([kKMGTP]?)(i?)([bB])(?:ytes?|its?)?(?:/s|ps)?", unit.strip())
    if not match:
        return None
    scale = _PREFIX.get(match[1].lower(), 1.0)
    return value * scale / (8 if match[3] == "b" else 1)


def _flops(value: float, unit: str) -> float | None:
    match = re.match(r"([kKMGTPE]?)\s*(?:fl)?ops?(?:/s)?$", unit.strip(), re.IGNORECASE)
    return value * _PREFIX.get(match[1].lower(), 1.0) if match else None


def _against(s: Subject, device: Device, figure: Figure, span: tuple[float, float], name: str) -> Finding:
    """A figure that should equal the published one."""
    claim, where = s.claim, cited(device, figure)
    scale, unit = (2**30, "GiB") if name == "memory" else (1e9, "GB/s")
    known = _spread(figure, scale)
    line = f"{device.label}: published {name} {known} {unit}; claimed {claim.printed} {claim.unit}"
    low, high = figure.low * (1 - _CLOSE), figure.high * (1 + _CLOSE)
    if span[1] >= low and span[0] <= high:
        note = " (public values conflict; it is within their range)" if figure.conflict else ""
        return possible(line + note, where)
    if span[0] > high:
        return impossible(line, where, f"{known} {unit}{_siblings(device, span[0], name)}")
    return inconsistent(line, where, f"{known} {unit}{_siblings(device, span[0], name)}")


def _spread(figure: Figure, scale: float) -> str:
    return " / ".join(f"{show(value / scale, 4)}" for value in figure.values)


def _siblings(device: Device, value: float, name: str) -> str:
    """Another device of the same family that has this figure."""
    family = device.name.split("-")[0]
    for other in gpu.devices():
        figure = other.memory_bytes if name == "memory" else other.bandwidth
        if other.name != device.name and other.name.startswith(family) and abs(figure.high - value) <= _CLOSE * value:
            return f"; the figure is {other.label}'s"
    return ""


def _precision(s: Subject) -> str:
    text = s.claim.precision.strip().lower()
    return _PRECISIONS.get(text, text)


def _compute(s: Subject, device: Device) -> Finding:
    claim, wanted = s.claim, _precision(s)
    value = _flops(claim.value or 0.0, claim.unit)
    if value is None:
        return not_checkable(f"the unit {claim.unit!r} is no compute rate; give TFLOPS or TOPS")
    value /= s.count
    if not device.rates:
        return not_checkable(f"no compute rate of {device.label} is known here", "give the vendor's data sheet")
    if not wanted:
        return _any_precision(s, device, value)
    names = {"fp16": ("fp16", "bf16"), "bf16": ("bf16", "fp16")}.get(wanted, (wanted,))
    figure = next((device.rates[name] for name in names if name in device.rates), None)
    said = f"claimed {claim.printed} {claim.unit}"
    if figure is None:
        others = [name for name, rate in device.rates.items() if _is(rate, value)]
        if others:
            line = (
                f"{device.label} has no published {wanted} rate; "
                f"{show(value / 1e12, 4)} T is its {' and '.join(others)} rate; {said}"
            )
            return inconsistent(
                line,
                cited(device, device.rates[others[0]]),
                f"call it {others[0]}; {wanted} weights are widened before they are multiplied",
            )
        return not_checkable(f"no {wanted} rate of {device.label} is known here; {said}")
    return _against_rate(s, device, wanted, figure, value)


def _against_rate(s: Subject, device: Device, wanted: str, figure: Figure, value: float) -> Finding:
    """A compute rate against the dense peak of its precision, and what else it might be."""
    claim = s.claim
    said = f"claimed {claim.printed} {claim.unit}"
    where = cited(device, figure)
    line = f"{device.label}: dense {wanted} {_spread(figure, 1e12)} T; {said}"
    if _is(figure, value):
        note = " (public values conflict; it is within their range)" if figure.conflict else ""
        return possible(line + note, where)
    sparse = f"{show(2 * figure.high / 1e12, 4)}"
    if device.sparse and abs(value - 2 * figure.high) <= _CLOSE * value and wanted not in ("fp32", "tf32"):
        if "spars" in claim.context.lower():
            return possible(f"{line}, the figure with 2:4 sparsity", where)
        return inconsistent(
            f"{line}: that is the figure with 2:4 sparsity", where, f"dense {_spread(figure, 1e12)} T, or say 'sparse'"
        )
    alike = "".join(f"; {text}" for text in _alike(device, value, wanted))
    if value > figure.high:
        beyond = f", {value / figure.high:.2f} times the dense peak" + (f" (sparse {sparse})" if device.sparse else "")
        return impossible(line + beyond + alike, where, f"{_spread(figure, 1e12)} T dense")
    if _measured(claim.kind, claim.context):
        return possible(f"{line}, {value / figure.high:.0%} of the peak, as measured", where)
    return inconsistent(line + alike, where, f"{_spread(figure, 1e12)} T")


def _measured(kind: str, context: str) -> bool:
    return (
        kind not in ("spec", "text", "")
        or re.search(r"measured|achieved|reached|sustained", context, re.IGNORECASE) is not None
    )


def _is(figure: Figure, value: float) -> bool:
    return figure.low * (1 - _CLOSE) <= value <= figure.high * (1 + _CLOSE)


def _alike(device: Device, value: float, wanted: str) -> Iterator[str]:
    """Where else this rate stands: another precision of the device, or a sibling's."""
    for name, rate in device.rates.items():
        if name != wanted and _is(rate, value) and {name, wanted} != {"fp16", "bf16"}:
            yield f"it is the {name} rate"
            return
    family = device.name.split("-")[0]
    for other in gpu.devices():
        rates = (other.rates.get(wanted), other.rates.get("bf16") if wanted == "fp16" else None)
        if other.name != device.name and other.name.startswith(family) and any(r and _is(r, value) for r in rates):
            yield f"it is {other.label}'s"
            return


def _any_precision(s: Subject, device: Device, value: float) -> Finding:
    said = f"claimed {s.claim.printed} {s.claim.unit}, no precision stated"
    for name, rate in device.rates.items():
        if _is(rate, value):
            return possible(f"{device.label}: {said}; it is the dense {name} rate", cited(device, rate))
        if device.sparse and abs(value - 2 * rate.high) <= _CLOSE * value:
            return inconsistent(
                f"{device.label}: {said}; it is the sparse {name} rate", cited(device, rate), "say 'sparse'"
            )
    best = max(device.rates.values(), key=lambda rate: rate.high)
    line = f"{device.label}: {said}; the highest dense rate here is {show(best.high / 1e12, 4)} T"
    return (
        impossible(line, cited(device, best))
        if value > 2 * best.high * 1.03
        else inconsistent(line, cited(device, best), "state the precision")
    )


def _power(s: Subject, device: Device) -> Finding:
    claim = s.claim
    if device.tdp_w is None or not claim.unit.lower().startswith(("w", "kw")):
        return not_checkable(f"no power limit of {device.label} is known here, or the unit {claim.unit!r} is not W")
    watts = (claim.value or 0.0) * (1000 if claim.unit.lower().startswith("kw") else 1) / s.count
    line = f"{device.label}: power limit {_spread(device.tdp_w, 1)} W; claimed {watts:g} W a device"
    where = cited(device, device.tdp_w)
    if watts > device.tdp_w.high * 1.1:
        return impossible(line, where, "a system's power at the wall is not one device's")
    if (
        claim.metric in ("tdp", "peak_power", "power_limit")
        and watts < device.tdp_w.low * 0.9
        and not device.tdp_w.conflict
    ):
        return inconsistent(line, where)
    return possible(line, where)


def _link(s: Subject) -> Finding:
    """A link's speed: by its own name, or the device's."""
    claim = s.claim
    speed = _bytes_per_s(claim.value or 0.0, claim.unit)
    if speed is None:
        return not_checkable(f"the unit {claim.unit!r} is no bandwidth; give GB/s")
    named = link_speed(claim.hardware) or link_speed(claim.context)
    if named and (s.device is None or claim.metric != "pcie_bandwidth"):
        return _named_link(s, speed, *named)
    if s.device is None:
        return not_checkable(f"link {claim.hardware!r} is not known here", "name it as PCIe-5.0-x16 or NVLink-4")
    figure = s.device.pcie if claim.metric == "pcie_bandwidth" else s.device.link
    if figure is None:
        return not_checkable(f"no such link of {s.device.label} is known here")
    line = (
        f"{s.device.label}: {show(figure.high / 1e9, 4)} GB/s in one direction; "
        f"claimed {claim.printed} {claim.unit}, {speed / figure.high:.0%} of it"
    )
    where = cited(s.device, figure)
    if speed > figure.high * 2 * (1 + _CLOSE):
        return impossible(line, where)
    if speed > figure.high * (1 + _CLOSE) and re.search(
        r"one direction|unidirectional|each way", claim.context, re.IGNORECASE
    ):
        return impossible(line, where, "both directions together")
    return possible(line, where)


def _named_link(s: Subject, speed: float, one_way: float, name: str) -> Finding:
    claim = s.claim
    line = f"{name} carries {show(one_way / 1e9, 4)} GB/s in one direction; claimed {claim.printed} {claim.unit}"
    where = "lane rate after line coding × lanes" if name.startswith("PCIe") else "NVLink generations, vendor's figures"
    one = re.search(r"one direction|unidirectional|each way|one-way", claim.context, re.IGNORECASE)
    if abs(speed - one_way) <= 0.05 * one_way:
        return possible(line, where)
    if abs(speed - 2 * one_way) <= 0.05 * 2 * one_way:
        return (
            inconsistent(f"{line}, which is both directions", where, f"{show(one_way / 1e9, 4)} GB/s")
            if one
            else possible(f"{line}, both directions", where)
        )
    if speed > 2 * one_way * 1.05 or (one and speed > one_way * 1.05):
        return impossible(line, where, f"{show(one_way / 1e9, 4)} GB/s")
    if _measured(claim.kind if claim.kind != "bandwidth" else "", claim.context):
        return possible(f"{line}, {speed / one_way:.0%} of it, as measured", where)
    alike = same_as(speed)
    return inconsistent(f"{line}{f': that is {alike}' if alike else ''}", where, f"{show(one_way / 1e9, 4)} GB/s")
