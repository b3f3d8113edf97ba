"""Step times from an engine's own log: steps in, a `StepCost` with intervals on its parameters out. Pure.

The host launches a step while the device still runs the one before, so a log shows neither time directly. Three kinds
of steps show one of them: decode steps in a row (their spacing is device time), steps with prompt tokens that follow
decode steps (the wait for their launch is host time), and long prompts (device time, once the launch is over). Each
is fitted where it shows.
"""

from __future__ import annotations

from itertools import pairwise

import msgspec
import numpy as np

from dynamometer.errors import MissingExtra, Refused
from dynamometer.hardware.stepcost import Host, StepCost
from dynamometer.models.steplog import (
    Flags,
    Phase,
    Steps,
    before,
    depth,
    join,
    mixed,
    overlapped,
    prompt_pairs,
    settled,
)
from dynamometer.types import Estimate, Fit, Float64

KNOTS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_LEAST_ROWS = 30
_SHY = 3e-4  # of the fit's weight


class Calibration(msgspec.Struct, frozen=True):
    """A step cost and how well it is known. `fit.held_out` is the median relative error on phases left out, one at a
    time."""

    cost: StepCost
    fit: Fit


def calibrate(phases: list[Phase], resamples: int = 40, seed: int = 0) -> Calibration:
    """Fits the cost of a step on the steps of some phases.

    Intervals come from refitting on phases drawn with replacement. Refuses a log that is too short to show its parts.
    """
    cost = fit_cost([p.steps for p in phases])
    whole = join([p.steps for p in phases])
    misfit = float(np.median(errors(cost, whole)))
    held = left_out(phases) if len(phases) > 1 else None
    named = _named(cost)
    draws: dict[str, list[float]] = {name: [] for name in named}
    chance = np.random.default_rng([seed, 0x57E9])
    for _ in range(resamples if len(phases) > 2 else 0):
        chosen = [phases[i].steps for i in chance.integers(0, len(phases), len(phases))]
        try:
            drawn = _named(fit_cost(chosen))
        except Refused:
            continue
        for name, value in drawn.items():
            draws[name].append(value)
    parameters = {name: _estimate(value, draws[name], len(whole), name) for name, value in named.items()}
    cost = msgspec.structs.replace(cost, spread=held if held is not None else misfit)
    top = float(np.max(whole.prompt_tokens + whole.decoding))
    return Calibration(cost, Fit("step time", parameters, (1.0, top), misfit, held))


def left_out(phases: list[Phase]) -> float:
    """Median relative step error on each phase, predicted from all others; the median over phases."""
    found: list[float] = []
    for i, phase in enumerate(phases):
        try:
            cost = fit_cost([p.steps for j, p in enumerate(phases) if j != i])
        except Refused:
            continue
        found.append(float(np.median(errors(cost, phase.steps))))
    return float(np.median(found)) if found else float("nan")


def _estimate(value: float, draws: list[float], n: int, name: str) -> Estimate:
    unit = "s"
    if len(draws) < 10:
        return Estimate(value, None, None, n, unit, method="too few phases to resample")
    low, high = np.quantile(draws, [0.025, 0.975])
    return Estimate(value, float(min(low, value)), float(max(high, value)), n, unit, method="bootstrap over phases")


def _named(cost: StepCost) -> dict[str, float]:
    """The parameters with names and units in seconds."""
    host = cost.host
    return {
        **{f"step of {tokens} tokens": time for tokens, time in zip(cost.tokens, cost.linear_s, strict=True)},
        "per sequence": cost.sequence_s,
        "per context token": cost.context_s,
        "per prompt pair": cost.pair_s,
        "launch decode": host.decode_s,
        "launch prompts, small": float(np.median(host.graph_s)),
        "launch prompts, large": float(np.median(host.eager_s)),
        "prepare": host.prepare_s,
    }


