"""Options in, the simulated engine out: its step cost (roofline or calibration), its cache, its rules."""

from __future__ import annotations

from pathlib import Path

import msgspec

from dynamometer.cli.simulate import SimulateOptions
from dynamometer.errors import Refused, UsageError
from dynamometer.hardware.profiles import EngineProfile, profile
from dynamometer.hardware.stepcost import StepCost
from dynamometer.policies.admission import Admission
from dynamometer.policies.batching import Batching
from dynamometer.policies.speculation import Speculation
from dynamometer.record import steplog
from dynamometer.sim.cluster import NO_LINK, Link
from dynamometer.sim.rules import Rules
from dynamometer.sim.setup import Cache, Setup
from dynamometer.types import Estimate
from dynamometer.units import count, seconds, significant

_USELESS = 1.0  # a step time known to within a factor of four either way, at 80 %


class Known(msgspec.Struct, frozen=True):
    """What the user's own runs say of a step."""

    cost: StepCost
    spread: float  # relative error of a figure on data that the fit had not seen
    notes: tuple[str, ...]
    slots: int = 0  # most sequences that ran at once


def calibration(given: SimulateOptions) -> Known | None:
    """The fit to the runs of --calibrate; None without any."""
    if not given.calibrate:
        return None
    logs = [path for path in given.calibrate if steplog.is_step_log(path)]
    if logs and len(logs) < len(given.calibrate):
        raise UsageError("--calibrate takes either one step log folder or runs, not both")
    return _from_step_log(logs, given.phases) if logs else _from_runs(given.calibrate)


def _from_step_log(folders: list[Path], names: str) -> Known:
    from dynamometer.models.frontend import fit_front
    from dynamometer.models.steplog import chosen, phases
    from dynamometer.models.steptime import calibrate

    found = [p for folder in folders for p in phases(steplog.read_steps(folder), steplog.read_requests(folder))]
    found = chosen(found, names.split(",") if names else [])
    done = calibrate(found)
    cost = msgspec.structs.replace(done.cost, host=fit_front(found, done.cost.host))
    named = done.fit.parameters
    keys = [key for key in named if key.startswith("step of")]
    shown = [keys[0], keys[-1], "per context token", "launch prompts, large"]
    notes = (
        f"step time fitted to {', '.join(p.name for p in found)}; left out, they miss by {cost.spread:.1%} (median)",
        *(f"{key}: {_ms(named[key])}" for key in shown if key in named),
    )
    return Known(cost, max(0.05, cost.spread), notes)


def _from_runs(folders: tuple[Path, ...]) -> Known:
    from dynamometer.models.clientfit import calibrate_runs
    from dynamometer.record.answers import answer_columns

    done = calibrate_runs([answer_columns(path) for path in folders])
    notes = (
        f"step time fitted to {len(folders)} runs; steps miss by {done.misfit:.1%}, left-out ones by {done.spread:.1%}",
    )
    return Known(done.cost, max(0.05, done.spread), notes, done.slots)


def _ms(e: Estimate) -> str:
    text = f"{significant((e.value or 0.0) * 1e3)} ms"
    if e.low is None or e.high is None:
        return text
    return f"{text} [{significant(e.low * 1e3)}, {significant(e.high * 1e3)}]"


def setup_of(given: SimulateOptions, known: Known | None) -> tuple[Setup, float, tuple[str, ...]]:
    """(the setup, the prediction's relative spread, notes for the record)."""
    engine = profile(given.profile)
    replicas, decoders = _replicas(given)
    if known is not None:
        if known.spread > _USELESS and not given.extrapolate:
            raise Refused(
                f"the calibration foretells nothing: loads that it left out are missed by {known.spread:.0%} (median). "
                "Record three or more loads around the one you ask for, on a quiet machine; or say --extrapolate"
            )
        cost, spread, notes = known.cost, known.spread, known.notes
        tokens = count(given.cache_tokens, "--cache-tokens") if given.cache_tokens else 1 << 20
        kv_bytes = 0.0
    else:
        cost, tokens, kv_bytes = _roofline(given, engine)
        spread = engine.spread
        notes = (f"not calibrated: {cost.source}; expect {spread:.0%} error in a step time",)
    window = _window(given.attention)
    cache = Cache(
        tokens=tokens,
        block=given.block,
        slab=count(given.longest, "--longest") if given.cache == "contiguous" else 0,
        window=window,
        share_prefixes=given.prefix_cache,
    )
    rules = _rules(given, engine, known, kv_bytes)
    transfer = Link(50e-6, kv_bytes / 25e9) if decoders else NO_LINK
    return Setup(cost, cache, rules, replicas, given.routing, decoders, transfer), spread, notes


