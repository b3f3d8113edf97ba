"""An engine's answer to a first, easy question in, a doubt out when the answer looks like nonsense. Pure.

An engine can stream fast and wrong: a quantization that it loads but cannot compute was seen to answer with token
soup at the best speed of all. So one question is asked before anything is timed. A base model may ramble without
being broken: the doubt shows the text and never stops a run.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from math import log2
from typing import Final

from dynamometer.types import Doubt, Message, Request

QUESTION: Final = "What is the capital of France? Answer in one short sentence."
EXPECTED: Final = "paris"

_RUN = re.compile(r"(\S.{0,11}?)\1{4,}", re.DOTALL)  # something of at most 12 characters, five times or more in a row


def question() -> Request:
    """What to ask, at temperature 0 where the engine lets one choose."""
    return Request(index=0, messages=(Message("user", QUESTION),), output_tokens=48, family="sense")


def doubt(answer: str, expected: str = EXPECTED) -> Doubt | None:
    """None when the answer makes sense; else what is odd about it, with the answer's first 120 characters."""
    odd = oddities(answer)
    if not odd and expected and expected.lower() not in answer.lower():
        odd = [f"it does not name {expected.capitalize()}"]
    if not odd:
        return None
    return Doubt(
        kind="nonsense",
        message=f"the first answer looks wrong: {'; '.join(odd)}. It was asked {QUESTION!r} and said {answer[:120]!r}",
        remedy="read the text: if it is no language, the engine cannot compute this model or quantization and its "
        "speed means nothing; a base model without a chat template may ramble and still be sound",
    )


def oddities(answer: str) -> list[str]:
    """What no sound answer of natural language shows, whatever was asked."""
    text = answer.strip()
    if not text:
        return ["it is empty"]
    found = []
    broken = sum(1 for c in text if c == "�") / len(text)
    if broken > 0.02:
        found.append(f"{broken:.0%} of it are replacement characters")
    unprintable = sum(1 for c in text if unicodedata.category(c) in ("Cc", "Cn", "Co", "Cs") and c not in "\n\r\t")
    if unprintable / len(text) > 0.02:
        found.append(f"{unprintable / len(text):.0%} of it cannot be printed")
    repeated = sum(len(match[0]) for match in _RUN.finditer(text) if any(c.isalnum() for c in match[1])) / len(text)
    if repeated > 0.3:
        found.append(f"{repeated:.0%} of it repeats the same few characters")
    elif len(words := text.split()) >= 24 and word_entropy(words) < 0.5:
        found.append(f"it repeats itself (word entropy {word_entropy(words):.2f} of 1)")
    scripts = _scripts(text)
    if len(scripts) >= 4:
        found.append(f"it mixes {len(scripts)} scripts ({', '.join(sorted(scripts)[:4]).lower()})")
    return found


def word_entropy(words: list[str]) -> float:
    """Shannon entropy of the words over that of as many different ones: 1 = no word twice, 0 = one word only."""
    if len(words) < 2:
        return 1.0
    counts = Counter(words).values()
    bits = -sum(n / len(words) * log2(n / len(words)) for n in counts)
    return bits / log2(len(words))


def _scripts(text: str) -> set[str]:
    """Writing systems by the first word of each letter's Unicode name; Han, kana and hangul count as one, as they do
    mix.
    """
    names = {unicodedata.name(c, "?").split()[0] for c in text if c.isalpha() and ord(c) > 0x24F}
    east = {"CJK", "HIRAGANA", "KATAKANA", "HANGUL"}
    merged = {"EAST ASIAN" if name in east else name for name in names - {"?", "MODIFIER", "FULLWIDTH"}}
    return merged | ({"LATIN"} if any(c.isalpha() and ord(c) <= 0x24F for c in text) else set())
