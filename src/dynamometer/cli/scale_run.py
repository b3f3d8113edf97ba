"""What `dyno scale` does: options in, replays, lint, manifests, the page and the table out."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import click
import msgspec
import numpy as np

from dynamometer import surge
from dynamometer.cli import options
from dynamometer.cli.output import print_json
from dynamometer.cli.scale import ScaleOptions
from dynamometer.cli.scale_manifest import Written, read_manifest
from dynamometer.cli.simulate import SimulateOptions
from dynamometer.decisions import scale_lint
from dynamometer.decisions.scaling import Scaled
from dynamometer.errors import RecordError, UsageError
from dynamometer.hardware import coldstart
from dynamometer.policies.scalers import OPTIONS, Named
from dynamometer.report.manifests import Deployed
from dynamometer.schedule import build as schedule_of
from dynamometer.sim.fleet import METRICS
from dynamometer.sim.setup import Setup
from dynamometer.types import Experiment, Load, Target, Workload
from dynamometer.units import seconds

# an engine's own name of a metric -> the replay's
KNOWN = {
    **{f"{start}{name.replace('-', '_')}": name for name in METRICS for start in ("", "llm_")},  # as manifests do
    "requests_processing": "running",
    "queue": "waiting",
    "concurrency": "in-flight",
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:kv_cache_usage_perc": "kv-cache",
    "vllm:gpu_cache_usage_perc": "kv-cache",
    "llamacpp:requests_processing": "running",
    "llamacpp:requests_deferred": "waiting",
    "sglang:num_running_reqs": "running",
    "sglang:num_queue_reqs": "waiting",
    "nv_inference_pending_request_count": "waiting",
    "nv_gpu_utilization": "gpu-utilization",
    "DCGM_FI_DEV_GPU_UTIL": "gpu-utilization",
    "ray_serve_num_ongoing_requests": "in-flight",
}


Quoted = tuple[tuple[str, str], ...]


def run(given: ScaleOptions, workload: Workload, raw: Mapping[str, object], quoted: Quoted = ()) -> int:
    """Lint, replays, manifests; returns the exit code. `quoted`: figures of others to show beside."""
    written = _written(given)
    policies = given.policy.split(",") if given.policy else [written.policy or "hpa"]
    if given.lint:
        return _lint_only(given, written, policies)
    engines = [one for one in str(raw["profile"]).split(",") if one]
    cases = {
        _name(engines, policies, engine, policy): (_setup(raw, engine), engine, policy)
        for engine in engines
        for policy in policies
    }
    if given.manifests is not None:
        Deployed(given.name)  # a name that is none is told before the replay
    load = _traffic(given, workload)
    scaled: dict[str, Scaled] = {}
    findings: list[scale_lint.Finding] = []
    effects: tuple[surge.Effect, ...] = ()
    for name, ((setup, _), engine, policy) in cases.items():
        case = _case(given, written, (setup, engine, policy), raw)
        click.echo(f"replaying {len(load.due_s):,} requests: {name}", err=True)
        scaled[name], _ = surge.replay(load, setup, case, given.seed)
        findings += [one for one in _lint(given, written, case) if one not in findings]
        if given.sensitivity and not effects:
            effects = surge.effects(load, setup, case, given.seed, lambda text: click.echo(f"trying {text}", err=True))
        if given.manifests is not None:
            _write_manifests(given, case, engine, raw)
    if given.measured:
        if given.traffic is None:
            raise UsageError("--measured needs TRAFFIC, the run of a real fleet")
        late_s, at_s = seconds(given.late, "--late"), seconds(given.surge_at, "--surge-at")
        scaled = {"measured": surge.measured(given.traffic, at_s, late_s, given.price), **scaled}
    notes = tuple(dict.fromkeys(note for (_, notes), _, _ in cases.values() for note in notes))
    return _tell(given, scaled, (tuple(findings), effects), notes, quoted)


def beside(directory: Path, words: list[str], quoted: Quoted) -> int:
    """A recorded surge of a real endpoint beside its replays. `words`: options of the verb."""
    from dynamometer.cli.scale import command

    with command.make_context("scale", [str(directory), "--measured", *words]) as context:
        given = options.values(context.params, ScaleOptions)
        workload = options.workload(options.values(context.params, options.WorkloadOptions))
        return run(given, workload, context.params, quoted)


def check(words: list[str]) -> None:
    """Raises click's usage errors for options of the verb that are none: before minutes of load, not after them."""
    from dynamometer.cli.scale import command

    command.make_context("scale", list(words)).close()


