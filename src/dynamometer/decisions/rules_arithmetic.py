"""Claims with their own numbers in, findings out: formulas evaluated, ratios, gains, shares and differences recomputed.

A quotient agrees within 1 % or within the rounding of the printed digits, whichever is wider.
"""

from __future__ import annotations

import re
from typing import Final

from dynamometer.decisions.claim import Claim, concurrency, half_digit, number
from dynamometer.decisions.finding import Finding, impossible, inconsistent, not_checkable, possible
from dynamometer.decisions.formula import Formula, Unsolvable, evaluate, find
from dynamometer.units import significant as show

RATIOS: Final = re.compile(r"ratio$|speedup|speed_up|_factor$|times_")
GAINS: Final = re.compile(r"gain|improvement|increase|reduction|saving|decrease|overhead|_drop$|loss|change|delta")
SHARES: Final = re.compile(r"share|utilization|utilisation|hit_rate|efficiency$|mfu|mbu|accuracy|percent")

_CHANGE: Final = re.compile(
    r"\b(?:up|rose|fell|faster|slower|gain|increase|decrease|reduction|drop|more|less)", re.IGNORECASE
)
_LOOSE: Final = 0.01
_SOURCE: Final = "the claim's own numbers"
_NUMBER = r"(?<![\w.\-])([\d][\d,]*\.?\d*(?:e[-+]?\d+)?)\s*(tokens/s|tok/s|ms|us|s|GB/s|GB|GiB|MB|MiB|W|J|%|x)?(?![\w])"
_JOIN = re.compile(r"\b(?:to|against|vs\.?|versus|from|instead of|over|and|down to|up to)\b|->|→|;|,")


def judge(claim: Claim, formula: Formula | None) -> list[Finding]:
    """Every arithmetic rule that applies; `formula` is the claim's own, or the one it refers to."""
    findings: list[Finding] = []
    if formula is not None:
        findings.append(_formula(claim, formula))
    findings += _percent_of(claim)
    findings += _parts(claim)
    if (
        claim.value is not None
        and claim.unit.strip().lower() in ("percent", "%")
        and SHARES.search(claim.metric)
        and claim.value > 100.5
    ):
        findings.append(impossible(f"{claim.printed} % is more than the whole", "a share is at most 100 %"))
    if claim.value is not None and (RATIOS.search(claim.metric) or GAINS.search(claim.metric)):
        findings += _pair(claim)
    return findings


def formula_of(claim: Claim) -> Formula | None:
    """The formula printed in the claim's context, if any."""
    return find(claim.context)


def refers_back(claim: Claim) -> bool:
    """The context names an earlier formula instead of printing one."""
    return re.search(r"\bsame (?:formula|fit|model|law|equation)\b", claim.context, re.IGNORECASE) is not None


def variables(claim: Claim, formula: Formula) -> dict[str, float]:
    """Values for a formula's variables: `x = 16` in the text, the columns, or the concurrency that the text names."""
    found: dict[str, float] = {}
    many, tokens = concurrency(claim), claim.input_tokens
    for name in formula.variables:
        stated = re.search(
            rf"\b{re.escape(name)}\s*=\s*([\d.]+)(?![\d.]*\s*[*/^(+])(?!\w)", claim.context, re.IGNORECASE
        )
        if stated:
            found[name] = float(stated[1].rstrip("."))
        elif name in ("seq", "s", "length", "l", "tokens") and tokens:
            found[name] = float(tokens)
        elif name in ("batch", "b", "x", "n", "c", "concurrency", "users") and many:
            found[name] = float(many)
    return found


def _formula(claim: Claim, formula: Formula) -> Finding:
    """Does the formula give the figure, and is the residual what is said?"""
    if claim.value is None:
        return not_checkable("the claim has no number")
    values = variables(claim, formula)
    lacking = [name for name in formula.variables if name not in values]
    if lacking:
        return not_checkable(f"{formula.text} needs {', '.join(lacking)}, which the claim does not give")
    try:
        result = evaluate(formula, values)
    except Unsolvable as wrong:
        return not_checkable(str(wrong))
    at = f" at {', '.join(f'{k} = {v:g}' for k, v in values.items())}" if values else ""
    line = f"{formula.text}{at} = {result:,.6g}; claimed {claim.printed}"
    residual = re.search(r"residual\D{0,40}?([-+]?[\d.]+)\s*(?:percent|%)", claim.context)
    if residual and result:
        said, real = float(residual[1]), 100 * (claim.value - result) / result
        other = 100 * (result - claim.value) / claim.value if claim.value else real
        line += f", a residual of {real:+.1f} %, said to be {said:g} %"
        if min(abs(said - real), abs(said - other), abs(abs(said) - abs(real))) <= 0.5:
            return possible(line, _SOURCE)
        return inconsistent(line, _SOURCE, f"{show(result, 4)}")
    if _agrees(claim.value, result, claim.printed):
        return possible(line, _SOURCE)
    factor = claim.value / result if result else 0.0
    return inconsistent(f"{line}, {show(factor, 3)} times that", _SOURCE, f"{show(result, 4)}")


