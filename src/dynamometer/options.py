"""The free-form options of a law or a workload (text by name) in, checked values or one-line errors out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from dynamometer import units
from dynamometer.errors import UsageError

Options = Mapping[str, str]


def known(options: Options, names: Iterable[str], where: str) -> None:
    """Refuses an option that `where` does not have: a misspelt one must not be ignored in silence."""
    allowed = sorted(names)
    for name in options:
        if name not in allowed:
            takes = ", ".join(allowed) if allowed else "no options"
            raise UsageError(f"{where} has no option {name!r}; it takes {takes}")


def number(options: Options, name: str, default: float, where: str, *, low: float, high: float = math.inf) -> float:
    """A number in [low, high], both included; "inf" is a number, "nan" is not."""
    text = options.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if math.isnan(value) or not low <= value <= high:
        span = f"of at least {low:g}" if math.isinf(high) else f"from {low:g} to {high:g}"
        raise UsageError(f"{where}: {name} is {text!r}; give a number {span}")
    return value


def positive(options: Options, name: str, default: float, where: str) -> float:
    """A number above 0."""
    text = options.get(name)
    if text is None:
        return default
    value = number(options, name, default, where, low=0)
    if value == 0:
        raise UsageError(f"{where}: {name} is {text!r}; give a number above 0")
    return value


def whole(options: Options, name: str, default: int, where: str, *, low: int) -> int:
    """A whole number of at least `low`; "32k" is 32 × 1024."""
    text = options.get(name)
    if text is None:
        return default
    value = units.count(text, f"{where}: {name}")
    if value < low:
        raise UsageError(f"{where}: {name} is {text!r}; give a whole number of at least {low}")
    return value


def duration(options: Options, name: str, default: float, where: str) -> float:
    """A time such as 30s or 500ms in seconds, not negative."""
    text = options.get(name)
    if text is None:
        return default
    value = units.seconds(text, f"{where}: {name}")
    if value < 0:
        raise UsageError(f"{where}: {name} is {text!r}; give a time of at least 0")
    return value


def choice(options: Options, name: str, default: str, where: str, allowed: Sequence[str]) -> str:
    """One word of a list."""
    text = options.get(name, default)
    if text not in allowed:
        raise UsageError(f"{where}: {name} is {text!r}; one of {', '.join(allowed)}")
    return text


def flag(options: Options, name: str, default: bool, where: str) -> bool:
    """ "yes" or "no" (also true/false, on/off, 1/0)."""
    text = options.get(name)
    if text is None:
        return default
    if text.lower() in ("yes", "true", "on", "1"):
        return True
    if text.lower() in ("no", "false", "off", "0"):
        return False
    raise UsageError(f"{where}: {name} is {text!r}; give yes or no")
