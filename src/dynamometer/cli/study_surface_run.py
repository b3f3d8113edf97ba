"""What `dyno study surface` does: measure a grid or read one, fit, print, write. An exit code comes out."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from dynamometer import sweep
from dynamometer.cli import endpoint as ends
from dynamometer.cli import sweep_run
from dynamometer.cli.options import DriveOptions
from dynamometer.cli.output import json_text, tell_study
from dynamometer.cli.study_surface import SurfaceOptions, whole_numbers
from dynamometer.decisions import grid
from dynamometer.decisions.curve import find_runs, read_point
from dynamometer.decisions.grid import Grid
from dynamometer.errors import DynoError, UsageError
from dynamometer.models import surface
from dynamometer.record import manifest
from dynamometer.record.clock import wall_ns
from dynamometer.report import surface_page
from dynamometer.report.html import NAME as PAGE
from dynamometer.report.surface_page import Told
from dynamometer.sweep import Cell, Ended, Plan, Record
from dynamometer.types import Experiment, Load, Target, Workload
from dynamometer.units import seconds


def of_places(given: SurfaceOptions, how: DriveOptions) -> int:
    """From runs, or from one table."""
    tables = [place for place in given.places if place.suffix.lower() == ".csv"]
    if tables and len(given.places) > 1:
        raise UsageError("give one CSV file, or runs; not both")
    points = grid.from_csv(tables[0]) if tables else grid.from_runs([read_point(r) for r in find_runs(given.places)])
    return _tell(points, given.seed, given.out, how)


def measured(target: Target, given: SurfaceOptions, how: DriveOptions) -> int:
    """Measures the grid on one engine, started once."""
    batches, lengths = whole_numbers(given.batches, "--batches"), whole_numbers(given.lengths, "--lengths")
    if len(batches) < 3 or len(lengths) < 2 or len(batches) * len(lengths) < 8:
        raise UsageError(
            f"{len(batches)} batches × {len(lengths)} lengths do not show a surface; give at least 3 batches, "
            "2 lengths and 8 points, such as --batches 1,2,4,8 --lengths 64,512"
        )
    # from the corners inwards would cost time twice; odd and even cells in turn keep drift apart from the factors
    cells = [Cell(b, s) for b in batches for s in lengths]
    plan = Plan(
        grid=(*cells[::2], *cells[1::2]), requests=given.requests or 0, duration_s=seconds(given.duration, "--duration")
    )
    work = Workload("synthetic", output_tokens=given.output_tokens)
    experiment = Experiment("surface", target, work, Load("closed", 1), seed=given.seed)
    folder = given.out or Path("runs") / f"{manifest.new_run_id(wall_ns())}-surface"
    settings = ends.settings_of(how, max(batches))
    return sweep_run.measured(folder, Record(plan, experiment), (how.engine, settings), how, given.device, _conclude)


def resume(folder: Path, how: DriveOptions, device: str) -> int:
    """Goes on with a grid that was stopped."""
    if not sweep.read(folder).plan.grid:
        raise UsageError(f"{folder} is a sweep over the load; go on with it: dyno sweep --resume {folder}")
    return sweep_run.resume(folder, how, device, _conclude)


def _conclude(folder: Path, record: Record, ended: Ended, how: DriveOptions) -> int:
    try:
        return _tell(grid.from_runs(sweep.points(folder)), record.experiment.seed, folder / PAGE, how, folder)
    except DynoError as why:
        if not ended.stopped:
            raise
        click.echo(f"so far: {why}", err=True)
        return 130


def _tell(points: Grid, seed: int, out: Path | None, how: DriveOptions, folder: Path | None = None) -> int:
    found = surface.fit(points.batch, points.context, points.rate, seed=seed)
    told = surface_page.told(points, found)
    values = _values(told)
    if folder:
        (folder / sweep_run.RESULT).write_text(json_text(values) + "\n", encoding="utf-8")
    said = (surface_page.verdict(told), surface_page.contradiction(told))
    page, picture = lambda: surface_page.page(told), partial(surface_page.in_characters, told)
    tell_study(said, surface_page.tables(told), page, out, values if how.as_json else None, picture)
    return 0


def _values(told: Told) -> dict[str, object]:
    return {
        "verdict": surface_page.verdict(told),
        "driver": told.grid.driver,
        "fit": told.found.fit,
        "context": told.found.context,
        "change": told.found.change,
        "cells": told.found.cells,
        "printed_form": {
            "says": surface_page.contradiction(told),
            "miss": told.printed_miss,
            "refitted": told.constants.tolist(),
            "refitted_miss": told.refit_miss,
        },
    }