def fit_cost(parts: list[Steps]) -> StepCost:
    """The fit itself, without intervals."""
    steps = join(parts)
    good = settled(steps)
    if int(good.sum()) < _LEAST_ROWS:
        raise Refused(
            f"only {int(good.sum())} decode steps in a row; a step time needs {_LEAST_ROWS}. Record a longer run"
        )
    ahead = depth(steps)
    host = _fit_host(steps, good, ahead)
    spacing = before_diff(steps) if ahead == 2 else steps.done_s - steps.scheduled_s
    long = mixed(steps) & (spacing > 3 * np.quantile(host.eager_s, 0.9)) & overlapped(steps)
    cost = _solve(steps, good | long, spacing, long)
    for _ in range(4 if ahead == 2 else 1):
        took, shown = device_times(steps, _with(cost, host, ahead, steps))
        host = msgspec.structs.replace(host, prepare_s=_fit_prepare(steps, cost, host, ahead))
        cost = _solve(steps, good | shown, np.where(good, spacing, took), shown)
    return _with(cost, host, ahead, steps)


def _with(cost: StepCost, host: Host, ahead: int, steps: Steps) -> StepCost:
    return msgspec.structs.replace(
        cost,
        host=host,
        depth=ahead,
        largest_tokens=int(np.max(steps.prompt_tokens + steps.decoding)),
        largest_context=int(np.max(steps.context)),
        source="fitted to an engine's step log",
    )


def before_diff(steps: Steps) -> Float64:
    """Time from the end of the previous step to the end of this one."""
    gap: Float64 = steps.done_s - before(steps.done_s)
    return np.where(steps.fresh, np.nan, gap)


def _design(steps: Steps, knots: tuple[int, ...]) -> Float64:
    """Columns: the first knot's level, a ramp per further knot, sequences that get a token, context, prompt pairs."""
    tokens = np.maximum(steps.prompt_tokens + steps.decoding, 1)
    columns = [np.ones(len(steps))]
    for low, high in pairwise(knots):
        columns.append(np.clip((tokens - low) / (high - low), 0, None if high == knots[-1] else 1))
    columns += [steps.decoding + steps.prompts, steps.context, prompt_pairs(steps)]
    return np.stack(columns, axis=1)


def _solve(steps: Steps, use: Flags, took: Float64, long: Flags | None) -> StepCost:
    """Non-negative weighted least absolute relative error, by reweighting; every coefficient is a time and can't be
    negative."""
    try:
        from scipy.optimize import nnls
    except ModuleNotFoundError as missing:
        raise MissingExtra("scipy", "fit") from missing
    use = use & np.isfinite(took) & (took > 0)
    tokens = (steps.prompt_tokens + steps.decoding)[use]
    knots = _knots(tokens)
    design, target = _design(steps, knots)[use], took[use]
    weight = 1 / target
    if long is not None and long[use].any():  # as much say for prompts as for the many decode steps
        weight = weight * np.where(long[use], np.sqrt(max(1.0, 0.3 * np.sum(~long[use]) / np.sum(long[use]))), 1.0)
    size = np.linalg.norm(design * weight[:, None], axis=0)
    size[size == 0] = 1.0
    robust = weight
    solution = np.zeros(design.shape[1])
    # what the rows can't tell apart is time that every step takes: reading the weights, not a cost of each sequence
    shy = _SHY * float(np.linalg.norm(target * weight)) * np.eye(design.shape[1])[1:]
    for _ in range(12):
        rows = np.concatenate([(design / size) * robust[:, None], shy])
        solution = nnls(rows, np.concatenate([target * robust, np.zeros(len(shy))]), maxiter=1000)[0] / size
        miss = np.abs(target - design @ solution) / target
        robust = weight / np.sqrt(np.maximum(miss, 3e-3))
    level = np.cumsum(solution[: len(knots)])
    return StepCost(
        knots,
        tuple(float(v) for v in level),
        sequence_s=float(solution[-3]),
        context_s=float(solution[-2]),
        pair_s=float(solution[-1]),
    )


def _knots(tokens: Float64) -> tuple[int, ...]:
    """Knots up to the largest step, and only where steps lie on both sides."""
    top = float(tokens.max())
    kept = [1]
    for low, high in pairwise(KNOTS):
        inside = np.sum((tokens > low) & (tokens <= high))
        if inside >= 5:
            kept.append(high)
    return tuple(k for i, k in enumerate(kept) if i == 0 or kept[i - 1] < top)


