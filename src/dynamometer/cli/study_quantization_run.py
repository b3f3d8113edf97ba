"""The options of `dyno study quantization` in; every cell measured or read, the study printed, out."""

from __future__ import annotations

from pathlib import Path

import msgspec
from rich.console import Console

from dynamometer.cli.output import json_text, stages, tell_study
from dynamometer.cli.quality_sides import Local, Named, facts, named, opened
from dynamometer.cli.study_quantization import FormatOptions
from dynamometer.decisions.quantization import choose
from dynamometer.engines.embedded import Progress, model_file
from dynamometer.engines.quantizations import quantization_of
from dynamometer.engines.recipes import Settings, compute_threads
from dynamometer.errors import UsageError
from dynamometer.quality import format_pages
from dynamometer.quality.divergence import Along, along, summary
from dynamometer.quality.formats import Cell, Speed, format_of, speed
from dynamometer.quality.logits import reader
from dynamometer.quality.rows import AlongRow, Answered, append, load, same_settings
from dynamometer.quality.texts import built_in
from dynamometer.quality.trial import Asking, answer, compare, read, score
from dynamometer.quality.word_problems import problems
from dynamometer.record.manifest import machine
from dynamometer.report.html import write_page


class SpeedRow(msgspec.Struct, frozen=True):
    """What is kept of a cell's speed."""

    cell: str
    speed: Speed


def run(chosen: FormatOptions) -> None:
    """Measures, writes cells.json and report.html, prints."""
    folder = chosen.out or Path("runs") / "formats"
    console = Console(stderr=True, quiet=chosen.quiet or chosen.as_json)
    with stages(console, chosen.quiet or chosen.as_json) as progress:
        cells = _cells(chosen, folder, progress)
        if chosen.torch:
            from dynamometer.quality.torch_formats import cells_of

            cells += cells_of(chosen.torch, chosen.model, chosen.texts, chosen.tokens, folder, progress)
    llama = [cell for cell in cells if not cell.weights.startswith("torch")]
    found = choose([format_of(cell) for cell in llama], chosen.agreement)
    source = _source(chosen, llama)
    values = {"decision": found, "cells": cells, "source": source}
    (folder / "cells.json").write_text(json_text(values), encoding="utf-8")
    page = format_pages.page(cells, found, source)
    written = write_page(page, folder / "report.html")
    said = (*format_pages.said(found, source), f"kept in {folder}; page: {written}")
    tell_study(said, format_pages.tables(cells, found), lambda: page, None, values if chosen.as_json else None)


