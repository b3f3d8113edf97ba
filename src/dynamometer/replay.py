"""A step log's phases in, each predicted from the others and set beside what was recorded out.

The counterpart of a cross-check: a phase's requests are replayed with their own times and lengths on an engine that
was fitted without the phase. Errors on the phases that were fitted, each left out in turn, give the intervals of the
predicted ones.
"""

from __future__ import annotations

import msgspec
import numpy as np

from dynamometer.errors import Refused, UsageError
from dynamometer.hardware.stepcost import StepCost
from dynamometer.models.frontend import fit_front
from dynamometer.models.steplog import Phase, chosen
from dynamometer.models.steptime import errors, fit_cost
from dynamometer.policies.batching import Batching
from dynamometer.sim.feed import Streams
from dynamometer.sim.ledger import Tally
from dynamometer.sim.rules import Rules
from dynamometer.sim.sequence import Sequence
from dynamometer.sim.setup import Cache, Setup, cluster
from dynamometer.simulate import measures

_TURN_S = 2e-4  # a client's time from an answer's end to its next request
_REPEATS = 5  # seeds of the launch times, averaged


class Compared(msgspec.Struct, frozen=True):
    """One figure of one phase. `low`/`high`: 80 % interval of the prediction, None without phases to learn it from."""

    figure: str
    predicted: float
    recorded: float
    error: float  # predicted / recorded − 1
    low: float | None = None
    high: float | None = None


class Predicted(msgspec.Struct, frozen=True):
    """One phase. `step_error`: median relative error of its steps, each from the state before it."""

    phase: str
    requests: int
    step_error: float
    figures: tuple[Compared, ...]


class Replay(msgspec.Struct, frozen=True):
    fitted: tuple[str, ...]
    phases: tuple[Predicted, ...]


def predict(phases: list[Phase], fit_to: list[str], asked: list[str], seed: int = 0) -> Replay:
    """Fits to the named phases (all but the asked ones if none is named) and predicts the asked ones (the rest if
    none)."""
    known = chosen(phases, fit_to) if fit_to else [p for p in phases if p.name not in asked]
    if not asked and not fit_to:
        raise UsageError("name the phases to fit to, or the phases to predict; with neither nothing is left to predict")
    wanted = chosen(phases, asked) if asked else [p for p in phases if p.name not in fit_to]
    if not wanted or not known:
        raise UsageError("no phase is left to predict; fit to some phases and predict others")
    cost = fit(known)
    spreads = _left_out(known, seed)
    return Replay(
        tuple(p.name for p in known),
        tuple(_compare(phase, cost, spreads, seed) for phase in wanted),
    )


def each_from_the_others(phases: list[Phase], seed: int = 0) -> list[Predicted]:
    """Every phase from all others. Its intervals come from the errors on the others, each left out in turn too."""
    costs = [fit([p for p in phases if p is not phase]) for phase in phases]
    guesses = [replayed(phase, cost, seed, _REPEATS) for phase, cost in zip(phases, costs, strict=True)]
    truths = [recorded(phase) for phase in phases]
    found: list[Predicted] = []
    for i, phase in enumerate(phases):
        others = [(g, t) for k, (g, t) in enumerate(zip(guesses, truths, strict=True)) if k != i]
        spreads = {name: [float(np.log(t[name] / g[name])) for g, t in others] for name in guesses[i]}
        found.append(_predicted(phase, costs[i], guesses[i], spreads))
    return found


def fit(phases: list[Phase]) -> StepCost:
    """Steps, host and front end."""
    cost = fit_cost([p.steps for p in phases])
    return msgspec.structs.replace(cost, host=fit_front(phases, cost.host))


def _left_out(known: list[Phase], seed: int) -> dict[str, list[float]]:
    """log(recorded / predicted) of each figure, over the known phases left out one at a time."""
    found: dict[str, list[float]] = {}
    if len(known) < 4:
        return found
    for phase in known:
        try:
            cost = fit([p for p in known if p is not phase])
        except Refused:
            continue
        guess, truth = replayed(phase, cost, seed, 1), recorded(phase)
        for name, value in guess.items():
            if truth.get(name, 0.0) > 0 and value > 0:
                found.setdefault(name, []).append(float(np.log(truth[name] / value)))
    return found


