"""Statements about licences in (a CSV file, or sentences in it), each held against the catalogue's clauses out.

Columns: id, model, statement; the model may be empty when the sentence names it. What is looked for in a sentence:
which licence a model has, whether a use is allowed, thresholds of users, attribution, terms to pass on, publishing.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from dynamometer.compliance import find, names
from dynamometer.compliance.catalogue import Obligation, licence, licences
from dynamometer.compliance.facts import Use
from dynamometer.compliance.parts import parts
from dynamometer.errors import MissingPath, UsageError

_NEGATION: Final = re.compile(
    r"\b(not|no|never|cannot|can't|without|forbid\w*|prohibit\w*|disallow\w*|excludes?|bans?|restrict\w*)\b", re.I
)
_USERS: Final = re.compile(r"([0-9][0-9,.]*)\s*(m|million|k|thousand|b|billion)?\b[^.;]{0,30}\b(?:users|mau)\b", re.I)
_SCALE: Final = {"k": 1e3, "thousand": 1e3, "m": 1e6, "million": 1e6, "b": 1e9, "billion": 1e9, "": 1.0}
_USES: Final[tuple[tuple[str, Use], ...]] = (
    (r"distil\w*|train\w* (?:other|another|competing)|improv\w* (?:other|another)", "distill"),
    (r"fine[- ]?tun\w*|modif\w*|derivative\w*", "finetune"),
    (r"redistribut\w*|re-?publish\w*|hand(?:ed|ing)? on", "redistribute"),
    (r"saas|host\w*|api service|serv(?:e|ed|ing)", "saas"),
)
_DUTIES: Final[tuple[tuple[str, tuple[str, ...], str], ...]] = (
    (
        r"open[- ]sourced?\b.*\bderiv|\bderiv.*open[- ]sourc|publish\w* .*(?:source|deriv)|share[- ]alike|copyleft",
        (),
        "to publish what derives",
    ),
    (r"attribution|built with|display\w*", ("display", "attribution", "name the author", "notice"), "for attribution"),
    (
        r"(?:keep|retain)\w* .*notice|copyright notice|copy of the licen",
        ("notice", "copy of", "copyright"),
        "for notices",
    ),
    (r"pass\w* on|enforceable|downstream", ("enforceable",), "to pass the restrictions on"),
)


class Judged(msgspec.Struct, frozen=True):
    """`verdict`: right | wrong | partly | not_checkable, with the clause in `because`."""

    id: str
    statement: str
    verdict: str
    because: str
    licences: tuple[str, ...] = ()
    source: str = ""


def check_file(path: Path) -> list[Judged]:
    """Every row of a CSV file with a column `statement`, and `id` and `model` where it has them."""
    if not path.is_file():
        raise MissingPath(f"{path} is not there; give a CSV file with the columns id, model, statement")
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        rows = csv.DictReader(file)
        if "statement" not in (rows.fieldnames or ()):
            raise UsageError(f"{path} has no column 'statement'; give id, model, statement")
        return [
            check(str(row.get("statement") or ""), str(row.get("model") or ""), str(row.get("id") or at))
            for at, row in enumerate(rows, 1)
        ]


def check(statement: str, model: str = "", identity: str = "") -> Judged:
    """One sentence about the licence of one model, or about a licence by name."""
    ids = _ids(model) if model else _mentioned_model(statement)
    by_model = bool(ids)
    ids = ids or _mentioned_licence(statement)
    if not ids:
        why = "it names neither a model of the built-in list nor a licence of the catalogue; fill the column model"
        return Judged(identity, statement, "not_checkable", why)
    told = (
        _licence_named(statement, ids) if by_model else None,
        _users(statement, ids),
        *_allowed(statement, ids),
        _duties(statement, ids),
    )
    findings = [finding for finding in told if finding]
    source = licence(ids[-1]).source
    if not findings:
        why = f"nothing in it can be held against the clauses of {', '.join(ids)}"
        return Judged(identity, statement, "not_checkable", why, ids, source)
    right = [why for good, why in findings if good]
    wrong = [why for good, why in findings if not good]
    verdict = "right" if not wrong else "partly" if right else "wrong"
    return Judged(identity, statement, verdict, "; ".join(wrong + right), ids, source)


def _ids(model: str) -> tuple[str, ...]:
    """Licences of a model's weights and of what they were made from."""
    named = names.read(model)
    if named.choices:
        return named.choices[0]
    card = find.look_up(model, online=False)
    if card is None:
        near = next((one for one in _known_names() if find_words(model) == find_words(one)), "")
        card = find.look_up(near, online=False) if near else None
    if card is None:
        return ()
    binding = [part for part in parts(card, {}, online=False) if part.kind in ("weights", "base")]
    return tuple(dict.fromkeys(one for part in binding for choice in part.choices for one in choice))


