"""What a run's record tells in, its section of a page out: verdict, key figures, doubts, tables, pictures, recipe."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from dynamometer.decisions import gate
from dynamometer.decisions.gate import Met
from dynamometer.decisions.verdict import decide
from dynamometer.metrics.summary import Summary
from dynamometer.record.clock import utc
from dynamometer.record.manifest import BLOT
from dynamometer.report.figure import Figure
from dynamometer.report.page import Fact, Facts, Key, Recipe, Section, Tone
from dynamometer.report.run_tables import best_tail, load_text, rates_table, run_table
from dynamometer.report.table import Table
from dynamometer.types import Estimate, Experiment, Run
from dynamometer.units import show_bytes, significant

_LOGIN = re.compile(r"(?<=://)[^/\s@'\"]+@")  # user:password in a URL


class Told(msgspec.Struct, frozen=True):
    """A run with what its rows say."""

    run: Run
    summary: Summary
    judged: tuple[Met, ...]  # the run's own objective, limit by limit
    figures: tuple[Figure, ...]


def run_section(told: Told, figures: tuple[Figure, ...], anchor: str) -> Section:
    """The section of one run with those of its figures that are to be shown. `anchor`: its name on the page."""
    run, summary = told.run, told.summary
    decision = decide(summary, told.judged)
    return Section(
        anchor=anchor,
        title=f"{run.experiment.name} ({load_text(run.experiment.load)})",
        verdict=decision.answer,
        badge=str(run.driver),
        tone=tone(told),
        because=(*(one.why for one in told.judged), *decision.flips),  # the doubts have a place of their own
        key=key_figures(summary),
        doubts=summary.doubts,
        tables=(run_table(summary), rates_table(summary), *_errors(summary)),
        figures=figures,
        environment=environment(run, summary),
        recipes=recipes(run),
    )


def tone(told: Told) -> Tone:
    """Red for a run that is invalid, answered nothing or misses its objective; amber for one with doubts."""
    run, summary = told.run, told.summary
    unusable = run.status == "invalid" or any(doubt.fatal for doubt in summary.doubts)
    if unusable or not summary.metrics.requests_ok or any(one.met is False for one in told.judged):
        return "bad"
    sure = all(one.met and one.sure for one in told.judged)
    return "good" if sure and not summary.doubts and run.status == "complete" else "warn"


def key_figures(summary: Summary) -> tuple[Key, ...]:
    """Six figures at most, large."""
    metrics = summary.metrics
    found = []
    for name, value in (("TTFT", metrics.ttft_ms), ("E2E", metrics.e2e_ms)):
        if value.eligible_of and (name != "TTFT" or value.n):
            statistic, estimate = best_tail(value)
            found.append(Key(f"{name} {statistic}", estimate))
    if metrics.tpot_ms.n:
        found.append(Key("Time per output token, mean", metrics.tpot_ms.estimates["mean"]))
    found.append(Key("Output", metrics.estimates["output_tokens_per_s"]))
    share = metrics.estimates.get("attainment")
    if share is not None and share.value is not None:
        found.append(Key("Inside the objective", _percent(share)))
    errors = metrics.estimates.get("error_rate")
    if errors is not None and errors.value is not None:
        found.append(Key("Failed", _percent(errors)))
    return tuple(found)


def _percent(share: Estimate) -> Estimate:
    value, low, high = (None if part is None else 100 * part for part in (share.value, share.low, share.high))
    return Estimate(value, low, high, share.n, "%", share.level, share.method)


def _errors(summary: Summary) -> tuple[Table, ...]:
    """Failures by class, with an example of what the server said."""
    if not summary.errors:
        return ()
    rows = tuple(
        (f"{row['outcome']}: {row['class']}", f"{row['requests']}", str(row["example"] or "")[:300])
        for row in summary.errors
    )
    return (Table("What failed", ("", "requests", "for example"), rows, numbers=False),)


def environment(run: Run, summary: Summary) -> tuple[Facts, ...]:
    """What the figures hold for. Values of headers are not repeated."""
    experiment, target = run.experiment, run.experiment.target
    asked: dict[str, str | int | float] = {
        "experiment": experiment.name,
        "load": load_text(experiment.load),
        "workload": experiment.workload.name,
        "input tokens": experiment.workload.input_tokens or "as they come",
        "output tokens": experiment.workload.output_tokens,
        "stop after": _stop(experiment),
        "warm-up requests": experiment.warmup_requests,
        "seed": experiment.seed,
        "objective": ", ".join(map(gate.text, experiment.slo)) or "none",
    }
    where: dict[str, str | int | float] = {
        "endpoint": without_login(target.url),
        "model": target.model,
        "dialect": target.api,
        "headers": ", ".join(target.headers),
        "TLS verification": "off" if target.insecure else "",
    }
    about = {
        "run": run.id,
        "started": f"{utc(run.origin_wall_ns):%Y-%m-%d %H:%M:%S} UTC",
        "load ended after": f"{significant(run.end_ns / 1e9)} s" if run.end_ns else "",
        "status": run.status,
        "numbers are": str(run.driver),
        "window": f"{significant(summary.window_s)} s, {summary.window.reason}",
    }
    groups: Mapping[str, Mapping[str, str | int | float]] = {
        "Run": about,
        "Asked": asked,
        "Endpoint": {**where, **run.engine},
        "Machine": run.machine,
        "Client": run.client,
        "Versions": run.versions,
    }
    found = (Facts(title, _facts(values)) for title, values in groups.items())
    return tuple(group for group in found if group.facts)


def _facts(values: Mapping[str, str | int | float]) -> tuple[Fact, ...]:
    shown = ((name.removesuffix("_bytes").replace("_", " "), fact_text(name, value)) for name, value in values.items())
    return tuple(Fact(name, text) for name, text in shown if text)


def fact_text(name: str, value: str | int | float) -> str:
    """A fact as a person reads it; the unit is in its name."""
    if isinstance(value, str):
        return value
    if name.endswith("bytes"):
        return show_bytes(value)
    return f"{value:,}" if isinstance(value, int) else significant(value)


def _stop(experiment: Experiment) -> str:
    ends = [f"{experiment.requests:,} requests"] if experiment.requests else []
    ends += [f"{significant(experiment.duration_s)} s"] if experiment.duration_s else []
    return " or ".join(ends)


def recipes(run: Run) -> tuple[Recipe, ...]:
    """The command, and the specification in full for whoever has no command line."""
    target = run.experiment.target
    hidden = msgspec.structs.replace(target, headers=dict.fromkeys(target.headers, BLOT))
    experiment = msgspec.structs.replace(run.experiment, target=hidden)
    specification = msgspec.json.format(msgspec.json.encode(experiment), indent=2).decode()
    found = [Recipe("Specification (run.json holds all of it)", without_login(specification))]
    return (Recipe("Command", without_login(run.command)), *found) if run.command else tuple(found)


def without_login(text: str) -> str:
    """Text without the user and password that a URL in it may carry: a page is shown around."""
    return _LOGIN.sub("", text)
