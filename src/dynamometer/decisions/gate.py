"""Limits as text in, e.g. `ttft_p99<500ms,tpot_p99<50ms` or `ttft_p99<+5%`; parsed, judged against a run or a
comparison out."""

from __future__ import annotations

import re
from collections.abc import Sequence

import duckdb
import msgspec

from dynamometer.decisions.compare import Change, Comparison
from dynamometer.errors import GateFailed, UsageError
from dynamometer.metrics import views
from dynamometer.metrics.distribution import STATISTICS, Distribution
from dynamometer.metrics.quantiles import quantile, survival, weighted
from dynamometer.metrics.summary import Summary
from dynamometer.types import Estimate, Objective
from dynamometer.units import show, significant

RATES = ("output_tokens_per_s", "input_tokens_per_s", "requests_per_s", "goodput", "attainment", "error_rate")
SHARES = ("attainment", "error_rate")
_TIMES = {"us": 1e-3, "ms": 1.0, "s": 1000.0}
_SCALES = {**_TIMES, "%": 0.01}
_LIMIT = re.compile(r"\s*([a-z0-9_.]+)\s*(<=|>=|<|>)\s*([-+]?)([0-9]*\.?[0-9]+(?:e[-+]?[0-9]+)?)\s*([a-zµμ%]*)\s*\Z")
_EXAMPLE = "'ttft_p99<500ms,tpot_p99<50ms'"


class Met(msgspec.Struct, frozen=True):
    """One objective of one run. `met` None: it could not be seen. `sure`: the 95 % interval lies on one side of the
    limit."""

    objective: Objective
    observed: Estimate
    met: bool | None
    sure: bool
    why: str


class Gate(msgspec.Struct, frozen=True):
    """A limit on a change, e.g. `ttft_p99 < +5 %`. `unit` "%" is relative to the baseline, else the metric's own
    unit."""

    metric: str
    statistic: str
    op: str
    value: float
    unit: str

    @property
    def text(self) -> str:
        name = f"{self.metric}_{self.statistic}" if self.statistic else self.metric
        return f"{name}{self.op}{self.value:+g}{self.unit}"


class Passed(msgspec.Struct, frozen=True):
    """One gate. `passed` None: one side lacks the figure."""

    gate: Gate
    change: Change | None
    passed: bool | None
    sure: bool
    why: str


def text(objective: Objective) -> str:
    name = f"{objective.metric}_{objective.statistic}" if objective.statistic else objective.metric
    return f"{name}{objective.op}{objective.value:g}{objective.unit}"


def objectives(limits: str) -> tuple[Objective, ...]:
    """Absolute limits, separated by commas: `ttft_p99<500ms`, `error_rate<1%`, `output_tokens_per_s>100`."""
    found = []
    for word in _words(limits, "objective", _EXAMPLE):
        metric, statistic, op, sign, value, unit = _split(word, "objective", _EXAMPLE)
        if sign:
            raise UsageError(f"objective {word!r} is a change; give a limit such as {_EXAMPLE}, or use --gate")
        found.append(Objective(metric, statistic, op, value, unit))
    return tuple(found)


def gates(limits: str) -> tuple[Gate, ...]:
    """Limits on the change from baseline to candidate: `ttft_p99<+5%`, `output_tokens_per_s>-3%`, `tpot_mean<+2ms`."""
    found = []
    for word in _words(limits, "gate", "'ttft_p99<+5%'"):
        metric, statistic, op, sign, value, unit = _split(word, "gate", "'ttft_p99<+5%'")
        if not sign:
            raise UsageError(f"gate {word!r} has no sign; a gate limits a change, such as 'ttft_p99<+5%'")
        found.append(Gate(metric, statistic, op, -value if sign == "-" else value, unit))
    return tuple(found)


def _words(limits: str, kind: str, example: str) -> list[str]:
    words = [word.strip() for word in limits.split(",") if word.strip()]
    if not words:
        raise UsageError(f"the {kind} is empty; give limits such as {example}")
    return words


