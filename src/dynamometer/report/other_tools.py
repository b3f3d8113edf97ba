"""One run as two tools count it in, a table with both side by side out."""

from __future__ import annotations

from dynamometer.metrics.as_others import Counted, Figure
from dynamometer.report.table import Table
from dynamometer.units import significant

ROWS = {
    "ttft_ms": "TTFT (ms)",
    "tpot_ms": "TPOT (ms)",
    "itl_ms": "inter-token (ms)",
    "icl_ms": "inter-chunk (ms)",
    "e2e_ms": "E2E (ms)",
}


def other_table(theirs: Counted, ours: Counted) -> Table:
    """A metric a row; mean, P50 and P99 by the other tool's rules, then by ours. `–`: it has no such figure."""
    columns = ("as counted by", *(f"{who} {s}" for who in (theirs.tool, "ours") for s in ("mean", "p50", "p99")))
    rows = [
        (label, *_cells(getattr(theirs, name)), *_cells(getattr(ours, name)))
        for name, label in ROWS.items()
        if getattr(theirs, name).n or getattr(ours, name).n
    ]
    tokens = (f"{theirs.output_tokens:,}", "", "", f"{ours.output_tokens:,}", "", "")
    notes = (f"{theirs.title}: {theirs.why}.", f"{ours.title}: {ours.why}.")
    return Table(f"As {theirs.title} counts", columns, (*rows, ("output tokens", *tokens)), notes)


def _cells(figure: Figure) -> tuple[str, ...]:
    return tuple("–" if value is None else significant(value) for value in (figure.mean, figure.p50, figure.p99))