def _compare(phase: Phase, cost: StepCost, spreads: dict[str, list[float]], seed: int) -> Predicted:
    return _predicted(phase, cost, replayed(phase, cost, seed, _REPEATS), spreads)


def _predicted(phase: Phase, cost: StepCost, guess: dict[str, float], spreads: dict[str, list[float]]) -> Predicted:
    truth = recorded(phase)
    figures = []
    for name, value in guess.items():
        width = _conformal(spreads.get(name, []))
        low, high = (value * np.exp(-width), value * np.exp(width)) if width is not None else (None, None)
        figures.append(Compared(name, value, truth[name], value / truth[name] - 1, low, high))
    step = float(np.median(errors(cost, phase.steps))) if len(phase.steps) > 3 else float("nan")
    return Predicted(phase.name, len(phase.seen), step, tuple(figures))


def _conformal(logs: list[float], level: float = 0.8) -> float | None:
    """Half-width that holds so many of the left-out errors, by the conformal rank (k+1) · level."""
    if len(logs) < 4:
        return None
    ordered = np.sort(np.abs(logs))
    rank = min(len(ordered), int(np.ceil((len(ordered) + 1) * level)))
    return float(ordered[rank - 1])


def recorded(phase: Phase) -> dict[str, float]:
    """The phase's figures as its clients saw them."""
    seen = phase.seen
    index = np.arange(len(seen), dtype=np.float64)
    columns = (index, seen.due_s, seen.sent_s, seen.first_s, seen.last_s, seen.input_tokens, seen.output_tokens)
    return measures(np.stack(columns, axis=1))


def replayed(phase: Phase, cost: StepCost, seed: int, repeats: int) -> dict[str, float]:
    """The same figures of the phase's requests on the fitted engine; the mean over seeds of the launch times."""
    found: list[dict[str, float]] = []
    for i in range(repeats):
        tally = Tally()
        rules = Rules(batching=Batching("chunked", 1024, _budget(phase)), keep_tokens=False)
        longest = int((phase.seen.input_tokens + phase.seen.output_tokens).max())
        tokens = max(1 << 20, longest * 64)
        engines = cluster(Setup(cost, Cache(tokens), rules), tally, seed + i)
        start_s = float(phase.seen.due_s[0])
        asked = [
            Sequence(k, float(due - start_s), int(prompt), int(output))
            for k, (due, prompt, output) in enumerate(
                zip(phase.seen.due_s, phase.seen.input_tokens, phase.seen.output_tokens, strict=True)
            )
        ]
        if phase.concurrency:
            starts = tuple(float(s - start_s) for s in np.sort(phase.seen.sent_s)[: phase.concurrency])
            engines.run_closed(iter(asked), Streams(len(starts), starts_s=starts, turn_s=_TURN_S))
        else:
            engines.run_open(iter(sorted(asked, key=lambda s: s.at_s)))
        found.append(measures(tally.table()))
    return {name: float(np.mean([f[name] for f in found])) for name in found[0]}


def _budget(phase: Phase) -> int:
    """Most tokens of a step, as the log shows it: the next power of two, vLLM's default at least."""
    most = float((phase.steps.prompt_tokens + phase.steps.decoding).max()) if len(phase.steps) else 0.0
    return max(8192, 1 << int(np.ceil(np.log2(max(2.0, most)))))


def table_rows(outcome: Replay) -> tuple[list[str], list[list[str]]]:
    """Head and rows for a terminal: one row a phase and figure."""
    rows: list[list[str]] = []
    for phase in outcome.phases:
        rows.append([phase.phase, "step time (median error)", "", "", f"{phase.step_error:.1%}", ""])
        for f in phase.figures:
            unit = "tok/s" if f.figure.endswith("per_s") else "ms"
            band = f"[{f.low:,.1f}, {f.high:,.1f}]" if f.low is not None and f.high is not None else ""
            name = f.figure.removesuffix("_ms").replace("_per_s", "")
            rows.append(["", f"{name} {unit}", f"{f.predicted:,.1f}", f"{f.recorded:,.1f}", f"{f.error:+.1%}", band])
    return ["phase", "figure", "predicted", "recorded", "error", "80 % interval"], rows