def once(settings: Mapping[str, str | int | float | bool]) -> dict[str, float]:
    """The figures of one replay, for a study. `settings`: options of the verb by their long names."""
    from dynamometer.cli.scale import command

    words = [word for key, value in settings.items() for word in (f"--{key}", str(value))]
    with command.make_context("scale", words) as context:
        given = options.values(context.params, ScaleOptions)
        workload = options.workload(options.values(context.params, options.WorkloadOptions))
        engine = str(context.params["profile"])
        setup, _ = _setup(context.params, engine)
        case = _case(given, _written(given), (setup, engine, given.policy or "hpa"), context.params)
        scaled, _ = surge.replay(_traffic(given, workload), setup, case, given.seed)
    found = {
        "first_scale_s": scaled.first_scale_s,
        "first_ready_s": scaled.first_ready_s,
        "scale_out_s": scaled.scale_out_s,
        "p99_ms": scaled.p99_ms,
        "ttft_p99_ms": scaled.ttft_p99_ms,
        "late_share": scaled.late_share.value,
        "lost": float(scaled.dropped + scaled.unanswered),
        "flaps": float(scaled.flaps),
        "peak_replicas": float(scaled.peak_replicas),
        "replica_hours": scaled.replica_hours,
    }
    return {name: value for name, value in found.items() if value is not None}


def _name(engines: list[str], policies: list[str], engine: str, policy: str) -> str:
    if len(engines) > 1:
        return engine if len(policies) == 1 else f"{engine}, {policy}"
    return policy


def _written(given: ScaleOptions) -> Written:
    return read_manifest(given.manifest) if given.manifest is not None else Written()


def _setup(raw: Mapping[str, object], engine: str) -> tuple[Setup, tuple[str, ...]]:
    """The engine of one replica and the notes on it, by the rules of `dyno simulate`."""
    from dynamometer.cli.simulate_setup import calibration, setup_of

    blank: dict[str, object] = dict.fromkeys(SimulateOptions.__struct_fields__, "")
    blank |= {"count": 1, "rows": "answers", "seed": 0, "no_band": True, "as_json": False, "quiet": True}
    blank |= {"concurrency": None, "rate": None, "arrivals": None, "requests": None, "arrival_options": (), "out": None}
    known = {
        name: raw[name] for name in SimulateOptions.__struct_fields__ if name in raw and name not in ("out", "rate")
    }
    each = int(str(raw["tp"])) * int(str(raw["pp"]))
    merged = {**blank, **known, "profile": engine, "count": each, "arrivals": None, "arrival_options": ()}
    if not merged["model"] and not merged["gpu"] and not merged["calibrate"]:
        merged |= {"model": "llama-3.1-8b", "gpu": "H100"}
    options_ = msgspec.convert(merged, SimulateOptions)
    setup, _, notes = setup_of(options_, calibration(options_))
    named = f"engine: {options_.model or 'calibrated'} on {options_.gpu or 'this machine'}, {engine}"
    return setup, (named, *notes)


def _traffic(given: ScaleOptions, workload: Workload) -> surge.Traffic:
    """Recorded, by a law, or the surge that the options describe."""
    if given.traffic is not None:
        if not given.traffic.is_dir():
            raise UsageError(f"{given.traffic} is no recorded run; give a run's folder, or nothing for the surge")
        return surge.recorded(given.traffic, seconds(given.surge_at, "--surge-at"))
    filled = msgspec.structs.replace(workload, input_tokens=workload.input_tokens or "512")
    if given.arrivals is not None or given.rate is not None:
        law = Load(given.arrivals or "poisson", 0, given.rate or 0.0, options.pairs(given.arrival_options, "--arrival"))
        duration_s = seconds(given.duration, "--duration") if given.duration else 0.0
        if not duration_s and law.law not in ("trace", "step"):
            duration_s = 180.0
        due = schedule_of(law, given.seed, 0, duration_s).due_s
        return surge.traffic(_experiment(filled, law, duration_s, given.seed), due, 0.0)
    if not 0 < given.first < 1e5 or not 0 < given.to < 1e5:
        raise UsageError(
            f"--from {given.first:g} --to {given.to:g}: give requests per second above 0 and below 100,000"
        )
    names = ("over", "before", "hold", "fall")
    over_s, before_s, hold_s, fall_s = (seconds(str(getattr(given, name)), f"--{name}") for name in names)
    if over_s <= 0 or min(before_s, hold_s, fall_s) < 0:
        raise UsageError("--over must be above 0s, and --before, --hold and --fall at least 0s")
    parts = list(_parts(given, (before_s, over_s, hold_s, fall_s)))
    due = np.concatenate(parts)
    whole_s = before_s + over_s + hold_s + fall_s
    rise = Load("ramp", 0, given.first, {"to": f"{given.to:g}", "over": f"{over_s:g}s"})
    return surge.traffic(_experiment(filled, rise, whole_s, given.seed), due, before_s)


