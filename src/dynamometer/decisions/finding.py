"""The shape of a verdict: what a rule gives back for one claim."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec


class Verdict(StrEnum):
    """possible: no bound is broken. implausible: nobody is known to get there, or only under an unstated condition.
    impossible: an exact count or a physical bound is broken. inconsistent: it contradicts its own numbers, or the
    published figure of what it names. not_checkable: what would be needed for a check is not stated or not known.
    """

    POSSIBLE = "possible"
    IMPLAUSIBLE = "implausible"
    IMPOSSIBLE = "impossible"
    INCONSISTENT = "inconsistent"
    NOT_CHECKABLE = "not_checkable"


_GRAVITY: Final = (
    Verdict.IMPOSSIBLE,
    Verdict.INCONSISTENT,
    Verdict.IMPLAUSIBLE,
    Verdict.POSSIBLE,
    Verdict.NOT_CHECKABLE,
)


class Finding(msgspec.Struct, frozen=True):
    """`arithmetic`: the check in one line. `source`: where the bound comes from. `remedy`: what would make the claim
    true."""

    verdict: Verdict
    arithmetic: str
    source: str
    remedy: str = ""


def possible(arithmetic: str, source: str, remedy: str = "") -> Finding:
    return Finding(Verdict.POSSIBLE, arithmetic, source, remedy)


def implausible(arithmetic: str, source: str, remedy: str = "") -> Finding:
    return Finding(Verdict.IMPLAUSIBLE, arithmetic, source, remedy)


def impossible(arithmetic: str, source: str, remedy: str = "") -> Finding:
    return Finding(Verdict.IMPOSSIBLE, arithmetic, source, remedy)


def inconsistent(arithmetic: str, source: str, remedy: str = "") -> Finding:
    return Finding(Verdict.INCONSISTENT, arithmetic, source, remedy)


def not_checkable(reason: str, remedy: str = "") -> Finding:
    return Finding(Verdict.NOT_CHECKABLE, reason, "", remedy)


def gravest(findings: list[Finding]) -> Finding:
    """The finding that decides; of equal ones the first."""
    return min(findings, key=lambda finding: _GRAVITY.index(finding.verdict))
