"""An answer's text in, the final number that it gives out, exact, or why there is none. Nothing is guessed twice.

The last `####` with a number behind it wins, then the last `\\boxed{}`, then the last "answer is", then the last
number. What a model wrote while thinking (`<think>…</think>`) is not its answer.
"""

from __future__ import annotations

import re
from enum import StrEnum
from fractions import Fraction
from typing import Final

import msgspec


class Outcome(StrEnum):
    """What became of a question. Only right and wrong are the model's doing without doubt; the others are counted."""

    RIGHT = "right"
    WRONG = "wrong"
    UNPARSED = "unparsed"  # an answer came and holds nothing that could be compared
    ERROR = "error"  # no answer came: the server refused or failed


class Ended(msgspec.Struct, frozen=True):
    """A final number and where it stood: mark, boxed, stated, last, or "" when there is none."""

    value: Fraction | None
    where: str = ""


_GROUP: Final = r"(?:,|\{,\}|\\,|\\!,|'|\u202f|\u2009|\u00a0)"  # what may stand between groups of three digits
_DIGITS: Final = rf"(?:[0-9]{{1,3}}(?:{_GROUP}[0-9]{{3}})+(?![0-9])|[0-9]+)"
_DECIMAL: Final = rf"(?:{_DIGITS}(?:\.[0-9]+)?(?:[eE][-+]?[0-9]{{1,3}}(?![0-9]))?|\.[0-9]+)"
_MONEY: Final = r"(?:(?:\\?\$|[€£¥₹]|USD|EUR)[ ]?)?"
_FRACTION: Final = r"\\[dt]?frac\{\s*(?P<top>-?[0-9]{1,18})\s*\}\{\s*(?P<bottom>[0-9]{1,18})\s*\}"
_NUMBER: Final = re.compile(
    rf"(?<![\w.])(?P<sign>(?<![)\]])-)?{_MONEY}(?P<inner>-)?"  # behind a bracket or a digit it is a minus, no sign
    rf"(?:{_FRACTION}|(?P<value>{_DECIMAL})(?![0-9]|\.[0-9])(?:\s*/\s*(?P<over>[0-9]{{1,18}})(?![\d/]))?)"
)
_LONGEST: Final = 300  # digits; a model that repeats one digit for ever gives no number
_MARK: Final = re.compile(r"#{3,}[^\n#]*")
_STATED: Final = re.compile(r"\banswer\b(?:\s+is|\s*[:=])+[^\n]*", re.IGNORECASE)
_SAME: Final = str.maketrans("\u2212\uff0d０１２３４５６７８９", "--0123456789")


def final_number(text: str) -> Ended:
    """The number that the text ends on, as an exact fraction."""
    text = spoken(text).translate(_SAME).replace("**", "")
    for where, parts in (("mark", _MARK.findall(text)), ("boxed", boxed(text)), ("stated", _STATED.findall(text))):
        for part in reversed(parts):
            found = _first(part.lstrip("#") if where == "mark" else part)
            if found is not None:
                return Ended(found, where)
    numbers = _all(text)
    return Ended(numbers[-1], "last") if numbers else Ended(None)


def judge_number(answer: str, reference: str) -> Outcome:
    """Compared as numbers: 29.00 is 29. The reference is read by the same rules."""
    wanted, said = final_number(reference).value, final_number(answer).value
    if said is None or wanted is None:
        return Outcome.UNPARSED
    near = abs(said - wanted) <= Fraction(1, 1_000_000) * max(abs(wanted), abs(said))
    return Outcome.RIGHT if near else Outcome.WRONG


def spoken(text: str) -> str:
    """The text behind the last closed thought; nothing when a thought was never closed."""
    _, closed, after = text.rpartition("</think>")
    if closed:
        return after
    return "" if "<think>" in text else text


def boxed(text: str) -> list[str]:
    """The contents of each `\\boxed{…}`, braces matched, in order; an unclosed one ends with the text."""
    found = []
    for match in re.finditer(r"\\(?:boxed|fbox)\s*\{", text):
        depth, at = 1, match.end()
        while at < len(text) and depth:
            depth += {"{": 1, "}": -1}.get(text[at], 0)
            at += 1
        found.append(text[match.end() : at - (not depth)])
    return found


def _first(text: str) -> Fraction | None:
    numbers = _all(text)
    return numbers[0] if numbers else None


def _all(text: str) -> list[Fraction]:
    found = [_value(match) for match in _NUMBER.finditer(text)]
    return [value for value in found if value is not None]


def _value(match: re.Match[str]) -> Fraction | None:
    sign = -1 if match["sign"] or match["inner"] else 1
    if match["top"] is not None:
        return sign * Fraction(int(match["top"]), int(match["bottom"])) if int(match["bottom"]) else None
    if len(match["value"]) > _LONGEST:
        return None
    value = Fraction(re.sub(_GROUP, "", match["value"]))
    if match["over"] is not None:
        if not int(match["over"]):
            return None
        value /= int(match["over"])
    return sign * value
