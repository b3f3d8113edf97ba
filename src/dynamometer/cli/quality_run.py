"""The options of `dyno quality` in, a comparison under way, printed and written, out."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import click
import msgspec
from rich.console import Console

from dynamometer import __version__
from dynamometer.cli.output import json_text, stages, tell_study
from dynamometer.cli.quality import QualityOptions
from dynamometer.cli.quality_sides import Local, Named, facts, named, opened
from dynamometer.engines.embedded import Progress
from dynamometer.engines.recipes import Settings, compute_threads
from dynamometer.errors import Refused, UsageError
from dynamometer.quality import pages
from dynamometer.quality.divergence import along
from dynamometer.quality.logits import reader
from dynamometer.quality.paired import Paired
from dynamometer.quality.questions import Question, read, texts
from dynamometer.quality.rows import AlongRow, Answered, same_settings
from dynamometer.quality.sides import Side, same_template
from dynamometer.quality.texts import built_in
from dynamometer.quality.trial import Asking, Trial, answer, by_endpoints, tell
from dynamometer.quality.trial import read as read_along
from dynamometer.quality.word_problems import problems
from dynamometer.report.html import write_page

FILE_TASKS = ("gsm8k", "math", "choice", "code")


def run(chosen: QualityOptions) -> int:
    """Exit code: 0, or 1 when the gate closes."""
    console = Console(stderr=True, quiet=chosen.quiet or chosen.as_json)
    with stages(console, chosen.quiet or chosen.as_json) as progress:
        if chosen.task.startswith("lm-eval:"):
            found, folder = _harness(chosen, progress)
        else:
            found, folder = _trial(chosen, progress)
    (folder / "quality.json").write_text(json_text(found), encoding="utf-8")
    write_page(pages.page(found), folder / "report.html")
    tell_study(
        pages.said(found), pages.tables(found), lambda: pages.page(found), None, found if chosen.as_json else None
    )
    if not chosen.as_json:
        click.echo(f"kept in {folder} (the same command goes on there); page: {folder / 'report.html'}")
    return int(chosen.gate and closes(found.answers, chosen.margin))


def sides_of(chosen: QualityOptions, progress: Progress) -> tuple[Named, ...]:
    """One named side, or two."""
    if chosen.url and (chosen.baseline or chosen.candidate):
        raise UsageError("give --url for one endpoint, or --baseline and --candidate for two; not both")
    if chosen.url:
        if not chosen.url.startswith(("http://", "https://")):
            raise UsageError(f"--url is {chosen.url!r}; give http://HOST:PORT/v1 or https://…")
        words = [("candidate", chosen.url, chosen.candidate_model)]
    else:
        words = [
            ("baseline", chosen.baseline or "F16", chosen.baseline_model),
            ("candidate", chosen.candidate or "Q4_K_M", chosen.candidate_model),
        ]
    return tuple(named(name, word, chosen.model, chosen.api_key_env, served, progress) for name, word, served in words)


def folder_of(chosen: QualityOptions, settings: Mapping[str, object]) -> Path:
    """The same settings give the same folder, so that the same command goes on."""
    key = hashlib.sha256(msgspec.json.encode(settings, order="deterministic")).hexdigest()[:10]
    return chosen.out or Path("runs") / f"quality-{key}"


def _trial(chosen: QualityOptions, progress: Progress) -> tuple[Trial, Path]:
    questions, skipped = _questions(chosen)
    sides = sides_of(chosen, progress)
    settings = _settings(chosen, sides, questions)
    folder = folder_of(chosen, settings)
    same_settings(folder, settings)
    if chosen.texts == 0 and not questions:
        raise UsageError("--task none with --texts 0 leaves nothing to do")
    rows, open_sides, notes = _ask(chosen, sides, questions, folder, progress)
    alongs, why = _read(chosen, sides, open_sides, folder, progress)
    notes = [*notes, *why, *skipped]
    labels = [side for side, _ in open_sides] or [Side(one.name, one.label, "", _nobody) for one in sides]
    return tell(chosen.task, labels, settings, rows, alongs, chosen.margin, notes), folder


def _nobody(path: str, body: object = None, *, root: bool = False) -> tuple[int, dict[str, object]]:
    raise AssertionError("a side that is only named is not asked")


def _questions(chosen: QualityOptions) -> tuple[tuple[Question, ...], list[str]]:
    if chosen.task == "none":
        return (), []
    if chosen.task == "words":
        if chosen.data:
            raise UsageError("the task words makes its questions; --data goes with gsm8k, math, choice or code")
        return problems(chosen.questions, chosen.seed), []
    if chosen.task not in FILE_TASKS:
        raise UsageError(f"--task is {chosen.task!r}; one of words, {', '.join(FILE_TASKS)}, lm-eval:NAME or none")
    if not chosen.data:
        raise UsageError(f"the task {chosen.task} needs questions; give --data FILE or --data hub:OWNER/NAME")
    found = read(chosen.task, chosen.data)
    left = [f"{count} records skipped: {why}" for why, count in found.skipped.items()]
    return found.questions[: chosen.questions], left


def _settings(chosen: QualityOptions, sides: Sequence[Named], questions: Sequence[Question]) -> dict[str, object]:
    """All that decides what comes back; a change of any is another comparison."""
    asked = hashlib.sha256(msgspec.json.encode(questions)).hexdigest()[:16] if questions else ""
    read_text = (
        hashlib.sha256(Path(chosen.text).read_bytes()).hexdigest()[:16] if _is_file(chosen.text) else chosen.text
    )
    return {
        "dynamometer": __version__, **{one.name: facts(one) for one in sides}, "task": chosen.task,
        "questions": len(questions), "questions_sha256": asked, "text": read_text, "texts": chosen.texts,
        "tokens": chosen.tokens, "top": chosen.top, "max_tokens": chosen.max_tokens, "temperature": 0,
        "seed": chosen.seed, "concurrency": chosen.concurrency,
    }  # fmt: skip


def _is_file(path: str) -> bool:
    return bool(path) and Path(path).is_file()


def _ask(
    chosen: QualityOptions, sides: Sequence[Named], questions: Sequence[Question], folder: Path, progress: Progress
) -> tuple[dict[str, list[Answered]], list[tuple[Side, Named]], list[str]]:
    """Each side's answers. Endpoints of the user's are all looked at first; local models are served one at a time."""
    rows: dict[str, list[Answered]] = {}
    local = Local(chosen.concurrency, max(1024, chosen.max_tokens + 512, chosen.tokens + 8), chosen.threads)
    seen: list[tuple[Side, Named]] = []
    if not questions and all(one.file is not None for one in sides):
        return rows, seen, []
    asking = Asking(chosen.max_tokens, chosen.concurrency, chosen.seed)
    notes: list[str] = []
    for one in sides:  # before hours of asking
        with opened(one, local, progress) as (side, _):
            seen.append((side, one))
    if len(seen) == 2:
        notes.append(same_template(seen[0][0], seen[1][0]))
    if questions:
        for one in sides:
            with opened(one, local, progress) as (side, _):
                rows[one.name] = answer(side, questions, asking, folder, progress)
    return rows, seen, notes


def _read(
    chosen: QualityOptions, sides: Sequence[Named], seen: list[tuple[Side, Named]], folder: Path, progress: Progress
) -> tuple[list[AlongRow], list[str]]:
    """Readings along the texts: whole vocabularies of two files, else what two endpoints give."""
    if len(sides) < 2 or not chosen.texts:
        return [], []
    given = texts(chosen.text)[: chosen.texts] if chosen.text else built_in(chosen.texts, chosen.seed)
    files = [one.file for one in sides if one.file is not None]
    if len(files) == 2:
        return _read_files(chosen, sides, given, folder, progress), []
    local = Local(1, max(1024, chosen.tokens + 8), chosen.threads)
    with ExitStack() as stack:
        a, b = (stack.enter_context(opened(one, local, progress))[0] for one in sides)
        try:
            return read_along(given, by_endpoints(a, b, chosen.top, chosen.tokens), folder, progress), []
        except Refused as wrong:
            if chosen.task == "none":
                raise
            return [], [f"distributions: {wrong}"]


def _read_files(
    chosen: QualityOptions, sides: Sequence[Named], given: Sequence[tuple[str, str]], folder: Path, progress: Progress
) -> list[AlongRow]:
    threads = chosen.threads or compute_threads(Settings())
    with ExitStack() as stack:
        a, b = (
            stack.enter_context(reader(one.file, chosen.tokens, threads, one.cache_type))
            for one in sides
            if one.file is not None
        )

        def hear_one(name: str, text: str) -> AlongRow:
            ids = a.tokens(text)
            if ids != b.tokens(text):
                raise Refused(
                    "the two files cut the text into different tokens; their distributions cannot be compared"
                )
            read_by_both = along(name, ids, a.log_probabilities(ids), b.log_probabilities(ids))
            return AlongRow("whole vocabulary, llama.cpp", read_by_both)

        return read_along(given, hear_one, folder, progress)


def _harness(chosen: QualityOptions, progress: Progress) -> tuple[Trial, Path]:
    """Tasks of lm-evaluation-harness, each side in turn, paired by document."""
    from dynamometer.quality.harness import Where, evaluate

    tasks = chosen.task.removeprefix("lm-eval:")
    sides = sides_of(chosen, progress)
    settings = {**_settings(chosen, sides, ()), "questions": chosen.questions}
    folder = folder_of(chosen, settings)
    same_settings(folder, settings)
    local = Local(chosen.concurrency, max(2048, chosen.max_tokens + 1024), chosen.threads)
    rows: dict[str, list[Answered]] = {}
    seen: list[Side] = []
    for one in sides:
        with opened(one, local, progress) as (side, served):
            seen.append(side)
            url = served.url if served else one.url
            progress(f"lm-eval {tasks}: {one.name} {one.label}", float("nan"))
            rows[one.name] = evaluate(
                side, url, tasks, chosen.questions, folder, Where(chosen.python, chosen.data, one.api_key_env)
            )
    notes = [same_template(seen[0], seen[1])] if len(seen) == 2 else []
    return tell(chosen.task, seen, settings, rows, (), chosen.margin, notes), folder


def closes(found: Paired | None, margin: float) -> bool:
    """Whether the gate closes. With a margin the sample must show that no more is lost; without one it closes when a
    loss is shown."""
    if found is None:
        return margin > 0
    if margin > 0:
        return found.drop.high is None or found.drop.high >= margin
    return found.drop.low is not None and found.drop.low > 0 and found.chance < 0.05
