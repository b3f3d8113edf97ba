"""Summaries of repeated runs in, each figure's mean over the runs with the interval that their spread gives, out.

The runs are the sample: the interval holds what one run cannot show, such as a machine that is slower today. A
percentile of several runs is the mean of the runs' percentiles with its spread, and is named so; it is not the pooled
percentile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from dynamometer.metrics import intervals
from dynamometer.metrics.summary import Summary
from dynamometer.types import Estimate

LATENCIES = ("ttft_ms", "ttft_due_ms", "tpot_ms", "itl_ms", "e2e_ms")
RATES = ("output_tokens_per_s", "requests_per_s", "goodput", "attainment", "error_rate")


class Repeats(msgspec.Struct, frozen=True):
    """`metrics`: metric -> statistic -> Estimate with n = runs. Rates have the statistic "mean" alone."""

    runs: int
    ids: tuple[str, ...]
    metrics: Mapping[str, Mapping[str, Estimate]]
    method: str = "Student's t over the runs' own figures"


def across(summaries: Sequence[Summary]) -> Repeats:
    """What the runs say together. A statistic that any run could not carry is left out."""
    metrics: dict[str, Mapping[str, Estimate]] = {}
    for name in LATENCIES:
        found = [getattr(summary.metrics, name).estimates for summary in summaries]
        cells = {s: _together([one[s] for one in found]) for s in found[0] if all(s in one for one in found)}
        metrics[name] = {statistic: cell for statistic, cell in cells.items() if cell is not None}
    for name in RATES:
        rates = [summary.metrics.estimates[name] for summary in summaries if name in summary.metrics.estimates]
        cell = _together(rates) if len(rates) == len(summaries) else None
        if cell is not None:
            metrics[name] = {"mean": cell}
    ids = tuple(summary.run for summary in summaries)
    return Repeats(len(summaries), ids, {name: found for name, found in metrics.items() if found})


def _together(figures: Sequence[Estimate]) -> Estimate | None:
    """Mean ± t·s/√k over k runs; None if a run has no figure."""
    values = np.array([figure.value for figure in figures if figure.value is not None], dtype=np.float64)
    if len(values) < len(figures) or not len(values):
        return None
    mean, k = float(values.mean()), len(values)
    half = intervals.student(k - 1) * float(values.std(ddof=1)) / k**0.5 if k > 1 else None
    return Estimate(
        mean,
        None if half is None else max(mean - half, 0.0) if values.min() >= 0 else mean - half,
        None if half is None else mean + half,
        k,
        figures[0].unit,
        method="mean of runs",
    )
