"""`dyno bench`: options in, one experiment measured, a table, a verdict and a page out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click
import msgspec

from dynamometer.cli import options
from dynamometer.errors import UsageError
from dynamometer.types import Experiment, Load, Target, Workload

LAWS = ("poisson", "constant", "gamma", "trace", "ramp", "step", "burst")


class LoadOptions(msgspec.Struct, frozen=True):
    """How requests come; None means not given."""

    concurrency: int | None
    rate: float | None
    arrivals: str | None
    arrival_options: tuple[str, ...]
    requests: int | None


class BenchOptions(LoadOptions, frozen=True):
    """What `dyno bench` takes beside the endpoint, how to drive it and the workload; None and "" mean not given."""

    duration: str
    warmup: int | None
    slo: str | None
    repeats: int
    seed: int
    out: Path | None
    resume: Path | None
    name: str
    store: str = ""


@click.command("bench", short_help="Put an engine under load and measure it.")
@options.target_options
@options.drive_options
@options.workload_options
@click.option("--concurrency", "-c", type=click.IntRange(1), default=None, help="Requests in flight.  [default: 4]")
@click.option(
    "--rate", "-r", type=click.FloatRange(0, min_open=True), default=None, help="Open loop: requests per second."
)
@click.option("--arrivals", type=click.Choice(LAWS), default=None, help="Law of the open loop.  [default: poisson]")
@click.option(
    "--arrival",
    "arrival_options",
    multiple=True,
    type=options.Words(),
    metavar="KEY=VALUE",
    help="Its parameter, e.g. burstiness=0.5.",
)
@click.option("--requests", "-n", type=click.IntRange(1), default=None, help="Stop after so many.  [default: see docs]")
@click.option("--duration", "-d", default="", metavar="TIME", help="Stop sending after so long, e.g. 60s.")
@click.option("--warmup", type=click.IntRange(0), default=None, help="Requests before timing.  [default: one a stream]")
@click.option("--slo", default=None, metavar="LIMITS", help="'ttft_p99<500ms,tpot_p99<50ms'; sets the exit code.")
@click.option("--repeats", "-k", type=click.IntRange(1), default=1, show_default=True, help="Runs of the experiment.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of prompts, lengths and arrivals.")
@click.option("--name", default="", help="Name of the experiment.  [default: the model and the load]")
@click.option("--out", "-o", type=click.Path(path_type=Path), default=None, help="[default: runs/<time>-<name>]")
@click.option(
    "--resume", type=click.Path(path_type=Path), default=None, metavar="DIR", help="Go on with an interrupted run."
)
@click.option("--store", default="", metavar="URL", help="Copy the run into a shared store, see dyno store.")
@click.pass_context
def command(ctx: click.Context, /, **given: object) -> None:
    """Put an engine under load and measure it.

    Without --url it starts llama.cpp's own server on the packaged SmolLM2-135M-Instruct and measures that.

    \b
    dyno bench
    dyno bench --url http://127.0.0.1:8000/v1 --concurrency 16 --requests 500
    dyno bench --url http://127.0.0.1:8000/v1 --rate 5 --duration 5m --slo 'ttft_p99<500ms'

    Exit code: 0 measured; 1 the objective was missed or every request failed; 2 bad usage; 3 the engine cannot be
    reached or started; 4 the record cannot be written; 5 the run cannot be believed.
    """
    from dynamometer.cli.bench_run import bench, resume

    bench_options = options.values(_one_load(ctx, given), BenchOptions)
    how = options.values(given, options.DriveOptions)
    asked = options.values(given, options.TargetOptions)
    if bench_options.resume:
        _no_other(ctx)
        raise SystemExit(resume(bench_options.resume, how, options.pairs(asked.headers, "--header")))
    target = options.target(asked)
    if target.url:
        _no_start(ctx, target.url)
    workload = options.workload(options.values(given, options.WorkloadOptions))
    load = of_trace(load_of(bench_options), workload)
    raise SystemExit(bench(experiment(bench_options, target, workload, load), bench_options, how))


STARTING = ("engine", "quantization", "slots", "threads", "python", "image")


def _no_start(ctx: click.Context, url: str) -> None:
    """Options of an engine that dyno starts mean nothing for one that runs; passing over them would mislead."""
    for option in ctx.command.params:
        given = option.name and ctx.get_parameter_source(option.name) is click.core.ParameterSource.COMMANDLINE
        if given and option.name in STARTING:
            raise UsageError(f"{option.opts[0]} is for an engine that dyno starts; the one at {url} runs already")


def _one_load(ctx: click.Context, given: Mapping[str, object]) -> Mapping[str, object]:
    """The command line wins over settings: a rate there drops a concurrency from a file, and the other way round."""
    typed = [
        name
        for name in ("rate", "concurrency")
        if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
    ]
    if len(typed) != 1:
        return given
    return {**given, ("concurrency" if typed == ["rate"] else "rate"): None}


def _no_other(ctx: click.Context) -> None:
    """--resume goes on with the run as it was; an option that would change it is refused, not passed over."""
    kept = {*options.DriveOptions.__struct_fields__, "resume", "headers"}
    for option in ctx.command.params:
        given = option.name and ctx.get_parameter_source(option.name) is click.core.ParameterSource.COMMANDLINE
        if given and option.name not in kept:
            raise UsageError(f"--resume goes on with the run as it was begun; leave out {option.opts[0]}")


def load_of(given: LoadOptions) -> Load:
    """Closed at a concurrency, or open at a rate: exactly one of the two."""
    law_options = options.pairs(given.arrival_options, "--arrival")
    if given.rate is not None and given.concurrency is not None:
        raise UsageError("--rate and --concurrency exclude each other; give one (open loop or closed loop)")
    if given.rate is None and given.arrivals not in (None, "trace", "step"):
        raise UsageError(f"--arrivals {given.arrivals} needs --rate, the mean requests per second")
    if given.rate is None and given.arrivals is None:
        if law_options:
            raise UsageError("--arrival sets a law's parameter; give --arrivals and --rate with it")
        if given.concurrency and given.requests and given.requests < given.concurrency:
            raise UsageError(
                f"{given.requests} requests can't keep {given.concurrency} in flight; raise --requests or lower "
                "--concurrency"
            )
        return Load("closed", concurrency=given.concurrency or min(4, given.requests or 4))
    return Load(given.arrivals or "poisson", concurrency=0, rate=given.rate or 0.0, options=law_options)


def _warmup(given: BenchOptions, load: Load) -> int:
    """None before a trace: it would take the first rows, and each time would get the prompt of a later one."""
    if load.law == "trace":
        if given.warmup:
            raise UsageError(f"--warmup {given.warmup} would use up the first rows of the trace; leave it out")
        return 0
    return given.warmup if given.warmup is not None else max(2, min(load.concurrency, 16))


def of_trace(load: Load, workload: Workload) -> Load:
    """Law "trace" takes the workload's file, window and speed, so that times and prompts are of the same rows."""
    if load.law != "trace" or not workload.path:
        return load
    same = {name: workload.options[name] for name in ("format", "speed", "start", "stop") if name in workload.options}
    return Load(load.law, load.concurrency, load.rate, {"path": workload.path, **same, **load.options})


