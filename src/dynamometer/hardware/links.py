"""A link and a number of devices in, seconds of a collective out: measured latency and bandwidth, by alpha and beta.

The figures are fits to NCCL tables (AIConfigurator 095f58a, Apache-2.0; Vidur 7d47513, MIT): time = alpha + moved
bytes / bandwidth, with 2 (n-1)/n of the message moved by an all-reduce. On one and the same card the host's PCIe
layout changes them 5 to 9 times, so a link of one's own should be measured (`dyno probe`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from dynamometer.errors import UsageError
from dynamometer.units import GB


class Link(msgspec.Struct, frozen=True):
    """`alpha_s` and `bandwidth` (bus bytes per second) by the number of devices; in between and beyond, the nearest."""

    name: str
    alpha_s: Mapping[int, float]
    bandwidth: Mapping[int, float]
    source: str = ""


def _link(name: str, alpha_us: tuple[float, float, float], gb_s: tuple[float, float, float], source: str) -> Link:
    sizes = (2, 4, 8)
    return Link(
        name,
        {n: us * 1e-6 for n, us in zip(sizes, alpha_us, strict=True)},
        {n: value * GB for n, value in zip(sizes, gb_s, strict=True)},
        source,
    )


_AIC = "NCCL table of AIConfigurator 095f58a, fitted"
_VIDUR = "Vidur 7d47513, pairwise NVLink hosts, fitted"
LINKS: Final[dict[str, Link]] = {
    "nvlink3": _link("nvlink3", (11.7, 15.8, 23.8), (161, 182, 190), f"A100 SXM, {_AIC}"),
    "nvlink4": _link("nvlink4", (7.0, 10.6, 17.4), (261, 306, 374), f"H100 SXM, {_AIC}"),
    "nvlink5": _link("nvlink5", (10.9, 16.4, 27.6), (466, 556, 581), f"B200, {_AIC}"),
    "pcie5": _link("pcie5", (6.8, 13.6, 26.9), (34.7, 24.5, 22.1), f"RTX PRO 6000, {_AIC}"),
    "pcie4": _link("pcie4", (7.0, 11.5, 22.6), (18.7, 5.1, 1.6), f"L40S without peer access, {_AIC}"),
    "pcie4-p2p": _link("pcie4-p2p", (8.6, 14.0, 24.0), (16.0, 19.4, 18.8), f"L40S with peer access, {_AIC}"),
    "pcie5-pairs": _link("pcie5-pairs", (12.2, 23.8, 23.8), (186.5, 46.3, 46.3), f"H100 PCIe, {_VIDUR}"),
    "xe-pcie5": _link("xe-pcie5", (14.6, 17.7, 17.7), (19.0, 18.9, 18.9), f"Arc Pro B60, oneCCL, {_AIC}"),
    "net-400g": _link("net-400g", (20.0, 30.0, 40.0), (45.0, 45.0, 45.0), "400 Gbit/s at 90 %: an assumption"),
    "net-100g": _link("net-100g", (30.0, 45.0, 60.0), (11.0, 11.0, 11.0), "100 Gbit/s at 88 %: an assumption"),
}
_BY_DEVICE: Final = {"NVLink3": "nvlink3", "NVLink4": "nvlink4", "NVLink5": "nvlink5"}


def link(name: str) -> Link:
    """A link by its name."""
    if name not in LINKS:
        raise UsageError(f"link is {name!r}; one of {', '.join(LINKS)}")
    return LINKS[name]


def usual(link_name: str, pcie_bandwidth: float) -> Link:
    """The link that a device has by default: its NVLink generation, else PCIe of its generation."""
    for known, key in _BY_DEVICE.items():
        if link_name.startswith(known):
            return LINKS[key]
    return LINKS["pcie5" if pcie_bandwidth >= 50 * GB else "pcie4"]


def _nearest(table: Mapping[int, float], n: int) -> float:
    return table[min(table, key=lambda size: (abs(size - n), size))]


def all_reduce_s(over: Link, n: int, size_bytes: float) -> float:
    """Seconds to sum a message of so many bytes over `n` devices."""
    if n < 2:
        return 0.0
    return _nearest(over.alpha_s, n) + 2 * (n - 1) / n * size_bytes / _nearest(over.bandwidth, n)


def all_to_all_s(over: Link, n: int, size_bytes: float) -> float:
    """Seconds for each of `n` devices to give every other its part of a message of so many bytes."""
    if n < 2:
        return 0.0
    return _nearest(over.alpha_s, n) + (n - 1) / n * size_bytes / _nearest(over.bandwidth, n)


def send_s(over: Link, size_bytes: float) -> float:
    """Seconds to send a message to one other device."""
    return _nearest(over.alpha_s, 2) + size_bytes / _nearest(over.bandwidth, 2)