def _agrees(value: float, result: float, printed: str) -> bool:
    return abs(value - result) <= max(_LOOSE * abs(result), half_digit(printed) * 1.0001)


def _parts(claim: Claim) -> list[Finding]:
    """ "KV cache 30 %, weights 60 %, buffers 20 % of memory": parts of one whole must come to 100 %.

    The context may go on with bare numbers ("58 percent" and "weights 35, buffers 7"). Fewer than three parts, or words
    of change ("up 30 %"), are no division of a whole.
    """
    if not SHARES.search(claim.metric) or _CHANGE.search(claim.context):
        return []
    named = re.findall(
        r"[A-Za-z][\w ]*?\s+(?:is |takes |at |of )?([\d.]+)\s*(?:%|percent)?(?=\s*(?:[,;.]|and\b|of\b|$))",
        claim.context,
    )
    values = [float(text.rstrip(".")) for text in named if text.strip(".")]
    if claim.value is not None and not re.search(rf"(?<![\d.]){re.escape(claim.printed)}(?![\d.])", claim.context):
        values.append(claim.value)
    if len(values) < 3 or any(value > 100 for value in values):
        return []
    total = sum(values)
    line = f"{' + '.join(f'{value:g}' for value in values)} = {total:g} %"
    if abs(total - 100) <= 0.5 * len(values):
        return [possible(f"{line}: the parts make a whole", _SOURCE)]
    return [inconsistent(f"{line}, not 100 %", _SOURCE, "parts that add up to the whole")]


def _percent_of(claim: Claim) -> list[Finding]:
    """ "39% of a theoretical 31.5 GB/s": the claimed value over the whole must give the percentage."""
    match = re.search(r"([\d.]+)\s*(?:%|percent)\s+of\s+(?:an?|the|its)?\s*(?:\w+\s+){0,2}?([\d.,]+)", claim.context)
    if not match or claim.value is None:
        return []
    whole = number(match[2].rstrip(".,"))
    if not whole:
        return []
    share = 100 * claim.value / whole
    line = f"{claim.printed} / {match[2]} = {share:.3g} %, said to be {match[1]} %"
    right = _agrees(float(match[1]), share, match[1])
    return [possible(line, _SOURCE) if right else inconsistent(line, _SOURCE, f"{share:.3g} %")]


def pair_of(text: str) -> tuple[float, float, str, str] | None:
    """(first, second, and both as printed) of two numbers that the text compares: the same unit before no unit."""
    text = text.replace("$", "").replace("€", "")
    numbers = [(m, m[2] or "") for m in re.finditer(_NUMBER, text)]
    pairs = [
        (a, b, unit)
        for i, (a, unit_a) in enumerate(numbers)
        for b, unit in numbers[i + 1 :]
        if (unit_a == unit or not unit_a) and _JOIN.search(text[a.end() : b.start()] or "")
    ]
    both = [(a, b) for a, b, unit in pairs if unit and (a[2] or "") == unit] or [
        (a, b)
        for a, b, _ in pairs
        if re.fullmatch(r"\s*(?:to|against|vs\.?|versus|->|→)\s*", text[a.end() : b.start()])
    ]
    if not both:
        return None
    first, second = both[0]
    low, high = number(first[1].rstrip(".,")), number(second[1].rstrip(".,"))
    return (low, high, first[1], second[1]) if low and high else None


def _pair(claim: Claim) -> list[Finding]:
    """A ratio, a gain or a difference of two numbers in the context."""
    pair = pair_of(claim.context)
    if pair is None or claim.value is None:
        return []
    a, b, printed_a, printed_b = pair
    unit = claim.unit.strip().lower()
    if unit in ("points", "pp", "point", "percentage points") or (
        GAINS.search(claim.metric) and unit not in ("percent", "%", "ratio", "x")
    ):
        results = {f"|{printed_a} - {printed_b}|": abs(a - b)}
    elif unit in ("percent", "%") and not RATIOS.search(claim.metric):
        results = {f"({printed_b} - {printed_a}) / {printed_a}": 100 * (b - a) / a}
        if b < a:
            results = {f"({printed_a} - {printed_b}) / {printed_a}": 100 * (a - b) / a}
    else:
        results = {f"{printed_a} / {printed_b}": a / b, f"{printed_b} / {printed_a}": b / a}
    text, result = min(results.items(), key=lambda item: abs(item[1] - (claim.value or 0.0)))
    line = f"{text} = {show(result, 4)}; claimed {claim.printed} {claim.unit}".strip()
    if _agrees(claim.value, result, claim.printed):
        return [possible(f"{line}: the arithmetic holds", _SOURCE)]
    return [inconsistent(line, _SOURCE, f"{show(result, 3)}")]
