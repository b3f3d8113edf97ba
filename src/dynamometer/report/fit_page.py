"""A fitted curve in; its sentence, its tables and its pictures out, for the terminal and for a page."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dynamometer.decisions.curve import Curve, Point
from dynamometer.metrics.checks import LITTLE_MISS, LITTLE_STAYS
from dynamometer.models import latency, saturation
from dynamometer.models.latency import Latency
from dynamometer.report.figure import Axis, Figure, Heading, Row, Rule, curve
from dynamometer.report.page import Key, Page, Section
from dynamometer.report.table import Table, figure_text
from dynamometer.report.text_plot import text_plot
from dynamometer.types import Estimate
from dynamometer.units import show, significant

_POINTS = 60  # of a drawn line


def sentence(found: Curve) -> str:
    """The finding in one sentence."""
    fitted = found.saturation
    error = _percent(fitted.chosen.fit.held_out)
    said = f"Throughput is best told by {_FAMILIES[fitted.chosen.form.name]} (held-out error {error})"
    if fitted.knee.value is None:
        return f"{said}; {fitted.knee.method}."
    there = saturation.predict(fitted, fitted.knee.value)
    return f"{said}; it grows half as fast as load at {show(fitted.knee)}, where it is {show(there)}."


_FAMILIES = {
    "hyperbola": "a hyperbola",
    "usl": "the universal scalability law",
    "hill": "Hill's curve",
    "two regimes": "a curve with two regimes",
}


def tables(found: Curve, predictions: Sequence[tuple[float, Estimate]] = ()) -> tuple[Table, ...]:
    """Families, figures, levels, residuals; predictions where some were asked for."""
    made = [families(found), figures_table(found), levels(found), residuals(found), little(found.points)]
    if predictions:
        rows = tuple((significant(x), figure_text(said), said.method) for x, said in predictions)
        made.insert(1, Table("Predictions", ("concurrency", f"throughput ({found.saturation.unit})", "how"), rows))
    return tuple(made)


def families(found: Curve) -> Table:
    """Each family with its errors, the chosen one first."""
    rows = []
    for candidate in found.saturation.candidates:
        fit = candidate.fit
        rows.append((fit.model, f"{fit.misfit:.1%}", _percent(fit.held_out), f"{candidate.spread:.1%}", fit.notes[0]))
    return Table(
        "Families of curves, the chosen one first",
        ("family", "misfit", "held out", "held out, rms", "formula"),
        tuple(rows),
        (
            "Misfit and held-out error are medians.",
            "Chosen by the root mean square of errors on levels left out; a simpler one wins within 15 % of the least.",
        ),
    )


def figures_table(found: Curve) -> Table:
    """Knee, highest and limit; latency laws; goodput."""
    fitted = found.saturation
    chosen = fitted.chosen.fit
    rows = [(f"{name} of the {chosen.model}", show(value), value.method) for name, value in chosen.parameters.items()]
    rows += [
        ("knee", show(fitted.knee), fitted.knee.method),
        ("highest", show(fitted.top), fitted.top.method),
        ("limit", show(fitted.limit), fitted.limit.method),
    ]
    for name, law in (("TTFT mean", found.ttft), ("TPOT mean", found.tpot)):
        if law:
            parts = ", ".join(f"{key} = {show(value)}" for key, value in law.chosen.fit.parameters.items())
            held = f"{law.chosen.fit.notes[0]}, held-out error {_percent(law.chosen.fit.held_out)}"
            rows.append((f"{name} (ms)", parts, held))
    if found.goodput:
        also = f"; as good at {', '.join(map(significant, found.goodput.as_good))}" if found.goodput.as_good else ""
        falls = "; more load gives less" if found.goodput.falls else ""
        rows.append(("goodput peak", show(found.goodput.peak), f"at {significant(found.goodput.at)}{also}{falls}"))
    level = f"Intervals hold {fitted.level:.0%}."
    return Table("What the curve says", ("figure", "value", "how"), tuple(rows), (level, *found.notes), numbers=False)


def levels(found: Curve) -> Table:
    """Each run with what limits it."""
    rows = [
        (
            significant(point.asked),
            figure_text(point.in_flight, interval=False),
            figure_text(point.tokens_per_s),
            figure_text(point.ttft_ms),
            figure_text(point.tpot_ms),
            point.bottleneck.name,
        )
        for point in found.points
    ]
    notes = tuple(f"left out: {point.run} ({point.unusable})" for point in found.left_out)
    notes += tuple(
        f"{significant(point.asked)}: {point.bottleneck.name}: {'; '.join(point.bottleneck.evidence)}"
        for point in found.points
        if point.bottleneck.evidence
    )
    missing = sorted({name for point in found.points for name in point.bottleneck.missing})
    if missing:
        notes = (*notes, f"not measured, so not ruled out as a limit: {', '.join(missing)}")
    columns = ("asked", "in flight", "tokens/s", "TTFT mean (ms)", "TPOT mean (ms)", "limited by")
    return Table("Load levels", columns, tuple(rows), notes)


def residuals(found: Curve) -> Table:
    """Measured against fitted, and against the fit without that level."""
    rows = tuple(
        (
            significant(row.x),
            significant(row.measured),
            significant(row.predicted),
            f"{row.error:+.1%}",
            _signed(row.left_out),
        )
        for row in found.saturation.residuals()
    )
    return Table(
        "Residuals of the chosen curve",
        ("load", f"measured ({found.saturation.unit})", "fitted", "error", "error, level left out"),
        rows,
    )


def little(points: Sequence[Point]) -> Table:
    """Little's law at each load: requests in flight against answers a second times their stay."""
    rows = tuple(
        (
            significant(point.asked),
            _bare(point.flow.in_flight),
            _bare(point.flow.turned),
            _signed(point.flow.error),
            "broken"
            if point.flow.broken
            else "holds"
            if (point.flow.stays or 0) >= LITTLE_STAYS
            else "too short to say",
        )
        for point in points
    )
    notes = (
        f"Broken: more than {LITTLE_MISS:.0%} apart over ten answers' time or longer.",
        "Then rows are missing, or the load was no steady state.",
    )
    return Table("Little's law", ("load", "in flight", "rate × stay", "difference", ""), rows, notes)


