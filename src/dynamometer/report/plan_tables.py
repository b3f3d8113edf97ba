"""A plan in, its tables for the terminal and the page out."""

from __future__ import annotations

from dynamometer.decisions.plan import Planned
from dynamometer.report.table import Table
from dynamometer.units import significant


def tables(found: Planned) -> tuple[Table, ...]:
    """Every table, in the order in which it is read."""
    made = [*_fleets(found)]
    if found.options:
        made.append(options(found))
    made.append(reasons(found))
    if found.excluded:
        rows = tuple((one.name, one.why) for one in found.excluded)
        made.append(Table("Left out", ("", "why"), rows, numbers=False))
    return tuple(made)


def _fleets(found: Planned) -> tuple[Table, ...]:
    rows = []
    for label, one in (("chosen", found.fleet), ("runner-up", found.runner_up)):
        if one is None:
            continue
        low, high = one.usd_range
        span = "" if low == high else f"\n[{significant(low)}, {significant(high)}]"
        rows.append(
            (
                label,
                one.text,
                f"{one.gpus}",
                f"{significant(one.usd_per_hour)}{span}",
                significant(one.capacity_per_s),
                significant(one.after_loss_per_s),
                "n/a" if one.power_w is None else f"{significant(one.power_w / 1e3)} kW",
            )
        )
    if not rows:
        return ()
    notes = []
    if found.usd_per_day is not None and found.usd_per_thousand_requests is not None:
        notes.append(
            f"{significant(found.usd_per_day)} USD a day, {significant(found.usd_per_thousand_requests)} USD per 1,000 "
            "requests at the day's mean load"
        )
    columns = ("", "replicas", "devices", "USD an hour", "requests/s", "after the loss", "power")
    return (Table("Fleet", columns, tuple(rows), tuple(notes)),)


def options(found: Planned) -> Table:
    """Every kind that can meet the objective, the cheapest fleet first."""

    def cell(value: float | None) -> str:
        return "n/a" if value is None else significant(value)

    rows = [
        (
            row.name + (" *" if row.on_front else ""),
            row.provenance,
            cell(row.capacity_per_s),
            cell(row.latency_ms),
            cell(row.usd_per_hour),
            cell(row.usd_per_million_output_tokens),
            cell(row.joules_per_output_token),
            cell(row.score),
            f"{row.alone.replicas} ({significant(row.alone.usd_per_hour)})",
        )
        for row in found.options
    ]
    columns = (
        *("", "capacity is", "requests/s", "latency ms", "USD/h", "USD/M output", "J/token", "joint score"),
        "alone (USD/h)",
    )
    notes = (
        "one replica at the highest load that meets the objective; latency: of the first limit, there",
        "*: no other kind beats it in cost, latency and power together",
        "joint score: half throughput, half power of a device; lower is better, 1 for the chosen kind",
    )
    return Table("Kinds", columns, tuple(rows), notes)


def reasons(found: Planned) -> Table:
    """Why, what would flip it, what was checked."""
    rows = [("because", text) for text in found.decision.because]
    rows += [("would flip", text) for text in found.decision.flips]
    rows += [("checked", text) for text in found.checks]
    rows += [("note", text) for text in found.notes]
    return Table("Reasons", ("", ""), tuple(rows), numbers=False)
