"""A file, a data set's name or a seed in, questions out: numbers, mathematics, multiple choice, code, running text."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, Protocol, cast

import msgspec

from dynamometer.errors import TargetError, UsageError
from dynamometer.plugins import optional
from dynamometer.workload.readers import Line, existing, json_array

ASK_NUMBER: Final = "\n\nReason step by step. End with a line that holds #### and then the number alone."
ASK_MATH: Final = "\n\nReason step by step. Put the final answer in \\boxed{}."
ASK_CODE: Final = "Complete this Python function. Answer with the whole function in one code block.\n\n"
LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


class Question(msgspec.Struct, frozen=True):
    """One question. `id` names it within its file; a row of a result carries it."""

    id: str
    kind: str  # number | math | choice | code
    prompt: str
    reference: str  # the right answer; of a choice its letter
    choices: tuple[str, ...] = ()
    tests: str = ""  # Python that raises when the answer's code is wrong
    opening: str = ""  # code that stands before what the model writes


class Read(msgspec.Struct, frozen=True):
    """The questions of a file and why other records are none, by reason."""

    questions: tuple[Question, ...]
    skipped: Mapping[str, int] = {}


def read(task: str, source: str) -> Read:
    """The questions of a local file (JSON lines or an array) or of `hub:OWNER/NAME[:SPLIT]`.

    Field names are those of GSM8K (question, answer), MATH (problem, solution or answer), ARC and MMLU (question,
    choices, answer or answerKey) and HumanEval (prompt, test, entry_point).
    """
    if task not in _READERS:
        raise UsageError(f"task is {task!r}; with a file one of {', '.join(_READERS)}")
    lines = _hub(source.removeprefix("hub:")) if source.startswith("hub:") else json_array(existing(source, "--data"))
    found: list[Question] = []
    skipped: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        question = line.fault or _READERS[task](f"{line.fields.get('id', line.fields.get('task_id', number))}", line)
        if isinstance(question, str):
            skipped[question] = skipped.get(question, 0) + 1
        else:
            found.append(question)
    if not found:
        why = ", ".join(f"{n} × {reason}" for reason, n in skipped.items()) or "it is empty"
        raise UsageError(f"{source} holds no question for the task {task}: {why}")
    if len({question.id for question in found}) < len(found):  # ids name rows; a file's repeated ones cannot
        found = [msgspec.structs.replace(one, id=f"{at}") for at, one in enumerate(found, 1)]
    return Read(tuple(found), skipped)


def _text(line: Line, *names: str) -> str:
    for name in names:
        value = line.fields.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return str(value)
        if isinstance(value, str) and value.strip():
            return value
    return ""


def _number(name: str, line: Line) -> Question | str:
    from dynamometer.quality.finals import final_number

    asked, answer = _text(line, "question", "prompt", "problem"), _text(line, "answer", "reference", "solution")
    if not asked:
        return "no question"
    if final_number(answer).value is None:
        return "no number in its answer"
    return Question(name, "number", asked + ASK_NUMBER, answer)


def _math(name: str, line: Line) -> Question | str:
    asked, answer = _text(line, "problem", "question", "prompt"), _text(line, "answer", "solution", "reference")
    if not asked or not answer:
        return "no problem" if not asked else "no answer"
    return Question(name, "math", asked + ASK_MATH, answer)


def _choice(name: str, line: Line) -> Question | str:
    asked, choices = _text(line, "question", "prompt", "ctx"), line.fields.get("choices", line.fields.get("endings"))
    labels: list[str] = []
    if isinstance(choices, dict):  # as ARC writes it: {"text": […], "label": […]}
        labels, choices = [str(label) for label in choices.get("label", [])], choices.get("text")
    if not asked or not isinstance(choices, list) or not 2 <= len(choices) <= len(LETTERS):
        return "no question" if not asked else "no list of 2 to 26 choices"
    key = line.fields.get("answer", line.fields.get("answerKey", line.fields.get("label")))
    right = _which(key, labels, [str(choice) for choice in choices])
    if right is None:
        return "its answer is none of its choices"
    listed = "\n".join(f"{LETTERS[at]}. {choice}" for at, choice in enumerate(choices))
    return Question(name, "choice", f"{asked}\n{listed}\nAnswer:", LETTERS[right], tuple(map(str, choices)))


def _which(key: object, labels: list[str], choices: list[str]) -> int | None:
    """The place of the right choice: by its label, its number from 0, its letter, or its text."""
    if isinstance(key, int) and not isinstance(key, bool):
        return key if 0 <= key < len(choices) else None
    word = str(key).strip()
    for known in (labels, list(LETTERS[: len(choices)]), [str(at) for at in range(len(choices))], choices):
        if word in known:
            return known.index(word)
    return None


def _code(name: str, line: Line) -> Question | str:
    opening, tests = _text(line, "prompt"), _text(line, "test", "tests")
    listed = line.fields.get("test_list")
    if not tests and isinstance(listed, list):  # as MBPP writes it
        tests = "\n".join(str(test) for test in listed)
        opening = opening or _text(line, "text")
    if not opening or not tests:
        return "no prompt" if not opening else "no test"
    entry = _text(line, "entry_point")
    if entry and "def check(" in tests:
        tests += f"\n\ncheck({entry})\n"
    shown = opening + ("\nIt must pass:\n" + tests if isinstance(listed, list) else "")
    return Question(name, "code", ASK_CODE + shown, "", (), tests, opening if "def " in opening else "")


_READERS: Final[dict[str, Callable[[str, Line], Question | str]]] = {
    "gsm8k": _number, "math": _math, "choice": _choice, "code": _code,
}  # fmt: skip


class _Hub(Protocol):
    """What of huggingface_hub is called."""

    def snapshot_download(self, repo: str, *, repo_type: str, allow_patterns: list[str]) -> str: ...


def _hub(name: str) -> Iterator[Line]:
    """The rows of a data set's parquet files; the split is `test` unless named."""
    import duckdb

    repo, _, split = name.partition(":")
    hub = cast(_Hub, optional("huggingface_hub", "quality"))
    try:
        folder = hub.snapshot_download(repo, repo_type="dataset", allow_patterns=[f"*{split or 'test'}*.parquet"])
    except Exception as wrong:  # whatever a foreign library raises, the reason is the same for a user
        said = str(wrong).splitlines()[0] if str(wrong) else type(wrong).__name__
        raise TargetError(f"the data set {repo} cannot be had ({said[:160]}); give a local file with --data") from wrong
    files = [str(path) for path in sorted(Path(folder).rglob(f"*{split or 'test'}*.parquet"))]
    if not files:
        raise UsageError(f"the data set {repo} has no parquet file of the split {split or 'test'!r}")
    rows = duckdb.connect().execute("select to_json(r)::varchar from read_parquet(?) r", [files]).fetchall()
    yield from (Line(f"{repo}:{at}", json.loads(row[0])) for at, row in enumerate(rows, 1))


def texts(source: str) -> tuple[tuple[str, str], ...]:
    """(name, text) of a file to read along: each record's `text`, `answer` or `solution`, or a plain file in parts."""
    path = existing(source, "--text")
    if path.suffix.lower() in (".jsonl", ".json"):
        found = [(f"{at}", _text(line, "text", "answer", "solution", "content")) for at, line in _numbered(path)]
        kept = tuple((name, text) for name, text in found if text)
    else:
        whole = path.read_bytes().decode("utf-8-sig", errors="replace")
        kept = tuple(
            (f"{at // PART_CHARS + 1}", whole[at : at + PART_CHARS]) for at in range(0, len(whole), PART_CHARS)
        )
    kept = tuple((name, text) for name, text in kept if text.strip())
    if not kept:
        raise UsageError(f"{source} holds no text; give a plain file or JSON lines with a field text")
    return kept


PART_CHARS: Final = 1200  # of a plain file: some 300 tokens, so that many parts tell how far their mean can be trusted


def _numbered(path: Path) -> Iterable[tuple[int, Line]]:
    return enumerate(json_array(path), 1)
