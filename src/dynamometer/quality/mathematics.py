"""A mathematical answer and its reference in, equal or not out, by `math-verify`: LaTeX, sets, intervals, matrices."""

from __future__ import annotations

import logging
from typing import Protocol, cast

from dynamometer.plugins import optional
from dynamometer.quality.finals import Outcome, boxed, spoken

_LIMIT_S = 5  # a formula that sympy does not digest in this time is unparsed


class _Verify(Protocol):
    """What of math-verify is called."""

    def parse(self, pred: str, *, parsing_timeout: int) -> list[object]: ...

    def verify(self, gold: list[object], target: list[object], *, timeout_seconds: int) -> bool: ...


def judge_mathematics(answer: str, reference: str) -> Outcome:
    """Equivalent to the reference or not. Called in the main thread: math-verify's limits are signals."""
    module = cast(_Verify, optional("math_verify", "quality"))
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    said, wanted = spoken(answer), boxed(reference)
    gold = module.parse(f"\\boxed{{{wanted[-1] if wanted else reference}}}", parsing_timeout=_LIMIT_S)
    found = module.parse(said, parsing_timeout=_LIMIT_S) if said.strip() else []
    if not found or not gold:
        return Outcome.UNPARSED
    return Outcome.RIGHT if module.verify(gold, found, timeout_seconds=_LIMIT_S) else Outcome.WRONG
