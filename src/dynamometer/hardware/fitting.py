"""A device and a part of a model's name in, what of the built-ins it holds out: widest format, bytes, ceiling of the
decode rate."""

from __future__ import annotations

from typing import Final

import msgspec

from dynamometer.errors import UsageError
from dynamometer.hardware import formats, roofline, source
from dynamometer.hardware.gpu import Device
from dynamometer.hardware.memory import Deployment, breakdown
from dynamometer.hardware.model import Model
from dynamometer.hardware.reserve import engine
from dynamometer.units import GIB

# Widest first. Below Q4_K_M answers change for the worse faster than memory shrinks, so Q2_K is the last resort.
_FORMATS: Final = ("fp16", "q8_0", "q6_k", "q5_k_m", "q4_k_m", "q3_k_m", "q2_k")
_SYSTEM_BYTES: Final = round(1.5 * GIB)  # what an operating system keeps where memory is shared with it


class Fit(msgspec.Struct, frozen=True):
    """`format` "": none fits; then `bytes` is the need of the narrowest, `least`."""

    model: str
    format: str
    bytes: int
    ceiling: float  # tokens/s of one sequence that the bandwidth allows
    least: str = _FORMATS[-1]


def on_device(device: Device, wanted: str, context: int) -> list[Fit]:
    """One row for each built-in whose name holds `wanted`, smallest model last."""
    shared = device.kind in ("edge", "soc", "cpu")
    room = device.usable_bytes.low - (_SYSTEM_BYTES if shared else 0)
    keys = [key for key in source.built_ins() if wanted.lower() in key]
    if not keys:
        raise UsageError(f"no built-in model has {wanted!r} in its name; dyno memory --list names them")
    return [_fit(source.load(key), device, room, context) for key in keys]


def _fit(model: Model, device: Device, room: float, context: int) -> Fit:
    need = 0
    for name in _FORMATS:
        b = breakdown(model, Deployment(context=context, weights=name, kv="fp16", engine=engine("llama.cpp")))
        need = b.total or 0
        if need <= room:
            floor = roofline.decode_floor(model, device.bandwidth.high, 0.0, [context], name, "fp16")
            return Fit(model.name, name, need, 1 / floor.seconds)
    return Fit(model.name, "", need, 0.0)


def formats_known() -> tuple[str, ...]:
    return tuple(name for name in _FORMATS if formats.canonical(name))