def experiment(given: BenchOptions, target: Target, workload: Workload, load: Load) -> Experiment:
    """The experiment that the options describe.

    Without a stop rule a closed loop asks 15 requests a stream, 80 at least (a P95 needs 72), for two minutes at most;
    an open loop runs one minute; a trace and a list of steps run to their end.
    """
    from dynamometer.decisions.gate import objectives
    from dynamometer.schedule.window import MOST_REQUESTS
    from dynamometer.units import seconds

    if given.name and (given.name != Path(given.name).name or given.name.startswith(".")):
        raise UsageError(f"--name is {given.name!r}; give a plain name: it becomes part of a folder's")
    duration_s = seconds(given.duration, "--duration") if given.duration else 0.0
    if given.duration and duration_s <= 0:
        raise UsageError(f"--duration is {given.duration!r}; give a time above 0, e.g. 60s")
    requests = given.requests or 0
    if max(requests, given.warmup or 0) > MOST_REQUESTS:
        raise UsageError(f"{max(requests, given.warmup or 0):,} requests are a slip; give at most {MOST_REQUESTS:,}")
    if not requests and not duration_s and load.law == "closed":
        requests, duration_s = max(80, 15 * load.concurrency), 120.0
    elif not requests and not duration_s and load.law not in ("trace", "step"):
        duration_s = 60.0
    return Experiment(
        name=given.name or f"{_short(target.model) or 'endpoint'}-{_load_name(load)}",
        target=target,
        workload=workload,
        load=load,
        requests=requests,
        duration_s=duration_s,
        warmup_requests=_warmup(given, load),
        repeats=given.repeats,
        seed=given.seed,
        slo=objectives(given.slo) if given.slo is not None else (),
    )


def _short(model: str) -> str:
    """A model's name as part of a file name."""
    last = model.rstrip("/").rsplit("/", 1)[-1].removesuffix(".gguf")
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in last)[:40]


def _load_name(load: Load) -> str:
    return f"c{load.concurrency}" if load.law == "closed" else f"{load.law}-{load.rate:g}rps"
