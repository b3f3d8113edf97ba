"""A clearance in, the facts at which its answer would turn out, in words."""

from __future__ import annotations

from dynamometer.compliance.catalogue import licence
from dynamometer.compliance.clear import Clearance


def limits(found: Clearance) -> tuple[str, ...]:
    """Thresholds of users, revenue and territory of the licences in force, and uses that would be closed."""
    told: list[str] = []
    for identity in dict.fromkeys(one for part in found.parts if part.kind != "data" for one in part.chosen):
        for term in licence(identity).obligations:
            if term.kind not in ("separate", "forbidden", "act") or (
                term.uses and not set(term.uses) & set(found.facts.use)
            ):
                continue
            ends = []
            if term.mau_over:
                ends.append(f"more than {term.mau_over:,} monthly active users")
            if term.revenue_month_over_usd:
                ends.append(f"more than {term.revenue_month_over_usd:,.0f} USD revenue a month")
            if term.revenue_year_over_usd:
                ends.append(f"more than {term.revenue_year_over_usd:,.0f} USD revenue a year")
            if term.territories:
                ends.append(f"use in {', '.join(term.territories)}")
            if ends:
                what = "something to do" if term.kind == "act" else "no longer allowed without a licence of its own"
                told.append(f"with {' or '.join(ends)}: {what} ({identity} {term.clause})")
    closed = [one for one in found.boundary if one.status == "blocked" and one.use not in found.facts.use]
    told += [f"for {one.use}: {one.because}" for one in closed]
    return tuple(told)