def _parts(
    given: ScaleOptions, lengths: tuple[float, float, float, float]
) -> Iterator[np.ndarray[tuple[int], np.dtype[np.float64]]]:
    """Due times before, during and after the rise: Poisson processes that meet at the seams: so is the whole."""
    before_s, over_s, hold_s, fall_s = lengths
    flat = Load("poisson", 0, given.first)
    rise = Load("ramp", 0, given.first, {"to": f"{given.to:g}", "over": f"{over_s:g}s"})
    if before_s:
        yield schedule_of(flat, given.seed, 0, before_s).due_s
    yield before_s + schedule_of(rise, given.seed + 1, 0, over_s + hold_s).due_s
    if fall_s:
        yield before_s + over_s + hold_s + schedule_of(flat, given.seed + 2, 0, fall_s).due_s


def _experiment(workload: Workload, load: Load, duration_s: float, seed: int) -> Experiment:
    return Experiment("surge", Target("simulated://", api="simulated"), workload, load, 0, duration_s, seed=seed)


def _case(given: ScaleOptions, written: Written, what: tuple[Setup, str, str], raw: Mapping[str, object]) -> surge.Case:
    """The fleet that the options, or the manifest below them, describe."""
    setup, engine, policy = what
    metric = _metric(given, written, policy)
    if metric not in METRICS:
        raise UsageError(f"metric {metric!r} is none that a replay has ({', '.join(METRICS)}); --lint judges it")
    default = float(max(1, setup.rules.batching.size // 4))
    default = {"gpu-utilization": 0.6, "kv-cache": 0.7, "rate": 20.0, "waiting": 8.0}.get(metric, default)
    named, probe = _named(given, written, policy, default)
    initial = given.initial if given.initial is not None else max(named.least, 0 if policy == "keda" else 1)
    if initial > named.most:
        raise UsageError(f"--initial {initial} is above the maximum of {named.most}")
    devices = int(str(raw["tp"])) * int(str(raw["pp"]))
    price = given.price * devices if given.price is not None else None
    start = _start(given, engine)
    return surge.Case(named, start, metric, probe, initial, str(raw["routing"]), seconds(given.late, "--late"), price)


def _metric(given: ScaleOptions, written: Written, policy: str) -> str:
    name = given.metric or written.metric or "in-flight"
    known = KNOWN.get(name, name)
    if policy == "ray" and known != "in-flight" and not given.lint:
        raise UsageError(f"Ray Serve scales on requests in flight alone; leave --metric {name} out")
    return known


def _named(given: ScaleOptions, written: Written, policy: str, target: float) -> tuple[Named, dict[str, str]]:
    """The scaler, and the probe's part of --set."""
    settings = {**(written.options if written.policy == policy else {}), **options.pairs(given.settings, "--set")}
    probe = {key: settings.pop(key) for key in surge.PROBE if key in settings}
    known = {name for names in OPTIONS.values() for name in names}
    several = "," in given.policy
    mine = {k: v for k, v in settings.items() if k in OPTIONS.get(policy, ()) or not several or k not in known}
    stated = given.target if given.target is not None else written.target
    least = given.least if given.least is not None else written.least if written.least is not None else 2
    most = given.most if given.most is not None else written.most if written.most is not None else max(20, least)
    if least > most:
        raise UsageError(f"--min {least} is above --max {most}")
    return Named(policy, stated if stated is not None else target, least, most, mine), probe


def _start(given: ScaleOptions, engine: str) -> coldstart.ColdStart:
    """A law, or the times that runs hold."""
    if not given.cold_start:
        return coldstart.parse(
            "triton" if engine.startswith("triton") else engine if engine in coldstart.PROFILES else "vllm"
        )
    folders = [Path(text) for text in given.cold_start if Path(text).is_dir()]
    if not folders:
        if len(given.cold_start) > 1:
            raise UsageError("give one --cold-start law, or several runs with a measured start")
        return coldstart.parse(given.cold_start[0])
    if len(folders) < len(given.cold_start):
        raise UsageError("--cold-start takes either a law or folders of runs, not both")
    from dynamometer.record import manifest

    found = [(folder, manifest.read(folder).engine.get("start_s")) for folder in folders]
    times = [float(value) for _, value in found if isinstance(value, int | float)]
    without = [str(folder) for folder, value in found if not isinstance(value, int | float)]
    if without:
        raise RecordError(f"{without[0]} holds no measured start; runs of an engine that dyno bench started itself do")
    return coldstart.seen(times, f"measured: {len(times)} starts")


def _settings(given: ScaleOptions, written: Written, named: Named, probe: dict[str, str]) -> scale_lint.Settings:
    from dynamometer.policies.hpa import Hpa, Tolerance
    from dynamometer.policies.keda import Keda
    from dynamometer.policies.rayserve import RayServe
    from dynamometer.policies.scalers import scaler

    made = scaler(named)
    hpa = made if isinstance(made, Hpa) else made.hpa if isinstance(made, Keda) else None
    name = given.metric or written.metric or "in-flight"
    base = scale_lint.Settings(
        named.policy, name, named.target, given.metric_max, given.metric_kind, Tolerance(), named.least, named.most
    )
    smoothed_s = seconds(probe["window"], "window") if "window" in probe else 0.0
    if isinstance(made, RayServe):
        return msgspec.structs.replace(
            base,
            shrink_window_s=made.downscale_delay_s,
            grow_window_s=made.upscale_delay_s,
            smoothed_s=made.look_back_s,
        )
    assert hpa is not None
    down_s = hpa.behavior.down.window_s if hpa.behavior else hpa.timing.downscale_stabilization_s
    up_s = hpa.behavior.up.window_s if hpa.behavior else 0.0
    per_pod = hpa.kind != "value"
    return msgspec.structs.replace(
        base,
        tolerance=hpa.tolerance,
        shrink_window_s=down_s,
        grow_window_s=up_s,
        smoothed_s=smoothed_s,
        per_pod=per_pod,
    )


def _lint(given: ScaleOptions, written: Written, case: surge.Case) -> tuple[scale_lint.Finding, ...]:
    found = _settings(given, written, case.named, dict(case.probe))
    return scale_lint.lint(msgspec.structs.replace(found, cold_start_s=case.start.median_s, late_s=case.late_s))


def _lint_only(given: ScaleOptions, written: Written, policies: list[str]) -> int:
    from dynamometer.report.scale_page import findings
    from dynamometer.report.table import draw, terminal

    found: list[scale_lint.Finding] = []
    for policy in policies:
        named, probe = _named(given, written, policy, 64.0)
        settings = _settings(given, written, named, probe)
        if given.cold_start:
            start_s = _start(given, "vllm").median_s
            settings = msgspec.structs.replace(settings, cold_start_s=start_s, late_s=seconds(given.late, "--late"))
        found += [one for one in scale_lint.lint(settings) if one not in found]
    bad = [one for one in found if one.level != "risk"]
    if given.as_json:
        print_json({"findings": found, "ok": not bad})
    elif found:
        draw(findings(found), terminal())
    else:
        click.echo("no fault found in these settings")
    return 1 if bad else 0


def _write_manifests(given: ScaleOptions, case: surge.Case, engine: str, raw: Mapping[str, object]) -> None:
    from dynamometer.report.manifests import write

    whole_s = sum(seconds(str(getattr(given, name)), f"--{name}") for name in ("over", "hold"))
    assert given.manifests is not None
    deployed = Deployed(
        given.name,
        "triton" if engine.startswith("triton") else engine,
        str(raw["model"]),
        case.metric,
        max(120.0, 10 * case.start.median_s),
        int(str(raw["tp"])) * int(str(raw["pp"])),
        (given.first, given.to, seconds(given.over, "--over"), whole_s),
    )
    for path in write(case.named, deployed, given.manifests):
        click.echo(f"manifest: {path}", err=True)


def _tell(
    given: ScaleOptions,
    scaled: dict[str, Scaled],
    judged: tuple[tuple[scale_lint.Finding, ...], tuple[surge.Effect, ...]],
    notes: tuple[str, ...],
    quoted: Quoted,
) -> int:
    from dynamometer.report.html import write_page
    from dynamometer.report.scale_page import Line, Told, scale_page, tables
    from dynamometer.report.table import draw, terminal

    findings, effects = judged
    if given.as_json:
        rest = {"findings": findings, "what_to_change": effects, "engine_notes": notes, "quoted": dict(quoted)}
        if len(scaled) == 1:
            print_json({**msgspec.structs.asdict(next(iter(scaled.values()))), **rest})
        else:
            print_json({"replays": scaled, **rest})
    lines = tuple(Line(e.name, e.value, e.late_share, e.p99_ms, e.scale_out_s, e.replica_hours) for e in effects)
    told = Told(scaled, findings, lines, quoted, notes)
    if not given.as_json:
        console = terminal()
        for name, one in scaled.items():
            click.echo(f"{name}: {one.decision.answer}")
        for table in tables(told):
            click.echo("")
            draw(table, console)
    if given.out is not None:
        write_page(scale_page(told, shlex.join(["dyno", *sys.argv[1:]])), given.out)
        click.echo(f"page: {given.out}", err=True)
    return 0
