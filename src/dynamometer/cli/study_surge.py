"""`dyno study surge`: an endpoint in, a surge driven over it and the same traffic replayed beside it out."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from dynamometer.cli import options

QUOTED = (
    ("vLLM, 50 to 500 requests/s, all replicas ready", "32.1 s (a report; neither cold start nor hardware is stated)"),
    ("Triton, the same", "47.6 s (the same report)"),
)


class SurgeOptions(msgspec.Struct, frozen=True):
    """What the study takes beside the endpoint, the workload and how to drive them."""

    first: float
    to: float
    over: str
    before: str
    hold: str
    late: str
    repeats: int
    quick: bool
    seed: int
    out: Path | None
    replay: tuple[str, ...]


@click.command(
    "surge",
    short_help="A surge on a real endpoint beside its replay; without --url the replay alone.",
    context_settings={"ignore_unknown_options": False},
)
@options.target_options
@options.workload_options
@options.drive_options
@click.option("--from", "first", type=click.FloatRange(0, min_open=True), default=50.0, help="Requests/s before.")
@click.option("--to", type=click.FloatRange(0, min_open=True), default=500.0, help="Requests/s at the top.")
@click.option("--over", default="30s", show_default=True, metavar="TIME", help="Length of the rise.")
@click.option("--before", default="30s", show_default=True, metavar="TIME", help="Time before it.")
@click.option("--hold", default="120s", show_default=True, metavar="TIME", help="Time at the top.")
@click.option("--late", default="5s", show_default=True, metavar="TIME", help="A first token after so long is late.")
@click.option("--repeats", "-k", type=click.IntRange(2), default=3, help="Without --url: seeds of every case.")
@click.option("--quick", is_flag=True, help="Without --url: a tenth of the load.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of arrivals and prompts.")
@click.option("--out", "-o", type=click.Path(path_type=Path), default=None, help="Folder; without --url a JSON file.")
@click.argument("replay", nargs=-1, type=click.UNPROCESSED, metavar="[-- OPTIONS OF DYNO SCALE]")
def command(**given: object) -> None:
    """From --from to --to requests/s: when does the fleet grow, and what becomes of the requests meanwhile?

    With --url the surge is driven over that endpoint and recorded; the same traffic is then replayed over fleets of
    the engine profiles vllm and triton-dynamic, or of what follows -- . Beside Ray Serve, --metrics-url
    http://HOST:8265/api/serve/applications/ shows how many replicas there really were.

    Without --url nothing is driven: the study of both profiles, simulated.

    \b
    dyno study surge
    dyno study surge --url http://127.0.0.1:8000/v1 --from 0.5 --to 2.5 --hold 60s -w synthetic -i 64 --output-tokens 16
    dyno study surge --url http://127.0.0.1:8000/v1 --from 5 --to 50 -- --policy ray --min 1 --max 3 --calibrate k1

    Exit code: 0; 1 a claim of the simulated study did not survive, or nothing was answered; 2 bad usage.
    """
    surge, how = options.values(given, SurgeOptions), options.values(given, options.DriveOptions)
    target = options.target(options.values(given, options.TargetOptions))
    if not target.url:
        from dynamometer.cli.study_run import run

        raise SystemExit(run("surge", surge.repeats, surge.quick, surge.out, how.as_json))
    from dynamometer.cli.study_surge_run import driven

    workload = options.workload(options.values(given, options.WorkloadOptions))
    raise SystemExit(driven(target, workload, surge, how))
