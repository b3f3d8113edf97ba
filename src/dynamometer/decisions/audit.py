"""Claims in, a verdict on each out, by general rules: counts, roofline, datasheets, formulas, shares. No claim is
special.

Each rule gives a finding; the gravest decides. What no rule can check is said to be not checkable, with what it would
take.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from dynamometer.decisions import (
    rules_architecture,
    rules_arithmetic,
    rules_energy,
    rules_memory,
    rules_spec,
    rules_speed,
)
from dynamometer.decisions.claim import Claim, classify
from dynamometer.decisions.finding import Finding, Verdict, gravest, not_checkable
from dynamometer.decisions.formula import Formula
from dynamometer.decisions.subject import Subject, resolve

_RULES: Final[tuple[tuple[frozenset[str], Callable[[Subject], list[Finding]]], ...]] = (
    (rules_memory.METRICS, rules_memory.judge),
    (rules_speed.METRICS, rules_speed.judge),
    (rules_spec.METRICS, rules_spec.judge),
    (rules_energy.METRICS, rules_energy.judge),
    (rules_architecture.METRICS, rules_architecture.judge),
)


class Audited(msgspec.Struct, frozen=True):
    """One claim's verdict. `remedy`: what would make it true."""

    id: str
    verdict: Verdict
    arithmetic: str
    source: str
    remedy: str
    claim: str


def audit(claims: Sequence[Claim]) -> list[Audited]:
    """Verdicts in the order of the claims; a claim that refers to "the same formula" gets the last one printed above
    it."""
    found = []
    last: Formula | None = None
    for claim in claims:
        own = rules_arithmetic.formula_of(claim)
        last = own or last
        formula = own or (last if rules_arithmetic.refers_back(claim) else None)
        decided = gravest(findings(claim, formula))
        found.append(
            Audited(claim.id, decided.verdict, decided.arithmetic, decided.source, decided.remedy, described(claim))
        )
    return found


def findings(claim: Claim, formula: Formula | None = None) -> list[Finding]:
    """What every rule that applies says of one claim."""
    if not any(claim.metric in metrics for metrics, _ in _RULES):
        claim = classify(claim)
    subject = resolve(claim)
    found = rules_arithmetic.judge(claim, formula)
    found += _by_metric(subject)
    if claim.metric in rules_speed.WINDOW:
        windowed = rules_speed.window_speedup(subject)
        found += [windowed] if windowed else []
    if not found:
        found.append(not_checkable(_reason(claim), "state the two numbers it comes from, or a model and a device"))
    return found


def _by_metric(s: Subject) -> list[Finding]:
    metric = s.claim.metric
    for metrics, judge in _RULES:
        if metric in metrics:
            return judge(s)
    return []


def _reason(claim: Claim) -> str:
    if claim.value is None:
        return f"{claim.metric or 'the claim'} has no number"
    return f"no rule knows {claim.metric!r}, and the text gives no numbers to recompute it from"


def described(claim: Claim) -> str:
    """The claim in a few words."""
    subject = " on ".join(text for text in (claim.model, claim.hardware) if text)
    value = f"{claim.metric} {claim.printed} {claim.unit}".strip()
    with_precision = f"{subject} {claim.precision}".strip()
    return f"{with_precision}: {value}" if with_precision else value


def counts(audited: Sequence[Audited]) -> dict[Verdict, int]:
    """How many claims got each verdict."""
    return {verdict: sum(row.verdict == verdict for row in audited) for verdict in Verdict}
