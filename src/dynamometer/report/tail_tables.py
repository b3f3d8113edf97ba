"""What was different about slow requests in, its tables and its section of a page out."""

from __future__ import annotations

from dynamometer.decisions.tail import METRICS, Attribution, Tail
from dynamometer.report.page import Section
from dynamometer.report.table import Table
from dynamometer.units import significant

COLUMNS = ("", "slow", "others", "unit", "effect", "of the slow", "chance", "")


def tail_tables(told: Attribution) -> tuple[Table, ...]:
    """A table a percentile that has something to tell; what could not be looked at is a note of the last."""
    tables = [_table(tail) for tail in told.tails if tail.limit_ms is not None]
    silent = [f"{_name(tail)}: {tail.reason}." for tail in told.tails if tail.limit_ms is None]
    notes = [*silent, *(f"{note[:1].upper()}{note[1:]}." for note in told.notes)]
    if told.not_seen:
        notes.append(f"No readings, or all alike: {'; '.join(told.not_seen)}.")
    if not tables:
        return (
            Table("Slow requests", ("", "why not"), tuple((_name(t), t.reason) for t in told.tails), numbers=False),
        )
    last = tables[-1]
    return (*tables[:-1], Table(last.title, last.columns, last.rows, (*last.notes, *notes), last.numbers))


def tail_section(told: Attribution) -> Section | None:
    """The part of a run's page; None where the run is too short to say anything."""
    if all(tail.limit_ms is None for tail in told.tails):
        return None
    return Section(
        "tail",
        "Slow requests",
        told.decision.answer,
        badge=told.driver,
        because=("What goes with slowness need not be its cause: both may have the same one.",),
        tables=tail_tables(told),
    )


def _name(tail: Tail) -> str:
    return f"{METRICS[tail.metric]} beyond P{100 * tail.level:g}"


def _table(tail: Tail) -> Table:
    assert tail.limit_ms is not None
    rows = tuple(
        (
            cause.words,
            significant(cause.slow),
            significant(cause.others),
            cause.unit,
            f"{cause.effect:.2f}",
            f"{100 * cause.share:.0f} %",
            f"{cause.chance:.2g}",
            cause.verdict,
        )
        for cause in tail.causes
    )
    parts = ", ".join(f"{significant(ms)} ms {name}" for name, ms in tail.where.items())
    notes = [f"More than the others by: {parts}."] if parts else []
    if rows:
        notes.append(
            "slow, others: means; effect: rank correlation, 1 when every slow request has more of it than every other;"
            " of the slow: those beyond 95 % of the others; chance: by Holm over all that was looked at."
        )
    title = f"{_name(tail)} ({significant(tail.limit_ms)} ms): {tail.slow:,} of {tail.requests:,} requests"
    return Table(title, COLUMNS, rows or (("nothing found", *[""] * 7),), tuple(notes))
