"""A text in, the formula in it out; a formula and its variables in, its value out. Arithmetic only: nothing is
executed."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

_NAMES: Final = ("batch", "seq", "concurrency", "length", "tokens", "users", "x", "b", "s", "n", "c", "l")
_FUNCTIONS: Final[dict[str, Callable[..., float]]] = {
    "sqrt": math.sqrt,
    "log": math.log,
    "log2": math.log2,
    "log10": math.log10,
    "exp": math.exp,
    "min": min,
    "max": max,
}
_TOKEN: Final = re.compile(
    r"(?P<number>(?<![\w.])\d[\d,]*\.?\d*(?:[eE][-+]?\d+)?|(?<![\w.])\.\d+)|(?P<name>[A-Za-z_]+\d*)|(?P<op>\*\*|[-+*/^()×·÷−])"
    r"|(?P<space>\s+)|(?P<other>.)"
)
_UNITS: Final = re.compile(
    r"\b(?:tokens?|tok|requests?|req|[kKMGT]i?B|J|ms|USD|FLOP|FLOPS)\s*/\s*(?:s|second|token|tokens|h|hour)\b"
)
_LONGEST: Final = 400  # characters of a formula


class Formula(msgspec.Struct, frozen=True):
    text: str  # as printed
    python: str  # as evaluated
    variables: tuple[str, ...]


class Unsolvable(ValueError):
    """The formula has no finite value here."""


def find(text: str) -> Formula | None:
    """The longest piece of the text that reads as a formula: at least one of * / ^, at least two terms."""
    best: Formula | None = None
    for run, printed in _runs(text):
        for candidate in _trims(run):
            formula = _parse(candidate, printed)
            if formula and (best is None or len(formula.python) > len(best.python)):
                best = formula
                break
    return best


def _runs(text: str) -> list[tuple[list[str], str]]:
    """Stretches of tokens that may stand in a formula, multiplication signs filled in."""
    runs: list[tuple[list[str], str]] = []
    tokens: list[str] = []
    start = 0
    end = -1
    for match in [*_TOKEN.finditer(_UNITS.sub(lambda m: ";" * len(m[0]), text[:4000])), None]:
        kind = match.lastgroup if match else "other"
        word = match[0] if match else ""
        usable = kind in ("number", "op") or (kind == "name" and (word.lower() in _NAMES or word.lower() in _FUNCTIONS))
        if match and (usable or kind == "space"):
            if not tokens:
                start = match.start()
            if usable:
                _push(tokens, word, kind or "", glued=match.start() == end)
                end = match.end()
            continue
        if tokens:
            runs.append((tokens, text[start : match.start() if match else len(text)].strip()))
            tokens = []
    return runs


def _push(tokens: list[str], word: str, kind: str, glued: bool) -> None:
    """Appends one token in Python's spelling; `1182x` and `2(3)` get their multiplication sign, `64 users` does not."""
    plain = {"^": "**", "×": "*", "·": "*", "÷": "/", "−": "-"}.get(word, word)
    plain = plain.replace(",", "") if kind == "number" else plain.lower() if kind == "name" else plain
    if glued and tokens and (kind == "name" or plain == "(") and (tokens[-1][0].isdigit() or tokens[-1] == ")"):
        tokens.append("*")
    tokens.append(plain)


def _trims(tokens: list[str]) -> list[str]:
    """The run, then the run without words or signs at its ends that belong to the prose."""
    found = []
    for left in range(min(3, len(tokens))):
        found += [" ".join(tokens[left : len(tokens) - right]) for right in range(min(3, len(tokens) - left))]
    return sorted(found, key=len, reverse=True)


def _parse(source: str, printed: str) -> Formula | None:
    if not re.search(r"[*/^×·÷]", printed) or not re.search(r"[*/]", source) or len(source) > _LONGEST:
        return None
    try:
        tree = ast.parse(source, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    nodes = list(ast.walk(tree))
    numbers = [node for node in nodes if isinstance(node, ast.Constant)]
    names = {node.id for node in nodes if isinstance(node, ast.Name)} - set(_FUNCTIONS)
    operations = [node for node in nodes if isinstance(node, ast.BinOp)]
    if not operations or len(numbers) + len(names) < 2 or not numbers or not all(_allowed(node) for node in nodes):
        return None
    return Formula(printed, source, tuple(sorted(names)))


_NODES: Final = (ast.Expression, ast.BinOp, ast.UnaryOp, ast.Constant, ast.Name, ast.Call, ast.Load)
_OPERATORS: Final = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow, ast.USub, ast.UAdd)


def _allowed(node: ast.AST) -> bool:
    return isinstance(node, (*_NODES, *_OPERATORS))


def evaluate(formula: Formula, values: Mapping[str, float]) -> float:
    """The formula's value; raises Unsolvable for a missing variable or a value that is not finite."""
    try:
        result = _value(ast.parse(formula.python, mode="eval").body, values)
    except (ZeroDivisionError, OverflowError, ValueError, TypeError, KeyError) as wrong:
        raise Unsolvable(f"{formula.text} has no value here ({wrong})") from wrong
    if not math.isfinite(result):
        raise Unsolvable(f"{formula.text} is not finite here")
    return result


def _value(node: ast.expr, values: Mapping[str, float]) -> float:
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        return float(node.value)
    if isinstance(node, ast.Name):
        return float(values[node.id])
    if isinstance(node, ast.UnaryOp):
        inner = _value(node.operand, values)
        return -inner if isinstance(node.op, ast.USub) else inner
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        return float(_FUNCTIONS[node.func.id](*(_value(argument, values) for argument in node.args)))
    if isinstance(node, ast.BinOp):
        return _operate(node.op, _value(node.left, values), _value(node.right, values))
    raise ValueError("it holds something other than arithmetic")


def _operate(operator: ast.operator, left: float, right: float) -> float:
    if isinstance(operator, ast.Add):
        return left + right
    if isinstance(operator, ast.Sub):
        return left - right
    if isinstance(operator, ast.Mult):
        return left * right
    if isinstance(operator, ast.Div):
        return left / right
    return math.pow(left, right)
