"""`dyno simulate`: options in, one experiment simulated, the same table, verdict and page as a measurement out."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from dynamometer.cli import options
from dynamometer.cli.bench import LAWS


class SimulateOptions(msgspec.Struct, frozen=True):
    """What `dyno simulate` takes beside the experiment's load and workload; None and "" mean not given."""

    experiment: str
    gpu: str
    count: int
    model: str
    tp: int
    pp: int
    expert_parallel: bool
    imbalance: float
    link: str
    weights: str
    kv: str
    profile: str
    attention: str
    batching: str
    batch_size: int | None
    batch_tokens: int | None
    batch_timeout: str
    queue: int
    order: str
    routing: str
    cache: str
    cache_tokens: str
    block: int
    longest: str
    preemption: str
    prefix_cache: bool
    speculate: str
    disaggregate: str
    calibrate: tuple[Path, ...]
    phases: str
    predict: str
    extrapolate: bool
    rows: str
    concurrency: int | None
    rate: float | None
    arrivals: str | None
    arrival_options: tuple[str, ...]
    requests: int | None
    duration: str
    slo: str
    seed: int
    name: str
    out: Path | None
    no_band: bool
    as_json: bool
    quiet: bool


_ENGINE = (
    click.option("--gpu", default="", help="Device, e.g. H200; dyno devices lists them."),
    click.option("--count", type=click.IntRange(1), default=1, show_default=True, help="Devices in all."),
    click.option("--model", default="", help="A config.json, a folder, a GGUF file, a built-in or a hub name."),
    click.option("--tp", type=click.IntRange(1), default=1, show_default=True, help="Devices that share each layer."),
    click.option("--pp", type=click.IntRange(1), default=1, show_default=True, help="Pipeline stages."),
    click.option("--expert-parallel", is_flag=True, help="Whole experts on different devices; tokens travel to them."),
    click.option(
        "--imbalance", type=float, default=1.0, show_default=True, help="Busiest expert device over the mean."
    ),
    click.option("--link", default="", help="nvlink4, pcie5, pcie4, net-400g, …  [default: the device's own]"),
    click.option("--weights", default="auto", show_default=True, help="Format: bf16, fp8, awq, q4_k_m…"),
    click.option("--kv", default="auto", show_default=True, help="Cache format: bf16, fp8, int8…"),
    click.option("--profile", default="vllm", show_default=True, help="Engine: vllm, sglang, tensorrt-llm, llama.cpp…"),
    click.option("--attention", default="", metavar="WINDOW", help="See so many tokens only: 512, or 512+64 global."),
)
_RULES = (
    click.option("--batching", default="", help="static, dynamic, continuous or chunked.  [default: the engine's]"),
    click.option("--batch-size", type=click.IntRange(1), default=None, help="Most sequences.  [default: the engine's]"),
    click.option("--batch-tokens", type=click.IntRange(1), default=None, help="Most tokens a step, likewise."),
    click.option("--batch-timeout", default="100ms", show_default=True, help="Longest wait of dynamic batching."),
    click.option("--queue", type=click.IntRange(0), default=0, help="Most waiting requests a replica, 0 = no limit."),
    click.option("--order", default="fcfs", show_default=True, help="Who goes first: fcfs, priority, shortest."),
    click.option(
        "--routing", default="round-robin", show_default=True, help="round-robin, least-loaded, two-choices, affinity."
    ),
    click.option(
        "--cache", type=click.Choice(["paged", "contiguous"]), default="paged", show_default=True, help="KV cache."
    ),
    click.option("--cache-tokens", default="", help="Its size in tokens.  [default: what the memory leaves]"),
    click.option("--block", type=click.IntRange(1), default=16, show_default=True, help="Tokens of a cache block."),
    click.option(
        "--longest", default="8k", show_default=True, help="Longest sequence; a contiguous cache reserves it."
    ),
    click.option("--preemption", default="recompute", show_default=True, help="recompute or swap."),
    click.option("--prefix-cache", is_flag=True, help="Keep shared openings and conversations in the cache."),
    click.option("--speculate", default="", metavar="K:A", help="Draft K tokens, each accepted with probability A."),
    click.option("--disaggregate", default="", metavar="P:D", help="P replicas compute prompts, D decode."),
)
_CALIBRATION = (
    click.option(
        "--calibrate",
        multiple=True,
        type=click.Path(path_type=Path),
        metavar="DIR",
        help="Runs of your own, or a step log folder, to fit the step time to; repeatable.",
    ),
    click.option("--phases", default="", metavar="NAMES", help="Of a step log, fit to these only."),
    click.option(
        "--predict", default="", metavar="NAMES", help="Predict these phases of the step log (or: rest) and compare."
    ),
    click.option("--extrapolate", is_flag=True, help="Go on far beyond what the calibration has seen."),
)
_LOAD = (
    click.option("--concurrency", "-c", type=click.IntRange(1), default=None, help="Requests in flight."),
    click.option("--rate", "-r", type=click.FloatRange(0, min_open=True), default=None, help="Requests per second."),
    click.option("--arrivals", type=click.Choice(LAWS), default=None, help="Law of the open loop.  [default: poisson]"),
    click.option("--arrival", "arrival_options", multiple=True, metavar="KEY=VALUE", help="Its parameter."),
    click.option("--requests", "-n", type=click.IntRange(1), default=None, help="Stop after so many."),
    click.option("--duration", "-d", default="", metavar="TIME", help="Stop sending after so long, e.g. 60s."),
    click.option("--slo", default="", metavar="LIMITS", help="'ttft_p99<500ms,tpot_p99<50ms'; sets the exit code."),
    click.option("--seed", type=int, default=0, show_default=True, help="Seed of lengths, arrivals and chance."),
    click.option("--name", default="", help="Name of the experiment."),
    click.option("--rows", default="auto", show_default=True, help="tokens, answers (two rows an answer) or auto."),
    click.option("--no-band", is_flag=True, help="Skip the two extra simulations that give the prediction's band."),
    click.option("--out", "-o", type=click.Path(path_type=Path), default=None, help="[default: runs/<time>-<name>]"),
    click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON and nothing else."),
    click.option("--quiet", "-q", is_flag=True, help="Print nothing but the result."),
)


@click.command("simulate", short_help="Run an experiment on a simulated engine; the same rows, labelled simulated.")
@click.argument("experiment", required=False, default="")
@options.workload_options
def command(**given: object) -> None:
    """Run an experiment on a simulated engine: same schedule, same workload, same rows, labelled simulated.

    EXPERIMENT is a TOML file, a recorded run (its experiment is repeated), or nothing: then the options say it all.

    \b
    dyno simulate --gpu H200 --model llama-3.1-8b --rate 16 -i 512 --output-tokens 128 -d 60s
    dyno simulate chat.toml --gpu H100 --count 4 --tp 2 --model llama-3.1-70b --weights fp8
    dyno simulate runs/high --calibrate runs/low1 --calibrate runs/low2
    dyno simulate --calibrate steplog --phases open_r4,open_r32,closed_c8 --predict rest

    Exit code: 0 simulated; 1 the objective was missed; 2 bad usage; 5 the prediction would not be sound.
    """
    from dynamometer.cli.simulate_run import run

    raise SystemExit(
        run(
            options.values(given, SimulateOptions),
            options.workload(options.values(given, options.WorkloadOptions)),
            given,
        )
    )


for _add in reversed((*_ENGINE, *_RULES, *_CALIBRATION, *_LOAD)):
    command = _add(command)
