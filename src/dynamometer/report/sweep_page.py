"""What a sweep found in; its verdict in one sentence, its tables and its page out."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from dynamometer.decisions.curve import Curve, Point
from dynamometer.decisions.gate import text
from dynamometer.decisions.trial import Tried
from dynamometer.errors import Refused
from dynamometer.models import latency
from dynamometer.models.search import Capacity, RateRules, wilson
from dynamometer.report import fit_page
from dynamometer.report.figure import Axis, Figure, Heading, Row, Rule, curve
from dynamometer.report.page import Key, Page, Section
from dynamometer.report.table import Table, figure_text
from dynamometer.types import Objective
from dynamometer.units import show, significant

SCATTER = 0.25  # held-out error beyond which a sweep has measured something else than the engine


class Searched(msgspec.Struct, frozen=True):
    """A search for the highest rate within an objective. `capacity` None: no rate met it."""

    slo: tuple[Objective, ...]
    rules: RateRules
    points: tuple[Point, ...]
    tried: tuple[Tried, ...]
    capacity: Capacity | None
    reason: str  # why it ended


def level_verdict(found: Curve) -> str:
    """Where throughput stops to be worth its latency, how high it gets, and what stands in the way."""
    fitted = found.saturation
    top = f"the highest throughput up to {significant(float(fitted.x.max()))} is {show(fitted.top)}"
    if fitted.knee.value is None:
        said = f"No knee was seen: {fitted.knee.method}; {top}."
    else:
        said = f"The knee is at {show(fitted.knee)}; {top}."
    if fitted.chosen.spread > SCATTER:
        said += (
            f" The runs scatter by {fitted.chosen.spread:.0%} around the curve, so trust none of this: measure longer, "
            "or on a machine that does nothing else."
        )
    return f"{said} {_limits(found.points)}"


def _limits(points: Sequence[Point]) -> str:
    """`Limited by memory bandwidth at 1 to 4, by compute at 8 to 16.`"""
    spans: list[tuple[str, float, float]] = []
    for point in points:
        name = point.bottleneck.name
        if spans and spans[-1][0] == name:
            spans[-1] = (name, spans[-1][1], point.asked)
        elif not spans or spans[-1][2] < point.asked:
            spans.append((name, point.asked, point.asked))
    told = []
    for name, first, last in spans:
        where = f"at {significant(first)}" + (f" to {significant(last)}" if last > first else "")
        if name == "none":
            told.append(f"by nothing {where}")
        elif name == "unknown":
            told.append(f"by what was not measured {where}")
        else:
            told.append(f"by {name} {where}")
    return f"Limited {', '.join(told)}."


def rate_verdict(found: Searched) -> str:
    """The highest rate within the objective, with its evidence."""
    limits = ", ".join(map(text, found.slo))
    if found.capacity is None:
        return f"No rate met {limits} for {100 * found.rules.attainment:.4g} % of the requests: {found.reason}."
    rate, share = found.capacity.rate, found.capacity.attainment
    bound = f"{significant(rate.high)}/s fails" if rate.high is not None else "no rate that was tried fails"
    sure = "confirmed by runs of its own" if found.capacity.confirmed else f"not confirmed ({found.reason})"
    assert rate.value is not None
    assert share.value is not None
    assert share.low is not None
    assert share.high is not None
    met = f"{share.value:.1%} [{share.low:.1%}, {share.high:.1%}] of {share.n:,} requests did"
    return (
        f"Up to {significant(rate.value)} requests/s meet {limits}: {met}, "
        f"{100 * found.rules.attainment:.4g} % must; {bound}; {sure}."
    )


def level_page(found: Curve, reason: str) -> Page:
    """The page of a sweep over concurrencies: its verdict, then all that `dyno fit` shows."""
    page = fit_page.page(found)
    first = page.sections[0]
    section = msgspec.structs.replace(
        first,
        title="Sweep",
        verdict=level_verdict(found),
        because=(fit_page.sentence(found), f"It ended because: {reason}.", *first.because),
    )
    return msgspec.structs.replace(page, sections=(section,))


def rate_tables(found: Searched) -> tuple[Table, ...]:
    """Every run of the search, and Little's law."""
    rows = []
    for point, one in zip(found.points, found.tried, strict=True):
        trial = one.trial
        low, high = wilson(trial.good, trial.total, trial.design_effect, found.rules.level)
        rows.append(
            (
                significant(trial.rate),
                f"{trial.good / trial.total:.1%}\n[{low:.1%}, {high:.1%}]",
                f"{trial.total:,}",
                figure_text(point.goodput),
                figure_text(point.tokens_per_s),
                figure_text(point.ttft_ms),
                figure_text(point.tpot_ms),
                point.bottleneck.name,
            )
        )
    columns = (
        "requests/s",
        "met",
        "requests",
        "goodput (1/s)",
        "tokens/s",
        "TTFT mean (ms)",
        "TPOT mean (ms)",
        "limited by",
    )
    note = f"Met: requests within every limit, of those that were due; intervals hold {found.rules.level:.0%}."
    ordered = sorted(found.points, key=lambda point: point.asked)
    return Table("Rates, in the order of trying", columns, tuple(rows), (note,)), fit_page.little(ordered)


