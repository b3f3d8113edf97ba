"""A processor and a real model in; latency, tokens/s and kernels of each instruction set and format out.

oneDNN takes its instruction sets from ONEDNN_MAX_CPU_ISA when a process starts, so each case is a process of its own.
They all stay up and are asked in turn, so that a noisy machine hits all alike; the gain is the median of the ratios
within a round. Which kernels ran is read from oneDNN's own log in a run of its own.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack

import msgspec
import numpy as np

from dynamometer.errors import DynoError, UsageError
from dynamometer.kernels.backends import Backend
from dynamometer.kernels.child import Child
from dynamometer.kernels.found import Found, Row, exactly, in_unit, scaled
from dynamometer.kernels.isa import instruction_sets
from dynamometer.kernels.isa_child import Settings
from dynamometer.kernels.machine import describe
from dynamometer.kernels.shapes import KNOWN
from dynamometer.kernels.timing import Now, estimate
from dynamometer.types import Estimate

QUESTION = "What do AVX-512, BF16, VNNI and AMX gain over AVX2 for a real model on this processor?"
# case -> (limit for oneDNN, format, what the processor must have)
CASES: dict[str, tuple[str, str, str]] = {
    "fp32 AVX2": ("AVX2", "fp32", "AVX2"),
    "fp32 AVX-512": ("AVX512_CORE", "fp32", "AVX-512"),
    "bf16 AVX-512 BF16": ("AVX512_CORE_BF16", "bf16", "AVX-512 BF16"),
    "bf16 AMX": ("AVX512_CORE_AMX", "bf16", "AMX BF16"),
    "int8 AVX2": ("AVX2", "int8", "AVX2"),
    "int8 AVX-512 VNNI": ("AVX512_CORE_VNNI", "int8", "AVX-512 VNNI"),
    "int8 AMX": ("AVX512_CORE_AMX", "int8", "AMX INT8"),
}


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    model: str = "smollm2"
    prompt: int = 256
    context: int = 256
    steps: int = 8
    rounds: int = 12
    threads: int = 0  # 0: every core this process may use
    cases: tuple[str, ...] = tuple(CASES)


QUICK: Mapping[str, str | int] = {"model": "tiny", "prompt": 32, "context": 32, "steps": 2, "rounds": 9}


def run(options: Options, backend: Backend, now_ns: Now, say: Callable[[str], None]) -> Found:
    """All cases that this processor has, in turn."""
    unknown = set(options.cases) - set(CASES)
    if unknown:
        raise UsageError(f"there is no case {sorted(unknown)[0]!r}; known: {', '.join(CASES)}")
    have = instruction_sets()
    rows: list[Row] = []
    settings = {}
    for case in options.cases:
        if CASES[case][2] in have:
            settings[case] = _settings(options, CASES[case][1])
        else:
            rows.append(Row({"case": case}, refused=f"this processor has no {CASES[case][2]}"))
    seconds, failed = _measure(settings, options.rounds, say)
    rows += [Row({"case": case}, refused=why) for case, why in failed.items()]
    first = next(iter(seconds), "")
    kernels = {}
    for case, found in seconds.items():
        say(f"kernels of {case}")
        kernels[case] = _kernels(case, settings[case])
        rows.append(_row(case, found, seconds[first], options, kernels[case]))
    notes = (
        f"One sequence; decode at context {options.context}, {options.steps} steps a round, cases in turn.",
        f"gain: over {first or 'nothing'}, the median of the ratios within a round.",
        f"This processor has {', '.join(have) or 'nothing that Linux lists'}.",
        *(f"{case} ran {_few(counts)}" for case, counts in kernels.items()),
    )
    return Found("cpu-isa", QUESTION, _verdict(rows), tuple(rows), describe(backend), notes)


def _settings(options: Options, form: str) -> Settings:
    from dynamometer.engines.embedded import model_file

    known = options.model in KNOWN or options.model.endswith(".gguf")
    model = options.model if known else str(model_file(options.model))
    threads = options.threads or len(os.sched_getaffinity(0))
    return Settings(model, form, options.prompt, options.context, options.steps, threads)


def _environment(case: str, verbose: bool) -> dict[str, str]:
    return {"ONEDNN_MAX_CPU_ISA": CASES[case][0], "ONEDNN_VERBOSE": "1" if verbose else "0"}


def _measure(
    settings: Mapping[str, Settings], rounds: int, say: Callable[[str], None]
) -> tuple[dict[str, dict[str, list[float]]], dict[str, str]]:
    """Seconds of each case's prefill and decode in each round; and why a case could not run."""
    found: dict[str, dict[str, list[float]]] = {case: {"prefill": [], "decode": []} for case in settings}
    failed: dict[str, str] = {}
    with ExitStack() as open_:
        children = {
            case: open_.enter_context(Child("isa_child", one, _environment(case, False)))
            for case, one in settings.items()
        }
        for turn in range(rounds + 1):
            say(f"round {turn} of {rounds}")
            for case, child in children.items():
                for what in ("prefill", "decode"):
                    if case in failed:
                        continue
                    try:
                        took = float(str(child.ask(what)["seconds"]))
                    except DynoError as died:
                        failed[case] = str(died)
                        continue
                    if turn:  # the first round warms up
                        found[case][what].append(took)
    return {case: times for case, times in found.items() if case not in failed}, failed