def names(text: str, option: str) -> list[str]:
    """`A,B` as names, each once."""
    found = list(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    if not found:
        raise UsageError(f"{option} names nothing; give formats such as F16,Q8_0,Q4_0")
    return found


def _cells(chosen: FormatOptions, folder: Path, progress: Progress) -> list[Cell]:
    formats = names(chosen.formats, "--formats")
    caches = [] if chosen.cache_types in ("", "none") else names(chosen.cache_types, "--cache-types")
    words = [
        *formats,
        *(f"{one}+kv:{kind}" for one in formats if one in chosen.cache_formats.split(",") for kind in caches),
    ]
    progress("making the formats", float("nan"))
    sides = [named(word, word, chosen.model, "", "", progress) for word in words]
    settings = {
        "baseline": facts(sides[0]), "max_tokens": chosen.max_tokens,
        "texts": chosen.texts, "tokens": chosen.tokens, "seed": chosen.seed, "threads": _threads(chosen),
        "temperature": 0, "slots": SLOTS,
    }  # fmt: skip
    same_settings(folder, settings)
    first: list[Answered] = []
    cells = []
    for side in sides:
        answers, rate = _served(chosen, side, folder, progress)
        first = first or answers
        cells.append(_cell(chosen, (sides[0], side), (first, answers), rate, folder, progress))
    return cells


SLOTS = 4


def _threads(chosen: FormatOptions) -> int:
    return chosen.threads or compute_threads(Settings())


def _served(chosen: FormatOptions, one: Named, folder: Path, progress: Progress) -> tuple[list[Answered], Speed | None]:
    """What needs the server: speed, one request at a time, then answers. What was kept is not done again."""
    path = folder / "speeds.jsonl"
    questions = problems(chosen.questions, chosen.seed) if one.cache_type == "F16" else ()
    rate = next((row.speed for row in load(path, SpeedRow) if row.cell == one.label), None)
    wanted = {question.id for question in questions}
    answered = [
        row for row in load(folder / "answers.jsonl", Answered) if row.side == one.name and row.question in wanted
    ]
    if (rate is not None or not chosen.repeats) and len(answered) >= len(questions):
        return answered, rate
    local = Local(SLOTS, max(1024, chosen.max_tokens + 512), _threads(chosen))
    with opened(one, local, progress) as (side, served):
        assert served is not None
        if rate is None and chosen.repeats:
            progress(f"{one.label}: speed", float("nan"))
            rate = speed(side, served.pid, chosen.repeats)
            append(path, SpeedRow(one.label, rate))
        asking = Asking(chosen.max_tokens, SLOTS, chosen.seed)
        return answer(side, questions, asking, folder, progress) if questions else [], rate


def _cell(
    chosen: FormatOptions,
    pair: tuple[Named, Named],
    answers: tuple[list[Answered], list[Answered]],
    rate: Speed | None,
    folder: Path,
    progress: Progress,
) -> Cell:
    base, one = pair
    assert one.file is not None
    weights = one.label.partition("+kv:")[0]
    texts = None if one is base else summary(_along(chosen, base, one, folder, progress))
    found = None if one is base or not answers[1] else compare(answers[0], answers[1], 0.0)[0]
    right, notes = None, tuple[str, ...]()
    if answers[1]:
        paired_with_itself = compare(answers[1], answers[1], 0.0)[0]
        right = paired_with_itself.candidate if paired_with_itself else None
        notes = score(one.label, answers[1]).notes
    return Cell(one.label, weights, one.cache_type, one.file.stat().st_size, rate, texts, found, right, notes)


def _along(chosen: FormatOptions, base: Named, one: Named, folder: Path, progress: Progress) -> list[Along]:
    given = built_in(chosen.texts, chosen.seed)
    place = folder / "along" / one.label.replace("+kv:", "-kv-").replace("/", "_")
    place.mkdir(parents=True, exist_ok=True)
    kept = load(place / "along.jsonl", AlongRow)
    if len(kept) >= len(given):
        return [row.along for row in kept]
    assert base.file is not None
    assert one.file is not None
    threads = _threads(chosen)
    with (
        reader(base.file, chosen.tokens, threads) as a,
        reader(one.file, chosen.tokens, threads, one.cache_type) as b,
    ):

        def hear_one(name: str, text: str) -> AlongRow:
            ids = a.tokens(text)
            found = along(name, ids, a.log_probabilities(ids), b.log_probabilities(ids))
            return AlongRow("whole vocabulary, llama.cpp", found)

        rows = read(given, hear_one, place, lambda stage, share: progress(f"{one.label}: {stage}", share))
    return [row.along for row in rows]


def _source(chosen: FormatOptions, cells: list[Cell]) -> str:
    """What the formats were made of, plainly: precision that the file does not hold cannot come back."""
    held = quantization_of(model_file(chosen.model or "smollm2", "" if chosen.model else "Q4_1"))
    told = f"Made here from a file that holds {held}"
    if held not in ("F32", "F16", "BF16"):
        told += (
            f": {cells[0].name} is that file's weights without a further loss, not the model as it was trained, and "
            "what is lost is lost on top of it"
        )
    return f"{told}. {machine().get('cpu', 'an unknown CPU')}, {_threads(chosen)} compute threads."
