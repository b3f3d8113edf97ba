"""`dyno plan`: traffic, an objective and options in, the fewest replicas and the cheapest mix that hold it out."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec


class PlanOptions(msgspec.Struct, frozen=True):
    """What `dyno plan` takes; "" and None mean not given."""

    runs: tuple[Path, ...]
    measured: tuple[str, ...]
    traffic: float
    slo: str
    model: str
    gpu: str
    weights: str
    tp: str
    profile: str
    batch_size: str
    batch_tokens: str
    kv: str
    calibrate: tuple[Path, ...]
    phases: str
    input_tokens: str
    output_tokens: str
    burstiness: float
    price: str
    market: str
    count: int
    probability: float
    headroom: float
    lose: str
    zones: int
    node_gpus: int
    load_shape: str
    seed: int
    out: Path | None
    as_json: bool


@click.command("plan", short_help="Find the fewest replicas and the cheapest mix that meet an objective.")
@click.argument("runs", nargs=-1, type=click.Path(path_type=Path))
@click.option("--traffic", type=float, required=True, metavar="RATE", help="Requests per second at the peak.")
@click.option("--slo", required=True, metavar="LIMITS", help="'ttft_p99<1s,tpot_p99<50ms'.")
@click.option(
    "--measured",
    multiple=True,
    metavar="NAME=USD@RUNS",
    help="A kind with runs of its own: its name, USD an hour of a replica, a pattern of run folders; repeatable.",
)
@click.option("--model", default="", help="Simulate: a config.json, a GGUF file, a built-in or a hub name.")
@click.option("--gpu", default="", help="Devices to weigh, with commas; with RUNS the one that they ran on.")
@click.option("--weights", default="auto", show_default=True, help="Formats to weigh, e.g. bf16,fp8.")
@click.option("--tp", default="1", show_default=True, help="Devices of a replica to weigh, e.g. 1,2,4.")
@click.option("--profile", default="vllm", show_default=True, help="Engine profiles to weigh: vllm,sglang,…")
@click.option("--batch-size", default="", help="Most sequences, limits to weigh, e.g. 64,256.  [default: the engine's]")
@click.option("--batch-tokens", default="", help="Most tokens a step, likewise.")
@click.option("--kv", default="auto", show_default=True, help="Cache formats to weigh: bf16,fp8.")
@click.option(
    "--calibrate",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Runs or a step log to fit the step time to; then one --gpu, --weights and --tp.",
)
@click.option("--phases", default="", metavar="NAMES", help="Of a step log, fit to these only.")
@click.option("--input-tokens", "-i", default="512", show_default=True, metavar="LENGTH", help="As for dyno bench.")
@click.option("--output-tokens", default="128", show_default=True, metavar="LENGTH", help="Likewise.")
@click.option(
    "--burstiness",
    type=click.FloatRange(0.05, 20),
    default=1.0,
    show_default=True,
    help="Gaps between requests: 1 is Poisson, less is burstier.",
)
@click.option("--price", default="", help="USD a device and hour: one for all, or H100=2,A100=1.2.")
@click.option(
    "--market",
    type=click.Choice(["rental", "own-hyperscaler", "own-neocloud"]),
    default="rental",
    show_default=True,
    help="Which published prices to take where --price says nothing.",
)
@click.option("--count", type=click.IntRange(1), default=1, show_default=True, help="With RUNS: devices of a replica.")
@click.option("--probability", type=float, default=0.9, show_default=True, help="That a replica meets the objective.")
@click.option("--headroom", type=float, default=0.2, show_default=True, help="Capacity beyond the peak.")
@click.option(
    "--lose",
    type=click.Choice(["none", "node", "zone"]),
    default="node",
    show_default=True,
    help="What may fail at the peak.",
)
@click.option("--zones", type=click.IntRange(2), default=3, show_default=True, help="Over which it is spread.")
@click.option("--node-gpus", type=click.IntRange(1), default=8, show_default=True, help="Devices of a node.")
@click.option("--load-shape", default="flat", show_default=True, help="Of the day; as for dyno price.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of arrivals and lengths.")
@click.option(
    "--out", "-o", type=click.Path(path_type=Path), default=None, help="Write an HTML page with the pictures."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(**given: object) -> None:
    """Find the fewest replicas and the cheapest mix that meet an objective at the peak, with headroom and after a loss.

    A kind with runs is judged by them; a kind named by --model and --gpu is simulated, and the answer says which.

    \b
    dyno plan --model llama-3.1-8b --gpu H100,A100,L4 --weights bf16,fp8 --traffic 50 --slo 'ttft_p99<1s,tpot_p99<50ms'
    dyno plan runs/r* --price 0.40 --traffic 3 --slo 'ttft_p95<2s'
    dyno plan --measured 'small=0.8@runs/l4-*' --measured 'big=2.5@runs/h100-*' --traffic 120 --slo 'e2e_p95<8s'

    Exit code: 0 planned; 1 no option meets the objective; 2 bad usage.
    """
    from dynamometer.cli.options import values
    from dynamometer.cli.output import print_json
    from dynamometer.cli.plan_run import run
    from dynamometer.errors import GateFailed

    options = values(given, PlanOptions)
    found = run(options)
    if options.as_json:
        print_json(found)
    else:
        from dynamometer.report.plan_tables import tables
        from dynamometer.report.table import draw, terminal

        click.echo(found.decision.answer)
        for table in tables(found):
            click.echo("")
            draw(table, terminal())
    if options.out is not None:
        import shlex
        import sys

        from dynamometer.report.html import write_page
        from dynamometer.report.plan_page import plan_page

        write_page(plan_page(found, shlex.join(["dyno", *sys.argv[1:]])), options.out)
        click.echo(f"page: {options.out}", err=True)
    if found.fleet is None:
        raise GateFailed("no fleet was found; the table of what was left out says why")
