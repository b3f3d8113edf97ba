"""Bandwidth, memory, a latency target and bytes a sample in, the largest batch out; and the textbook formula beside it.

One step reads the weights W once and s bytes for each of B samples, so it takes t(B) = (W + B·s) / BW. It must end
within the target L, and B samples of m resident bytes must fit beside the weights:

    B ≤ (L·BW − W) / s        B ≤ (M − W) / m        B ≤ (L·rate) / f      (f: FLOPs a sample)

A formula that is often printed, B = BW / s · 0.8, has neither L nor W nor M in it: it is the samples whose bytes can
be read in 0.8 seconds, whatever the target is. It is computed here to be compared.
"""

from __future__ import annotations

import math

import msgspec

from dynamometer.errors import UsageError


class Batch(msgspec.Struct, frozen=True):
    """`batch` 0: not even one sample meets the target. None: that limit was not asked for."""

    batch: int
    limit: str
    by_latency: int | None
    by_memory: int | None
    by_compute: int | None
    step_s: float  # at `batch`; at one sample when none fits
    throughput: float  # samples a second at `batch`
    printed_formula: float


class Site(msgspec.Struct, frozen=True):
    """A machine and one sample's demands. `resident_bytes` 0: as many as are read. Zero rate or memory: no such
    limit."""

    bandwidth: float  # B/s
    sample_bytes: float  # read for each sample and step
    weights_bytes: float = 0.0
    memory_bytes: float = 0.0
    resident_bytes: float = 0.0
    rate: float = 0.0  # FLOPS
    sample_flops: float = 0.0
    efficiency: float = 0.8  # share of the bandwidth that is reached


def batch(site: Site, latency_s: float) -> Batch:
    """The largest batch that meets the latency target and fits."""
    if min(site.bandwidth, site.sample_bytes, latency_s) <= 0 or not 0 < site.efficiency <= 1:
        raise UsageError("bandwidth, bytes a sample and latency must be above 0, efficiency above 0 and up to 1")
    speed = site.bandwidth * site.efficiency
    by_latency = _count((latency_s * speed - site.weights_bytes) / site.sample_bytes)
    resident = site.resident_bytes or site.sample_bytes
    by_memory = _count((site.memory_bytes - site.weights_bytes) / resident) if site.memory_bytes else None
    by_compute = _count(latency_s * site.rate / site.sample_flops) if site.rate and site.sample_flops else None
    limits = {"latency": by_latency, "memory": by_memory, "compute": by_compute}
    name, most = min(((k, v) for k, v in limits.items() if v is not None), key=lambda pair: pair[1])
    step = (site.weights_bytes + max(most, 1) * site.sample_bytes) / speed
    if site.rate and site.sample_flops:
        step = max(step, max(most, 1) * site.sample_flops / site.rate)
    return Batch(
        most,
        name,
        by_latency,
        by_memory,
        by_compute,
        step,
        most / step,
        printed_formula(site.bandwidth, site.sample_bytes),
    )


def _count(value: float) -> int:
    """Whole samples; a quotient that is short of a whole number by rounding alone counts as whole."""
    return max(0, math.floor(value * (1 + 1e-12)))


def printed_formula(bandwidth: float, sample_bytes: float, efficiency: float = 0.8) -> float:
    """BW / s · 0.8, as printed in places: a rate in samples a second, not a batch."""
    return bandwidth / sample_bytes * efficiency
