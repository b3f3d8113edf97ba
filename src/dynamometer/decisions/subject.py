"""A claim in, what it is about out: the model, the device and how many of it, the format; each None when not known."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from dynamometer.decisions.claim import Claim
from dynamometer.errors import UsageError
from dynamometer.hardware import formats, gpu, source
from dynamometer.hardware.gpu import Device, Figure
from dynamometer.hardware.model import Model, Part

_CPU: Final = frozenset({"cpu", "host", "x86", "arm"})
# GB/s of one lane in one direction after line coding, by PCIe generation: 250 MB/s × 2^(g-1), 128b/130b from 3 on.
_LANE_GB_S: Final = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
_NVLINK_GB_S: Final = {1: 80, 2: 150, 3: 300, 4: 450, 5: 900}  # of one GPU in one direction


class Subject(msgspec.Struct, frozen=True):
    claim: Claim
    model: Model | None
    device: Device | None
    count: int  # devices together
    weights: str  # canonical format; "" = not stated
    stated: bool  # a precision was stated

    @property
    def bandwidth(self) -> float:
        """Of all devices together, the highest published value; 0 when not known."""
        return self.device.bandwidth.high * self.count if self.device else 0.0

    @property
    def memory(self) -> float:
        """Of all devices together, the largest published; 0 when not known."""
        return self.device.memory_bytes.high * self.count if self.device else 0.0


def resolve(claim: Claim) -> Subject:
    """Looks up the model among the built-ins and in paths, the device in the table. Nothing is fetched."""
    count, device = gpu.fleet(claim.hardware) if claim.hardware else (1, None)
    weights = precision(claim.precision)
    return Subject(claim, find_model(claim.model), device, max(1, count), weights or "", weights is not None)


def find_model(name: str) -> Model | None:
    """A built-in by name or the model in a local path."""
    if not name.strip():
        return None
    known = source.find(name)
    if known:
        return known
    try:
        return source.resolve(name, online=False)
    except UsageError:
        return nominal(name)


def nominal(name: str) -> Model | None:
    """A dense model known by the size in its name alone ("falcon-40b"): that many weights, less the 6 % by which such
    names round up, and no cache. None for names without a size and for mixtures ("8x7b")."""
    match = re.search(r"(?<![\dx.])(\d+(?:\.\d+)?)\s*([bBmM])(?![a-zA-Z0-9])", name)
    if not match or re.search(r"\d+x\d+", name) or re.search(r"-a\d+b", name, re.IGNORECASE):
        return None
    elements = round(float(match[1]) * (1e9 if match[2] in "bB" else 1e6) * 0.94)
    part = Part("mlp", elements, elements, True)
    note = "the size is read off the name"
    return Model(name, "", 1, 0, 0, 0, 0, "bf16", (part,), (), source=f"size in its name, less 6 % ({note})")


def precision(text: str) -> str | None:
    """The weight format of a printed precision: "fp8+int4" is its first part; None when none or not known."""
    for part in re.split(r"[+/, ]+", text.strip().lower()):
        try:
            key = formats.canonical(part)
        except UsageError:
            continue
        if key:
            return key
    return None


def link_speed(name: str) -> tuple[float, str] | None:
    """(bytes a second in one direction, what it is) of a PCIe or NVLink name such as "PCIe-5.0-x16" or "NVLink 4"."""
    pcie = re.search(r"pci-?e[-\s]*(?:gen)?[-\s]*(\d)(?:\.0)?(?:[-\s]*x\s*(\d+))?", name, re.IGNORECASE)
    if pcie and int(pcie[1]) in _LANE_GB_S:
        lanes = int(pcie[2] or 16)
        return _LANE_GB_S[int(pcie[1])] * lanes * 1e9, f"PCIe {pcie[1]}.0 ×{lanes}"
    nvlink = re.search(r"nvlink[-\s]*(\d)", name, re.IGNORECASE)
    if nvlink and int(nvlink[1]) in _NVLINK_GB_S:
        return _NVLINK_GB_S[int(nvlink[1])] * 1e9, f"NVLink {nvlink[1]}, one GPU"
    return None


def same_as(speed: float, lanes: int = 16) -> str:
    """Which PCIe generation has this speed, for a remark; "" when none."""
    for generation, each in _LANE_GB_S.items():
        if abs(speed - each * lanes * 1e9) <= 0.03 * speed:
            return f"PCIe {generation}.0 ×{lanes}"
    return ""


def cited(device: Device, figure: Figure) -> str:
    """Who publishes a figure, for a finding's source."""
    return f"{device.label}: {'; '.join(gpu.source_text(key) for key in figure.sources)}"


def is_cpu(claim: Claim) -> bool:
    return claim.hardware.strip().lower() in _CPU
