"""A run directory in, all that is concluded from its rows out: figures, the judged objective, the sentence."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import duckdb
import msgspec

from dynamometer.decisions.gate import Met, judge
from dynamometer.decisions.verdict import decide
from dynamometer.metrics.summary import Summary, summarize
from dynamometer.record.store import open_run, read_run
from dynamometer.types import Decision, Objective, Run

NAME = "summary.json"


class Account(msgspec.Struct, frozen=True):
    """What a run says, and whether it met its objective."""

    run: Run
    summary: Summary
    judged: tuple[Met, ...]
    decision: Decision

    @property
    def missed(self) -> bool:
        """An objective was set and not met; one that could not be seen is not met either."""
        return any(one.met is not True for one in self.judged)

    @property
    def invalid(self) -> bool:
        return any(doubt.fatal for doubt in self.summary.doubts)


def account(directory: Path, slo: Sequence[Objective] | None = None, steady: bool = True) -> Account:
    """Reads the rows and concludes. `slo`: another objective than the run's own, for a what-if without a new run."""
    run = read_run(directory)
    objective = run.experiment.slo if slo is None else tuple(slo)
    with closing(open_run(directory)) as connection:
        return conclude(connection, run, objective, steady)


def conclude(
    connection: duckdb.DuckDBPyConnection, run: Run, slo: tuple[Objective, ...], steady: bool = True
) -> Account:
    """The same over an open connection, which then has the views for more questions."""
    summary = summarize(connection, run, steady=steady, slo=slo)
    judged = judge(connection, summary, slo)
    return Account(run, summary, judged, decide(summary, judged))


def write_summary(directory: Path, summary: Summary) -> Path:
    """`summary.json`: it can be made again at any time."""
    path = directory / NAME
    path.write_bytes(msgspec.json.format(msgspec.json.encode(summary), indent=2) + b"\n")
    return path
