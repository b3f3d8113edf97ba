"""What the command line says of a deployment in, the facts that licences ask for out."""

from __future__ import annotations

import re
from typing import Final, Literal

import msgspec

from dynamometer.errors import UsageError

Use = Literal["saas", "on-prem", "device", "redistribute", "finetune", "distill"]
USES: Final[tuple[Use, ...]] = ("saas", "on-prem", "device", "redistribute", "finetune", "distill")
MEANING: Final[dict[Use, str]] = {
    "saas": "host it for others",
    "on-prem": "use it inside one's own organisation",
    "device": "ship it inside a product",
    "redistribute": "hand on the weights",
    "finetune": "train it further and make the result available",
    "distill": "train another model on its output",
}
_EU_TEXT: Final = "AT BE BG HR CY CZ DK EE FI FR DE GR HU IE IT LV LT LU MT NL PL PT RO SK SI ES SE"
_EU: Final = frozenset(re.findall("..", _EU_TEXT.replace(" ", "")))
_PLACES: Final = {"UK": "GB", "EEA": "EU", "EUROPE": "EU", "KOREA": "KR", "CHINA": "CN", "USA": "US"}
_MONEY: Final = re.compile(
    r"\s*\$?\s*([0-9][0-9_,]*\.?[0-9]*)\s*([kmb]?)\s*(?:usd)?\s*(?:/\s*(month|year|m|y|a))?\s*\Z", re.I
)
_SCALE: Final = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9}


class Revenue(msgspec.Struct, frozen=True):
    """Revenue in US dollars. `period`: "month", "year", or "" where nobody said."""

    usd: float
    period: str = ""

    def readings(self, period: str) -> tuple[float, ...]:
        """US dollars a `period`, in every way in which the number can be read."""
        scale = 12.0 if period == "year" else 1.0 / 12.0
        if self.period == period:
            return (self.usd,)
        if self.period:
            return (self.usd * scale,)
        return (self.usd, self.usd * scale)


class Facts(msgspec.Struct, frozen=True):
    """What a deployment is. None and empty: not said. `territories`: EU, GB, KR, US, …; WORLD: everywhere."""

    use: tuple[Use, ...] = ("saas",)
    commercial: bool = True
    mau: int | None = None
    revenue: Revenue | None = None
    territories: tuple[str, ...] = ()


def amount(text: str, option: str) -> float:
    """ "250M", "1.5B", "1,000" as a number of at least 0."""
    match = _MONEY.match(text)
    if not match or match[3]:
        raise UsageError(f"{option} is {text!r}; give a number such as 250000 or 250M")
    return float(match[1].replace(",", "").replace("_", "")) * _SCALE[match[2].lower()]


def people(text: str) -> int:
    """Monthly active users."""
    return round(amount(text, "--mau"))


def revenue(text: str) -> Revenue:
    """ "30M/month", "2B/year", or a bare number whose period is then not known."""
    match = _MONEY.match(text)
    if not match:
        raise UsageError(f"--revenue is {text!r}; give US dollars such as 30M/month or 250M/year")
    usd = float(match[1].replace(",", "").replace("_", "")) * _SCALE[match[2].lower()]
    period = {"m": "month", "y": "year", "a": "year"}.get((match[3] or "").lower()[:1], "")
    return Revenue(usd, period)


def places(words: tuple[str, ...]) -> tuple[str, ...]:
    """Territories as licences name them: a country of the EU is EU as well."""
    found: list[str] = []
    for word in (part.strip().upper() for text in words for part in text.split(",")):
        if not word:
            continue
        code = _PLACES.get(word, word)
        if code not in ("EU", "WORLD") and not re.fullmatch(r"[A-Z]{2}", code):
            raise UsageError(
                f"--territory is {word!r}; give EU, WORLD or a two-letter country code such as DE, GB, KR, US"
            )
        found += [code, "EU"] if code in _EU else [code]
    return tuple(dict.fromkeys(found))
