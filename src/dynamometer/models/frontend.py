"""What an engine's front end adds before and after a step: phases of requests and steps in, seconds out. Pure.

The front end's event loop is shared by all requests that it parses and tokenizes, and it sends a step's tokens one
answer after another, so both its delays grow with the load. Fitted to the counts that the scheduler saw and to the
first and last tokens that the clients saw.
"""

from __future__ import annotations

from collections import deque

import msgspec
import numpy as np

from dynamometer.hardware.stepcost import Host
from dynamometer.models.steplog import Phase
from dynamometer.types import Float64

_STEP_S = 2e-4


def fit_front(phases: list[Phase], host: Host) -> Host:
    """The host's times with the front end's `accept`, `arrive` and `reply` filled in from the phases."""
    accept_s, arrive_s = _fit_arrival(phases)
    first, last, running = _replies(phases)
    slope, base = _line(running, last)
    first_extra = float(np.median(first - last)) if len(first) else 0.0
    return msgspec.structs.replace(
        host,
        accept_s=accept_s,
        arrive_s=arrive_s,
        reply_s=base,
        reply_first_s=max(0.0, first_extra),
        reply_per_sequence_s=slope,
    )


def ready_s(sent_s: Float64, accept_s: float) -> Float64:
    """When each request leaves the front end, whose event loop all requests inside share equally. `sent_s` ascends."""
    ready = np.empty(len(sent_s))
    inside: deque[tuple[float, int]] = deque()
    served, now, i = 0.0, 0.0, 0
    while i < len(sent_s) or inside:
        ends = now + (inside[0][0] - served) * len(inside) if inside else np.inf
        if i < len(sent_s) and sent_s[i] <= ends:
            if inside:
                served += (sent_s[i] - now) / len(inside)
            now = float(sent_s[i])
            inside.append((served + accept_s, i))
            i += 1
        else:
            served, leaver = inside.popleft()
            ready[leaver] = now = ends
    return ready


def _fit_arrival(phases: list[Phase]) -> tuple[float, float]:
    """Grid search: how many requests had come when each step was scheduled, as the log counts and as the model does."""
    grid = np.arange(0, 17) * _STEP_S
    loss = np.zeros((len(grid), len(grid)))
    for phase in phases:
        steps, seen = phase.steps, phase.seen
        near = np.flatnonzero((steps.started > 0) | (steps.waiting > 0))
        if not len(near):
            continue
        near = np.unique(np.clip(np.concatenate([near - 1, near]), 0, None))
        counted = (np.cumsum(steps.started) + steps.waiting)[near]
        for i, accept in enumerate(grid):
            ready = ready_s(seen.sent_s, float(accept))
            for j, arrive in enumerate(grid):
                guess = np.searchsorted(ready, steps.scheduled_s[near] - arrive, side="right")
                loss[i, j] += float(np.abs(guess - counted).sum()) / len(seen)
    best, later = divmod(int(np.argmin(loss)), len(grid))
    return float(grid[best]), float(grid[later])


def _replies(phases: list[Phase]) -> tuple[Float64, Float64, Float64]:
    """By phase: median lag of first and last tokens behind the step that made them, and sequences in the step.

    The step is the last one that ended before the token was seen, so a lag longer than a step can't be told and is cut.
    """
    first: list[float] = []
    last: list[float] = []
    running: list[float] = []
    for phase in phases:
        done, seen = np.sort(phase.steps.done_s), phase.seen
        if len(done) < 2 or not len(seen):
            continue
        i = np.clip(np.searchsorted(done, seen.first_s, side="right") - 1, 0, None)
        j = np.clip(np.searchsorted(done, seen.last_s, side="right") - 1, 0, None)
        first.append(float(np.median(seen.first_s - done[i])))
        last.append(float(np.median(seen.last_s - done[j])))
        running.append(float(np.median(phase.steps.decoding[j])))
    return np.asarray(first), np.asarray(last), np.asarray(running)


def _line(x: Float64, y: Float64) -> tuple[float, float]:
    """(slope, level at 0), both at least 0: the median of the slopes between all pairs (Theil–Sen)."""
    if len(x) == 0:
        return 0.0, 0.0
    slopes = [(y[j] - y[i]) / (x[j] - x[i]) for i in range(len(x)) for j in range(i) if x[j] != x[i]]
    slope = max(0.0, float(np.median(slopes))) if slopes else 0.0
    return slope, max(0.0, float(np.median(y - slope * x)))
