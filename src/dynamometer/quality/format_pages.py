"""The cells of the study of formats in; verdict, tables and pictures out."""

from __future__ import annotations

from collections.abc import Sequence

from dynamometer.decisions.quantization import beaten_by_none
from dynamometer.quality.formats import Cell, format_of
from dynamometer.quality.pages import drift_figure
from dynamometer.quality.paired import SHOWN_DROPS, questions_for
from dynamometer.report.figure import Axis, Figure, Heading, Row
from dynamometer.report.page import Page, Section
from dynamometer.report.shapes import pareto
from dynamometer.report.table import Table, figure_text
from dynamometer.types import Decision
from dynamometer.units import MB


def said(found: Decision, source: str) -> tuple[str, ...]:
    return (
        f"{found.question} {found.answer}.",
        *(f"because {line}" for line in found.because[:1]),
        *(f"it flips: {line}" for line in found.flips),
        source,
    )


def tables(cells: Sequence[Cell], found: Decision) -> tuple[Table, ...]:
    made = [costs(cells), losses(cells)]
    if any(cell.answers for cell in cells):
        made.append(scores(served(cells)))
    if any(cell.cache != "F16" for cell in cells):
        made.append(cache_effect(cells))
    made += [drifts(cells), drops(cells)]
    if found.because[1:]:
        made.append(Table("Kept out", ("", ""), tuple(("", line) for line in found.because[1:]), numbers=False))
    return tuple(made)


def costs(cells: Sequence[Cell]) -> Table:
    best = set(beaten_by_none([format_of(cell) for cell in served(cells)]))
    rows = tuple(
        (
            cell.name,
            f"{cell.file_bytes / MB:,.1f}",
            "n/a" if not cell.speed or cell.speed.resident_bytes is None else f"{cell.speed.resident_bytes / MB:,.0f}",
            figure_text(cell.speed.prefill if cell.speed else None),
            figure_text(cell.speed.decode if cell.speed else None),
            "yes" if cell.name in best else "",
        )
        for cell in cells
    )
    heads = ("", "file (MB)", "resident (MB)", "prefill (tokens/s)", "decode (tokens/s)", "front")
    notes = (
        (
            "Speed: llama.cpp's own timings of 512 tokens in and 64 out, one at a time; median and, in brackets, least "
            "and most. Resident: proportional set size of the server after that work."
        ),
        "Front: no other format is as good in divergence, memory and decode speed, and better in one.",
    )
    return Table("What each format costs", heads, rows, notes)


def losses(cells: Sequence[Cell]) -> Table:
    rows = tuple(
        (
            cell.name,
            *(
                ("0", "100", "1")
                if cell.texts is None
                else (
                    figure_text(cell.texts.kl),
                    figure_text(cell.texts.agreement),
                    figure_text(cell.texts.perplexity_ratio),
                )
            ),
            "0" if cell.texts is None else f"{cell.texts.kl_p99:.3g}",
        )
        for cell in cells
    )
    first = next((cell.texts for cell in cells if cell.texts), None)
    note = f"{first.texts} texts, {first.tokens:,} tokens, whole vocabulary; {first.kl.method}." if first else ""
    heads = ("", "KL (nat/token)", "same top token (%)", "perplexity ratio", "KL p99 (nat)")
    foreign = ("torch's formats: against torch fp32, by torch; speed and size are torch's too, in no front.",)
    return Table(
        "What each format loses against the first",
        heads,
        rows,
        (*((note,) if note else ()), *(foreign if len(served(cells)) < len(cells) else ()), *_failed(cells)),
    )


def served(cells: Sequence[Cell]) -> list[Cell]:
    """The cells that llama.cpp served: torch's are no like for like."""
    return [cell for cell in cells if not cell.weights.startswith("torch")]


def _failed(cells: Sequence[Cell]) -> tuple[str, ...]:
    return tuple(f"{cell.name} does not run here: {cell.notes[0]}" for cell in cells if not cell.file_bytes)


def scores(cells: Sequence[Cell]) -> Table:
    rows = tuple(
        (
            cell.name,
            figure_text(cell.right),
            "" if cell.answers is None else figure_text(cell.answers.drop),
            "" if cell.answers is None else f"{cell.answers.lost} / {cell.answers.won}",
            "" if cell.answers is None else f"{cell.answers.chance:.2g}",
            "" if cell.answers is None else f"{cell.answers.smallest:.1f}",
        )
        for cell in cells
    )
    heads = ("", "right (%)", "drop (points)", "flipped to wrong / right", "McNemar p", "can show (points)")
    note = "A drop whose interval holds 0 is no drop that was shown; the last column is the smallest that could be."
    return Table("Word problems", heads, rows, (note,))


