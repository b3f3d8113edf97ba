"""Three families of coding prompts: one-line Python completion, five-line SQL, ten-line JavaScript async rewriting.

Tasks are in tasks/*.toml: hand-written, with nouns (or schemas) that change from request to request. A task asked to be
512 tokens long is padded with code of its own language, as the rest of the file would stand around it in an editor.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache, partial
from importlib.resources import files
from itertools import islice

import msgspec
import numpy as np

from dynamometer import options as opt
from dynamometer.errors import UsageError
from dynamometer.types import Request
from dynamometer.workload import filler
from dynamometer.workload.padding import fit
from dynamometer.workload.plan import Ask, Plan, made_up
from dynamometer.workload.synthetic import required
from dynamometer.workload.words import most_words

FAMILIES = {"python": "python-completion", "sql": "sql-five-lines", "javascript": "javascript-async"}
_ORDER = 4  # first part of the chance key of a round's order
DIFFICULTIES = ("easy", "medium", "hard")

_ASK = {
    "python": "Complete the Python code: give the one line (or expression) that belongs at ____, and nothing else.",
    "sql": "Write one SQL query of about five lines for the tables above. Give only the query.",
    "javascript": "Rewrite this JavaScript with async and await in about ten lines. Keep what it does; give only code.",
}


class Task(msgspec.Struct, frozen=True):
    """One prompt without salt or padding. `answer`: a right answer where there is one of a line or five, else ""."""

    language: str
    difficulty: str
    text: str
    answer: str


def code(ask: Ask) -> Plan:
    """The three families in turn: request 0 Python, 1 SQL, 2 JavaScript, 3 Python …

    `input_tokens` pads each prompt to that length, "" leaves it bare; option `difficulty` takes easy, medium or hard.
    """
    return _plan(ask, tuple(FAMILIES))


def python(ask: Ask) -> Plan:
    """One-line Python completion alone. Options as `code`."""
    return _plan(ask, ("python",))


def sql(ask: Ask) -> Plan:
    """Five-line SQL alone. Options as `code`."""
    return _plan(ask, ("sql",))


def javascript(ask: Ask) -> Plan:
    """Ten-line JavaScript async rewriting alone. Options as `code`."""
    return _plan(ask, ("javascript",))


def _plan(ask: Ask, languages: Sequence[str]) -> Plan:
    made_up(ask)
    opt.known(ask.workload.options, ("difficulty",), ask.where)
    difficulty = opt.choice(ask.workload.options, "difficulty", "any", ask.where, ("any", *DIFFICULTIES))
    pools = [tasks(language, difficulty) for language in languages]
    asked = ask.input
    if asked and asked.fixed:
        longest = max(ask.count(ask.opening(0) + max((task.text for task in pool), key=len)) for pool in pools)
        if asked.fixed < longest:
            raise UsageError(
                f"input_tokens is {asked.fixed}; the longest task of {ask.where} alone has some {longest} tokens: "
                "give more, or leave input_tokens empty"
            )
    n = sum(map(len, pools))
    return Plan(_requests(ask, pools), notes=(f"{n:,} different tasks, each with its own padding and salt",))


def _requests(ask: Ask, pools: Sequence[Sequence[Task]]) -> Iterator[Request]:
    """Each pool in an order of its own per round, so that no task comes twice before all have come once."""
    asked, output = ask.input, required(ask.output, ask.where)

    @lru_cache(maxsize=8)
    def order(which: int, turn: int) -> Sequence[int]:
        return list(ask.chance(_ORDER, which, turn).permutation(len(pools[which])))

    index = 0
    while True:
        which, place = index % len(pools), index // len(pools)
        turn, place = divmod(place, len(pools[which]))
        task = pools[which][order(which, turn)[place]]
        chance = ask.chance(index)
        answer = output.draw(chance)
        wanted = asked.draw(chance) if asked else 0
        text, tokens = padded(task, ask.opening(index), wanted, ask, chance)
        yield ask.request(index, text, tokens, answer, FAMILIES[task.language], task.answer)
        index += 1


def padded(task: Task, opening: str, tokens: int, ask: Ask, chance: np.random.Generator) -> tuple[str, int]:
    """The task with code before it, `tokens` long; as it is when 0 or when it is longer by itself."""
    bare = opening + task.text
    found = ask.count(bare)
    if found >= tokens:
        return bare, found
    head = f"{opening}{filler.comment(task.language)} The file so far, with a note on"
    around = list(islice(filler.blocks(task.language, chance), tokens // 8 + 2))
    note = filler.notes(task.language, most_words(min(tokens, 200)), chance)
    return fit(head, note, "\n\n" + task.text, tokens, ask.count, around)


@cache
def tasks(language: str, difficulty: str = "any") -> tuple[Task, ...]:
    """All tasks of a language: each template with each row of names."""
    table = tomllib.loads((files(__package__) / "tasks" / f"{language}.toml").read_text(encoding="utf-8"))
    keys, *rows = table["names"]
    return tuple(
        _task(language, template, dict(zip(keys, row, strict=True)))
        for template in table["task"]
        if difficulty in ("any", template["difficulty"])
        for row in rows
    )


def _task(language: str, template: dict[str, str], names: dict[str, str]) -> Task:
    named = partial(re.sub, r"@(\w+)@", lambda match: names[match[1]])
    parts = [tables(names), named(template["ask"])] if language == "sql" else [named(template["code"].strip("\n"))]
    text = "\n\n".join([*parts, _ASK[language]])
    return Task(language, template["difficulty"], text, named(template.get("answer", "").strip("\n")))


def tables(names: dict[str, str]) -> str:
    """The two tables of a schema as SQL."""
    return (
        f"CREATE TABLE {names['p']} (id INTEGER PRIMARY KEY, {names['name']} VARCHAR, {names['region']} VARCHAR);\n"
        f"CREATE TABLE {names['c']} (id INTEGER PRIMARY KEY, {names['key']} INTEGER REFERENCES {names['p']} (id), "
        f"{names['amount']} DOUBLE, {names['when']} TIMESTAMP, {names['status']} VARCHAR);"
    )
