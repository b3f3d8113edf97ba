"""`dyno scale`: a load, an engine and an autoscaler in; replicas over time, P99, losses, cost, manifests out."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from dynamometer.cli import options
from dynamometer.cli.bench import LAWS
from dynamometer.cli.simulate import _CALIBRATION, _ENGINE, _RULES


class ScaleOptions(msgspec.Struct, frozen=True):
    """What `dyno scale` takes beside the engine and the workload; None and "" mean not given."""

    traffic: Path | None
    policy: str
    metric: str
    target: float | None
    least: int | None
    most: int | None
    initial: int | None
    settings: tuple[str, ...]
    manifest: Path | None
    metric_max: float | None
    metric_kind: str
    cold_start: tuple[str, ...]
    first: float
    to: float
    over: str
    before: str
    hold: str
    fall: str
    arrivals: str | None
    rate: float | None
    arrival_options: tuple[str, ...]
    duration: str
    late: str
    price: float | None
    lint: bool
    sensitivity: bool
    measured: bool
    surge_at: str
    manifests: Path | None
    name: str
    seed: int
    out: Path | None
    as_json: bool


_SCALER = (
    click.option("--policy", "-p", default="", help="hpa, keda, ray, or several: hpa,keda,ray.  [default: hpa]"),
    click.option(
        "--metric",
        default="",
        help="in-flight, waiting, running, rate, gpu-utilization, kv-cache, or an engine's name.  [default: in-flight]",
    ),
    click.option("--target", type=float, default=None, help="Of the metric, per replica.  [default: a quarter batch]"),
    click.option("--min", "least", type=click.IntRange(0, 10_000), default=None, help="Fewest replicas.  [default: 2]"),
    click.option("--max", "most", type=click.IntRange(1, 10_000), default=None, help="Most replicas.  [default: 20]"),
    click.option(
        "--initial", type=click.IntRange(0, 10_000), default=None, help="At the start.  [default: the fewest]"
    ),
    click.option(
        "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Setting of the policy or of the metric's probe."
    ),
    click.option(
        "--manifest",
        type=click.Path(path_type=Path),
        default=None,
        help="Take the scaler from a YAML file: HorizontalPodAutoscaler or ScaledObject.",
    ),
    click.option("--metric-max", type=float, default=None, help="The most that one replica's metric can show (lint)."),
    click.option(
        "--metric-kind",
        type=click.Choice(["gauge", "counter"]),
        default="gauge",
        show_default=True,
        help="For the lint.",
    ),
    click.option(
        "--cold-start",
        multiple=True,
        metavar="LAW",
        help="45s, uniform:20s:60s, lognormal:45s:1.4, vllm, triton, llama.cpp, or runs with a measured start.",
    ),
)
_SURGE = (
    click.option("--from", "first", type=float, default=50.0, show_default=True, help="Requests/s before."),
    click.option("--to", type=float, default=500.0, show_default=True, help="Requests/s at the top."),
    click.option("--over", default="30s", show_default=True, metavar="TIME", help="Length of the rise."),
    click.option("--before", default="30s", show_default=True, metavar="TIME", help="Time before it."),
    click.option("--hold", default="120s", show_default=True, metavar="TIME", help="Time at the top."),
    click.option("--fall", default="0s", show_default=True, metavar="TIME", help="Time back at the first rate."),
    click.option("--arrivals", type=click.Choice(LAWS), default=None, help="Another law in place of the surge."),
    click.option(
        "--rate", "-r", type=click.FloatRange(0, min_open=True), default=None, help="Its requests per second."
    ),
    click.option("--arrival", "arrival_options", multiple=True, metavar="KEY=VALUE", help="Its parameter."),
    click.option("--duration", "-d", default="", metavar="TIME", help="Its length."),
)
_ANSWER = (
    click.option(
        "--late", default="5s", show_default=True, metavar="TIME", help="A first token after so long is late."
    ),
    click.option("--price", type=click.FloatRange(0), default=None, help="USD per GPU and hour; gives the cost."),
    click.option("--lint", is_flag=True, help="Judge the settings only; exit code 1 for one that cannot work."),
    click.option(
        "--measured", is_flag=True, help="Beside the replay: what TRAFFIC itself measured, and the difference."
    ),
    click.option("--surge-at", default="0s", show_default=True, metavar="TIME", help="When TRAFFIC began to rise."),
    click.option("--sensitivity", is_flag=True, help="Say which setting to change first: some 14 more replays."),
    click.option(
        "--manifests", type=click.Path(path_type=Path), default=None, metavar="DIR", help="Write Kubernetes manifests."
    ),
    click.option("--name", default="llm", show_default=True, help="Name of the deployment in the manifests."),
    click.option("--seed", type=int, default=0, show_default=True, help="Seed of arrivals, lengths and cold starts."),
    click.option("--out", "-o", type=click.Path(path_type=Path), default=None, help="Write an HTML page."),
    click.option("--json", "as_json", is_flag=True, help="Print JSON."),
)


@click.command("scale", short_help="Replay an autoscaler under a surge: replicas, P99, losses, cost, faults.")
@click.argument("traffic", required=False, type=click.Path(path_type=Path))
@options.workload_options
def command(**given: object) -> None:
    """Replay an autoscaler under a surge: when it grows, how slow answers become, what is lost, what it costs.

    TRAFFIC is a recorded run whose requests are replayed; without it the load rises from --from to --to requests/s.
    Everything that comes out is simulated. Without --model and --gpu the engine is Llama-3.1-8B on an H100.

    \b
    dyno scale
    dyno scale --policy hpa,keda,ray --target 32 --max 30 --cold-start lognormal:45s:1.3 --out surge.html
    dyno scale --profile vllm,triton-dynamic --price 2.5
    dyno scale --lint --metric llamacpp:requests_processing --target 2 --metric-max 1
    dyno scale --manifests k8s --target 48

    Exit code: 0 replayed; 1 --lint found a setting that cannot work or works against you; 2 bad usage.
    """
    from dynamometer.cli.scale_run import run

    found = options.values(given, ScaleOptions)
    raise SystemExit(run(found, options.workload(options.values(given, options.WorkloadOptions)), given))


_ELSEWHERE = {"count", "routing", "disaggregate", "phases", "predict"}  # options of dyno simulate without a use here
_ROUTING = click.option(
    "--routing", default="least-loaded", show_default=True, help="least-loaded, round-robin, two-choices, affinity."
)
for _add in reversed((*_SCALER, *_SURGE, *_ANSWER, *_ENGINE, *_RULES, *_CALIBRATION)):
    command = _add(command)
command.params = [one for one in command.params if one.name not in _ELSEWHERE]
command = _ROUTING(command)
