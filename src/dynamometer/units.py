"""Numbers in, text out: one way to print each quantity. GB is 10^9 bytes, GiB is 2^30 bytes; they are never mixed."""

from __future__ import annotations

import re

from dynamometer.errors import UsageError
from dynamometer.types import Estimate

KB, MB, GB, TB = 10**3, 10**6, 10**9, 10**12
KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40

_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_BYTES = {"": 1, "b": 1, "kb": KB, "mb": MB, "gb": GB, "tb": TB, "kib": KIB, "mib": MIB, "gib": GIB, "tib": TIB}
_QUANTITY = re.compile(r"\s*([-+]?[0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?)\s*([a-zA-Zµ]*)\s*\Z")


def _split(text: str, what: str, wanted: str) -> tuple[float, str]:
    match = _QUANTITY.match(text)
    if not match:
        raise UsageError(f"{what} is {text!r}; give {wanted}")
    return float(match[1]), match[2]


def seconds(text: str, what: str = "duration") -> float:
    """ "500ms", "30s", "5m", "1h" or a bare number of seconds, in seconds."""
    value, unit = _split(text, what, "a time such as 30s, 500ms or 5m")
    if unit not in _SECONDS:
        raise UsageError(f"{what} is {text!r}; the unit must be one of ns, us, ms, s, m, h")
    return value * _SECONDS[unit]


def count(text: str, what: str = "count") -> int:
    """ "32k" is 32 × 1024 (the field's habit for token lengths), "1M" is 10^6, a bare number is itself."""
    value, unit = _split(text, what, "a number such as 512 or 32k")
    scale = {"": 1, "k": 1024, "K": 1024, "M": 10**6}.get(unit)
    if scale is None or value * scale != int(value * scale):
        raise UsageError(f"{what} is {text!r}; give a whole number such as 512 or 32k")
    return int(value * scale)


def byte_size(text: str, what: str = "size") -> int:
    """ "24GB" or "24GiB" in bytes; the two differ by 7 %."""
    value, unit = _split(text, what, "a size such as 24GB or 24GiB")
    if unit.lower() not in _BYTES:
        raise UsageError(f"{what} is {text!r}; the unit must be B, kB, MB, GB, TB, KiB, MiB, GiB or TiB")
    return round(value * _BYTES[unit.lower()])


def significant(value: float, digits: int = 3) -> str:
    """Three significant digits with thousands separators: 0.0123, 12.3, 1,230."""
    if value == 0:
        return "0"
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    text = f"{value:.{digits}g}"
    return f"{float(text):.10f}".rstrip("0").rstrip(".") if "e" in text else text


def show(estimate: Estimate) -> str:
    """`412 ms [388, 441]`, or `n/a (reason)` when the sample can't carry the number."""
    if estimate.value is None:
        return f"n/a ({estimate.method})" if estimate.method else "n/a"
    text = significant(estimate.value) + (f" {estimate.unit}" if estimate.unit else "")
    if estimate.low is None or estimate.high is None:
        return text
    return f"{text} [{significant(estimate.low)}, {significant(estimate.high)}]"


def show_bytes(size: float) -> str:
    """Binary units, as memory is sold and reported: `1.25 GiB`."""
    for unit, scale in (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if abs(size) >= scale:
            return f"{size / scale:.2f} {unit}"
    return f"{size:.0f} B"
