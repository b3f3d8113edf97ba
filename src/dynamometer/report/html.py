"""Run directories in, one self-contained HTML page out, beside the record it was made from."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import msgspec

from dynamometer.decisions.account import Account, conclude, write_summary
from dynamometer.decisions.tail import Attribution, attribute
from dynamometer.errors import RecordError, UsageError
from dynamometer.record.clock import utc
from dynamometer.record.store import open_run, read_run
from dynamometer.report.figure import Axis, Figure, Heading, Row, curve
from dynamometer.report.page import Page, Section, render
from dynamometer.report.run_figures import run_figures
from dynamometer.report.run_section import run_section
from dynamometer.report.run_tables import best_tail, labels, latencies, load_text, side_by_side
from dynamometer.report.tail_tables import tail_section

NAME = "report.html"
MOST_RUNS = 60  # of one page, which then is still below 3 MB
MAIN = ("percentiles", "throughput", "errors")  # pictures of a run that shares its page with others
FEW = 12  # runs beyond which a page shows pictures of their comparison alone


class Told(msgspec.Struct, frozen=True):
    """A run's account with its pictures. `slow`: what was different about its slow requests, for a page of its own."""

    account: Account
    figures: tuple[Figure, ...]
    slow: Attribution | None = None


def write_report(directory: Path) -> Path:
    """Writes the page of one run as `report.html` into its directory and returns its path."""
    return write_page(run_page(tell(directory, alone=True)), directory / NAME)


def write_derived(directory: Path) -> Account:
    """`summary.json` and `report.html` of a run from one reading of its rows; what they say is returned."""
    told = tell(directory, alone=True)
    write_summary(directory, told.account.summary)
    write_page(run_page(told), directory / NAME)
    return told.account


def write_reports(directories: Sequence[Path], out: Path) -> Path:
    """Writes one page over several runs: side by side first, then each run with its main pictures. Returns `out`."""
    if not 1 < len(directories) <= MOST_RUNS:
        raise UsageError(f"one page takes 2 to {MOST_RUNS} runs; {len(directories)} were given")
    return write_page(runs_page([tell(directory) for directory in directories]), out)


def write_page(page: Page, path: Path) -> Path:
    """Writes the page whole or not at all."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(render(page), encoding="utf-8")
        partial.replace(path)
    except OSError as wrong:
        partial.unlink(missing_ok=True)
        raise RecordError(f"{path} cannot be written: {wrong.strerror}; give another place with --out") from wrong
    return path


def tell(directory: Path, alone: bool = False) -> Told:
    """Reads a run's record and computes what its page shows."""
    run = read_run(directory)
    with closing(open_run(directory)) as connection:
        found = conclude(connection, run, run.experiment.slo)
        metrics = {name: value.estimates for name, value in latencies(found.summary.metrics).items()}
        slow = attribute(connection, run) if alone else None
        return Told(found, run_figures(connection, metrics), slow)


def run_page(told: Told) -> Page:
    """The page of one run."""
    run = told.account.run
    title = f"{run.experiment.target.model or run.experiment.name}: {load_text(run.experiment.load)}"
    started = f"{utc(run.origin_wall_ns):%Y-%m-%d %H:%M} UTC, run {run.id}"
    tail = tail_section(told.slow) if told.slow is not None else None
    own = run_section(told.account, told.figures, "run")
    return Page(title, (own, tail) if tail is not None else (own,), started)


def runs_page(runs: Sequence[Told]) -> Page:
    """The page of several runs."""
    shown = MAIN if len(runs) <= FEW else ()
    names = labels([told.account.run for told in runs])
    sections = [
        msgspec.structs.replace(
            run_section(told.account, tuple(one for one in told.figures if one.heading.name in shown), f"run-{at}"),
            title=name,
        )
        for at, (name, told) in enumerate(zip(names, runs, strict=True))
    ]
    overview = Section(
        "overview",
        "Side by side",
        f"{len(runs)} runs. Intervals that overlap prove nothing either way; dyno compare pairs the requests.",
        tables=(side_by_side([(told.account.run, told.account.summary) for told in runs]),),
        figures=_against_level(runs),
    )
    return Page(f"{len(runs)} runs", (overview, *sections))


def _against_level(runs: Sequence[Told]) -> tuple[Figure, ...]:
    """Throughput and TTFT against the load, where the runs differ in it and in nothing else of the law."""
    loads = [told.account.run.experiment.load for told in runs]
    closed = {load.law == "closed" for load in loads}
    levels = [float(load.concurrency) if load.law == "closed" else load.rate for load in loads]
    if len(closed) != 1 or len(set(levels)) < 3:
        return ()
    across = Axis("level", "requests in flight" if closed.pop() else "requests/s asked", zero=True)
    pace: list[Row] = []
    wait: list[Row] = []
    for level, told in sorted(zip(levels, runs, strict=True), key=lambda pair: pair[0]):
        metrics = told.account.summary.metrics
        tail_name, tail = best_tail(metrics.ttft_ms)
        for rows, series, found in (
            (pace, "output tokens/s", metrics.estimates["output_tokens_per_s"]),
            (wait, "TTFT p50", metrics.ttft_ms.estimates["p50"]),
            (wait, f"TTFT {tail_name}", tail),
        ):
            if found.value is not None:
                rows.append({"level": level, "y": found.value, "low": found.low, "high": found.high, "series": series})
    caption = "Each point is a run, its bar the 95 % interval. "
    full, late = "Where it stops to rise the engine is full.", "Where it starts to rise requests wait for a place."
    drawn = (
        (pace, Heading("pace", "Throughput against load", caption + full), "tokens/s"),
        (wait, Heading("wait", "TTFT against load", caption + late), "ms"),
    )
    return tuple(curve(heading, rows, across, Axis("y", unit, zero=True)) for rows, heading, unit in drawn if rows)
