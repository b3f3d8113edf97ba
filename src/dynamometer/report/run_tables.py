"""Summaries and manifests in, their tables out: one run, several side by side, a folder's list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from dynamometer.decisions.compare import Change, Comparison
from dynamometer.errors import RecordError
from dynamometer.metrics.distribution import Distribution
from dynamometer.metrics.summary import Metrics, Summary
from dynamometer.record.clock import utc
from dynamometer.report.table import HEADINGS, Table, figure_text, statistics_table
from dynamometer.types import Estimate, Load, Run
from dynamometer.units import significant

SHOWN: Mapping[str, str] = {
    "ttft_ms": "TTFT (ms)",
    "ttft_due_ms": "TTFT from due (ms)",
    "ttfa_ms": "first answer token (ms)",
    "tpot_ms": "TPOT (ms)",
    "itl_ms": "inter-token (ms)",
    "icl_ms": "inter-chunk (ms)",
    "e2e_ms": "E2E (ms)",
    "lateness_ms": "client late (ms)",
}
OFTEN_THE_SAME = {"ttft_due_ms": "ttft_ms", "ttfa_ms": "ttft_ms", "icl_ms": "itl_ms"}
SAME = 0.02  # relative difference of means below which the second of such a pair is left out
TAILS = ("p99", "p95", "p90", "p50")
UNITS = {
    "output_tokens_per_s": "output tokens/s",
    "requests_per_s": "answers/s",
    "input_tokens_per_s": "input tokens/s",
}


SERVER = {
    "decode_tokens_per_s": "server's own clock: tokens/s a stream",
    "prompt_tokens_per_s": "server's own clock: prompt tokens/s",
    "queue_ms": "server's own clock: queue (ms)",
}


PAGE = {
    "server_ttft_s": "TTFT",
    "server_itl_s": "inter-token",
    "server_queue_s": "queue",
    "server_prefill_s": "prefill",
    "server_decode_s": "decode",
    "server_e2e_s": "E2E",
    "prefix_hit_ratio": "prompt tokens from the prefix cache, share",
    "kv_cache_usage_ratio": "KV cache in use at the end, share",
}


def latencies(metrics: Metrics) -> dict[str, Distribution]:
    """The distributions by name, without those that this run has no request for."""
    found = {name: getattr(metrics, name) for name in SHOWN}
    return {name: value for name, value in found.items() if isinstance(value, Distribution) and value.eligible_of}


def run_table(summary: Summary, interval: bool = True) -> Table:
    """The latencies of a run, to be pasted: a metric a row, a statistic a column. No row twice."""
    found = latencies(summary.metrics)
    for name, other in OFTEN_THE_SAME.items():
        if name in found and other in found and _alike(found[name], found[other]):
            del found[name]
    rows = {SHOWN[name]: value.estimates for name, value in found.items()}
    return statistics_table("Latency", rows, interval=interval)


def _alike(one: Distribution, other: Distribution) -> bool:
    if one.mean is None or other.mean is None:
        return one.mean is other.mean
    return abs(one.mean - other.mean) <= SAME * other.mean


def rates_table(summary: Summary) -> Table:
    """Rates, goodput and counts of a run."""
    metrics, estimates = summary.metrics, summary.metrics.estimates
    rows = []
    for name, label in {**UNITS, "goodput": "goodput (answers/s inside the objective)"}.items():
        if name in estimates and (estimates[name].value is not None or name != "goodput"):
            rows.append((label, *_value(estimates[name])))
    if metrics.attainment is not None:
        rows.append(("share inside the objective", *_value(estimates["attainment"])))
    if metrics.concurrency_mean is not None:
        rows.append(("requests in flight, mean", significant(metrics.concurrency_mean), ""))
    for name, label in SERVER.items():
        if name in summary.server:
            rows.append((label, *_value(summary.server[name])))
    counts = {
        "answered": metrics.requests_ok,
        "failed": metrics.requests_failed,
        "empty": metrics.requests_empty,
        "stopped by the client": metrics.requests_cancelled,
        "sent again": metrics.requests_retried,
    }
    rows += [(f"requests {name}", f"{n:,}", "") for name, n in counts.items() if n or name in ("answered", "failed")]
    tokens = {"output tokens": metrics.output_tokens, "input tokens": metrics.input_tokens}
    rows += [(name, "n/a" if n is None else f"{n:,}", "") for name, n in tokens.items()]
    sources = ", ".join(f"{row['source']} ({row['requests']})" for row in summary.counting)
    window = f"Window: {significant(summary.window_s)} s; {summary.window.reason}."
    notes = (window, f"Output tokens counted by: {sources}.") if sources else (window,)
    return Table("Rates and counts", ("", "value", "interval"), tuple(rows), notes)


def page_table(run: Run, summary: Summary) -> tuple[Table, ...]:
    """What the engine's own page says of the window, and which sensors there were none of."""
    rows = []
    for name, value in summary.server.items():
        stem, _, statistic = name.rpartition("_")
        if stem in PAGE:
            scaled = _scaled(value, 1000.0, "ms")
            rows.append((f"{PAGE[stem]} {HEADINGS.get(statistic, statistic)} (ms)", *_value(scaled)))
        elif name in PAGE:
            rows.append((PAGE[name], *_value(value)))
    missing = str(run.engine.get("sensors_missing", ""))
    notes = (f"Not measured: {missing}.",) if missing else ()
    if not rows and not notes:
        return ()
    how = ("Rise of its counters over the window; it counts from the request's arrival, so without the network.",)
    title = "By the engine's own page" if rows else "Sensors"
    return (Table(title, ("", "value", "interval"), tuple(rows), (*(how if rows else ()), *notes)),)