def goodput_figure(points: Sequence[Point], x: Sequence[float], axis: str) -> Figure | None:
    """Goodput against load with its intervals; None where no run has one."""
    rows: list[Row] = [
        {"series": str(point.driver), "kind": "point", "x": at, "y": good.value, "low": good.low, "high": good.high}
        for point, at in zip(points, x, strict=True)
        if (good := point.goodput).value is not None
    ]
    if not rows:
        return None
    caption = "Answers a second that meet the whole objective; it falls where answers come too late."
    heading = Heading("goodput", "Goodput against load", caption)
    return curve(
        heading, sorted(rows, key=lambda row: float(row["x"] or 0)), Axis("x", axis, "log"), Axis("y", "1/s", zero=True)
    )


def pictures(found: Curve) -> tuple[Figure, ...]:
    """Throughput with its band, measured points and knee; latency laws; goodput where there is an objective."""
    fitted = found.saturation
    x = f"requests in flight ({found.by})"
    rows: list[Row] = []
    for at in np.geomspace(fitted.x.min(), fitted.x.max(), _POINTS):
        said = saturation.predict(fitted, float(min(max(at, fitted.x.min()), fitted.x.max())))
        rows.append({"series": "fitted", "kind": "line", "x": at, "y": said.value, "low": said.low, "high": said.high})
    for point, at in zip(found.points, np.sort(fitted.x), strict=True):
        e = point.tokens_per_s
        rows.append({"series": found.driver, "kind": "point", "x": at, "y": e.value, "low": e.low, "high": e.high})
    rules = [Rule(fitted.knee.value, "knee")] if fitted.knee.value is not None else []
    band = f"The band would hold {fitted.level:.0%} of new runs."
    heading = Heading("saturation", "Throughput against load", f"{sentence(found)} {band}")
    made = [curve(heading, rows, Axis("x", x, "log"), Axis("y", f"output {fitted.unit}", zero=True), rules)]
    for name, law in (("TTFT", found.ttft), ("TPOT", found.tpot)):
        if law:
            made.append(latency_figure(name, law, x, str(found.driver)))
    if good := goodput_figure(found.points, np.sort(fitted.x).tolist(), x):
        made.append(good)
    return tuple(made)


def in_characters(found: Curve, plain: bool) -> str:
    """Throughput against load for a terminal. `plain`: ASCII alone."""
    fitted = found.saturation
    chosen = fitted.chosen
    x = np.geomspace(fitted.x.min(), fitted.x.max(), 2 * _POINTS)
    line = list(zip(x.tolist(), np.exp(chosen.form.curve(chosen.theta, x)).tolist(), strict=True))
    points = list(zip(fitted.x.tolist(), fitted.y.tolist(), strict=True))
    rule = (fitted.knee.value, f"knee {significant(fitted.knee.value)}") if fitted.knee.value is not None else None
    title = f"output {fitted.unit} against requests in flight ({found.by}); points are {found.driver} runs"
    return f"{title}\n{text_plot(line, points, rule, plain=plain)}"


def latency_figure(name: str, law: Latency, x: str, driver: str) -> Figure:
    """A latency law with its band and what was measured."""
    rows: list[Row] = []
    for at in np.geomspace(law.x.min(), law.x.max(), _POINTS):
        said = latency.predict(law, float(min(max(at, law.x.min()), law.x.max())))
        rows.append({"series": "fitted", "kind": "line", "x": at, "y": said.value, "low": said.low, "high": said.high})
    rows += [
        {"series": driver, "kind": "point", "x": float(a), "y": float(b)} for a, b in zip(law.x, law.y, strict=True)
    ]
    caption = f"Mean {name} follows {law.chosen.fit.notes[0]}; median error {law.chosen.fit.misfit:.1%}."
    heading = Heading(name.lower(), f"{name} against load", caption)
    return curve(heading, rows, Axis("x", x, "log"), Axis("y", f"mean {name} (ms)", zero=True))


def page(found: Curve, predictions: Sequence[tuple[float, Estimate]] = ()) -> Page:
    """One page: the sentence, the key figures, pictures, tables."""
    fitted = found.saturation
    keys = (Key("Knee", fitted.knee), Key("Highest", fitted.top), Key("Limit", fitted.limit))
    section = Section(
        "fit",
        "Saturation",
        sentence(found),
        badge=str(found.driver),
        because=found.notes,
        key=tuple(key for key in keys if key.estimate.value is not None),
        tables=tables(found, predictions),
        figures=pictures(found),
    )
    first = found.points[0]
    return Page(
        f"{first.model or 'engine'}: throughput against load", (section,), f"{len(found.points)} runs, {first.workload}"
    )


def _percent(share: float | None) -> str:
    return "n/a" if share is None else f"{share:.1%}"


def _bare(value: float | None) -> str:
    return "n/a" if value is None else significant(value)


def _signed(share: float | None) -> str:
    return "n/a" if share is None else f"{share:+.1%}"
