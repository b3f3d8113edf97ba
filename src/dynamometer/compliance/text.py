"""A licence's text in, the ids of the licences that it holds out, with what else stands in it.

Texts of SPDX's list are matched whole by licenseclassifier, which reports nothing rather than a guess. Model licences
outside that list are known by their titles. What a text says beyond the licence that it matches is never ignored.
"""

from __future__ import annotations

import re
from types import ModuleType
from typing import Final, cast

import msgspec

from dynamometer.compliance.catalogue import licences
from dynamometer.plugins import optional

_MOST_CHARS: Final = 400_000
_TITLE: Final = re.compile(
    r"^\W*(copyright|\(c\)|©|all rights reserved|spdx-|licen[cs]e|the mit|mit licen|\S*apache).*", re.I
)
_ALARM: Final = re.compile(
    r"monthly active users|revenue|non[- ]?commercial|commercial(?:ly)? us|not permitted|prohibit|restrict|military|"
    r"request a licen|research purposes|display|attribution|territory|improve any other|additional terms|you may not|"
    r"must not",
    re.I,
)
_FREE_WORDS: Final = 12  # beside a licence's text: a title, a name, an address


class Read(msgspec.Struct, frozen=True):
    """`ids` hold together. `beyond`: sentences outside what was matched, when they may change the terms."""

    ids: tuple[str, ...]
    beyond: tuple[str, ...] = ()
    alarms: tuple[str, ...] = ()  # of a text that matches nothing: sentences with conditions in them


def identify(text: str) -> Read:
    """The licences of a text. No id: it is none that is known, and `alarms` quotes what sounds like a condition."""
    text = text[:_MOST_CHARS]
    plain = normal(text)
    titled = tuple(
        entry.id
        for entry in licences().values()
        if any(all(part.strip() in plain for part in one.split("&")) for one in entry.phrases)
    )
    library = cast(ModuleType, optional("licenseclassifier", "comply"))
    matches = library.identify_license(text)
    whole = tuple(dict.fromkeys(_current(match.id) for match in matches))
    ids = tuple(dict.fromkeys((*titled, *whole)))
    if titled:
        return Read(ids)
    sentences = _sentences(_outside(text, [(match.start, match.end) for match in matches]))
    alarming = tuple(one for one in sentences if _ALARM.search(one))
    if not ids:
        return Read((), (), alarming[:6])
    words = sum(len(one.split()) for one in sentences)
    return Read(ids, alarming[:6] if words > _FREE_WORDS else ())


def normal(text: str) -> str:
    """Lower case, letters and digits, single spaces: titles compare whatever the dashes and quotes."""
    return re.sub(r"[^a-z0-9]+", " ", text.lower()).strip()


def _current(identity: str) -> str:
    """SPDX ids that were split since: GPL-3.0 is GPL-3.0-only."""
    return f"{identity}-only" if re.fullmatch(r"[AL]?GPL-[0-9.]+|GFDL-[0-9.]+", identity) else identity


def _outside(text: str, spans: list[tuple[int, int]]) -> str:
    """The text without the matched spans, and without titles and copyright lines."""
    kept, at = [], 0
    for start, end in sorted(spans):
        kept.append(text[at : max(start, at)])
        at = max(at, end)
    kept.append(text[at:])
    # Creative Commons puts a preface and a postscript of its own around each of its texts
    own = [part for part in kept if not (spans and "creative commons" in part.lower())]
    lines = "\n".join(own).splitlines()
    return "\n".join(line for line in lines if _ALARM.search(line) or not _TITLE.match(line))


def _sentences(text: str) -> list[str]:
    flat = re.sub(r"\s+", " ", text).strip()
    return [one.strip()[:400] for one in re.split(r"(?<=[.;])\s+(?=[A-Z(])", flat) if one.strip()]