def _scaled(found: Estimate, factor: float, unit: str) -> Estimate:
    value, low, high = (None if part is None else factor * part for part in (found.value, found.low, found.high))
    return Estimate(value, low, high, found.n, unit, found.level, found.method)


def errors_table(summary: Summary) -> tuple[Table, ...]:
    """Failures by class, with an example of what the server said."""
    if not summary.errors:
        return ()
    rows = tuple(
        (f"{row['outcome']}: {row['class']}", f"{row['requests']}", str(row["example"] or "")[:300])
        for row in summary.errors
    )
    return (Table("Failed or stopped", ("", "requests", "for example"), rows, numbers=False),)


def family_tables(summary: Summary) -> tuple[Table, ...]:
    """One line a workload family, when there is more than one."""
    if len(summary.families) < 2:
        return ()
    rows = [
        (
            name,
            f"{family.ok}/{family.requests}",
            *(_plain(value) for value in (family.input_tokens, family.output_tokens, family.ttft_ms.p50)),
            *(_plain(value) for value in (family.tpot_ms.mean, family.e2e_ms.p50, family.stream_tokens_per_s)),
        )
        for name, family in summary.families.items()
    ]
    columns = ("", "ok", "tokens in", "out", "TTFT p50 (ms)", "TPOT mean (ms)", "E2E p50 (ms)", "tokens/s a stream")
    return (Table("By workload family", columns, tuple(rows)),)


def _plain(value: float | None) -> str:
    return "n/a" if value is None else significant(value)


def _value(estimate: Estimate) -> tuple[str, str]:
    value, _, interval = figure_text(estimate).partition("\n")
    return value, interval


def best_tail(found: Distribution) -> tuple[str, Estimate]:
    """The furthest of p99, p95, p90 and p50 that the sample bounds on both sides; else the median with its reason."""
    for name in TAILS:
        estimate = found.estimates[name]
        if estimate.value is not None and estimate.low is not None and estimate.high is not None:
            return name, estimate
    return "p50", found.estimates["p50"]


def load_text(load: Load) -> str:
    """`closed, 8 in flight` or `poisson, 12/s`, with the law's parameters."""
    options = "".join(f", {name} {value}" for name, value in load.options.items())
    if load.law == "closed":
        return f"closed, {load.concurrency} in flight{options}"
    return f"{load.law}{f', {significant(load.rate)}/s' if load.rate else ''}{options}"


