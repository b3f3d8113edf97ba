"""`dyno study surface`: an endpoint, runs or a table in; throughput over batch and context, fitted and drawn, out."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from dynamometer.cli import options
from dynamometer.errors import UsageError


class SurfaceOptions(msgspec.Struct, frozen=True):
    """What the study takes beside the endpoint and how to drive it."""

    places: tuple[Path, ...]
    batches: str
    lengths: str
    requests: int | None
    duration: str
    output_tokens: str
    device: str
    seed: int
    out: Path | None
    resume: Path | None


@click.command("surface", short_help="Throughput over batch and context: measured, fitted, held out.")
@click.argument("places", nargs=-1, type=click.Path(path_type=Path), metavar="[DIR|FILE.csv]...")
@options.target_options
@options.drive_options
@click.option("--batches", default="1,2,4,8", show_default=True, help="Requests in flight to measure.")
@click.option("--lengths", default="64,256,1024", show_default=True, help="Prompt lengths to measure, in tokens.")
@click.option("--output-tokens", default="64", show_default=True, metavar="LENGTH", help="Answer length.")
@click.option("--requests", "-n", type=click.IntRange(1), default=None, help="Of a run.  [default: 6 a stream, 20]")
@click.option("--duration", "-d", default="30s", show_default=True, metavar="TIME", help="A run ends after so long.")
@click.option("--device", default="", help="Device of the engine, as dyno devices names it.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of prompts and of the bootstrap.")
@click.option(
    "--out", "-o", type=click.Path(path_type=Path), default=None, help="Folder of the runs; of given ones, the page."
)
@click.option("--resume", type=click.Path(path_type=Path), default=None, metavar="DIR", help="Go on with a study.")
def command(**given: object) -> None:
    """Throughput over batch × context, as a surface with the shape of a roofline.

    With runs or a CSV file (columns batch, context, tokens_per_s) nothing is measured. Else the grid of --batches and
    --lengths is measured on --url, or on the packaged model.

    \b
    dyno study surface points.csv
    dyno study surface runs/grid --out surface.html
    dyno study surface --batches 1,2,4 --lengths 64,256,512
    """
    from dynamometer.cli.study_surface_run import measured, of_places, resume

    surface_options = options.values(given, SurfaceOptions)
    how = options.values(given, options.DriveOptions)
    if surface_options.resume:
        raise SystemExit(resume(surface_options.resume, how, surface_options.device))
    if surface_options.places:
        raise SystemExit(of_places(surface_options, how))
    target = options.target(options.values(given, options.TargetOptions))
    raise SystemExit(measured(target, surface_options, how))


def whole_numbers(text: str, option: str) -> tuple[int, ...]:
    """`1,2,4` as numbers above 0, in their order, each once."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words or not all(word.isdigit() and int(word) > 0 for word in words):
        raise UsageError(f"{option} is {text!r}; give whole numbers above 0 such as 1,2,4")
    return tuple(dict.fromkeys(int(word) for word in words))
