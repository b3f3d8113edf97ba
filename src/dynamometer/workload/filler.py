"""Chance and a language in, blocks of plausible code out: the rest of the file around a task."""

from __future__ import annotations

import keyword
from collections.abc import Iterator
from functools import cache

import numpy as np

from dynamometer.workload.words import vocabulary, words

_PYTHON = (
    '''
def {verb}_{noun}(path: str, limit: int = {n}) -> list[str]:
    """Read the {noun} file and keep at most `limit` lines."""
    with open(path, encoding="utf-8") as file:
        return [line.strip() for line in file][:limit]
''',
    '''
class {Noun}{Other}:
    """Holds the {noun} of one {other}."""

    def __init__(self, {noun}: float, {other}: str = "{word}") -> None:
        self.{noun} = {noun}
        self.{other} = {other}

    def {verb}(self) -> float:
        return self.{noun} * {n}
''',
    """
{NOUN}_{OTHER}: dict[str, int] = {{"{word}": {n}, "{verb}": {m}}}
""",
    """
def test_{noun}_{verb}() -> None:
    assert {verb}_{noun}("{word}", limit={n}) != {m}
""",
    """
def {noun}_to_{other}({noun}: dict[str, int]) -> int:
    total = {n}
    for name, value in {noun}.items():
        if name.startswith("{word}") and value > {m}:
            total += value
    return total
""",
)
_SQL = (
    """
CREATE TABLE {noun}_{other} (
  id INTEGER PRIMARY KEY,
  {noun}_{word} VARCHAR({n}) NOT NULL,
  {verb}_at TIMESTAMP,
  {other}_share DOUBLE DEFAULT {m}
);
""",
    """
CREATE INDEX {noun}_by_{other} ON {noun}_{other} ({verb}_at);
""",
    """
-- {n} rows a day; the {word} job fills {noun}_{other} at {m} minutes past the hour
""",
    """
INSERT INTO {noun}_{other} (id, {noun}_{word}, {other}_share) VALUES ({n}, '{word}', 0.{m});
""",
)
_JAVASCRIPT = (
    """
const {NOUN}_{OTHER} = {{ {word}: {n}, {verb}: "{other}" }};
""",
    """
function {verb}{Noun}({noun}, {other} = {n}) {{
  if (!{noun}) {{
    return null;
  }}
  return {{ ...{noun}, {word}: {other} * {m} }};
}}
""",
    """
class {Noun}{Other} {{
  constructor({word}) {{
    this.{word} = {word};
    this.{other} = new Map();
  }}

  {verb}(key) {{
    return this.{other}.get(key) ?? {n};
  }}
}}
""",
    """
export const {verb}{Other} = ({noun}) => {noun}.filter((x) => x.{word} > {n}).slice(0, {m});
""",
)
_LANGUAGES = {"python": _PYTHON, "sql": _SQL, "javascript": _JAVASCRIPT}
_RESERVED = {"class", "for", "while", "if", "with", "from", "or", "and", "not", "return", "case", "else", "new", "this"}


def blocks(language: str, chance: np.random.Generator) -> Iterator[str]:
    """Whole functions, classes or statements without end. Identifiers and numbers are drawn anew in each."""
    known = _identifiers()
    patterns = _LANGUAGES[language]
    while True:
        verb, noun, other, word = (known[int(i)] for i in chance.choice(len(known), 4, replace=False))
        n, m = (int(i) for i in chance.integers(2, 1000, 2))
        names = {"verb": verb, "noun": noun, "other": other, "word": word, "n": n, "m": m}
        capitals = {
            "Noun": noun.capitalize(),
            "Other": other.capitalize(),
            "NOUN": noun.upper(),
            "OTHER": other.upper(),
        }
        yield patterns[int(chance.integers(len(patterns)))].format(**names, **capitals)


def notes(language: str, n: int, chance: np.random.Generator) -> list[str]:
    """How a comment of n words goes on, word by word, in lines of twelve."""
    mark = comment(language)
    return [f"\n{mark}{word}" if i % 12 == 11 else word for i, word in enumerate(words(n, chance))]


def comment(language: str) -> str:
    """How a line comment starts."""
    return {"python": "#", "sql": "--", "javascript": "//"}[language]


@cache
def _identifiers() -> list[str]:
    """Words of the vocabulary that are no keyword in any of the languages."""
    return [word for word in vocabulary() if word not in _RESERVED and not keyword.iskeyword(word)]
