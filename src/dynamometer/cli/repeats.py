"""Several runs of one experiment in, the spread between them out: the honest interval of a figure."""

from __future__ import annotations

from pathlib import Path

import msgspec

from dynamometer.cli.output import print_json
from dynamometer.decisions.account import NAME
from dynamometer.metrics.repeats import across
from dynamometer.metrics.summary import Summary
from dynamometer.report.html import write_reports
from dynamometer.report.table import Table, draw, figure_text, terminal


def tell_repeats(place: Path, folders: list[Path], as_json: bool) -> bool:
    """Writes and prints what the runs say together; False: one run alone says nothing of a spread."""
    done = [folder for folder in folders if (folder / NAME).exists()]
    if len(done) < 2:
        return False
    found = across([msgspec.json.decode((folder / NAME).read_bytes(), type=Summary) for folder in done])
    (place / NAME).write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n")
    write_reports(done, place / "report.html")
    if as_json:
        print_json(found)
        return True
    rows = [
        (name, *(figure_text(figure[s]) if s in figure else "" for s in ("mean", "p50", "p99")))
        for name, figure in found.metrics.items()
    ]
    title = f"Over {found.runs} repeats: mean of the runs, 95 % interval from their spread"
    draw(Table(title, ("", "mean", "p50", "p99"), tuple(rows)), terminal())
    terminal().print(f"report: {place / 'report.html'}   records: {place}", soft_wrap=True)
    return True
