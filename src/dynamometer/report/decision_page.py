"""A recommendation in, its one page out, as HTML and as Markdown: the answer, why, alternatives, what flips it."""

from __future__ import annotations

from typing import Final

from dynamometer.decisions.constraints import Held
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
    """The page: recommendation and alternatives, what would flip it, every number. `command`: how to make it again."""
    chosen = next((row for row in found.rows if row.name == found.chosen), None)
    options, constraints, numbers, *attribution = tables(found)
    decision = Section(
        anchor="decision",
        title="The recommendation",
        verdict=found.decision.answer,
        badge=_badge(chosen),
        tone="good" if chosen else "bad",
        because=found.decision.because,
        key=_keys(chosen),
        tables=(options, constraints, *attribution),
        figures=figures(found),
    )
    flips = found.decision.flips
    turning = Section(
        anchor="flips",
        title="What would flip it",
        verdict=f"{len(flips)} things would." if flips else "Nothing that was looked at.",
        because=(*flips, *(f"not weighed or in doubt: {note}" for note in found.notes)),
    )
    told = Section(
        anchor="evidence",
        title="The evidence",
        verdict=_counted(found),
        tables=(numbers,),
        recipes=(Recipe("Command", command),),
    )
    return Page(found.decision.question, (decision, turning, told))


def _counted(found: Recommendation) -> str:
    """How many numbers of each kind."""
    kinds = [one.provenance for row in found.rows for one in row.evidence.figures]
    return ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds)) + "." if kinds else "None."


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
    places: dict[tuple[float, float], list[Judged]] = {}
    units: dict[str, str] = {}
    for row in found.rows:
        pair = [one for name in (found.against, found.minimize) if (one := row.evidence.figure(name))]
        known = [one.estimate.value for one in pair if one.estimate.value is not None]
        if len(known) == 2:
            units = {one.name: one.estimate.unit for one in pair}
            places.setdefault((known[0], known[1]), []).append(row)
    rows: list[Row] = [
        {"x": x, "y": y, "label": " = ".join(map(_label, here)), "best": any(row.on_front for row in here)}
        for (x, y), here in places.items()
    ]
    if len(rows) < 2:
        return ()
    best = ", ".join(str(row["label"]) for row in rows if row["best"])
    heading = Heading("front", "The alternatives", f"Nothing beats {best} in both figures.")
    across, up = (Axis(field, _titled(name, units)) for field, name in (("x", found.against), ("y", found.minimize)))
    return (pareto(heading, rows, across, up),)


def _label(row: Judged) -> str:
    return row.name if row.standing == "holds" else f"{row.name} ({row.standing})"


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
    """A row an option, a column a constraint: whether it holds, and the figure."""
    asked = list(dict.fromkeys(one.constraint for row in found.rows for one in row.held))
    rows = []
    for row in found.rows:
        held = {one.constraint: one for one in row.held}
        rows.append((row.name, *(_cell(held[name]) if name in held else "" for name in asked)))
    notes = ("not sure: the figure has no interval, or its interval holds the limit.",) if asked else ()
    return Table("Constraints", ("", *asked), tuple(rows), notes, numbers=False)


def _cell(one: Held) -> str:
    sure = "" if one.sure or one.met is None else ", not sure"
    return f"{_WORD[one.met]}{f', {one.slack}' if one.slack else ''}{sure}"


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
