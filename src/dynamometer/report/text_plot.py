"""A line and points in, a picture made of characters out: a fit at a glance where no browser is."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dynamometer.units import significant

Points = Sequence[tuple[float, float]]

_LINE, _POINT, _RULE = "·", "●", "│"
_PLAIN = str.maketrans({"·": ".", "●": "o", "│": "|", "└": "+", "─": "-"})


def text_plot(
    line: Points,
    points: Points,
    rule: tuple[float, str] | None = None,
    size: tuple[int, int] = (64, 14),
    plain: bool = False,
) -> str:
    """Points over a line, x logarithmic, y from 0.

    `rule`: a vertical mark with a word, such as the knee. `size`: columns and rows (at least 2) of the field. `plain`:
    ASCII alone. x must be above 0; without any point the picture is "".
    """
    everything = [*line, *points]
    if not everything:
        return ""
    columns, rows = size
    low, high = math.log(min(x for x, _ in everything)), math.log(max(x for x, _ in everything))
    top = max(y for _, y in everything) or 1.0
    field = [[" "] * columns for _ in range(rows)]

    def column(x: float) -> int:
        return round((math.log(x) - low) / (high - low) * (columns - 1)) if high > low else 0

    def put(x: float, y: float, mark: str) -> None:
        field[rows - 1 - round(max(0.0, y) / top * (rows - 1))][column(x)] = mark

    if rule:
        for row in field:
            row[column(rule[0])] = _RULE
    for mark, values in ((_LINE, line), (_POINT, points)):
        for x, y in values:
            put(x, y, mark)
    names = {0: significant(top), (rows - 1) // 2: significant(top * (1 - (rows - 1) // 2 / (rows - 1))), rows - 1: "0"}
    wide = max(map(len, names.values()))
    picture = [f"{names.get(i, ''):>{wide}} {_RULE}{''.join(row)}".rstrip() for i, row in enumerate(field)]
    picture.append(f"{'':>{wide}} └{'─' * columns}")
    ticks = [(column(x), significant(x)) for x in sorted({x for x, _ in points or line})]
    picture.append(" " * (wide + 2) + _spread(ticks, columns))
    if rule:
        picture.append(" " * (wide + 2) + _spread([(column(rule[0]), rule[1])], columns))
    text = "\n".join(picture)
    return text.translate(_PLAIN) if plain else text


def _spread(words: Sequence[tuple[int, str]], columns: int) -> str:
    """Each word centred under its column; one that would touch the word before it is left out."""
    row = [" "] * (columns + 16)
    free = 0
    for at, word in words:
        start = max(0, at - len(word) // 2)
        if start >= free:
            row[start : start + len(word)] = word
            free = start + len(word) + 1
    return "".join(row).rstrip()
