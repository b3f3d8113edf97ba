"""What a step costs inside a simulation: tokens, sequences and context in, seconds of device and host out.

`StepCost` holds the coefficients as facts; here they stand ready for use millions of times: a table instead of knots,
launch times drawn from those that were seen.
"""

from __future__ import annotations

import numpy as np

from dynamometer.hardware.stepcost import StepCost, linear_table, pairs, window_pairs
from dynamometer.policies.speculation import Speculation, expected_tokens


class Pricing:
    """A step cost under a speculation rule. `width`: tokens of a sequence in a decode step; `gain`: how many of them
    count."""

    __slots__ = (
        "_chance",
        "_cost",
        "_drag",
        "_eager_s",
        "_graph_s",
        "_host",
        "_table",
        "context_s",
        "gain",
        "launch_n_s",
        "launch_s",
        "prepare_s",
        "sequence_s",
        "width",
        "window_s",
    )

    def __init__(self, cost: StepCost, guess: Speculation, most_tokens: int, chance: np.random.Generator) -> None:
        self._cost, self._host, self._chance = cost, cost.host, chance
        self.width = guess.draft + 1
        self.gain = expected_tokens(guess) if guess.draft else 1.0
        self._drag = drag = 1.0 + guess.draft * guess.draft_cost
        self._table = linear_table(cost, most_tokens + 2)
        self.sequence_s, self.context_s, self.window_s = (
            cost.sequence_s * drag,
            cost.context_s * drag,
            cost.window_s * drag,
        )
        self.launch_s, self.launch_n_s = cost.host.decode_s, cost.host.decode_per_sequence_s
        self.prepare_s = cost.host.prepare_s
        self._graph_s: list[float] = []
        self._eager_s: list[float] = []

    def line_s(self, tokens: int) -> float:
        """The token-proportional part; beyond the table it goes on with the last slope."""
        table = self._table
        if tokens < len(table):
            return table[tokens]
        return table[-1] + (tokens - len(table) + 1) * (table[-1] - table[-2])

    def decode_s(self, n: int, context: float, windowed: float) -> float:
        """Device time of a decode step."""
        line_s = self.line_s(n * self.width) * self._drag
        return line_s + self.sequence_s * n + self.context_s * context + self.window_s * windowed

    def prompts_s(self, chunks: list[tuple[int, int]], n: int, context: float, windowed: float) -> tuple[float, int]:
        """(device time, tokens) of a step with (new, past) prompt chunks, without what its finished prompts add."""
        cost = self._cost
        took_s, pair_s, window_pair_s = 0.0, cost.pair_s, cost.window_pair_s
        tokens = n * self.width
        for new, past in chunks:
            tokens += new
            if pair_s:
                took_s += pair_s * pairs(new, past)
            if window_pair_s:
                took_s += window_pair_s * window_pairs(new, past, cost.window)
        if n:
            took_s += cost.context_s * context + cost.window_s * windowed
        return took_s + self.line_s(tokens), tokens

    def launch_prompts_s(self, tokens: int) -> float:
        """The host's time to launch a step with prompt tokens."""
        host = self._host
        if tokens <= host.graph_tokens:
            if not self._graph_s:
                self._graph_s = self._draw(host.graph_s)
            return self._graph_s.pop()
        if not self._eager_s:
            self._eager_s = self._draw(host.eager_s)
        return self._eager_s.pop()

    def _draw(self, seen_s: tuple[float, ...]) -> list[float]:
        drawn: list[float] = self._chance.choice(np.asarray(seen_s, dtype=np.float64), size=512).tolist()
        return drawn
