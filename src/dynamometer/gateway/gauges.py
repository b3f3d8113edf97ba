"""Outcomes in, Prometheus text out (exposition format 0.0.4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from dynamometer.gateway.exchange import Outcome
from dynamometer.gateway.state import State
from dynamometer.telemetry.histograms import BOUNDS_S, FINE_S, Histogram


class Gauges:
    """Counts since the start, by side."""

    def __init__(self) -> None:
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self.refused: Counter[str] = Counter()
        self.retries: Counter[str] = Counter()
        self.batches: Counter[int] = Counter()
        self._ttft: dict[str, Histogram] = {}
        self._e2e: dict[str, Histogram] = {}
        self._pace: dict[str, Histogram] = {}

    def count(self, one: Outcome) -> None:
        side = one.side or "none"
        outcome = "cancelled" if one.error.startswith("cancel: ") else "error" if one.error else "ok"
        self.outcomes[side, outcome] += 1
        self.retries[side] += max(0, one.attempts - 1)
        if outcome != "ok" or not one.first_ns:
            return
        self._ttft.setdefault(side, Histogram(BOUNDS_S)).add((one.first_ns - one.asked_ns) * 1e-9)
        self._e2e.setdefault(side, Histogram(BOUNDS_S)).add((one.end_ns - one.asked_ns) * 1e-9)
        if one.reads > 2:
            self._pace.setdefault(side, Histogram(FINE_S)).add((one.end_ns - one.first_ns) * 1e-9 / (one.reads - 1))

    def text(self, state: State, now: Mapping[str, float]) -> str:
        """`now`: gauges by name."""
        lines = ["# TYPE dyno_gateway_requests_total counter"]
        lines += [
            f'dyno_gateway_requests_total{{side="{s}",outcome="{o}"}} {n}'
            for (s, o), n in sorted(self.outcomes.items())
        ]
        lines += ["# TYPE dyno_gateway_retries_total counter"]
        lines += [f'dyno_gateway_retries_total{{side="{s}"}} {n}' for s, n in sorted(self.retries.items())]
        lines += ["# TYPE dyno_gateway_refused_total counter"]
        lines += [f'dyno_gateway_refused_total{{reason="{r}"}} {n}' for r, n in sorted(self.refused.items())]
        lines += ["# TYPE dyno_gateway_batch_size_total counter"]
        lines += [f'dyno_gateway_batch_size_total{{size="{s}"}} {n}' for s, n in sorted(self.batches.items())]
        for name, by_side in (
            ("dyno_gateway_time_to_first_byte_seconds", self._ttft),
            ("dyno_gateway_time_per_read_seconds", self._pace),
            ("dyno_gateway_request_duration_seconds", self._e2e),
        ):
            lines.append(f"# TYPE {name} histogram")
            lines += [_labelled(line, side) for side, one in sorted(by_side.items()) for line in one.lines(name)]
        for name, value in {**now, "stage": state.stage + 1, "canary_share": state.share}.items():
            lines += [f"# TYPE dyno_gateway_{name} gauge", f"dyno_gateway_{name} {value:g}"]
        lines.append("# TYPE dyno_gateway_circuit_open gauge")
        lines += [
            f'dyno_gateway_circuit_open{{replica="{r}",state="{to}"}} 1' for r, to in sorted(state.breakers.items())
        ]
        return "\n".join([*lines, ""])


def _labelled(line: str, side: str) -> str:
    """Puts the side among a histogram line's labels."""
    name, _, value = line.rpartition(" ")
    if name.endswith("}"):
        return f'{name[:-1]},side="{side}"}} {value}'
    return f'{name}{{side="{side}"}} {value}'
