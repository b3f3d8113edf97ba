"""A provider's price list in whatever unit and currency it is written, US dollars per million tokens out; and what a
usage costs by it.

A price without a unit is refused: read as per token instead of per thousand it would be wrong by a thousand. Sums are
decimal until the end.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Final

import msgspec

from dynamometer.errors import MissingPath, UsageError
from dynamometer.hardware import prices

UNITS: Final[Mapping[str, Decimal]] = {  # what one price is for -> how many of them are a million tokens
    "per_1m_tokens": Decimal(1),
    "per_million_tokens": Decimal(1),
    "per_1k_tokens": Decimal(1000),
    "per_token": Decimal(1_000_000),
}
PLAUSIBLE_USD: Final = Decimal(1000)  # a million tokens; nothing on the market costs as much


class Tariff(msgspec.Struct, frozen=True):
    """Prices of a million tokens in `currency`. `doubt`: why the line may be misread; empty if there is no reason."""

    model: str
    currency: str
    input: Decimal
    output: Decimal
    cached: Decimal | None = None
    doubt: str = ""


class Entry(msgspec.Struct, frozen=True):
    """A line of a price list as it is written."""

    model: str
    prompt: str | float
    completion: str | float
    unit: str | None = None
    currency: str = "USD"
    cached: str | float | None = None


def tariff(entry: Entry) -> Tariff:
    """The line per million tokens; refuses a missing or unknown unit and what is no number."""
    if entry.unit is None or entry.unit not in UNITS:
        said = "has no unit" if entry.unit is None else f"has the unit {entry.unit!r}"
        raise UsageError(f"the price of {entry.model} {said}; give one of {', '.join(UNITS)}")
    scale = UNITS[entry.unit]
    found = {
        name: _decimal(value, f"{entry.model}: {name}") * scale
        for name, value in (("prompt", entry.prompt), ("completion", entry.completion), ("cached", entry.cached))
        if value is not None
    }
    most = max(found.values())
    doubt = ""
    if most > PLAUSIBLE_USD:
        doubt = f"{most:,.0f} {entry.currency} per million tokens is above {PLAUSIBLE_USD:,}; is the unit {entry.unit}?"
    return Tariff(entry.model, entry.currency, found["prompt"], found["completion"], found.get("cached"), doubt)


def _decimal(value: str | float, what: str) -> Decimal:
    try:
        found = Decimal(str(value))
    except InvalidOperation:
        found = Decimal("nan")
    if not found.is_finite() or found < 0:
        raise UsageError(f"{what} is {value!r}; give a price of 0 or more")
    return found


def cost(by: Tariff, prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0) -> Decimal:
    """What a usage costs, in the tariff's currency. `prompt_tokens` includes the cached ones."""
    if not 0 <= cached_tokens <= prompt_tokens or completion_tokens < 0:
        raise UsageError(f"{cached_tokens} cached of {prompt_tokens} prompt tokens; the cached ones are among them")
    held = by.input if by.cached is None else by.cached
    fresh = prompt_tokens - cached_tokens
    return (by.input * fresh + held * cached_tokens + by.output * completion_tokens) / 1_000_000


def read_list(path: Path) -> tuple[Entry, ...]:
    """A price list: JSON (a list of entries, or `{"entries": […]}`) or TOML (`[[entries]]`)."""
    try:
        raw = path.read_bytes()
        table = tomllib.loads(raw.decode()) if path.suffix == ".toml" else msgspec.json.decode(raw)
    except OSError as wrong:
        raise MissingPath(f"{path} cannot be read ({wrong.strerror}); give a price list in JSON or TOML") from wrong
    except (msgspec.DecodeError, tomllib.TOMLDecodeError, UnicodeDecodeError) as wrong:
        raise UsageError(f"{path} is no valid {path.suffix[1:] or 'JSON'}: {wrong}") from wrong
    entries = table.get("entries") if isinstance(table, dict) else table
    try:
        return msgspec.convert(entries, tuple[Entry, ...], strict=False)
    except msgspec.ValidationError as wrong:
        raise UsageError(
            f"{path} is no price list: {wrong}; each entry has model, unit, prompt, completion, and may have cached, "
            "currency"
        ) from wrong


def named(text: str) -> prices.Api:
    """What `--against` says: a model of the catalogue, `INPUT,OUTPUT[,CACHED]` in USD a million tokens, or
    `FILE[:MODEL]`."""
    if "," in text:
        return _typed(text)
    place, _, model = text.rpartition(":")
    for path, wanted in ((text, ""), (place, model)):
        if path.endswith((".json", ".toml")):
            return _from_list(Path(path), wanted)
    return prices.api(text)


def _typed(text: str) -> prices.Api:
    words = text.split(",")
    if len(words) not in (2, 3):
        raise UsageError(f"--against is {text!r}; give INPUT,OUTPUT or INPUT,OUTPUT,CACHED in USD a million tokens")
    found = [float(_decimal(word.strip(), "--against")) for word in words]
    quotes = [prices.Quote(value, value, value, ("stated",)) for value in found]
    return prices.Api(text, quotes[0], quotes[1], quotes[2] if len(quotes) == 3 else None)


def _from_list(path: Path, model: str) -> prices.Api:
    chosen = _pick(read_list(path), model, path)
    found = tariff(chosen)
    if found.currency != "USD":
        raise UsageError(f"{chosen.model} is priced in {found.currency}; convert it to USD, no rate is assumed here")
    if found.doubt:
        raise UsageError(f"{chosen.model}: {found.doubt}")
    said = (f"{path.name}",)
    quotes = [
        None if value is None else prices.Quote(float(value), float(value), float(value), said)
        for value in (found.input, found.output, found.cached)
    ]
    assert quotes[0] is not None
    assert quotes[1] is not None
    return prices.Api(chosen.model, quotes[0], quotes[1], quotes[2])


def _pick(entries: Sequence[Entry], model: str, path: Path) -> Entry:
    found = [entry for entry in entries if not model or entry.model == model]
    if len(found) == 1:
        return found[0]
    known = ", ".join(entry.model for entry in entries)
    raise UsageError(f"{path} lists {known or 'nothing'}; name one: --against {path}:MODEL")