def _split(word: str, kind: str, example: str) -> tuple[str, str, str, str, float, str]:
    match = _LIMIT.match(word.lower())
    if not match:
        raise UsageError(f"{kind} {word!r} can't be read; give limits such as {example}")
    name, op, sign, number, unit = match.groups()
    unit = "us" if unit in ("µs", "μs") else unit  # both signs are in use for micro
    metric, statistic = _name(name, word, kind)
    allowed = ("%", "") if metric in SHARES else ("",) if metric in RATES else tuple(_TIMES)
    relative = kind == "gate" and unit == "%"
    if unit not in allowed and not relative:
        units = " or ".join(u for u in ((*allowed, "%") if kind == "gate" else allowed) if u) or "no unit"
        raise UsageError(f"{kind} {word!r} has the unit {unit!r}; {metric} takes {units}")
    return metric, statistic, op, sign, float(number), unit


def _name(name: str, word: str, kind: str) -> tuple[str, str]:
    """`ttft_p99` as (metric, statistic); p99.9 and p999 are the same."""
    if name in RATES:
        return name, ""
    metric, _, statistic = name.rpartition("_")
    statistic = {"p99.9": "p999", "avg": "mean", "median": "p50"}.get(statistic, statistic)
    if metric in views.LATENCIES and statistic in ("mean", *STATISTICS):
        return metric, statistic
    if name in views.LATENCIES:
        raise UsageError(f"{kind} {word!r} names no statistic; give for example {name}_p99, one of mean, {_listed()}")
    known = ", ".join((*views.LATENCIES, *RATES))
    raise UsageError(f"{kind} {word!r} names nothing known; metrics: {known}; statistics: mean, {_listed()}")


def _listed() -> str:
    return ", ".join(STATISTICS)


def judge(connection: duckdb.DuckDBPyConnection, summary: Summary, slo: Sequence[Objective]) -> tuple[Met, ...]:
    """Each objective against the run. Where the sample can't carry a quantile its sample value decides, and `sure` is
    False."""
    return tuple(_judge(connection, summary, objective) for objective in slo)


def _judge(connection: duckdb.DuckDBPyConnection, summary: Summary, objective: Objective) -> Met:
    limit = limit_of(objective)
    observed = observed_in(summary, objective.metric, objective.statistic)
    value = observed.value
    lost = _lost(connection, summary, objective, limit)
    if lost:
        return Met(objective, observed, False, True, f"{text(objective)}: missed, {lost}")
    if value is None and objective.statistic in STATISTICS:
        value = _of_sample(connection, objective, STATISTICS[objective.statistic], limit)
    if value is None:
        return Met(objective, observed, None, False, f"{text(objective)}: not seen ({observed.method})")
    met = holds(value, objective.op, limit)
    bounds = (observed.low, observed.high)
    sure = observed.value is not None and all(b is not None and holds(b, objective.op, limit) == met for b in bounds)
    said = (
        show(observed) if observed.value is not None else f"{significant(value)} {observed.unit} in a sample too small"
    )
    why = f"{text(objective)}: {'met' if met else 'missed'}, {said}"
    return Met(objective, observed, met, sure, why if sure else f"{why}; {_doubt(observed)}")


def _lost(connection: duckdb.DuckDBPyConnection, summary: Summary, objective: Objective, limit: float) -> str:
    """Why a quantile is over its limit once failed and empty answers count as what they are: slower than any limit.

    "" if they leave the verdict as it is. With a share f of them the p-quantile of all requests is the p / (1 - f)
    quantile of those that were answered.
    """
    m, q = summary.metrics, STATISTICS.get(objective.statistic)
    failed = m.requests_failed + m.requests_empty
    if q is None or not failed or objective.op not in ("<", "<="):
        return ""
    answered = m.requests_ok / (m.requests_ok + failed)
    said = f"{failed:,} of {m.requests_ok + failed:,} requests failed or came back empty"
    if answered < q:
        return f"{said}, so no time holds for {100 * q:g} % of them"
    of_all = _of_sample(connection, objective, q / answered, limit)
    if of_all is None or holds(of_all, objective.op, limit):
        return ""
    return f"{said}; with them it is {significant(of_all)} ms"