def cache_effect(cells: Sequence[Cell]) -> Table:
    """Divergence of weights and cache together beside the sum of both alone: is the damage more than the sum?"""
    kl = {(cell.weights, cell.cache): cell.texts.kl.value or 0.0 if cell.texts else 0.0 for cell in cells}
    plain = cells[0].weights
    rows = []
    for cell in cells:
        alone = kl.get((plain, cell.cache))
        weights = kl.get((cell.weights, "F16"))
        if cell.cache == "F16" or alone is None or weights is None:
            continue
        both = kl[cell.weights, cell.cache]
        rows.append((cell.name, f"{weights:.4f}", f"{alone:.4f}", f"{weights + alone:.4f}", f"{both:.4f}"))
    heads = ("", "weights alone", "cache alone", "their sum", "together")
    note = f"KL against {cells[0].name}, nat/token. Together near the sum: the two do not make each other worse."
    return Table("The cache's type as a second factor", heads, tuple(rows), (note,))


def drifts(cells: Sequence[Cell]) -> Table:
    shown = [cell for cell in cells if cell.texts]
    bands = sorted({(band.first, band.last) for cell in shown if cell.texts for band in cell.texts.bands})
    rows = []
    for cell in shown:
        assert cell.texts is not None
        known = {(band.first, band.last): band.drift for band in cell.texts.bands}
        along = (figure_text(known.get(band), interval=False) for band in bands)
        rows.append((cell.name, *along, figure_text(cell.texts.drift_slope)))
    heads = ("", *(f"{first + 1}–{last}" for first, last in bands), "slope / 100")
    note = (
        "Log-probability of the reference's own token less the first format's, nat/token, by its place (teacher "
        "forcing). A slope whose interval holds 0: the error does not grow with depth."
    )
    return Table("Error along the chain", heads, tuple(rows), (note,))


def drops(cells: Sequence[Cell]) -> Table:
    """Published drops beside what it takes to show them."""
    shares = [(cell.answers.lost + cell.answers.won) / cell.answers.n for cell in cells if cell.answers]
    seen = max(shares, default=0.0)
    rows = tuple(
        (
            f"{drop:g} points",
            *(f"{questions_for(drop / 100, max(share, drop / 100)):,}" for share in (0.05, 0.1, 0.2)),
            f"{questions_for(drop / 100, max(seen, drop / 100)):,}" if seen else "n/a",
        )
        for drop in SHOWN_DROPS
    )
    heads = ("drop", "5 % differ", "10 % differ", "20 % differ", "as most here")
    note = (
        "Questions for p < 0.05 in four trials of five, paired, by the share of answers that differ between the two. "
        "4.6 and 6.8 points are drops that reports print; GSM8K's test set has 1,319 questions, MATH-500 has 500."
    )
    return Table("Questions needed to show a drop", heads, rows, (note,))


def pictures(cells: Sequence[Cell]) -> tuple[Figure, ...]:
    cells = served(cells)
    best = set(beaten_by_none([format_of(cell) for cell in cells]))
    points: list[Row] = [
        {
            "label": cell.name,
            "kl": (cell.texts.kl.value or 0.0) if cell.texts else 0.0,
            "mb": cell.file_bytes / MB,
            "rate": cell.speed.decode.value if cell.speed else None,
            "best": cell.name in best,
        }
        for cell in cells
    ]
    across = Axis("kl", f"KL against {cells[0].name} (nat/token)", "symlog", zero=True)
    caption = "To the left and low is better: less lost, less memory. A line joins the formats that nothing beats."
    made = [pareto(Heading("size", "Size against what is lost", caption), points, across, Axis("mb", "file (MB)"))]
    if all(point["rate"] is not None for point in points):
        caption = "To the left and high is better: less lost, more speed."
        heading = Heading("rate", "Decode speed against what is lost", caption)
        made.append(pareto(heading, points, across, Axis("rate", "decode (tokens/s)", zero=True)))
    series = {cell.name: cell.texts for cell in cells if cell.texts and cell.cache == "F16"}
    return (*made, *(drift_figure(series, cells[0].name) if series else ()))


def page(cells: Sequence[Cell], found: Decision, source: str) -> Page:
    section = Section(
        "quantization", "Formats", f"{found.question} {found.answer}.", badge="measured",
        because=(*found.because[:1], *(f"It flips: {line}" for line in found.flips), source),
        tables=tables(cells, found), figures=pictures(cells),
    )  # fmt: skip
    return Page("What quantization costs and what it loses", (section,), f"{len(cells)} formats")
