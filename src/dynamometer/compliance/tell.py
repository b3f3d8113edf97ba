"""A clearance in, the tables and lines that a person reads out."""

from __future__ import annotations

from typing import Final

from dynamometer.compliance.clear import Clearance, Item
from dynamometer.compliance.facts import MEANING, Facts
from dynamometer.report.table import Table

_WORD: Final = {
    "forbidden": "not allowed",
    "separate": "own licence needed",
    "act": "do",
    "limit": "keep within",
    "notice": "keep",
    "know": "know",
}


def parts_table(found: Clearance) -> Table:
    """Which part stands under which licence, and what that comes to."""
    rows = tuple(
        (one.kind, f"{one.name}{f' ({one.relation})' if one.relation else ''}", one.licence, one.status, one.source)
        for one in found.parts
    )
    return Table("Licences", ("part", "of", "licence", "status", "read from"), rows, numbers=False)


def checklist_table(found: Clearance) -> Table:
    """What is asked, with the clause; below it where each text stands."""
    rows = tuple((_WORD[item.kind], _duty(item), item.licence, item.clause) for item in found.checklist)
    sources = {item.licence: item.source for item in found.checklist}
    unsure = sorted({item.licence for item in found.checklist if item.checked == "check"})
    notes = tuple(f"{name}: {source}" for name, source in sources.items() if source)
    if unsure:
        notes += (f"clauses of {', '.join(unsure)} were not compared with the text: check them",)
    return Table("Checklist", ("", "what", "licence", "clause"), rows, notes, numbers=False)


def _duty(item: Item) -> str:
    return f"{item.text} [{item.why}]" if item.why else item.text


def boundary_table(found: Clearance) -> Table:
    """The same facts, for every use."""
    rows = tuple((one.use, MEANING[one.use], one.status, one.because) for one in found.boundary)
    return Table("Boundary by use", ("use", "meaning", "status", "because"), rows, numbers=False)


def facts_text(facts: Facts) -> str:
    """The facts in one line."""
    told = [
        f"use {', '.join(facts.use)}",
        "commercial" if facts.commercial else "non-commercial",
        f"{facts.mau:,} monthly active users" if facts.mau is not None else "monthly active users not given",
    ]
    if facts.revenue:
        period = f" a {facts.revenue.period}" if facts.revenue.period else ""
        told.append(f"revenue {facts.revenue.usd:,.0f} USD{period}")
    if facts.territories:
        told.append(f"in {', '.join(facts.territories)}")
    return "; ".join(told)
