"""`dyno sweep`: an endpoint in, its load range measured, a curve or the highest rate within an objective out."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click
import msgspec

from dynamometer.cli import options
from dynamometer.errors import UsageError


class SweepOptions(msgspec.Struct, frozen=True):
    """What `dyno sweep` takes beside the endpoint, how to drive it and the workload; None and "" mean not given."""

    slo: str
    load: Literal["closed", "open"] | None
    first: float | None
    last: float | None
    runs: int | None
    requests: int | None
    duration: str
    attainment: float | None
    tolerance: float
    confirm: int
    width: float
    device: str
    seed: int
    out: Path | None
    resume: Path | None


@click.command("sweep", short_help="Find the load range, the knee, or the highest rate within an objective.")
@options.target_options
@options.drive_options
@options.workload_options
@click.option("--slo", default="", metavar="LIMITS", help="'ttft_p99<500ms,tpot_p99<50ms': find the highest rate.")
@click.option(
    "--load",
    type=click.Choice(("closed", "open")),
    default=None,
    help="Sweep requests in flight, or a rate.  [default: closed; with --slo open]",
)
@click.option("--from", "first", type=float, default=None, help="Lowest concurrency, or first rate.  [default: 1]")
@click.option("--to", "last", type=float, default=None, help="Highest to try.  [default: 1024; a rate: 100000]")
@click.option("--runs", type=click.IntRange(1), default=None, help="The most runs.  [default: 16; with --slo 30]")
@click.option(
    "--requests", "-n", type=click.IntRange(1), default=None, help="A run ends after so many.  [default: docs]"
)
@click.option(
    "--duration", "-d", default="", metavar="TIME", help="… or after so long.  [default: 60s; with --slo 30s]"
)
@click.option(
    "--attainment", type=click.FloatRange(0, 1, min_open=True, max_open=True), default=None,
    help="Share of requests that must meet the objective.  [default: its percentile]",
)  # fmt: skip
@click.option(
    "--tolerance", type=click.FloatRange(0.001, 1), default=0.05, show_default=True, help="Of the rate that is found."
)
@click.option("--confirm", type=click.IntRange(0), default=2, show_default=True, help="Runs that confirm that rate.")
@click.option(
    "--width", type=click.FloatRange(0.01, 2), default=0.25, show_default=True,
    help="The knee is known when its interval is narrower than this share of it.",
)  # fmt: skip
@click.option("--device", default="", help="Device of the engine, as dyno devices names it, to say what limits it.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of prompts, lengths and arrivals.")
@click.option("--out", "-o", type=click.Path(path_type=Path), default=None, help="[default: runs/<time>-sweep]")
@click.option("--resume", type=click.Path(path_type=Path), default=None, metavar="DIR", help="Go on with a sweep.")
def command(**given: object) -> None:
    """Find the load range of an engine by itself and measure it.

    Without --slo: requests in flight are doubled until throughput stops to grow, then the knee is refined; a curve is
    fitted, and what limits each level is named. With --slo: the highest rate that meets it, with confirmation runs.

    \b
    dyno sweep
    dyno sweep --url http://127.0.0.1:8000/v1 --out sweep
    dyno sweep --url http://127.0.0.1:8000/v1 --slo 'ttft_p99<500ms'

    Ctrl-C keeps what it has; --resume DIR goes on. The runs are in DIR, one folder each, and can be read with every
    other verb. Exit code: 0 found; 1 no rate meets the objective; 3 the engine cannot be reached; 5 too few levels.
    """
    from dynamometer.cli.sweep_run import resume, start

    sweep_options = options.values(given, SweepOptions)
    how = options.values(given, options.DriveOptions)
    if sweep_options.resume:
        raise SystemExit(resume(sweep_options.resume, how, sweep_options.device))
    target = options.target(options.values(given, options.TargetOptions))
    workload = options.workload(options.values(given, options.WorkloadOptions))
    if workload.name == "trace":
        raise UsageError("a trace has its own times; a sweep makes them: give another --workload")
    raise SystemExit(start(target, workload, sweep_options, how))
