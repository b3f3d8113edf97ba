"""The cost of one engine step: what is in the batch in, seconds on the device and on the host out.

A step carries `prefill` new prompt tokens and `n` decoding sequences. Its device time is
`linear(prefill + n) + sequence_s · sampled + pair_s · pairs + context_s · context + window_s · windowed context`:
every matrix product, collective and touched expert depends on the number of tokens alone, attention on what is read.
Its host time is a floor below the device time, because an engine must launch a step before it can end. Source of the
form: docs/simulator.md.
"""

from __future__ import annotations

import math
from functools import lru_cache

import msgspec

from dynamometer.errors import UsageError


class Host(msgspec.Struct, frozen=True):
    """Seconds that the engine's own process spends on a step, and on a request before and after the step."""

    decode_s: float = 0.0  # launch a step that only decodes
    decode_per_sequence_s: float = 0.0
    graph_s: tuple[float, ...] = (
        0.0,
    )  # launch a step with prompt tokens that fits a captured graph: equally likely times
    eager_s: tuple[float, ...] = (0.0,)  # launch a larger step, kernel by kernel
    graph_tokens: int = 0  # the largest captured step
    prepare_s: float = 0.0  # from scheduling to the first kernel
    accept_s: float = 0.0  # the front end's serial time for one request
    arrive_s: float = 0.0  # latency from the wire to the scheduler besides the queue for the front end
    reply_s: float = 0.0  # latency from the end of a step to the client's socket
    reply_first_s: float = 0.0  # more of it for the first token, which carries the headers
    reply_per_sequence_s: float = 0.0  # and for each sequence of the step, whose tokens leave one after another


class StepCost(msgspec.Struct, frozen=True):
    """Coefficients of a step's time. `tokens` and `linear_s` are knots of a piecewise linear curve; beyond the last
    knot it goes on with the last slope. `depth` 2: the next step is scheduled while the last one runs, as vLLM does
    by default."""

    tokens: tuple[int, ...]
    linear_s: tuple[float, ...]
    context_s: float = 0.0  # seconds per context token that a decoding sequence reads
    window_s: float = 0.0  # the same for layers that see only `window` tokens
    window: int = 0
    sequence_s: float = 0.0  # seconds per sequence that gets a token in this step: output layer, sampling
    pair_s: float = 0.0  # seconds per (new prompt token, earlier token) pair
    window_pair_s: float = 0.0
    host: Host = Host()
    depth: int = 1
    spread: float = 0.0  # relative error of a step on data that the fit had not seen, one standard deviation
    largest_tokens: int = 0  # largest step in the data; 0 = not fitted
    largest_context: int = 0
    source: str = ""

    def __post_init__(self) -> None:
        if not self.tokens or len(self.tokens) != len(self.linear_s):
            raise UsageError("a step cost needs as many times as token counts, at least one")
        if any(b <= a for a, b in zip(self.tokens, self.tokens[1:], strict=False)):
            raise UsageError("the token counts of a step cost must ascend")
        if self.depth not in (1, 2):
            raise UsageError(f"a step cost's depth is {self.depth}; give 1 (wait for each step) or 2 (schedule ahead)")


def linear(cost: StepCost, tokens: float) -> float:
    """Seconds of the token-proportional part of a step with so many tokens; 0 for none."""
    if tokens <= 0:
        return 0.0
    knots, times = cost.tokens, cost.linear_s
    if len(knots) == 1 or tokens <= knots[0]:
        return times[0]
    i = next((i for i in range(1, len(knots)) if tokens <= knots[i]), len(knots) - 1)
    slope = (times[i] - times[i - 1]) / (knots[i] - knots[i - 1])
    return times[i] + slope * (tokens - knots[i])


@lru_cache(maxsize=16)
def linear_table(cost: StepCost, size: int) -> tuple[float, ...]:
    """`linear` for 0 … size−1 tokens, for look-ups in a loop; engines of one kind share it."""
    import numpy as np

    count = np.arange(size, dtype=np.float64)
    table = np.interp(count, cost.tokens, cost.linear_s)
    if len(cost.tokens) > 1:
        slope = (cost.linear_s[-1] - cost.linear_s[-2]) / (cost.tokens[-1] - cost.tokens[-2])
        table += slope * np.maximum(0.0, count - cost.tokens[-1])
    table[0] = 0.0
    return tuple(table.tolist())


def pairs(new: int, past: int) -> float:
    """(query, key) pairs of a causal chunk of `new` tokens after `past` earlier ones."""
    return new * (past + (new + 1) / 2)


def window_pairs(new: int, past: int, window: int) -> float:
    """The same where a token sees at most `window` tokens, itself included."""
    if window <= 0 or past + new <= window:
        return pairs(new, past)
    full = max(0, past + new - max(past, window))  # tokens that see a whole window
    return pairs(new - full, past) + float(full) * window


def scaled(cost: StepCost, device: float, host: float = 1.0) -> StepCost:
    """All device times × `device` and all host times × `host`."""
    if not (math.isfinite(device) and device > 0 and host >= 0):
        raise UsageError(f"a step cost can't be scaled by {device}; give a factor above 0")
    h = cost.host
    slower = msgspec.structs.replace(
        h,
        decode_s=h.decode_s * host,
        decode_per_sequence_s=h.decode_per_sequence_s * host,
        graph_s=tuple(t * host for t in h.graph_s),
        eager_s=tuple(t * host for t in h.eager_s),
        prepare_s=h.prepare_s * host,
    )
    return msgspec.structs.replace(
        cost,
        linear_s=tuple(t * device for t in cost.linear_s),
        context_s=cost.context_s * device,
        window_s=cost.window_s * device,
        sequence_s=cost.sequence_s * device,
        pair_s=cost.pair_s * device,
        window_pair_s=cost.window_pair_s * device,
        host=slower,
    )
