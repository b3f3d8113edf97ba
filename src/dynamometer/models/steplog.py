"""An engine's own step log and what its clients saw, as columns in; phases, masks and checked arrays out. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec
import numpy as np
import numpy.typing as npt

from dynamometer.errors import Refused, UsageError
from dynamometer.types import Float64

Flags = npt.NDArray[np.bool_]


class Steps(msgspec.Struct, frozen=True):
    """A row a step, in order. Times in seconds on one clock; token counts as floats. `fresh`: first row after a gap in
    the log."""

    scheduled_s: Float64
    done_s: Float64
    prompts: Float64  # sequences that computed prompt tokens
    prompt_tokens: Float64
    prompt_past: Float64  # tokens of those prompts computed before
    decoding: Float64  # sequences that decoded
    context: Float64  # tokens they read
    started: Float64  # requests scheduled for the first time
    waiting: Float64
    fresh: Flags

    def __len__(self) -> int:
        return len(self.scheduled_s)


class Seen(msgspec.Struct, frozen=True):
    """A row a request, as its client saw it, in order of sending; same clock."""

    due_s: Float64
    sent_s: Float64
    first_s: Float64
    last_s: Float64
    input_tokens: Float64
    output_tokens: Float64

    def __len__(self) -> int:
        return len(self.due_s)


class Phase(msgspec.Struct, frozen=True):
    """One load on the engine. `concurrency` > 0: a closed loop."""

    name: str
    steps: Steps
    seen: Seen
    concurrency: int = 0


def phases(log: Mapping[str, Float64], requests: Mapping[str, Mapping[str, Float64]]) -> list[Phase]:
    """A step log and its requests, by phase and in order of time. `closed_cN` is a closed loop of N."""
    fresh = np.concatenate([[True], np.diff(log["i"]) != 1])
    steps = Steps(
        scheduled_s=log["t_sched"],
        done_s=log["t_done"],
        prompts=log["n_ctx"],
        prompt_tokens=log["tok_ctx"],
        prompt_past=log["past_ctx"],
        decoding=log["n_gen"],
        context=log["past_gen"],
        started=log["n_new"],
        waiting=log["n_wait"],
        fresh=fresh,
    )
    found: list[Phase] = []
    for name, seen in requests.items():
        inside = (steps.scheduled_s >= seen["t_send"][0]) & (steps.scheduled_s <= float(seen["t_last"].max()))
        closed = re.search(r"closed_c(\d+)", name)
        columns = (seen[c] for c in ("t_sched", "t_send", "t_first", "t_last", "n_in", "n_out"))
        found.append(Phase(name, rows(steps, inside), Seen(*columns), int(closed[1]) if closed else 0))
    return sorted(found, key=lambda phase: float(phase.seen.due_s[0]))


def chosen(found: list[Phase], names: list[str]) -> list[Phase]:
    """The phases of those names, all if none is named."""
    known = [phase.name for phase in found]
    for name in names:
        if name not in known:
            raise UsageError(f"there is no phase {name!r}; the log has {', '.join(known) or 'none'}")
    return [phase for phase in found if not names or phase.name in names]


def rows(steps: Steps, keep: Flags) -> Steps:
    """The rows of a mask; a kept row whose predecessor is not kept is marked as fresh."""
    fresh = steps.fresh | ~np.concatenate([[False], keep[:-1]])
    return Steps(
        **{name: (fresh if name == "fresh" else getattr(steps, name))[keep] for name in Steps.__struct_fields__}
    )


def join(parts: list[Steps]) -> Steps:
    """Logs one after another; each begins afresh."""
    if not parts:
        raise Refused("there are no steps to fit; give at least one phase with a step log")
    marked = [msgspec.structs.replace(p, fresh=p.fresh | (np.arange(len(p)) == 0)) for p in parts]
    return Steps(**{name: np.concatenate([getattr(p, name) for p in marked]) for name in Steps.__struct_fields__})


def before(values: Float64, by: int = 1) -> Float64:
    """Each row's value `by` rows earlier (NaN where there is none); negative: later."""
    out = np.full(len(values), np.nan)
    if by > 0:
        out[by:] = values[:-by]
    else:
        out[:by] = values[-by:]
    return out


def mixed(steps: Steps) -> Flags:
    """Steps that computed prompt tokens."""
    flags: Flags = steps.prompt_tokens > 0
    return flags


def overlapped(steps: Steps) -> Flags:
    """Steps that were scheduled before their predecessor was done."""
    flags: Flags = (steps.scheduled_s < before(steps.done_s)) & ~steps.fresh
    return flags


def depth(steps: Steps) -> int:
    """2 if the engine schedules ahead (most steps overlap), else 1."""
    return 2 if len(steps) > 1 and float(np.mean(overlapped(steps))) > 0.4 else 1


def settled(steps: Steps) -> Flags:
    """Decode steps whose two predecessors and successor only decode: their spacing is the device's time of a step."""
    only = ~mixed(steps)
    flags = only.copy()
    for by in (1, 2):
        flags[by:] &= only[:-by] & ~steps.fresh[by:]
        flags[:by] = False
    if len(flags):
        flags[2:] &= ~steps.fresh[1:-1]
        flags[:-1] &= only[1:]
        flags[-1] = False
    gap = steps.scheduled_s - before(steps.done_s)
    return flags & (gap < 2e-3)


def prompt_pairs(steps: Steps) -> Float64:
    """(new, earlier) token pairs of the prompts in each step, taken as equally long."""
    count = np.maximum(steps.prompts, 1)
    pairs: Float64 = steps.prompt_tokens * (steps.prompt_past / count + (steps.prompt_tokens / count + 1) / 2)
    return pairs
