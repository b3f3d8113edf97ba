"""Latencies of requests that ended in, Prometheus text with their histograms out.

Buckets grow by 10^(1/8), a third: `histogram_quantile` is then within a third of the truth everywhere, and a dashboard
over several engines needs no buckets of its own.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import Final

BOUNDS_S: Final = tuple(float(f"{10 ** (at / 8):.3g}") for at in range(-24, 17))  # 1 ms to 100 s
FINE_S: Final = tuple(float(f"{10 ** (at / 8):.3g}") for at in range(-32, 9))  # 0.1 ms to 10 s: a token
NAMES: Final = {
    "ttft": ("dyno_time_to_first_token_seconds", "From sent to the first token.", BOUNDS_S),
    "tpot": ("dyno_time_per_output_token_seconds", "Mean of an answer, the first token apart.", FINE_S),
    "e2e": ("dyno_request_duration_seconds", "From sent to the last token.", BOUNDS_S),
}


class Histogram:
    """Counts of one latency. `counts` has one place more than there are bounds: beyond the last."""

    def __init__(self, bounds_s: tuple[float, ...]) -> None:
        self.bounds_s, self.counts, self.sum_s = bounds_s, [0] * (len(bounds_s) + 1), 0.0

    def add(self, value_s: float) -> None:
        self.counts[bisect_left(self.bounds_s, value_s)] += 1
        self.sum_s += value_s

    def lines(self, name: str) -> list[str]:
        found, upto = [], 0
        for bound, count in zip((*map(str, self.bounds_s), "+Inf"), self.counts, strict=True):
            upto += count
            found.append(f'{name}_bucket{{le="{bound}"}} {upto}')
        return [*found, f"{name}_sum {self.sum_s!r}", f"{name}_count {upto}"]


class Board:
    """All that a run's page shows."""

    def __init__(self) -> None:
        self.latencies = {name: Histogram(bounds) for name, (_, _, bounds) in NAMES.items()}
        self.outcomes: Counter[str] = Counter()
        self.tokens: Counter[str] = Counter()
        self.in_flight = 0

    def text(self) -> str:
        """Exposition format 0.0.4."""
        lines = []
        for key, histogram in self.latencies.items():
            name, what, _ = NAMES[key]
            lines += [f"# HELP {name} {what}", f"# TYPE {name} histogram", *histogram.lines(name)]
        lines += ["# HELP dyno_requests_total Requests that ended.", "# TYPE dyno_requests_total counter"]
        lines += [f'dyno_requests_total{{outcome="{o}"}} {self.outcomes[o]}' for o in ("ok", "error", "cancelled")]
        lines += ["# HELP dyno_tokens_total As the server counts them.", "# TYPE dyno_tokens_total counter"]
        lines += [f'dyno_tokens_total{{kind="{k}"}} {self.tokens[k]}' for k in ("prompt", "output")]
        lines += ["# HELP dyno_requests_in_flight Sent and not ended.", "# TYPE dyno_requests_in_flight gauge"]
        return "\n".join([*lines, f"dyno_requests_in_flight {self.in_flight}", ""])
