"""A comparison in; its sentences, tables and pictures out."""

from __future__ import annotations

from dynamometer.quality.divergence import Divergence
from dynamometer.quality.paired import Paired
from dynamometer.quality.trial import Trial
from dynamometer.report.figure import Axis, Figure, Heading, Row, curve
from dynamometer.report.page import Page, Section
from dynamometer.report.table import Table, figure_text
from dynamometer.units import show, significant

OUTCOMES = ("right", "wrong", "unparsed", "error")


def tables(found: Trial) -> tuple[Table, ...]:
    """Outcomes, the paired comparison, what is needed to show a drop, the distributions, the drift by depth."""
    made = []
    if found.scores:
        rows = tuple(
            (one.side, *(f"{one.outcomes[name]:,}" for name in OUTCOMES), f"{one.cut:,}", f"{one.asked:,}")
            for one in found.scores
        )
        note = "Unparsed: an answer without anything to compare; it is not right. Error: no answer; it is in no figure."
        made.append(Table(f"Outcomes: {found.task}", ("", *OUTCOMES, "cut", "asked"), rows, (note,)))
    if found.answers is not None:
        made += [pairs(found.answers, found.changed), needed(found.answers)]
    if found.texts is not None:
        made += [distributions(found.texts, found.way), drift(found.texts)]
    return tuple(made)


def pairs(found: Paired, changed: float | None) -> Table:
    lines = (
        ("baseline right", show(found.baseline)),
        ("candidate right", show(found.candidate)),
        ("drop", show(found.drop)),
        ("flipped to wrong / to right", f"{found.lost:,} / {found.won:,} of {found.n:,}"),
        ("another answer, right or wrong", "n/a" if changed is None else f"{100 * changed:.1f} %"),
        ("McNemar, exact, two-sided", f"p = {found.chance:.3g}"),
    )
    notes = (f"Drop: {found.drop.method}; right: {found.baseline.method}.",)
    return Table("The same questions, in pairs", ("", ""), lines, notes, numbers=False)


def needed(found: Paired) -> Table:
    rows = tuple((f"{drop} points", f"{n:,}", "yes" if found.n >= n else "no") for drop, n in found.needed.items())
    share = 100 * max(found.lost + found.won, 1) / found.n
    notes = (
        (
            f"For p < 0.05 in four trials of five, when {share:.1f} % of the pairs differ as here (never fewer than "
            f"the drop). These {found.n:,} show {found.smallest:.1f} points."
        ),
        "4.6 and 6.8 points are drops that reports of quantized models print.",
    )
    return Table("Questions needed to show a drop", ("drop", "questions", "asked here"), rows, notes)


def distributions(found: Divergence, way: str) -> Table:
    kl = "KL(baseline ‖ candidate)" + ("" if found.exact else ", at least")
    lines = (
        (kl, show(found.kl)),
        ("its 99th percentile", f"{significant(found.kl_p99)} nat"),
        ("same most likely token", show(found.agreement)),
        ("perplexity, baseline", show(found.perplexity[0])),
        ("perplexity, candidate", show(found.perplexity[1])),
        ("ratio of perplexities", show(found.perplexity_ratio)),
        ("drift for each 100 tokens", show(found.drift_slope)),
    )
    notes = [f"{found.texts:,} texts, {found.tokens:,} tokens, by {way}. Intervals: {found.kl.method}."]
    if not found.exact:
        notes.append(
            "From the most likely tokens alone: what is outside both lists is one event, so the divergence is a lower "
            "bound; a text's token outside its list gets the most it can have, so a perplexity is a lower bound too."
        )
    return Table("Distributions along the texts", ("", ""), lines, tuple(notes), numbers=False)


def drift(found: Divergence) -> Table:
    rows = tuple(
        (f"{band.first + 1}–{band.last}", figure_text(band.drift), figure_text(band.kl), f"{band.drift.n:,}")
        for band in found.bands
    )
    note = (
        "Candidate's log-probability of the text's own token less the baseline's, nats: below 0 it fits the text less."
    )
    return Table("Drift by depth", ("token of the text", "drift", "KL", "n"), rows, (note,))


def pictures(found: Trial) -> tuple[Figure, ...]:
    if found.texts is None:
        return ()
    return drift_figure({found.labels[1]: found.texts}, found.labels[0])


def drift_figure(series: dict[str, Divergence], baseline: str) -> tuple[Figure, ...]:
    """Drift against depth, one line a candidate."""
    rows: list[Row] = []
    for name, texts in series.items():
        rows += [
            {"series": name, "kind": kind, "x": (band.first + 1 + band.last) / 2, "y": band.drift.value}
            for band in texts.bands
            for kind in ("line", "point")
        ]
    caption = (
        f"Log-probability of the text's own next token, less that of {baseline}; 0 is no drift. "
        "Does an error grow with depth, or does it stay what it is at the start?"
    )
    heading = Heading("drift", "Drift along a text", caption)
    return (curve(heading, rows, Axis("x", "token of the text", "log"), Axis("y", "drift (nat/token)")),)


def page(found: Trial) -> Page:
    section = Section(
        "quality", f"{found.labels[1]} against {found.labels[0]}", found.verdict, badge="measured",
        tables=(*tables(found), settings(found)), figures=pictures(found),
    )  # fmt: skip
    return Page("What it costs in answers", (section,), f"{found.task}: {found.labels[0]} and {found.labels[1]}")


def settings(found: Trial) -> Table:
    rows = tuple((name, str(value)) for name, value in found.settings.items())
    return Table("Settings", ("", ""), rows, found.notes, numbers=False)


def said(found: Trial) -> tuple[str, ...]:
    title = found.labels[1] if len(found.scores) == 1 else f"{found.labels[1]} against {found.labels[0]}"
    return (f"{title}: {found.verdict}", *(f"note: {note}" for note in found.notes))