def rate_pictures(found: Searched) -> tuple[Figure, ...]:
    """Attainment, goodput and the latency laws against the rate."""
    axis = "requests/s offered"
    rows: list[Row] = []
    for one in sorted(found.tried, key=lambda one: one.trial.rate):
        trial = one.trial
        low, high = wilson(trial.good, trial.total, trial.design_effect, found.rules.level)
        share = 100 * trial.good / trial.total
        series = str(found.points[0].driver)
        rows.append(
            {"series": series, "kind": "point", "x": trial.rate, "y": share, "low": 100 * low, "high": 100 * high}
        )
    rules = [Rule(100 * found.rules.attainment, "wanted", "y")]
    if found.capacity and found.capacity.rate.value:
        rules.append(Rule(found.capacity.rate.value, "highest that meets it"))
    heading = Heading("attainment", "Requests within the objective", rate_verdict(found))
    made = [curve(heading, rows, Axis("x", axis, "log"), Axis("y", "% of requests"), rules)]
    rates = [point.asked for point in found.points]
    if good := fit_page.goodput_figure(found.points, rates, axis):
        made.append(good)
    return (*made, *_laws(found, axis))


def _laws(found: Searched, axis: str) -> list[Figure]:
    made = []
    for name, field in (("TTFT", "ttft_ms"), ("TPOT", "tpot_ms")):
        known = [(p.asked, getattr(p, field).value) for p in found.points if getattr(p, field).value]
        try:
            law = latency.fit(np.array([x for x, _ in known]), np.array([y for _, y in known]), "rate")
        except Refused:
            continue  # fewer than four rates: the table has them all
        made.append(fit_page.latency_figure(name, law, axis, str(found.points[0].driver)))
    return made


def rate_page(found: Searched) -> Page:
    """One page of a rate search."""
    keys: tuple[Key, ...] = ()
    if found.capacity:
        keys = (Key("Highest rate", found.capacity.rate), Key("Share of requests within", found.capacity.attainment))
    first = found.points[0]
    section = Section(
        "sweep",
        "Rate search",
        rate_verdict(found),
        badge=str(first.driver),
        tone="good" if found.capacity and found.capacity.confirmed else "warn" if found.capacity else "bad",
        because=(f"It ended because: {found.reason}.",),
        key=keys,
        tables=rate_tables(found),
        figures=rate_pictures(found),
    )
    subtitle = f"{len(found.points)} runs, {first.workload}"
    return Page(f"{first.model or 'engine'}: the highest rate within the objective", (section,), subtitle)
