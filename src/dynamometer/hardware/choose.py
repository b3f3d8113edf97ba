"""A model and a deployment in, the devices that could hold it out, cheapest first."""

from __future__ import annotations

import msgspec

from dynamometer.errors import UsageError
from dynamometer.hardware.gpu import Device, Figure, devices
from dynamometer.hardware.memory import Deployment, breakdown, judge
from dynamometer.hardware.model import Model


class Choice(msgspec.Struct, frozen=True):
    device: Device
    count: int
    usd_h: Figure | None  # all GPUs together; None: no published price here
    room_bytes: float  # left on each GPU after the cache that was asked for


def choices(model: Model, d: Deployment, counts: tuple[int, ...] = (1, 2, 4, 8)) -> list[Choice]:
    """The least number of each device that fits the deployment, by price, then by count; unpriced devices come last."""
    found = []
    for device in devices():
        if device.kind in ("cpu",):
            continue
        for count in counts:
            choice = _try(model, d, device, count)
            if choice:
                found.append(choice)
                break
    return sorted(
        found, key=lambda c: (c.usd_h is None, c.usd_h.low if c.usd_h else c.count, c.count, c.device.memory_bytes.low)
    )


def _try(model: Model, d: Deployment, device: Device, count: int) -> Choice | None:
    if count > 1 and device.kind in ("edge", "soc"):
        return None
    placed = msgspec.structs.replace(d, tp=count, pp=1, memory_bytes=device.usable_bytes.low)
    try:
        b = breakdown(model, placed)
    except UsageError:  # the heads do not divide by this count
        return None
    verdict = judge(model, placed, b)
    if not verdict.fits:
        return None
    price = device.price_usd_h
    total = Figure(tuple(value * count for value in price.values), price.sources) if price else None
    return Choice(device, count, total, b.room - b.held - b.state)