def runs_table(found: Sequence[tuple[Path, Run | RecordError]]) -> Table:
    """A folder's runs, the newest first. A damaged run is a row that says so."""
    rows = []
    for path, run in reversed(found):
        if isinstance(run, RecordError):
            rows.append((str(path), "", "", "", f"damaged: {run}"))
            continue
        doubts = f", {len(run.doubts)} doubts" if len(run.doubts) > 1 else ", 1 doubt" if run.doubts else ""
        started = f"{utc(run.origin_wall_ns):%Y-%m-%d %H:%M}"
        model = run.experiment.target.model or str(run.engine.get("name", ""))
        rows.append((str(path), started, model, load_text(run.experiment.load), f"{run.status}, {run.driver}{doubts}"))
    notes = () if rows else ("No run here yet; dyno bench makes one.",)
    return Table("", ("run", "started (UTC)", "model", "load", "status"), tuple(rows), notes, numbers=False)


def compare_table(comparison: Comparison) -> Table:
    """Both sides of each figure, their ratio and difference with intervals, the noise floor and the verdict.

    A figure that the sample can't carry is named in a note and not printed; what equals another row is left out.
    """
    shown = [change for change in comparison.changes if change.difference.value is not None]
    untold = [change for change in comparison.changes if change.difference.value is None]
    twice = _same_as_sent(shown)
    rows = [_compared(change) for change in shown if not (twice and change.metric == "ttft_due")]
    how = f"{comparison.paired:,} requests compared in pairs." if comparison.paired else "Unpaired."
    names = sorted({HEADINGS.get(change.statistic, change.statistic) for change in untold if change.statistic})
    few = (f"Too few samples to compare {', '.join(names)} of every metric.",) if names else ()
    columns = ("", "before", "after", "after / before", "after - before", "noise floor", "verdict")
    title = f"{', '.join(comparison.baseline)} and then {', '.join(comparison.candidate)}"
    return Table(title, columns, tuple(rows), (how, *few, *comparison.notes))


def _same_as_sent(changes: Sequence[Change]) -> bool:
    """Whether latency from due says no more than latency from sent: the client was on time on both sides."""
    means = {change.metric: change for change in changes if change.statistic == "mean"}
    sent, due = means.get("ttft"), means.get("ttft_due")
    if sent is None or due is None or sent.before is None or due.before is None:
        return False
    return (
        sent.after is not None
        and due.after is not None
        and all(
            abs(late - on_time) <= SAME * on_time
            for late, on_time in ((due.before, sent.before), (due.after, sent.after))
        )
    )


def _compared(change: Change) -> tuple[str, ...]:
    name = SHOWN.get(f"{change.metric}_ms") or UNITS.get(change.metric, change.metric.replace("_", " "))
    return (
        f"{name} {HEADINGS.get(change.statistic, change.statistic)}".strip(),
        "n/a" if change.before is None else significant(change.before),
        "n/a" if change.after is None else significant(change.after),
        figure_text(change.ratio),
        figure_text(change.difference),
        "n/a" if change.noise is None else significant(change.noise),
        change.verdict,
    )


def labels(runs: Sequence[Run]) -> list[str]:
    """A label a run; runs of one name and load are told apart by their ids, which begin with the time."""
    plain = [f"{run.experiment.name} ({load_text(run.experiment.load)})" for run in runs]
    return [one if plain.count(one) == 1 else f"{one} · {run.id}" for one, run in zip(plain, runs, strict=True)]


def side_by_side(runs: Sequence[tuple[Run, Summary]]) -> Table:
    """Several runs, one a row, with their main figures."""
    rows = []
    names = labels([run for run, _ in runs])
    for name, (_, summary) in zip(names, runs, strict=True):
        metrics = summary.metrics
        tail_name, tail = best_tail(metrics.ttft_ms)
        cells = (
            figure_text(metrics.ttft_ms.estimates["p50"]),
            f"{figure_text(tail)} ({tail_name})" if tail.value is not None and tail_name != "p50" else "n/a",
            figure_text(metrics.tpot_ms.estimates["mean"]),
            figure_text(metrics.e2e_ms.estimates["p50"]),
            figure_text(metrics.estimates["output_tokens_per_s"]),
            f"{metrics.requests_ok:,} / {metrics.requests_failed:,}",
        )
        rows.append((name, *cells))
    columns = ("", "TTFT p50 (ms)", "TTFT tail (ms)", "TPOT mean (ms)", "E2E p50 (ms)", "tokens/s", "ok / failed")
    return Table("Side by side", columns, tuple(rows))