def _known_names() -> list[str]:
    """owner/name of every rule that names one model, the longest names first."""
    found = [shape.rstrip("*-") for rule in find.known().rule for shape in rule.match]
    return sorted((name for name in found if name.count("/") == 1 and "*" not in name), key=lambda name: -len(name))


def find_words(text: str) -> str:
    """A name without owner, case and punctuation: "DeepSeek V3" and deepseek-ai/DeepSeek-V3 are the same."""
    return re.sub(r"[^a-z0-9.]+", " ", text.lower().split("/")[-1]).strip()


def _mentioned_model(statement: str) -> tuple[str, ...]:
    low = f" {find_words(statement.replace('/', ' '))} "
    for name in _known_names():
        if f" {find_words(name)} " in low or f" {find_words(name)}." in low:
            return _ids(name)
    return ()


def _mentioned_licence(statement: str) -> tuple[str, ...]:
    low = statement.lower()
    found = [entry.id for entry in licences().values() if entry.name.lower().split(" (")[0] in low]
    if not found:
        found = _licence_words(statement)
    return tuple(dict.fromkeys(found))


def _licence_words(statement: str) -> list[str]:
    """Licences that a sentence names by their usual words."""
    usual = (
        (r"\bmit\b(?! media)", "MIT"),
        (r"apache(?:[ -]2(?:\.0)?| licen[cs]e)?", "Apache-2.0"),
        (r"\bcc[- ]by[- ]nc", "CC-BY-NC-4.0"),
        (r"deepseek (?:model )?licen[cs]e", "LicenseRef-deepseek"),
        (r"llama 2 community", "LicenseRef-llama2"),
        (r"llama 3\.1 community", "LicenseRef-llama3.1"),
        (r"llama 3\.2 community", "LicenseRef-llama3.2"),
        (r"llama 3\.3 community", "LicenseRef-llama3.3"),
        (r"qwen research", "LicenseRef-qwen-research"),
        (r"gemma terms", "LicenseRef-gemma"),
        (r"openrail|open rail", "LicenseRef-openrail"),
        (r"\bagpl", "AGPL-3.0-only"),
        (r"(?<!a)(?<!l)\bgpl", "GPL-3.0-only"),
    )
    return [identity for pattern, identity in usual if re.search(pattern, statement, re.I)]


def _licence_named(statement: str, ids: Sequence[str]) -> tuple[bool, str] | None:
    """ "X is under the MIT licence": all that is named applies, and nothing that restricts is left out."""
    said = _licence_words(statement)
    if not said or not re.search(r"licen[cs]|under|terms|released|open[- ]source", statement, re.I):
        return None
    if re.search(r"\b(not|no longer|isn't|never)\b[^.;,]{0,25}(?:licen[cs]ed|under|released)", statement, re.I):
        hit = [one for one in said if one in ids]
        return not hit, f"the licence is {' AND '.join(ids)}"
    strange = [one for one in said if one not in ids]
    if strange:
        return False, f"the licence is {' AND '.join(ids)}, not {', '.join(strange)}"
    missing = [one for one in ids if one not in said and licence(one).kind != "permissive"]
    if missing:
        return False, f"{', '.join(said)} alone is named, but {', '.join(missing)} applies as well"
    return True, f"the licence is {' AND '.join(ids)}"


