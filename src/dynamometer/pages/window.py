"""The readings of an engine's page before and after a window in, the engine's own figures for that window out.

These are the server's view: its TTFT starts when it received the request and ends when it made the token, so it is
shorter than the client's by network and client time. They are shown beside the client's figures, never mixed with
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf

from dynamometer.pages.exposition import histogram_quantile
from dynamometer.pages.names import Reading, metrics
from dynamometer.types import Estimate

State = Mapping[tuple[str, str], float]  # (name, device) -> value


def state(readings: Iterable[Reading]) -> State:
    return {(one.name, one.device): one.value for one in readings}


def figures(before: State, after: State) -> dict[str, Estimate]:
    """Means and quantiles of the server's histograms, the prefix cache's hit rate and the cache's use at the end.

    A figure whose counters are not on the page is absent; one whose window holds nothing has no value and the reason.
    """
    found: dict[str, Estimate] = {}
    for metric in metrics():
        if metric.kind == "histogram" and (f"{metric.name}_count", "") in after:
            found[f"{metric.name}_mean"] = mean(before, after, metric.name)
            for label, q in (("p50", 0.5), ("p99", 0.99)):
                found[f"{metric.name}_{label}"] = histogram_quantile(_rise_of_buckets(before, after, metric.name), q)
    if ("prefix_cache_queries_total", "") in after and ("prefix_cache_hits_total", "") in after:
        found["prefix_hit_ratio"] = ratio(before, after, "prefix_cache_hits_total", "prefix_cache_queries_total")
    if ("kv_cache_usage_ratio", "") in after:
        found["kv_cache_usage_ratio"] = Estimate(
            after["kv_cache_usage_ratio", ""], None, None, 1, "", method="gauge at the end of the window"
        )
    return found


def mean(before: State, after: State, name: str) -> Estimate:
    """Rise of the sum over rise of the count, in the histogram's unit."""
    return ratio(before, after, f"{name}_sum", f"{name}_count", unit="s")


def ratio(before: State, after: State, over: str, under: str, unit: str = "") -> Estimate:
    """Rise of one counter over the rise of another; no value after a restart or when nothing was counted."""
    top, bottom = rise(before, after, over), rise(before, after, under)
    if top is None or bottom is None:
        return Estimate(None, None, None, 0, unit, method="the counters fell: the engine was restarted in the window")
    if bottom == 0:
        return Estimate(None, None, None, 0, unit, method="no data: nothing was counted in the window")
    return Estimate(
        top / bottom, None, None, round(bottom), unit, method="rise of two counters; all of it, no interval"
    )


def rise(before: State, after: State, name: str, device: str = "") -> float | None:
    """How much a counter grew; one that was not there before began at 0. None: it fell, so it was reset in between."""
    grown = after.get((name, device), 0.0) - before.get((name, device), 0.0)
    return grown if grown >= 0 else None


def _rise_of_buckets(before: State, after: State, name: str) -> dict[float, float]:
    devices = [device for bucket, device in after if bucket == f"{name}_bucket"]
    found: dict[float, float] = {}
    for device in devices:
        grown = rise(before, after, f"{name}_bucket", device)
        if grown is None:
            return {}
        bound = device.removeprefix("le=")
        found[inf if bound == "inf" else float(bound)] = grown
    return found
