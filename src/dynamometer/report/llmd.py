"""A run and its summary in, a Benchmark Report of llm-d, version 0.2, out: a mapping that is ready for JSON.

Source: the published schema 0.2 of llm-d-benchmark, which forbids fields of one's own. A figure that the sample can't
carry is left out, as the schema wants it, never written as 0.
"""

from __future__ import annotations

from collections.abc import Mapping

from dynamometer import __version__
from dynamometer.metrics.distribution import Distribution
from dynamometer.metrics.summary import Summary
from dynamometer.record.clock import utc
from dynamometer.types import Estimate, Provenance, Run

VERSION = "0.2"
STATISTICS = {"p50": "p50", "p90": "p90", "p95": "p95", "p99": "p99", "p999": "p99p9"}  # ours -> theirs
Json = Mapping[str, object]


def benchmark_report(run: Run, summary: Summary) -> Json:
    """The whole report."""
    metrics = summary.metrics
    latency = {
        "time_to_first_token": _times(metrics.ttft_ms, "ms"),
        "time_per_output_token": _times(metrics.tpot_ms, "ms/token"),
        "inter_token_latency": _times(metrics.itl_ms, "ms/token"),
        "request_latency": _times(metrics.e2e_ms, "ms"),
    }
    rates = {
        "input_token_rate": _rate(metrics.estimates.get("input_tokens_per_s"), "tokens/s"),
        "output_token_rate": _rate(metrics.estimates.get("output_tokens_per_s"), "tokens/s"),
        "request_rate": _rate(metrics.estimates.get("requests_per_s"), "queries/s"),
    }
    ended = metrics.requests_ok + metrics.requests_empty + metrics.requests_failed
    requests: dict[str, object] = {
        "total": ended + metrics.requests_cancelled,
        "failures": metrics.requests_failed,
        "incomplete": metrics.requests_cancelled,
        "input_length": _mean_tokens(metrics.input_tokens, metrics.requests_ok),
        "output_length": _mean_tokens(metrics.output_tokens, metrics.requests_ok),
    }
    performance = {"requests": _known(requests), "latency": _known(latency), "throughput": _known(rates)}
    load = _load(run, summary)
    report = {
        "version": VERSION,
        "run": _run(run, summary),
        "results": {"request_performance": {"aggregate": performance}},
    }
    return {**report, "scenario": {"load": load}} if load else report


def _run(run: Run, summary: Summary) -> Json:
    about = {
        Provenance.MEASURED: f"measured by dynamometer {__version__}",
        Provenance.SIMULATED: f"simulated by dynamometer {__version__}: no engine ran",
        Provenance.QUOTED: f"imported by dynamometer {__version__} from {run.engine.get('tool', 'another tool')}",
    }[run.driver]
    time = {
        "start": utc(run.origin_wall_ns).isoformat(),
        "end": utc(run.origin_wall_ns + run.end_ns).isoformat(),
        "duration": f"PT{summary.window_s:.3f}S",
    }
    keywords = [run.driver.value, *(f"doubt: {doubt.kind}" for doubt in summary.doubts)]
    return {"uid": run.id, "eid": run.experiment.name, "time": time, "description": about, "keywords": keywords}


def _load(run: Run, summary: Summary) -> Json | None:
    """How it was asked. None where the prompts' length is not known: the schema demands it."""
    length = _mean_tokens(summary.metrics.input_tokens, summary.metrics.requests_ok)
    if length is None:
        return None
    experiment = run.experiment
    closed = experiment.load.law == "closed"
    asked = {
        "tool": "dynamometer" if run.driver is not Provenance.QUOTED else str(run.engine.get("tool", "unknown")),
        "tool_version": __version__ if run.driver is not Provenance.QUOTED else _version(run),
        "source": {"synthetic": "random", "imported": "unknown"}.get(experiment.workload.name, "sampled"),
        "input_seq_len": {"distribution": "other", "value": length["mean"]},
        "concurrency": experiment.load.concurrency if closed and experiment.load.concurrency else None,
        "rate_qps": experiment.load.rate if not closed and experiment.load.rate > 0 else None,
    }
    config = {"law": experiment.load.law, "workload": experiment.workload.name, "seed": experiment.seed}
    return {"metadata": {"description": experiment.name}, "standardized": _known(asked), "native": {"config": config}}


def _version(run: Run) -> str:
    return next(iter(run.versions.values()), "unknown")


def _times(found: Distribution, units: str) -> Json | None:
    """None where there is no sample; a percentile that the sample can't carry is no key."""
    mean = found.estimates["mean"].value
    if not found.n or mean is None:
        return None
    held = {theirs: found.estimates[ours].value for ours, theirs in STATISTICS.items() if ours in found.estimates}
    return {"units": units, "mean": mean, **_known(held)}


def _rate(found: Estimate | None, units: str) -> Json | None:
    return None if found is None or found.value is None else {"units": units, "mean": found.value}


def _mean_tokens(total: int | None, requests: int) -> dict[str, str | float] | None:
    return None if total is None or not requests else {"units": "count", "mean": total / requests}


def _known(values: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in values.items() if value is not None}