def _terms(ids: Sequence[str]) -> list[tuple[str, Obligation]]:
    return [(identity, term) for identity in ids for term in licence(identity).obligations]


def _users(statement: str, ids: Sequence[str]) -> tuple[bool, str] | None:
    """A threshold of monthly users."""
    match = _USERS.search(statement)
    if not match:
        return None
    said = float(match[1].replace(",", "")) * _SCALE[(match[2] or "").lower()]
    limits = [(identity, term) for identity, term in _terms(ids) if term.mau_over]
    if not limits:
        return False, f"{' AND '.join(ids)} has no threshold of users"
    identity, term = limits[0]
    return said == term.mau_over, f"{identity} {term.clause} sets {term.mau_over:,} monthly active users"


def _allowed(statement: str, ids: Sequence[str]) -> list[tuple[bool, str]]:
    """Whether commercial use, military use, hosting, tuning, distilling and handing on are allowed as it says."""
    found = []
    for clause in re.split(r"[;,]| but | and (?=\w+ing\b|commercial|military)", statement):
        denied = bool(_NEGATION.search(clause))
        if re.search(r"\bmilitary\b", clause, re.I):
            found.append(_military(denied, ids))
        elif re.search(r"\bcommercial", clause, re.I) and not re.search(r"non-?commercial", clause, re.I):
            found.append(_against(denied, "commercial use", _forbids(ids, None)))
        elif re.search(r"non-?commercial", clause, re.I):
            found.append(_against(True, "commercial use", _forbids(ids, None)))
        elif re.search(r"\b(allow\w*|permit\w*|may|can|must not|forbid\w*|prohibit\w*|free\w*)\b", clause, re.I):
            for pattern, use in _USES:
                if re.search(pattern, clause, re.I):
                    found.append(_against(denied, use, _forbids(ids, use)))
                    break
    return found


def _forbids(ids: Sequence[str], use: Use | None) -> tuple[str, Obligation] | None:
    """The term that rules a use out; `use` None: all commercial use."""
    for identity, term in _terms(ids):
        if term.kind != "forbidden" or term.territories:
            continue
        if (term.commercial and not term.uses) or (use and use in term.uses):
            return identity, term
    return None


def _against(denied: bool, what: str, ban: tuple[str, Obligation] | None) -> tuple[bool, str]:
    if ban is None:
        return not denied, f"no clause forbids {what}"
    identity, term = ban
    return denied, f"{identity} {term.clause} forbids it: {term.text}"


def _military(denied: bool, ids: Sequence[str]) -> tuple[bool, str]:
    hit = [(i, term) for i, term in _terms(ids) if term.kind == "limit" and "military" in term.text.lower()]
    if hit:
        return denied, f"{hit[0][0]} {hit[0][1].clause} rules out military use"
    return not denied, f"no clause of {' AND '.join(ids)} in the catalogue names military use"


def _duties(statement: str, ids: Sequence[str]) -> tuple[bool, str] | None:
    """Duties: to publish what derives from it, to display a name, to keep notices, to pass restrictions on."""
    denied = bool(_NEGATION.search(statement))
    for pattern, words, what in _DUTIES:
        if re.search(pattern, statement, re.I):
            hit = _term(ids, words) if words else _copyleft(ids)
            told = f"{hit} asks {what}" if hit else f"no clause asks {what}"
            return bool(hit) != denied, told
    return None


def _copyleft(ids: Sequence[str]) -> str:
    return next((identity for identity in ids if licence(identity).kind == "copyleft"), "")


def _term(ids: Sequence[str], words: Sequence[str]) -> str:
    for identity, term in _terms(ids):
        if term.kind in ("act", "notice") and any(word in term.text.lower() for word in words):
            return f"{identity} {term.clause}"
    return ""
