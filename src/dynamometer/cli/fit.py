"""`dyno fit`: runs at several loads in, the engine's saturation curve, knee and predictions out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click
import msgspec

if TYPE_CHECKING:
    from dynamometer.decisions.curve import Curve
    from dynamometer.types import Estimate


class FitOptions(msgspec.Struct, frozen=True):
    """What `dyno fit` takes."""

    places: tuple[Path, ...]
    by: Literal["auto", "asked", "measured"]
    wanted: tuple[float, ...]
    extrapolate: bool
    level: float
    seed: int
    out: Path | None
    as_json: bool


@click.command("fit", short_help="Fit a saturation curve to runs at several loads.")
@click.argument("places", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="DIR...")
@click.option(
    "--by",
    type=click.Choice(("auto", "asked", "measured")),
    default="auto",
    show_default=True,
    help="Load: concurrency asked, or mean in flight measured.",
)
@click.option("--predict", "wanted", multiple=True, type=float, metavar="N", help="Throughput at this concurrency.")
@click.option("--extrapolate", is_flag=True, help="Predict outside the measured range too, with a wider interval.")
@click.option("--level", type=click.FloatRange(0.5, 0.99), default=0.9, show_default=True, help="Of the intervals.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the bootstrap.")
@click.option("--out", "-o", type=click.Path(path_type=Path), default=None, help="Write a page with the pictures.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(**given: object) -> None:
    """Fit throughput against concurrency over the runs in DIR..., at least four levels of one model and workload.

    A DIR is a run or a folder of runs. The family of the curve (hyperbola, USL, Hill, two regimes) is chosen by its
    error on levels left out.
    """
    from dynamometer.cli.options import values
    from dynamometer.cli.output import print_json
    from dynamometer.decisions.curve import curve, find_runs, read_point
    from dynamometer.models.saturation import predict
    from dynamometer.report.fit_page import in_characters, page, sentence, tables
    from dynamometer.report.html import write_page
    from dynamometer.report.table import draw, terminal

    options = values(given, FitOptions)
    points = [read_point(run) for run in find_runs(options.places)]
    found = curve(points, options.by, options.level, options.seed)
    predictions = [(x, predict(found.saturation, x, options.extrapolate)) for x in options.wanted]
    written = write_page(page(found, predictions), options.out) if options.out else None
    if options.as_json:
        print_json(values_of(found, predictions))
        return
    console = terminal()
    click.echo(sentence(found))
    click.echo(in_characters(found, plain=not (console.encoding or "").lower().startswith("utf")))
    for table in tables(found, predictions):
        draw(table, console)
    if written:
        click.echo(written)


def values_of(found: Curve, predictions: list[tuple[float, Estimate]]) -> dict[str, object]:
    """What `--json` prints."""
    fitted = found.saturation
    return {
        "driver": found.driver,
        "by": found.by,
        "families": [candidate.fit for candidate in fitted.candidates],
        "held_out_rms": {candidate.form.name: candidate.spread for candidate in fitted.candidates},
        "knee": fitted.knee,
        "top": fitted.top,
        "limit": fitted.limit,
        "residuals": fitted.residuals(),
        "ttft": [candidate.fit for candidate in found.ttft.candidates] if found.ttft else None,
        "tpot": [candidate.fit for candidate in found.tpot.candidates] if found.tpot else None,
        "goodput": found.goodput,
        "predictions": [{"concurrency": x, "throughput": said} for x, said in predictions],
        "points": found.points,
        "left_out": found.left_out,
        "notes": found.notes,
    }
