"""What a run's record tells in, its section of a page out: verdict, key figures, doubts, tables, pictures, recipe."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from dynamometer.decisions import gate
from dynamometer.decisions.account import Account
from dynamometer.metrics.summary import Summary
from dynamometer.record.clock import utc
from dynamometer.record.manifest import BLOT
from dynamometer.report.figure import Figure
from dynamometer.report.page import Fact, Facts, Key, Recipe, Section, Tone
from dynamometer.report.run_tables import (
    best_tail,
    errors_table,
    family_tables,
    load_text,
    page_table,
    rates_table,
    run_table,
)
from dynamometer.types import Estimate, Experiment, Run
from dynamometer.units import show_bytes, significant

_LOGIN = re.compile(r"(?<=://)[^/\s@'\"]+@")  # user:password in a URL


def run_section(found: Account, figures: tuple[Figure, ...], anchor: str) -> Section:
    """The section of one run with the figures that are to be shown. `anchor`: its name on the page."""
    run, summary, decision = found.run, found.summary, found.decision
    return Section(
        anchor=anchor,
        title=f"{run.experiment.name} ({load_text(run.experiment.load)})",
        verdict=decision.answer,
        badge=str(run.driver),
        tone=tone(found),
        because=(*(one.why for one in found.judged), *decision.flips, *run.notes),  # the doubts have their own place
        key=key_figures(summary),
        doubts=summary.doubts,
        tables=(
            run_table(summary),
            rates_table(summary),
            *page_table(run, summary),
            *errors_table(summary),
            *family_tables(summary),
        ),
        figures=figures,
        environment=environment(run, summary),
        recipes=recipes(run),
    )


def tone(found: Account) -> Tone:
    """Red for a run that is invalid, answered nothing or misses its objective; amber for one with doubts."""
    run, summary = found.run, found.summary
    if run.status == "invalid" or found.invalid or not summary.metrics.requests_ok:
        return "bad"
    if any(one.met is False for one in found.judged):
        return "bad"
    sure = all(one.met and one.sure for one in found.judged)
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
        "url": without_login(target.url),
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
        "Endpoint": {**run.engine, **where},
        "Machine": run.machine,
        "Client": run.client,
        "Versions": run.versions,
    }
    found = (Facts(title, _facts(values)) for title, values in groups.items())
    return tuple(group for group in found if group.facts)


def _facts(values: Mapping[str, str | int | float]) -> tuple[Fact, ...]:
    shown = []
    for name, value in values.items():
        stem = name.removesuffix("_bytes")
        label = f"{stem} size" if stem != name and stem in values else stem
        shown.append(Fact(label.replace("_", " "), fact_text(name, value)))
    return tuple(fact for fact in shown if fact.value)


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
