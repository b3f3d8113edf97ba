"""Two sides, questions and texts in; every answer and reading as rows, then what they say together out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Final

import msgspec

from dynamometer.errors import Refused
from dynamometer.quality.divergence import Divergence, summary
from dynamometer.quality.finals import Outcome, final_number, judge_number, spoken
from dynamometer.quality.mathematics import judge_mathematics
from dynamometer.quality.paired import Paired, paired
from dynamometer.quality.questions import Question
from dynamometer.quality.rows import AlongRow, Answered, append, load
from dynamometer.quality.sandbox import judge_code
from dynamometer.quality.sides import Said, Side, ask, hear, heard_along

ANSWERS: Final = "answers.jsonl"
ALONG: Final = "along.jsonl"
FEW: Final = 30  # pairs below which no verdict is worth a sentence
Progress = Callable[[str, float], None]
Hear = Callable[[str, str], AlongRow]  # a text's name and the text -> its row


class Score(msgspec.Struct, frozen=True):
    """One side's outcomes, each counted apart."""

    side: str
    asked: int
    outcomes: Mapping[str, int]
    cut: int  # answers that the token limit ended
    notes: tuple[str, ...] = ()


class Trial(msgspec.Struct, frozen=True):
    """What a comparison found. A part that was not asked for, or cannot be had, is None and `notes` say why."""

    task: str
    labels: tuple[str, str]
    settings: Mapping[str, object]
    scores: tuple[Score, ...]
    answers: Paired | None
    changed: float | None  # share of questions whose compared answer is another, right or wrong
    texts: Divergence | None
    way: str
    verdict: str
    notes: tuple[str, ...]


class Asking(msgspec.Struct, frozen=True):
    """How questions are asked."""

    max_tokens: int
    concurrency: int
    seed: int


def answer(
    side: Side, questions: Sequence[Question], asking: Asking, folder: Path, progress: Progress
) -> list[Answered]:
    """Asks what was not asked before. Answers are judged in this thread as they come, in any order."""
    path, wanted = folder / ANSWERS, {question.id: question for question in questions}
    rows = [row for row in load(path, Answered) if row.side == side.name and row.question in wanted]
    done = {row.question for row in rows}
    left = [question for question in questions if question.id not in done]
    pool = ThreadPoolExecutor(asking.concurrency)
    pending: dict[Future[Said], Question] = {}
    try:
        waiting = iter(left)
        while True:
            while len(pending) < asking.concurrency and (one := next(waiting, None)) is not None:
                pending[pool.submit(ask, side, one, asking.max_tokens, asking.seed)] = one
            if not pending:
                return rows
            for future in wait(pending, timeout=0.5, return_when=FIRST_COMPLETED).done:
                row = judged(side.name, pending.pop(future), future.result())
                append(path, row)
                rows.append(row)
            progress(
                f"{side.name}, {side.label.partition('//')[2] or side.label}: {len(rows)} of {len(questions)} answers",
                len(rows) / len(questions),
            )
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def judged(side: str, question: Question, said: Said) -> Answered:
    """An answer with what it is worth."""
    if said.error:
        return Answered(side, question.id, Outcome.ERROR, "", note=said.error)
    note, shown = "", spoken(said.text).strip()[-80:]
    if question.kind == "number":
        ended = final_number(said.text)
        outcome, shown = judge_number(said.text, question.reference), "" if ended.value is None else str(ended.value)
        if said.finish == "length" and ended.where == "last":  # a cut answer's last number is one on the way
            outcome, shown = Outcome.UNPARSED, ""
    elif question.kind == "math":
        outcome = judge_mathematics(said.text, question.reference)
    elif question.kind == "choice":
        right = Outcome.RIGHT if said.text == question.reference else Outcome.WRONG
        outcome, shown = right if said.text else Outcome.UNPARSED, said.text
    else:
        outcome, ran = judge_code(said.text, question.opening, question.tests)
        note = ran.why if ran else ""
    return Answered(side, question.id, outcome, shown, said.finish, said.tokens, note)


