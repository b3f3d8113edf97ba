"""`dyno study power`: runs with a power sensor or a table in; front, score and the law of energy a token out."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click


@click.command("power", short_help="Throughput against power: front, score, energy a token.")
@click.argument("places", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="DIR...|FILE.csv")
@click.option("--alpha", type=click.FloatRange(0), default=0.5, show_default=True, help="Weight of throughput.")
@click.option("--beta", type=click.FloatRange(0), default=0.5, show_default=True, help="Weight of power.")
@click.option("--reference", default="", help="Point that scores are relative to.  [default: the first]")
@click.option("--idle", "idle_w", type=click.FloatRange(0), default=None, help="Watts without load, of the same meter.")
@click.option("--out", "-o", type=click.Path(path_type=Path), default=None, help="Write a page with the pictures.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    places: tuple[Path, ...],
    alpha: float,
    beta: float,
    reference: str,
    idle_w: float | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Throughput against power: what nothing beats, J = α·(T/Tref)⁻¹ + β·(P/Pref), and J/token = e0 + e1/B.

    FILE.csv has columns tokens_per_s and power_w, and may have name, batch, idle_w and meter (gpu, cpu or wall; never
    mixed). A run needs a power sensor beside it.

    \b
    dyno study power operating.csv --alpha 0.7 --beta 0.3 --out power.html
    dyno study power runs/sweep --idle 70
    """
    from dynamometer.cli.output import tell_study
    from dynamometer.decisions import operating
    from dynamometer.decisions.curve import find_runs
    from dynamometer.errors import UsageError
    from dynamometer.report import power_page

    tables = [place for place in places if place.suffix.lower() == ".csv"]
    if tables and len(places) > 1:
        raise UsageError("give one CSV file, or runs; not both")
    pairs, driver = (
        (operating.from_csv(tables[0], idle_w), "given") if tables else operating.from_runs(find_runs(places), idle_w)
    )
    found = operating.judge(pairs, driver, reference, (alpha, beta))
    values = {"verdict": power_page.verdict(found), "powers": found}
    said, made = (power_page.verdict(found),), power_page.tables(found)
    picture = partial(power_page.in_characters, found)
    tell_study(said, made, lambda: power_page.page(found), out, values if as_json else None, picture)
