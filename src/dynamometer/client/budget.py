"""What one or more client processes counted in, the client's error budget and its doubts out.

Samples of several workers are pooled; quantiles are never averaged.
"""

from __future__ import annotations

import resource
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from dynamometer.types import Doubt

LATE_MS: Final = 5.0  # p99 of sent − due up to which a client is on time whatever it measures
LATE_SHARE: Final = 0.01  # and the share of the mean answer's time that is let through beyond

Samples = npt.NDArray[np.float64]  # sorted, ms

_MS: Final = 1e-6  # of a nanosecond
_QUANTILES: Final = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("max", 1.0))


class Tally(msgspec.Struct, frozen=True):
    """One process's counts over the load; warm-up is not in them. Sample arrays are int64, ns."""

    late_ns: bytes  # sent − due of requests that found a connection open
    lag_ns: bytes  # how late the event loop was to a timer
    wall_ns: int
    cpu_ns: int
    rss_peak_bytes: int
    start_ns: int  # when the first request was due, on the run's clock
    end_ns: int  # when the last answer ended, on the run's clock
    asked: int
    ended: int
    failed: int
    cancelled: int
    answer_ns: int  # sum of the times of complete answers, from sent
    late_connections: int  # requests that had to wait for a connection
    opened: int
    retries: int
    reads: int
    body_bytes: int
    doubts: tuple[Doubt, ...] = ()
    reason: str = ""  # what stopped the run before its end: interrupt | deadline | refused | disk


class ClientReport(msgspec.Struct, frozen=True):
    """What the driver says of itself. `client` goes into `Run.client`."""

    status: str  # complete | interrupted | invalid
    start_ns: int  # load, on the run's clock
    end_ns: int
    asked: int
    ended: int  # complete HTTP answers, good ones and refusals
    failed: int
    cancelled: int
    client: Mapping[str, float]
    doubts: tuple[Doubt, ...]
    workers_because: str = ""  # why there are so many client processes


def report(tallies: Sequence[Tally], open_loop: bool, workers: int = 0) -> ClientReport:
    """The account of a run. `workers`: processes that asked; 0: one a tally."""
    late_ms, lag_ms = _pool(t.late_ns for t in tallies), _pool(t.lag_ns for t in tallies)
    answer_ms = _mean_answer_ms(tallies)
    doubts = _unique(doubt for tally in tallies for doubt in tally.doubts)
    doubts += _lateness(late_ms, lag_ms, answer_ms, open_loop)
    reasons = {tally.reason for tally in tallies}
    # one worker that is refused stops the others; that is no interruption
    stopped = "disk" in reasons or ("interrupt" in reasons and "refused" not in reasons)
    invalid = any(doubt.fatal for doubt in doubts)
    return ClientReport(
        status="interrupted" if stopped else "invalid" if invalid else "complete",
        start_ns=min(t.start_ns for t in tallies),
        end_ns=max(t.end_ns for t in tallies),
        asked=sum(t.asked for t in tallies),
        ended=sum(t.ended for t in tallies),
        failed=sum(t.failed for t in tallies),
        cancelled=sum(t.cancelled for t in tallies),
        client={"workers": float(workers or len(tallies)), **_figures(tallies, late_ms, lag_ms)},
        doubts=doubts,
    )


def _figures(tallies: Sequence[Tally], late_ms: Samples, lag_ms: Samples) -> dict[str, float]:
    wall_s = max(t.wall_ns for t in tallies) * 1e-9
    cpu_s = sum(t.cpu_ns for t in tallies) * 1e-9
    figures = {
        "cpu_s": cpu_s,
        "cpu_cores": cpu_s / wall_s if wall_s else 0.0,
        "busiest_cpu_share": max(t.cpu_ns / t.wall_ns if t.wall_ns else 0.0 for t in tallies),
        "rss_peak_bytes": float(sum(t.rss_peak_bytes for t in tallies)),
        "reads": float(sum(t.reads for t in tallies)),
        "body_bytes": float(sum(t.body_bytes for t in tallies)),
        "connections_opened": float(sum(t.opened for t in tallies)),
        "waited_for_connection": float(sum(t.late_connections for t in tallies)),
        "retries": float(sum(t.retries for t in tallies)),
    }
    # without a sample there is no quantile: the key is left out, a 0 would be a claim
    for name, samples in (("lateness", late_ms), ("loop_lag", lag_ms)):
        figures |= {f"{name}_{key}_ms": quantile(samples, q) for key, q in _QUANTILES if len(samples)}
    return figures


def _lateness(late_ms: Samples, lag_ms: Samples, answer_ms: float, open_loop: bool) -> tuple[Doubt, ...]:
    """Open loop: a late client did not offer the load it names: invalid. Closed loop: it held less in flight."""
    limit_ms = max(LATE_MS, LATE_SHARE * answer_ms)
    remedy = "lower the load, give the client more cores (--workers) or a machine of its own"
    late = quantile(late_ms, 0.99) if len(late_ms) else 0.0
    if late > limit_ms and open_loop:
        message = f"the client was late: p99 of sent - due is {late:.1f} ms, the limit {limit_ms:.1f} ms"
        return (Doubt("late-client", message, remedy, fatal=True),)
    if late > limit_ms:
        message = (
            f"the client took {late:.1f} ms (p99) from an answer's end to the next request, more than {limit_ms:.1f}"
        )
        return (Doubt("late-client", message, remedy),)
    lag = quantile(lag_ms, 0.99) if len(lag_ms) else 0.0
    if lag > limit_ms:
        message = (
            f"the client's event loop was {lag:.1f} ms late (p99), so stamps may be; the limit is {limit_ms:.1f} ms"
        )
        return (Doubt("late-client", message, remedy),)
    return ()


def quantile(sorted_ms: Samples, q: float) -> float:
    """Nearest rank: a value that was seen."""
    return float(sorted_ms[min(len(sorted_ms) - 1, max(0, int(np.ceil(q * len(sorted_ms))) - 1))])


def rss_peak_bytes() -> int:
    """Peak resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _pool(parts: Iterable[bytes]) -> Samples:
    return np.sort(np.concatenate([np.frombuffer(part, dtype=np.int64) for part in parts]) * _MS)


def _mean_answer_ms(tallies: Sequence[Tally]) -> float:
    ended = sum(t.ended for t in tallies)
    return sum(t.answer_ns for t in tallies) * _MS / ended if ended else 0.0


def _unique(doubts: Iterable[Doubt]) -> tuple[Doubt, ...]:
    return tuple(dict.fromkeys(doubts))
