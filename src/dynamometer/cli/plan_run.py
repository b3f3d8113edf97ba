"""What `dyno plan` does: options in, kinds of replicas from runs and from simulations, the plan out."""

from __future__ import annotations

import glob
import re
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

import msgspec

from dynamometer.carry import Ask, carry
from dynamometer.cli import options as cli_options
from dynamometer.cli import simulate
from dynamometer.cli.plan import PlanOptions
from dynamometer.cli.simulate_setup import calibration, setup_of
from dynamometer.decisions import demand, levels
from dynamometer.decisions.capacity import Conditions, Option
from dynamometer.decisions.gate import objectives
from dynamometer.decisions.plan import Context, Excluded, Planned
from dynamometer.errors import DynoError, MissingPath, UsageError
from dynamometer.hardware import gpu, prices, source
from dynamometer.hardware.gpu import Device
from dynamometer.hardware.prices import Quote
from dynamometer.provision import Twin, describe, provision
from dynamometer.types import Objective, Provenance, Workload
from dynamometer.workload import lengths

_MEASURED = re.compile(r"([^=@]+)=([0-9.:eE+-]+)@(.+)")
MOST_CANDIDATES = 400


class _Kinds(msgspec.Struct):
    """What was found so far."""

    options: list[Option] = []
    twins: dict[str, Twin] = {}
    excluded: list[Excluded] = []
    notes: list[str] = []


def run(given: PlanOptions) -> Planned:
    """The plan that the options ask for."""
    slo = objectives(given.slo)
    levels.usable(slo)
    conditions = Conditions(given.traffic, given.probability, given.headroom, given.lose, given.zones)
    shape = demand.day(given.load_shape)
    kinds = _Kinds()
    for text in given.measured:
        kinds.options.append(_from_text(text, slo, given))
    if given.runs:
        kinds.options.append(_from_runs(given, slo))
    ask = Ask(
        Workload("synthetic", input_tokens=given.input_tokens, output_tokens=given.output_tokens),
        slo,
        given.burstiness,
        given.seed,
    )
    if given.model or given.calibrate:
        _simulated(given, ask, kinds)
    if not kinds.options and not kinds.excluded:
        raise UsageError("nothing to weigh: give runs, --measured, or --model and --gpu to simulate")
    duty = shape.duty_hours
    context = Context(given.slo, shape.mean_over_peak, duty, tuple(kinds.excluded), (), tuple(kinds.notes))
    return provision(kinds.options, kinds.twins, ask, conditions, context)


# ── measured ──


def _from_text(text: str, slo: tuple[Objective, ...], given: PlanOptions) -> Option:
    """`NAME=USD@PATTERN`."""
    from dynamometer.decisions.case import numbers

    match = _MEASURED.fullmatch(text)
    if not match:
        raise UsageError(f"--measured is {text!r}; give NAME=USD@RUNS such as 'l4=0.8@runs/l4-*'")
    name, usd, pattern = match.groups()
    folders = tuple(Path(found) for found in sorted(glob.glob(pattern)) if (Path(found) / "run.json").is_file())
    if not folders:
        raise MissingPath(f"--measured {name}: no run is at {pattern}; dyno runs lists the runs")
    low, base, high = numbers(usd, f"--measured {name}: USD")
    return _measured(name.strip(), folders, slo, Quote(low, base, high, ("stated",)), 1, given)


def _from_runs(given: PlanOptions, slo: tuple[Objective, ...]) -> Option:
    """The runs named on the line: one kind."""
    device = gpu.get(given.gpu) if given.gpu and "," not in given.gpu and not given.model else None
    quote = _price(given, device.name if device else "", device)
    each = Quote(quote.low * given.count, quote.base * given.count, quote.high * given.count, quote.sources)
    name = device.name if device else "replica"
    name += f" x{given.count}" if given.count > 1 else ""
    return _measured(name, given.runs, slo, each, given.count, given)


