"""`licences.toml` in, licences with their obligations out: clause, source, uses and triggers as data."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Final

import msgspec

from dynamometer.compliance.facts import Facts, Use

KINDS: Final = ("permissive", "conditions", "copyleft", "noncommercial", "unclear")


class Obligation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One term of a licence. `uses` empty: every use. Thresholds and territories are alternatives; none: always.

    `kind`: notice | act | limit | separate | forbidden | know; the head of licences.toml says what each means.
    """

    kind: str
    clause: str
    text: str
    uses: tuple[Use, ...] = ()
    commercial: bool = False  # only for commercial use
    mau_over: int = 0
    revenue_month_over_usd: float = 0.0
    revenue_year_over_usd: float = 0.0
    territories: tuple[str, ...] = ()
    only_for: tuple[str, ...] = ()  # parts of a model's name; empty: every model under the licence


class Licence(msgspec.Struct, frozen=True):
    """A licence. `id`: SPDX, or LicenseRef-… where SPDX has none. `checked`: how its clauses were compared."""

    id: str
    name: str
    kind: str
    source: str
    checked: str
    obligations: tuple[Obligation, ...]
    attribution: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    phrases: tuple[str, ...] = ()


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    kind: str
    source: str
    checked: str
    spdx: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    phrases: tuple[str, ...] = ()
    attribution: tuple[str, ...] = ()
    obligations: tuple[Obligation, ...] = ()
    like: str = ""
    version: str = ""
    released: str = ""


@cache
def licences() -> Mapping[str, Licence]:
    """Every licence of the catalogue by id."""
    raw = tomllib.loads(files("dynamometer.compliance").joinpath("licences.toml").read_text(encoding="utf-8"))
    entries = msgspec.convert(raw, dict[str, _Entry])
    found: dict[str, Licence] = {}
    for key, entry in entries.items():
        terms = entries[entry.like].obligations + entry.obligations if entry.like else entry.obligations
        filled = tuple(_filled(term, entry) for term in terms)
        for name in entry.spdx or (key,):
            shown = entry.name if name == key or not entry.spdx else f"{name} ({entry.name})"
            found[name] = Licence(
                id=name,
                name=shown,
                kind=entry.kind,
                source=f"https://spdx.org/licenses/{name}.html"
                if entry.source.endswith("/licenses/")
                else entry.source,
                checked=entry.checked,
                obligations=filled,
                attribution=entry.attribution,
                aliases=entry.aliases,
                phrases=entry.phrases,
            )
    return found


def _filled(term: Obligation, entry: _Entry) -> Obligation:
    text = term.text.replace("{released}", entry.released).replace("{version}", entry.version)
    return msgspec.structs.replace(term, text=text)


def licence(identity: str) -> Licence:
    """The licence by id. One outside the catalogue comes back with kind "unclear" and the advice to read it."""
    known = licences().get(identity)
    if known:
        return known
    source = "" if identity.startswith("LicenseRef-") else f"https://spdx.org/licenses/{identity}.html"
    term = Obligation("limit", "whole text", f"The terms of {identity} are not in the catalogue: read its text.")
    return Licence(identity, identity, "unclear", source, "check", (term,))


class State(msgspec.Struct, frozen=True):
    """What the facts make of an obligation: "due", "maybe" (a fact is missing) or "not"; `why` in words."""

    state: str
    why: str = ""


def state(term: Obligation, facts: Facts, use: Use, model: str = "") -> State:
    """Whether the obligation holds for this use and these facts."""
    if term.uses and use not in term.uses:
        return State("not", f"not for {use}")
    if term.commercial and not facts.commercial:
        return State("not", "not commercial")
    if term.only_for and model and not any(part in model.lower() for part in term.only_for):
        return State("not", f"not for {model}")
    triggers = [*_counted(term, facts), *_places(term, facts)]
    if not triggers:
        return State("due")
    for wanted in ("due", "maybe"):
        hit = [one.why for one in triggers if one.state == wanted]
        if hit:
            return State(wanted, "; ".join(hit))
    return State("not", "; ".join(one.why for one in triggers))


def _counted(term: Obligation, facts: Facts) -> list[State]:
    found = []
    if term.mau_over:
        limit = f"{term.mau_over:,} monthly active users"
        if facts.mau is None:
            found.append(State("maybe", f"depends on whether there are more than {limit}: give --mau"))
        else:
            over = facts.mau > term.mau_over
            found.append(State("due" if over else "not", f"{facts.mau:,} against {limit}"))
    for limit_usd, period in ((term.revenue_month_over_usd, "month"), (term.revenue_year_over_usd, "year")):
        if limit_usd:
            found.append(_revenue(limit_usd, period, facts))
    return found


def _revenue(limit_usd: float, period: str, facts: Facts) -> State:
    limit = f"{limit_usd:,.0f} USD a {period}"
    if facts.revenue is None:
        return State("maybe", f"depends on whether revenue is above {limit}: give --revenue")
    readings = facts.revenue.readings(period)
    told = " or ".join(f"{value:,.0f}" for value in sorted(set(readings)))
    if min(readings) > limit_usd:
        return State("due", f"revenue {told} against {limit}")
    if max(readings) <= limit_usd:
        return State("not", f"revenue {told} against {limit}")
    return State("maybe", f"depends on the period of --revenue ({told} against {limit}): write 30M/month or 30M/year")


def _places(term: Obligation, facts: Facts) -> list[State]:
    if not term.territories:
        return []
    listed = ", ".join(term.territories)
    if not facts.territories:
        return [State("maybe", f"depends on whether you are in {listed}: give --territory")]
    hit = sorted(set(term.territories) & set(facts.territories))
    if "WORLD" in facts.territories:
        hit = list(term.territories)
    return [State("due", f"in {', '.join(hit)}") if hit else State("not", f"not in {listed}")]
