"""A line and points in, a picture made of characters out: a fit at a glance where no browser is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from dynamometer.units import significant

Points = Sequence[tuple[float, float]]

_LINE, _POINT, _RULE = "·", "●", "│"
_SHADES = " ░▒▓█"
_PLAIN = str.maketrans(
    {"·": ".", "●": "o", "│": "|", "└": "+", "─": "-", "┼": "+", "░": ".", "▒": ":", "▓": "%", "█": "#"}
)


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


def text_map(cells: Mapping[tuple[float, float], float], names: tuple[str, str], plain: bool = False) -> str:
    """Values over two factors: rows by the first, columns by the second, darker is more (by rank of the logarithm).

    `cells`: (first, second) -> value, all values above 0; a pair that is missing stays empty. `names`: of the factors.
    """
    rows, columns = (sorted({pair[i] for pair in cells}) for i in (0, 1))
    low, high = math.log(min(cells.values())), math.log(max(cells.values()))

    def cell(pair: tuple[float, float]) -> str:
        if pair not in cells:
            return " " * 10
        share = (math.log(cells[pair]) - low) / (high - low) if high > low else 1.0
        return f"{_SHADES[1 + min(3, int(share * 4))] * 2}{significant(cells[pair]):>8}"

    wide = max(len(names[0]), *(len(significant(row)) for row in rows))
    head = f"{names[0]:>{wide}} │" + "".join(f"{significant(column):>11}" for column in columns) + f"  {names[1]}"
    rule = "─" * (wide + 1) + "┼" + "─" * (11 * len(columns))
    lines = [f"{significant(row):>{wide}} │" + "".join(f" {cell((row, column))}" for column in columns) for row in rows]
    text = "\n".join((head, rule, *(line.rstrip() for line in lines)))
    return text.translate(_PLAIN) if plain else text


Bar = tuple[str, float, float | None, float | None]  # name, value, low, high


def text_bars(bars: Sequence[Bar], middle: float, width: int = 48, plain: bool = False) -> str:
    """A bar a row from `middle` to its value, with its interval as a line: `·` in the bar's free ends."""
    if not bars:
        return ""
    ends = [x for _, value, low, high in bars for x in (value, low, high, middle) if x is not None]
    least, span = min(ends), (max(ends) - min(ends)) or 1.0

    def column(x: float) -> int:
        return round((x - least) / span * (width - 1))

    wide = max(len(name) for name, *_ in bars)
    lines = []
    for name, value, low, high in bars:
        row = [" "] * width
        for at in range(min(column(middle), column(value)), max(column(middle), column(value)) + 1):
            row[at] = "▒"
        if low is not None and high is not None:
            for at in range(column(low), column(high) + 1):
                row[at] = _LINE if row[at] == " " else "▓"
        row[column(middle)] = _RULE
        row[column(value)] = _POINT
        lines.append(f"{name:>{wide}} {''.join(row)}".rstrip() + f"  {significant(value)}")
    text = "\n".join(lines)
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