def _fit_host(steps: Steps, good: Flags, ahead: int) -> Host:
    """Launch times. With depth 1 the host's share is the gap between a step's end and the next one's start."""
    if ahead == 1:
        gap = (steps.scheduled_s - before(steps.done_s))[good]
        return Host(decode_s=max(0.0, float(np.median(gap))) if len(gap) else 0.0)
    waited = before(steps.done_s) - steps.scheduled_s
    prompt = mixed(steps) & overlapped(steps)
    quiet = ~mixed(steps)
    after_quiet = prompt.copy()
    for by in (1, 2):
        after_quiet[by:] &= quiet[:-by]
        after_quiet[:by] = False
    period = np.nanmedian(before_diff(steps)[good])
    after_quiet &= waited > 1.1 * period
    after_prompt = quiet & overlapped(steps)
    after_prompt[1:] &= after_quiet[:-1]
    tokens = (steps.prompt_tokens + steps.decoding)[after_quiet]
    launch = waited[after_quiet]
    edge = _edge(tokens, launch)
    small, large = launch[tokens <= edge], launch[tokens > edge]
    floor = (waited[after_prompt], steps.decoding[after_prompt])
    base, slope = _launch_decode(*floor)
    # decode steps in a row come no faster than they are launched, so their spacing bounds what a long prompt may have
    # hidden
    room = np.quantile(before_diff(steps)[good] / np.maximum(1e-9, base + slope * steps.decoding[good]), 0.02)
    base, slope = base * min(1.0, 0.9 * float(room)), slope * min(1.0, 0.9 * float(room))
    return Host(
        decode_s=base,
        decode_per_sequence_s=slope,
        graph_s=_quantiles(small if len(small) else large),
        eager_s=_quantiles(large if len(large) else small),
        graph_tokens=int(edge),
    )


def _launch_decode(waited: Float64, n: Float64) -> tuple[float, float]:
    """The host's floor of a decode step, at 0 sequences and per sequence: the lower quartile, since a long prompt
    hides it."""
    if len(waited) < 8:
        return 0.0, 0.0
    cut = np.quantile(n, 0.5)
    few, many = waited[n <= cut], waited[n > cut]
    low = float(np.quantile(few, 0.25))
    if len(many) < 8:
        return low, 0.0
    n_few, n_many = float(np.median(n[n <= cut])), float(np.median(n[n > cut]))
    slope = max(0.0, (float(np.quantile(many, 0.25)) - low) / max(1.0, n_many - n_few))
    return max(0.0, low - slope * n_few), slope


def _edge(tokens: Float64, launch: Float64) -> float:
    """The step size at which launching turns slow: the largest captured graph. 0 if there is no such edge."""
    best, found = np.inf, 0.0
    for edge in (64, 128, 256, 512, 1024, 2048):
        low, high = launch[tokens <= edge], launch[tokens > edge]
        if len(low) < 5 or len(high) < 5 or np.median(high) < 1.2 * np.median(low):
            continue
        loss = float(np.abs(low - np.median(low)).sum() + np.abs(high - np.median(high)).sum())
        if loss < best:
            best, found = loss, float(edge)
    return found


def _quantiles(values: Float64) -> tuple[float, ...]:
    """Forty equally likely values; few observations stand for themselves."""
    if len(values) == 0:
        return (0.0,)
    if len(values) <= 40:
        return tuple(float(v) for v in np.sort(values))
    return tuple(float(v) for v in np.quantile(values, (np.arange(40) + 0.5) / 40))


def device_times(steps: Steps, cost: StepCost) -> tuple[Float64, Flags]:
    """(device time of each step with prompt tokens as the log shows it, where it does show it).

    A row is chosen by what the model expects of it, never by the time it took: choosing by outcome would bias the fit.
    """
    prompt, host = mixed(steps), cost.host
    done, began = steps.done_s, steps.scheduled_s
    if cost.depth == 1:
        return done - began, prompt & ~steps.fresh
    earlier, later_began = before(done), before(began, -1)
    overlap, was_prompt = overlapped(steps), np.nan_to_num(before(prompt.astype(np.float64)), nan=1.0) > 0
    own, launch = predict_device(cost, steps), _late_launch(steps, host)
    patient = earlier - began > 1.5 * launch  # the previous step outlasted this one's launch: its end is the device's
    calm = ~was_prompt & (np.nan_to_num(before(was_prompt.astype(np.float64)), nan=1.0) == 0)
    free = np.where(calm & ~patient, before(done, 2) + before(own), earlier)
    ready = began + host.prepare_s
    start = np.where(overlap, np.fmax(free, ready), ready)
    next_overlaps = np.append(overlap[1:], False)
    ends = np.where(next_overlaps, later_began + before(launch, -1), -np.inf)
    known = ~overlap | calm | patient
    longer = start + own > np.maximum(ends, np.where(overlap, began, began + launch))
    return done - start, prompt & ~steps.fresh & known & longer & np.isfinite(start)


