"""A priced case in; its tables for the terminal and the page out."""

from __future__ import annotations

from dynamometer.decisions.cost import VARIABLES
from dynamometer.decisions.energy import Footprint, Used
from dynamometer.decisions.flip import Sensitivity, plain
from dynamometer.decisions.price import FIGURES, Against, Fleet, Priced, Term
from dynamometer.report.table import Table
from dynamometer.units import show, significant


def tables(found: Priced) -> tuple[Table, ...]:
    """Every table, in the order in which it is read."""
    made = [figures(found), _parts("What the money pays for", found.terms), _parts("What becomes of it", found.uses)]
    made.append(moves(found.sensitivity))
    if found.against is not None:
        made.append(against(found.against))
    if found.fleet is not None:
        made.append(fleet(found.fleet))
    if found.energy is not None or found.measured_energy:
        made.append(energy(found.energy, found.measured_energy))
    made.append(inputs(found))
    return tuple(made)


def figures(found: Priced) -> Table:
    """The prices with their intervals."""
    rows = []
    for name, one in found.estimates.items():
        label = name.removeprefix("usd_per_").replace("_", " ")
        if one.value is None:
            rows.append((label, "n/a", one.method))
            continue
        known = one.low is not None and one.high is not None
        span = f"[{significant(one.low or 0.0)}, {significant(one.high or 0.0)}]" if known else ""
        rows.append((label, f"{significant(one.value)} {FIGURES[name].split('/')[0]}", span))
    rows.append(("replica, a duty hour", f"{significant(found.usd_per_duty_hour)} USD", ""))
    rows.append(("replica, a year", f"{significant(found.usd_per_year)} USD", ""))
    level = f"{found.interval.level:.0%} interval"
    return Table("Price", ("", "value", level), tuple(rows), (found.interval.method,))


def _parts(title: str, terms: tuple[Term, ...]) -> Table:
    def cell(value: float | None) -> str:
        return "n/a" if value is None else significant(value)

    rows = [
        (
            term.name,
            f"{term.share:.1%}",
            significant(term.usd_per_duty_hour),
            cell(term.usd_per_million_input_tokens),
            cell(term.usd_per_million_output_tokens),
        )
        for term in terms
        if term.share > 0
    ]
    return Table(title, ("", "share", "USD a duty hour", "USD/M input", "USD/M output"), tuple(rows))


def moves(found: Sensitivity) -> Table:
    """What moves the price, the widest swing first, with Sobol's indices where they were computed."""
    indices = {one.name: one for one in found.sobol}
    rows = []
    for swing in found.tornado:
        unit = VARIABLES[swing.name][0]
        index = indices.get(swing.name)
        rows.append(
            (
                plain(swing.name),
                f"{significant(swing.factor_low)} … {significant(swing.factor_high)} {unit}".strip(),
                "n/a" if swing.low is None else significant(swing.low),
                "n/a" if swing.high is None else significant(swing.high),
                "n/a" if swing.elasticity is None else f"{swing.elasticity:+.2f}",
                "" if index is None else f"{index.first:.2f} ± {index.first_half:.2f}",
                "" if index is None else f"{index.total:.2f} ± {index.total_half:.2f}",
            )
        )
    notes = (found.words, *((found.sobol_note,) if found.sobol_note else ()))
    columns = ("", "range", "at its low", "at its high", "elasticity", "Sobol alone", "Sobol total")
    return Table(f"What moves it ({FIGURES[found.of]})", columns, tuple(rows), notes)


def against(found: Against) -> Table:
    """The same request from a provider."""
    even, load = found.break_even_requests_per_day, found.break_even_utilization
    rows = [
        ("own, a request", f"{significant(found.own_usd_per_request * 1e3)} USD per 1,000"),
        (f"{found.model}, a request", f"{significant(found.usd_per_request * 1e3)} USD per 1,000"),
        ("own is cheaper in", f"{found.chance_own_cheaper:.0%} of the cases"),
        ("break-even utilization", "at no load" if load is None else f"{load:.1%}"),
        ("break-even requests a day and replica", "at no load" if even is None else significant(even)),
        ("a full replica answers a day", significant(found.capacity_requests_per_day)),
        *(("or with", flip.text) for flip in found.flips),
    ]
    return Table(f"Against {found.model}", ("", "value"), tuple(rows), found.sources, numbers=False)


def fleet(found: Fleet) -> Table:
    """A day's tokens."""
    rows = (
        ("input tokens", f"{found.input_tokens_per_day:,.0f}"),
        ("output tokens", f"{found.output_tokens_per_day:,.0f}"),
        ("replicas, as a mean", f"{found.replicas:,.2f} ({found.gpus:,.0f} devices)"),
        ("replicas, whole", f"{found.whole_replicas:,}"),
        ("USD a day, as a mean", f"{found.usd_per_day:,.0f}"),
        ("USD a day, whole replicas", f"{found.usd_per_day_whole:,.0f}"),
    )
    return Table("A day", ("", "value"), rows)


def energy(stated: Footprint | None, used: tuple[Used, ...]) -> Table:
    """Energy and carbon; measured meters beside the stated power of the whole machine."""
    rows = [
        (
            f"measured at the {one.meter}",
            show(one.joules_per_output_token),
            f"{show(one.joules)}, mean {'n/a' if one.mean_w is None else significant(one.mean_w) + ' W'}",
        )
        for one in used
    ]
    if stated is not None:
        for kind, kwh, grams in (
            ("input", stated.kwh_per_million_input_tokens, stated.grams_co2_per_million_input_tokens),
            ("output", stated.kwh_per_million_output_tokens, stated.grams_co2_per_million_output_tokens),
        ):
            if kwh is not None and grams is not None:
                rows.append(
                    (f"site, a million {kind} tokens", f"{significant(kwh)} kWh", f"{significant(grams)} g CO2")
                )
        if stated.joules_per_output_token is not None:
            rows.append(("site, an output token", f"{significant(stated.joules_per_output_token)} J", ""))
        if stated.grams_co2_range is not None:
            low, high = stated.grams_co2_range
            rows.append(("range of the CO2", "", f"{significant(low)} … {significant(high)} g"))
    notes = ("the site's figures hold idle time, host and cooling; a meter's hold only what it is wired to",)
    return Table("Energy", ("", "energy", ""), tuple(rows), notes, numbers=False)


def inputs(found: Priced) -> Table:
    """Every input with its range and where it comes from."""
    rows = [
        (
            one.name,
            significant(one.base),
            one.unit,
            "" if one.low == one.high else f"{significant(one.low)} … {significant(one.high)}",
            f"{one.provenance.value}: {one.source}",
        )
        for one in found.inputs
    ]
    return Table("Inputs", ("", "base", "unit", "range", "from"), tuple(rows), found.notes, numbers=False)
