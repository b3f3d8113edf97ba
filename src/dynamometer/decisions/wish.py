"""A decision file (TOML) in, the options, their evidence and the constraints out; what is misspelt is refused."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from dynamometer.errors import MissingPath, UsageError
from dynamometer.types import Provenance

NUMBER = float | int


class Told(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A figure that the file states. `source`: who says so; a run, a page, a paper, a table."""

    value: NUMBER
    source: str
    low: NUMBER | None = None
    high: NUMBER | None = None
    n: int = 0
    unit: str = ""
    provenance: Provenance = Provenance.QUOTED


class LicenceTerms(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the licence is asked: as the options of `dyno comply`."""

    use: tuple[str, ...] = ("saas",)
    mau: str | int = ""
    revenue: str | int = ""
    territory: tuple[str, ...] = ()
    non_commercial: bool = False
    accept: tuple[str, ...] = ()


class QualityFloor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    metric: str
    floor: NUMBER


class Constraints(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an option must hold. Absent: not asked."""

    slo: str = ""
    budget_usd_per_month: NUMBER | None = None
    power_w_max: NUMBER | None = None  # of one replica
    devices: tuple[str, ...] = ()  # at hand
    quality: QualityFloor | None = None
    licence: LicenceTerms | None = None


class Traffic(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A day's tokens."""

    input_tokens_per_day: NUMBER = 0
    output_tokens_per_day: NUMBER = 0


class Option(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One choice. `figures` are stated; `runs` are read. `price`: variables of the bill that differ from [price]."""

    name: str
    model: str = ""
    licence_of: str = ""  # the card to read, where it is not the model's
    device: str = ""
    count: int = 1
    weights: str = "auto"
    kv: str = "auto"
    context: int = 0  # with `concurrency`: what must fit into the memory
    concurrency: int = 0
    engine: str = "vllm"
    runs: tuple[str, ...] = ()
    price: Mapping[str, str | int | float] = {}
    figures: Mapping[str, Told] = {}
    note: str = ""


class Wish(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file. `minimize`: the figure to make small; `against`: the other axis of the picture."""

    option: tuple[Option, ...]
    question: str = "Which option?"
    minimize: str = "usd_per_million_output_tokens"
    against: str = ""
    constraints: Constraints = Constraints()
    traffic: Traffic = Traffic()
    price: Mapping[str, str | int | float] = {}
    market: str = "rental"
    own: bool = False
    seed: int = 0


_EXAMPLE: Final = "give [[option]] tables with a name, and runs or figures"


def read(path: Path) -> Wish:
    """The file's wish, with the runs' paths taken from the file's own folder."""
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as absent:
        raise MissingPath(f"{path} is not there; write a decision file, see docs/decide.md") from absent
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as wrong:
        raise UsageError(f"{path} is not TOML: {wrong}; see docs/decide.md for an example") from wrong
    except OSError as wrong:
        raise UsageError(f"{path} cannot be read: {wrong.strerror}; give a decision file (TOML)") from wrong
    try:
        wish = msgspec.convert(raw, Wish)
    except msgspec.ValidationError as wrong:
        raise UsageError(f"{path}: {wrong}; {_EXAMPLE}") from wrong
    _check(wish, path)
    placed = [
        msgspec.structs.replace(one, runs=tuple(_runs(one, path)), model=_place(one.model, path)) for one in wish.option
    ]
    return msgspec.structs.replace(wish, option=tuple(placed))


def _place(model: str, path: Path) -> str:
    """A model's path from the file's own folder; a name as it is."""
    beside = path.parent / Path(model).expanduser()
    return str(beside) if model and beside.exists() else model


def _check(wish: Wish, path: Path) -> None:
    if not wish.option:
        raise UsageError(f"{path} holds no option; {_EXAMPLE}")
    names = [one.name for one in wish.option]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(f"{path} has the option {twice[0]!r} twice; give each its own name")
    for one in wish.option:
        if not one.name.strip():
            raise UsageError(f"{path} has an option without a name; {_EXAMPLE}")
        if one.count < 1:
            raise UsageError(f"{path}: option {one.name!r} has {one.count} devices; give 1 or more")
        for name, told in one.figures.items():
            _ordered(name, told, one, path)
    for name, value in (
        ("budget_usd_per_month", wish.constraints.budget_usd_per_month),
        ("power_w_max", wish.constraints.power_w_max),
        ("input_tokens_per_day", wish.traffic.input_tokens_per_day),
        ("output_tokens_per_day", wish.traffic.output_tokens_per_day),
    ):
        if value is not None and value < 0:
            raise UsageError(f"{path}: {name} is {value}; give a number of 0 or more")
    if wish.constraints.budget_usd_per_month is not None and not wish.traffic.output_tokens_per_day:
        raise UsageError(f"{path}: a budget needs [traffic] output_tokens_per_day, or nothing can be held against it")


def _ordered(name: str, told: Told, option: Option, path: Path) -> None:
    low, high = told.value if told.low is None else told.low, told.value if told.high is None else told.high
    if not low <= told.value <= high:
        raise UsageError(f"{path}: {option.name!r} {name} is {told.value} in [{low}, {high}]; low ≤ value ≤ high")
    if not told.source.strip():
        raise UsageError(f"{path}: {option.name!r} {name} has no source; say which run, page or table it is from")


def _runs(option: Option, path: Path) -> list[str]:
    """Run folders, by pattern; a pattern that fits nothing is an error."""
    found = []
    for word in option.runs:
        place = Path(word).expanduser()
        root = Path("/") if place.is_absolute() else path.parent
        pattern = str(place.relative_to("/")) if place.is_absolute() else word
        hits = sorted(one for one in root.glob(pattern) if (one / "run.json").is_file())
        if not hits:
            raise MissingPath(f"{path}: option {option.name!r} names {word}, where no run is; give a run's folder")
        found += [str(one) for one in hits]
    return found