def _late_launch(steps: Steps, host: Host) -> Float64:
    """A launch time that few launches of the same kind exceed."""
    tokens = steps.prompt_tokens + steps.decoding
    prompts = np.where(tokens <= host.graph_tokens, np.quantile(host.graph_s, 0.9), np.quantile(host.eager_s, 0.9))
    late: Float64 = np.where(mixed(steps), prompts, 1.2 * (host.decode_s + host.decode_per_sequence_s * steps.decoding))
    return late


def _fit_prepare(steps: Steps, cost: StepCost, host: Host, ahead: int) -> float:
    """Time from scheduling to the first kernel, from steps that found the device idle and outlasted their launch."""
    if ahead == 1:
        return 0.0
    idle = mixed(steps) & ~overlapped(steps) & ~steps.fresh
    took = (steps.done_s - steps.scheduled_s)[idle]
    own = predict_device(cost, steps)[idle]
    tokens = (steps.prompt_tokens + steps.decoding)[idle]
    clear = (own > np.median(host.graph_s)) & (tokens <= host.graph_tokens if host.graph_tokens else own > 0)
    if int(clear.sum()) < 5:
        return host.prepare_s
    return float(np.clip(np.median((took - own)[clear]), 0.0, np.median(host.graph_s)))


def predict_device(cost: StepCost, steps: Steps) -> Float64:
    """Device seconds of each step."""
    tokens = np.maximum(steps.prompt_tokens + steps.decoding, 1)
    line = np.interp(tokens, cost.tokens, cost.linear_s)
    if len(cost.tokens) > 1:
        slope = (cost.linear_s[-1] - cost.linear_s[-2]) / (cost.tokens[-1] - cost.tokens[-2])
        line = line + slope * np.maximum(0, tokens - cost.tokens[-1])
    sampled = steps.decoding + steps.prompts
    device: Float64 = (
        line + cost.sequence_s * sampled + cost.context_s * steps.context + cost.pair_s * prompt_pairs(steps)
    )
    return device


def predict_done(cost: StepCost, steps: Steps) -> Float64:
    """When each step ends, from when it and its successor were scheduled and when its predecessors ended (one step
    ahead)."""
    device = predict_device(cost, steps)
    host, began = cost.host, steps.scheduled_s
    if cost.depth == 1:
        return began + device
    tokens = steps.prompt_tokens + steps.decoding
    prompts = np.where(tokens <= host.graph_tokens, np.median(host.graph_s), np.median(host.eager_s))
    launch = np.where(mixed(steps), prompts, host.decode_s + host.decode_per_sequence_s * steps.decoding)
    overlap = overlapped(steps)
    launched = began + launch
    next_launched = np.where(np.append(overlap[1:], False), before(launched, -1), -np.inf)
    done = steps.done_s
    held_up = np.append(mixed(steps)[1:], False)
    end = np.empty(len(steps))
    free = -np.inf
    for i in range(len(steps)):
        start = max(free if overlap[i] else -np.inf, began[i] + host.prepare_s)
        end[i] = max(start + device[i], launched[i])
        # the log's end is the device's, unless the host was busy launching prompts: then only the model knows
        free = min(end[i], done[i]) if held_up[i] else done[i]
    ends: Float64 = np.maximum(end, next_launched)
    return ends


def errors(cost: StepCost, steps: Steps) -> Float64:
    """Relative error of the time that each step took, from its predecessor's end (or its own start, if later) to its
    own."""
    since = np.fmax(np.where(steps.fresh, -np.inf, before(steps.done_s)), steps.scheduled_s)
    took = steps.done_s - since
    guess = predict_done(cost, steps) - since
    fine = np.isfinite(took) & (took > 0)
    relative: Float64 = np.abs(guess - took)[fine] / took[fine]
    return relative