def _kernels(case: str, settings: Settings) -> Counter[str]:
    """oneDNN's implementations of products in one prefill and one round of decode, with how often each ran."""
    command = [sys.executable, "-m", "dynamometer.kernels.isa_child", msgspec.json.encode(settings).decode()]
    environment = {**os.environ, **_environment(case, True)}
    done = subprocess.run(
        command, input="prefill\ndecode\n", capture_output=True, text=True, env=environment, timeout=600
    )
    pattern = re.compile(r"exec,cpu,(?:matmul|inner_product),([^,]+),")
    return Counter(pattern.findall(done.stdout))


def _few(counts: Counter[str]) -> str:
    return ", ".join(f"{name} × {times:,}" for name, times in counts.most_common(3)) or "no oneDNN product"


def _row(
    case: str,
    found: Mapping[str, list[float]],
    base: Mapping[str, list[float]],
    options: Options,
    kernels: Counter[str],
) -> Row:
    prefill = estimate(found["prefill"], "in turn")
    decode = in_unit(estimate(found["decode"], "in turn"), 1 / options.steps, "s")
    figures = {
        "prefill_ms": in_unit(prefill, 1e3, "ms"),
        "prefill_gain": _gain(base["prefill"], found["prefill"]),
        "decode_rate": scaled(decode, 1.0, "tokens/s"),
        "decode_gain": _gain(base["decode"], found["decode"]),
        "kernels": exactly(sum(kernels.values()), "", "oneDNN products in one prefill and one round"),
    }
    return Row({"case": case}, figures)


def _gain(base: list[float], mine: list[float]) -> Estimate:
    """The median of the ratios within rounds, with an interval by order statistics."""
    found = estimate((np.asarray(base) / np.asarray(mine)).tolist(), "ratio within a round")
    return Estimate(found.value, found.low, found.high, found.n, "times", found.level, found.method)


def _verdict(rows: list[Row]) -> tuple[str, ...]:
    here = [row for row in rows if row.figures and row.value("decode_gain") == row.value("decode_gain")]
    if len(here) < 2:
        return ("Too few cases ran here to compare.",)
    said = []
    for what in ("prefill_gain", "decode_gain"):
        best = max(here, key=lambda row: row.value(what))
        gain = best.figures[what]
        sure = gain.low is not None and gain.low > 1
        kind = what.partition("_")[0]
        said.append(
            f"{kind}: {best.at['case']} is {best.value(what):.2f} times {here[0].at['case']}"
            + ("." if sure else ", which this machine's noise does not tell from 1.")
        )
    return tuple(said)