def _doubt(observed: Estimate) -> str:
    return observed.method if observed.value is None else "the interval does not exclude the opposite"


def limit_of(objective: Objective) -> float:
    """The limit in the figure's own unit: ms, a rate, or a share from 0 to 1."""
    return objective.value * _SCALES.get(objective.unit, 1.0)


def observed_in(summary: Summary, metric: str, statistic: str) -> Estimate:
    if not statistic:
        return summary.metrics.estimates[metric]
    found = getattr(summary.metrics, f"{metric}_ms")
    assert isinstance(found, Distribution)
    return found.estimates[statistic]


def _of_sample(connection: duckdb.DuckDBPyConnection, objective: Objective, q: float, limit: float) -> float | None:
    """The sample's own quantile. Where too many requests were unfinished, the bound below it if that misses the
    limit."""
    samples = views.samples(connection, objective.metric)
    if samples.censored is None:
        return weighted(samples.value, samples.weight).quantile(q)
    found = survival(samples.value, samples.censored).quantile(q)
    least = quantile(samples.value, q)
    if found is None and least is not None and objective.op in ("<", "<=") and not holds(least, objective.op, limit):
        return least
    return found


def holds(value: float, op: str, limit: float) -> bool:
    return {"<": value < limit, "<=": value <= limit, ">": value > limit, ">=": value >= limit}[op]


def judge_change(comparison: Comparison, wanted: Sequence[Gate]) -> tuple[Passed, ...]:
    """Each gate against the change. A change that the noise floor explains passes; the interval says how sure that
    is."""
    changes = {(change.metric, change.statistic): change for change in comparison.changes}
    failed = changes.get(("error_rate", ""))
    return tuple(_pass(gate, changes.get((gate.metric, gate.statistic)), failed) for gate in wanted)


def _shed(gate: Gate, failed: Change | None) -> str:
    """Why a quantile of the candidate does not exist: too many of its requests failed. "" if it does."""
    q = STATISTICS.get(gate.statistic)
    if q is None or failed is None or failed.after is None or 1 - failed.after >= q:
        return ""
    return f"{100 * failed.after:.3g} % of the candidate's requests failed, so no time holds for {100 * q:g} % of them"


def _pass(gate: Gate, change: Change | None, failed: Change | None) -> Passed:
    shed = _shed(gate, failed)
    if shed and gate.op in ("<", "<="):
        return Passed(gate, change, False, True, f"{gate.text}: failed, {shed}")
    if change is None or change.before is None or change.after is None:
        return Passed(gate, change, None, False, f"{gate.text}: not seen in both runs")
    relative = gate.unit == "%" and gate.metric not in SHARES  # a share changes by points, not by its own per cent
    if relative and not change.before > 0:
        return Passed(
            gate, change, None, False, f"{gate.text}: the baseline is 0, so a change in per cent has no meaning"
        )
    scale = change.before / 100 if relative else _SCALES.get(gate.unit, 1.0)
    limit, moved = gate.value * scale, change.after - change.before
    passed = holds(moved, gate.op, limit)
    low, high = change.difference.low, change.difference.high
    sure = low is not None and high is not None and holds(low, gate.op, limit) == holds(high, gate.op, limit) == passed
    said = f"{significant(change.before)} to {significant(change.after)} {change.difference.unit}".rstrip()
    if change.before:
        said += f" ({100 * moved / change.before:+.1f} %)"
    if not passed and not sure and change.noise is not None and abs(moved) <= change.noise:
        return Passed(
            gate, change, True, False, f"{gate.text}: {said}, within the noise floor of {significant(change.noise)}"
        )
    why = f"{gate.text}: {'passed' if passed else 'failed'}, {said}"
    return Passed(gate, change, passed, sure, why if sure else f"{why}; this sample can't show it for sure")


def require(judged: Sequence[Met] | Sequence[Passed]) -> None:
    """Raises GateFailed (exit code 1) with every limit that was missed or could not be seen."""
    missed = [one.why for one in judged if not (one.met if isinstance(one, Met) else one.passed)]
    if missed:
        raise GateFailed("; ".join(missed))