def _measured(
    name: str, folders: tuple[Path, ...], slo: tuple[Objective, ...], usd: Quote, gpus: int, given: PlanOptions
) -> Option:
    found, provenance, ids = levels.measured(folders, slo)
    per_node = max(1, given.node_gpus // gpus)
    return Option(name, gpus, usd.base, (usd.low, usd.high), found, provenance, f"runs {ids}", per_node)


# ── simulated ──


def _simulated(given: PlanOptions, ask: Ask, kinds: _Kinds) -> None:
    """Every combination of the lists, each simulated or left out with its reason."""
    if given.calibrate and any("," in text for text in (given.gpu, given.weights, given.tp, given.profile)):
        raise UsageError(
            "--calibrate fits one machine and model; give one --gpu, --weights, --tp and --profile with it"
        )
    if not given.gpu:
        raise UsageError("--model needs devices to weigh it on: --gpu H100,A100")
    if given.model:
        source.resolve(given.model)  # a name that is wrong is wrong for every candidate
    lengths.parse(given.input_tokens, "--input-tokens")
    lengths.parse(given.output_tokens, "--output-tokens")
    known = calibration(_words(given, {})) if given.calibrate else None
    candidates = _candidates(given)
    watts, how = _power([gpu.get(chosen["gpu"]) for chosen in candidates])
    for chosen in candidates:
        name = _name(chosen, given)
        if name in {option.name for option in kinds.options}:
            kinds.excluded.append(Excluded(f"{name}, simulated", "it has runs of its own, which are preferred"))
            continue
        device = gpu.get(chosen["gpu"])
        try:
            quote = _price(given, chosen["gpu"], device)
            setup, spread, _ = setup_of(_words(given, chosen), known)
        except DynoError as wrong:
            kinds.excluded.append(Excluded(name, str(wrong)))
            continue
        gpus = int(chosen["tp"])
        carried = carry(setup, spread, ask, given.probability)
        said = describe(setup, spread) if carried.levels else f"even the lightest load fails: {carried.why}"
        kinds.options.append(
            Option(
                name,
                gpus,
                quote.base * gpus,
                (quote.low * gpus, quote.high * gpus),
                carried.levels,
                Provenance.SIMULATED,
                said,
                max(1, given.node_gpus // gpus),
                watts[device.name] * gpus if device.name in watts else None,
            )
        )
        kinds.twins[name] = Twin(setup, spread)
    if not kinds.twins and kinds.excluded and all("price" in one.why for one in kinds.excluded):
        raise UsageError(kinds.excluded[0].why)
    kinds.notes.append(how)
    kinds.notes += _calibration_notes(kinds, given)


def _candidates(given: PlanOptions) -> list[dict[str, str]]:
    axes = {
        "gpu": given.gpu,
        "weights": given.weights,
        "tp": given.tp,
        "profile": given.profile,
        "kv": given.kv,
        "batch_size": given.batch_size,
        "batch_tokens": given.batch_tokens,
    }
    lists = {key: [word.strip() for word in text.split(",") if word.strip()] or [""] for key, text in axes.items()}
    for word in lists["tp"]:
        if not word.isdigit() or int(word) < 1:
            raise UsageError(f"--tp is {word!r}; give whole numbers such as 1,2,4")
    for word in (*lists["batch_size"], *lists["batch_tokens"]):
        if word and (not word.isdigit() or int(word) < 1):
            raise UsageError(f"a batch limit is {word!r}; give whole numbers such as 64,256")
    lists["gpu"] = [gpu.get(word).name for word in lists["gpu"]]
    found = [dict(zip(lists, words, strict=True)) for words in product(*lists.values())]
    if len(found) > MOST_CANDIDATES:
        raise UsageError(f"{len(found)} combinations are to be simulated; shorten the lists to {MOST_CANDIDATES}")
    return found


def _name(chosen: Mapping[str, str], given: PlanOptions) -> str:
    """`h100-sxm tp2 fp8 batch 256`: what differs from the defaults."""
    parts = [chosen["gpu"], f"tp{chosen['tp']}"] if chosen["tp"] != "1" else [chosen["gpu"]]
    parts += [chosen["weights"]] if chosen["weights"] != "auto" else []
    parts += [f"kv {chosen['kv']}"] if chosen["kv"] != "auto" else []
    parts += [chosen["profile"]] if "," in given.profile else []
    parts += [f"batch {chosen['batch_size']}"] if chosen["batch_size"] else []
    parts += [f"{chosen['batch_tokens']} tokens a step"] if chosen["batch_tokens"] else []
    return " ".join(parts)


def _words(given: PlanOptions, chosen: Mapping[str, str]) -> simulate.SimulateOptions:
    """The same candidate as `dyno simulate` would be told it."""
    words = [word for path in given.calibrate for word in ("--calibrate", str(path))]
    words += ["--phases", given.phases] if given.phases else []
    words += ["--model", given.model] if given.model else []
    if chosen:
        words += ["--count", chosen["tp"]]
    for key, text in chosen.items():
        words += [f"--{key.replace('_', '-')}", text] if text else []
    context = simulate.command.make_context("simulate", words)
    return cli_options.values(context.params, simulate.SimulateOptions)


def _power(devices: Sequence[Device]) -> tuple[dict[str, float], str]:
    """Watts by device, of one kind for all, and which: with the host where that is published of every one, else the
    devices' own limits."""
    whole = {device.name: quote.base for device in devices if (quote := prices.power_w(device.name)) is not None}
    if all(device.name in whole for device in devices):
        return whole, "power: of a device with its share of the host, as published"
    limits = {device.name: device.tdp_w.high for device in devices if device.tdp_w is not None}
    return limits, "power: the devices' own limits, without their hosts"


def _calibration_notes(kinds: _Kinds, given: PlanOptions) -> list[str]:
    """How far simulated capacities can be wrong."""
    spread = max((twin.spread for twin in kinds.twins.values()), default=0.0)
    if not spread:
        return []
    if given.calibrate:
        return [f"step times are fitted to your runs, ±{spread:.0%}"]
    return [f"step times come from the roofline, not from your runs, ±{spread:.0%}; --calibrate DIR narrows that"]


def _price(given: PlanOptions, name: str, device: Device | None) -> Quote:
    """USD a device and hour: what --price says, else what is published."""
    from dynamometer.decisions.case import numbers

    for word in given.price.split(",") if given.price else ():
        key, equals, text = word.rpartition("=")
        if not equals or gpu.get(key).name == name:
            return Quote(*_positive(numbers(text, "--price")), ("stated",))
    found = prices.hourly(device.name, given.market) if device is not None else None
    if found is None:
        what = f" of {device.label}" if device is not None else ""
        raise UsageError(f"no {given.market} price{what} is known here; give --price USD a device and hour")
    return found


def _positive(three: tuple[float, float, float]) -> tuple[float, float, float]:
    if three[0] <= 0:
        raise UsageError(f"--price is {three[0]:g}; give USD above 0")
    return three