def _replicas(given: SimulateOptions) -> tuple[int, int]:
    """(replicas, decode replicas); every replica takes tp × pp devices."""
    each = given.tp * given.pp
    if given.count % each:
        raise UsageError(f"--count {given.count} is no multiple of {each}, the devices of a replica (tp × pp)")
    if not given.disaggregate:
        return given.count // each, 0
    first, colon, second = given.disaggregate.partition(":")
    if not colon or not first.isdigit() or not second.isdigit() or not int(first) or not int(second):
        raise UsageError(f"--disaggregate is {given.disaggregate!r}; give P:D, e.g. 1:3")
    if given.count not in (1, (int(first) + int(second)) * each):
        raise UsageError(f"--count {given.count} and --disaggregate {given.disaggregate} disagree; give one of them")
    return int(first), int(second)


def _roofline(given: SimulateOptions, engine: EngineProfile) -> tuple[StepCost, int, float]:
    """(step cost, cache tokens of a replica, bytes of a token's cache) from the model's and the device's facts."""
    from dynamometer.hardware import gpu, memory, source
    from dynamometer.hardware.enginecost import Split, step_cost
    from dynamometer.hardware.reserve import ENGINES

    if not given.model or not given.gpu:
        raise UsageError("name what to simulate: --model and --gpu, or --calibrate with runs of your own")
    model, device = source.resolve(given.model), gpu.get(given.gpu)
    window = _window(given.attention)
    split = Split(
        given.tp, given.pp, given.expert_parallel, given.link, given.weights, given.kv, given.imbalance, window
    )
    cost = step_cost(model, device, split, engine)
    d = memory.Deployment(
        context=count(given.longest, "--longest"),
        weights=given.weights,
        kv=given.kv,
        tp=given.tp,
        pp=given.pp,
        memory_bytes=device.usable_bytes.low,
        engine=ENGINES.get(given.profile, ENGINES["vllm"]),
    )
    b = memory.breakdown(model, d)
    if given.cache_tokens:
        return cost, count(given.cache_tokens, "--cache-tokens"), b.kv_per_token
    if b.room <= 0 or b.kv_per_token <= 0:
        raise UsageError(
            f"{model.name} does not fit on {given.tp * given.pp} × {device.label}: {memory.judge(model, d, b).why}; "
            "use more devices, smaller weights, or --cache-tokens to simulate it regardless"
        )
    return cost, int(b.room // b.kv_per_token), b.kv_per_token


def _window(text: str) -> int:
    """ "512+64" is a window of 512 and 64 global tokens: 576 tokens are read and kept."""
    if not text:
        return 0
    return sum(count(part, "--attention") for part in text.split("+"))


def _rules(given: SimulateOptions, engine: EngineProfile, known: Known | None, kv_bytes: float) -> Rules:
    size = given.batch_size or (known.slots if known is not None and known.slots else engine.size)
    tokens = given.batch_tokens or engine.tokens
    name = given.batching or engine.batching
    return Rules(
        batching=Batching(name, size, tokens, seconds(given.batch_timeout, "--batch-timeout")),
        admission=Admission(given.queue, given.order),
        speculation=_speculation(given.speculate),
        preemption=given.preemption,
        swap_s=kv_bytes / 25e9,
    )


def _speculation(text: str) -> Speculation:
    if not text:
        return Speculation()
    draft, colon, chance = text.partition(":")
    try:
        return Speculation(int(draft), float(chance) if colon else 0.7, 0.05)
    except ValueError:
        raise UsageError(f"--speculate is {text!r}; give K:A, e.g. 3:0.7") from None