def read(texts: Sequence[tuple[str, str]], hear_one: Hear, folder: Path, progress: Progress) -> list[AlongRow]:
    """Reads what was not read before, text by text."""
    path = folder / ALONG
    names = {name for name, _ in texts}
    rows = [row for row in load(path, AlongRow) if row.along.text in names]
    done = {row.along.text for row in rows}
    for name, text in texts:
        if name not in done:
            progress(f"reading along: {len(rows)} of {len(texts)} texts", len(rows) / len(texts))
            row = hear_one(name, text)
            append(path, row)
            rows.append(row)
    return rows


def by_endpoints(baseline: Side, candidate: Side, top: int, most: int) -> Hear:
    """Reads a text at two endpoints."""

    def hear_one(name: str, text: str) -> AlongRow:
        (a, way), (b, _) = hear(baseline, text, top, most), hear(candidate, text, top, most)
        return AlongRow(f"top {top}, {way}", heard_along(name, a, b))

    return hear_one


def score(side: str, rows: Sequence[Answered]) -> Score:
    counts = {outcome.value: sum(row.outcome == outcome for row in rows) for outcome in Outcome}
    cut = sum(row.finish == "length" for row in rows)
    notes = []
    if counts["error"]:
        why = next(row.note for row in rows if row.outcome == Outcome.ERROR)
        notes.append(f"{side}: {counts['error']} of {len(rows)} questions got no answer, and are in no figure: {why}")
    if cut:
        notes.append(f"{side}: {cut} of {len(rows)} answers were cut by the token limit; raise --max-tokens")
    return Score(side, len(rows), counts, cut, tuple(notes))


def compare(a: Sequence[Answered], b: Sequence[Answered], margin: float) -> tuple[Paired | None, float | None, str]:
    """Pairs of questions that both answered; an answer without a number is not right. None and the reason."""
    first, second = ({row.question: row for row in rows if row.outcome != Outcome.ERROR} for rows in (a, b))
    both = sorted(first.keys() & second.keys())
    if not both:
        return None, None, "no question was answered by both"
    right = [[rows[name].outcome == Outcome.RIGHT for name in both] for rows in (first, second)]
    changed = sum(first[name].said != second[name].said for name in both) / len(both)
    return paired(right[0], right[1], margin), changed, ""


def tell(
    task: str,
    sides: Sequence[Side],
    settings: Mapping[str, object],
    rows: Mapping[str, Sequence[Answered]],
    alongs: Sequence[AlongRow],
    margin: float = 0.0,
    notes: Sequence[str] = (),
) -> Trial:
    """What the rows say together."""
    scores = tuple(score(side.name, rows[side.name]) for side in sides if rows.get(side.name))
    found, changed, why = None, None, ""
    if len(sides) == 2 and all(rows.get(side.name) for side in sides):
        found, changed, why = compare(rows[sides[0].name], rows[sides[1].name], margin)
    if scores and not any(one.asked - one.outcomes["error"] for one in scores):
        raise Refused("no question got an answer: " + scores[0].notes[0])
    texts = summary([row.along for row in alongs]) if alongs else None
    told = [*notes, *([why] if why else []), *(note for one in scores for note in one.notes)]
    if found is not None and (floor := max(found.both + found.lost, found.both + found.won)) < found.n / 10:
        told.append(
            f"the task tells little: {floor} right of {found.n}; where nearly all is wrong, only agreement and "
            "divergence can differ"
        )
    labels = (sides[0].label, sides[-1].label)
    way = alongs[0].way if alongs else ""
    return Trial(task, labels, settings, scores, found, changed, texts, way, _verdict(found, texts), tuple(told))


def _verdict(found: Paired | None, texts: Divergence | None) -> str:
    said = []
    if found is not None:
        if found.n < FEW:
            said.append(f"answers: no verdict, {found.n} questions are too few ({FEW} at least)")
        else:
            said.append(f"answers: {found.verdict}")
    if texts is not None:
        least = "" if texts.exact else "at least "
        said.append(
            f"distributions: KL {least}{texts.kl.value:.4f} nat/token, the same most likely token in "
            f"{texts.agreement.value:.1f} %"
        )
    return "; ".join(said) or "one endpoint: a score, and nothing to compare it with"
