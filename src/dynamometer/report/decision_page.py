"""A recommendation in, its one page out, as HTML and as Markdown: the answer, why, alternatives, what flips it."""

from __future__ import annotations

from typing import Final

from dynamometer.decisions.evidence import Figure as Evidenced
from dynamometer.decisions.recommend import Recommendation
from dynamometer.decisions.row import Row as Judged
from dynamometer.report.figure import Axis, Figure, Heading, Row
from dynamometer.report.page import Key, Page, Recipe, Section
from dynamometer.report.shapes import pareto
from dynamometer.report.table import Table, markdown
from dynamometer.units import show

_WORD: Final = {True: "yes", False: "no", None: "open"}


def decision_page(found: Recommendation, command: str) -> Page:
    """The page. `command`: how to make it again."""
    chosen = next((row for row in found.rows if row.name == found.chosen), None)
    section = Section(
        anchor="decision",
        title=found.decision.question,
        verdict=found.decision.answer,
        badge=_badge(chosen),
        tone="good" if chosen else "bad",
        because=(*found.decision.because, *(f"it would flip: {flip}" for flip in found.decision.flips), *found.notes),
        key=_keys(chosen),
        tables=tables(found),
        figures=figures(found),
        recipes=(Recipe("Command", command),),
    )
    return Page(found.decision.question, (section,))


def _badge(chosen: Judged | None) -> str:
    """The weakest kind that the recommendation's figure rests on."""
    kinds = chosen.objective.provenance if chosen and chosen.objective else ""
    return next((kind for kind in ("simulated", "quoted", "measured") if kind in kinds), "")


def _keys(chosen: Judged | None) -> tuple[Key, ...]:
    if chosen is None:
        return ()
    names = ("usd_per_million_output_tokens", "usd_per_month", "ttft_p95_ms", "tpot_p95_ms", "output_tokens_per_s")
    shown = [chosen.evidence.figure(name) for name in names]
    return tuple(Key(plain(one.name), one.estimate) for one in shown if one)


def plain(name: str) -> str:
    """A figure's name as a person says it: the unit stands with the number."""
    words = {"usd_per_million_output_tokens": "price of a million output tokens", "usd_per_month": "cost of a month"}
    return words.get(name, name.removesuffix("_ms").removesuffix("_w").replace("_", " "))


def figures(found: Recommendation) -> tuple[Figure, ...]:
    """The two figures that count, one point an option; a line joins what nothing beats."""
    if not found.against:
        return ()
    rows: list[Row] = []
    units = {}
    for row in found.rows:
        pair = [row.evidence.figure(name) for name in (found.against, found.minimize)]
        if all(one is not None and one.estimate.value is not None for one in pair):
            x, y = (one.estimate.value for one in pair if one is not None)
            units = {one.name: one.estimate.unit for one in pair if one is not None}
            label = f"{row.name}{'' if row.standing == 'holds' else f' ({row.standing})'}"
            rows.append({"x": x, "y": y, "label": label, "best": row.on_front})
    if len(rows) < 2:
        return ()
    best = ", ".join(str(row["label"]) for row in rows if row["best"])
    heading = Heading("front", "The alternatives", f"Nothing beats {best} in both figures.")
    across, up = (Axis(field, _titled(name, units)) for field, name in (("x", found.against), ("y", found.minimize)))
    return (pareto(heading, rows, across, up),)


def _titled(name: str, units: dict[str, str]) -> str:
    unit = units.get(name, "")
    return f"{plain(name)} ({unit})" if unit else plain(name)


def tables(found: Recommendation) -> tuple[Table, ...]:
    """The options side by side, each constraint, every number with where it comes from."""
    return (_options(found), _constraints(found), _numbers(found), *_attribution(found))


def _options(found: Recommendation) -> Table:
    names = [found.minimize, *([found.against] if found.against else [])]
    rows = []
    for row in found.rows:
        mark = " ←" if row.name == found.chosen else ""
        chance = (f"{found.chances[row.name]:.0%}" if row.name in found.chances else "",) if found.chances else ()
        rows.append(
            (f"{row.name}{mark}", row.standing, *(_shown(row.evidence.figure(name)) for name in names), *chance)
        )
    columns = ("", "constraints", *(plain(name) for name in names), *(("best in",) if found.chances else ()))
    return Table("Options", columns, tuple(rows), numbers=False)


def _shown(one: Evidenced | None) -> str:
    return "not known" if one is None else f"{show(one.estimate)} ({one.provenance})"


def _constraints(found: Recommendation) -> Table:
    rows = tuple(
        (row.name, one.constraint, _WORD[one.met] + ("" if one.sure or one.met is None else ", not sure"), one.why)
        for row in found.rows
        for one in row.held
    )
    return Table("Constraints", ("option", "constraint", "holds", "because"), rows, numbers=False)


def _numbers(found: Recommendation) -> Table:
    rows = tuple(
        (row.name, one.name, show(one.estimate), str(one.provenance), one.source)
        for row in found.rows
        for one in row.evidence.figures
    )
    return Table(
        "Every number, and where it comes from", ("option", "figure", "value", "is", "from"), rows, numbers=False
    )


def _attribution(found: Recommendation) -> tuple[Table, ...]:
    rows = tuple((row.name, line) for row in found.rows if row.permission for line in row.permission.attribution)
    return (Table("To display or hand on", ("option", "text"), rows, numbers=False),) if rows else ()


def decision_markdown(found: Recommendation) -> str:
    """The same as one Markdown text."""
    lines = [f"# {found.decision.question}", "", f"**{found.decision.answer}**", "", "## Why", ""]
    lines += [f"- {line}" for line in found.decision.because] or ["- there is no constraint"]
    lines += ["", "## What would flip it", ""]
    lines += [f"- {line}" for line in found.decision.flips] or ["- nothing that was looked at"]
    if found.notes:
        lines += ["", "## Doubts and gaps", "", *(f"- {note}" for note in found.notes)]
    return "\n".join(lines) + "\n\n" + "\n".join(markdown(table) for table in tables(found))
