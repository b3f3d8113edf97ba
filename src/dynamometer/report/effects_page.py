"""The effects of a factorial experiment in; its verdict, its tables and its pictures out."""

from __future__ import annotations

import msgspec

from dynamometer.decisions.factors import Findings, sure
from dynamometer.report.figure import Axis, Figure, Heading, Row, curve
from dynamometer.report.page import Page, Section
from dynamometer.report.shapes import tornado
from dynamometer.report.table import Table
from dynamometer.report.text_plot import text_bars
from dynamometer.types import Estimate
from dynamometer.units import show, significant


def verdict(found: Findings) -> str:
    """What each factor does, and whether two of them disturb each other."""
    if found.ablation:
        one, (a, b) = found.ablation, found.effects.design.factors
        said = f"{a} alone {_percent(one.gain_a)}, {b} alone {_percent(one.gain_b)}, both {_percent(one.gain_both)}"
        against = f"both are {_percent(one.interaction)} against the product of the two"
        return f"{said}; {against}. {_orthogonal(one.interaction)}"
    ratio = {name: one for name, one in found.effects.ratio.items() if name}
    mains = [f"{name} {_percent(one)}" for name, one in ratio.items() if ":" not in name]
    pairs = {name: one for name, one in ratio.items() if ":" in name}
    if not pairs:
        return f"{'; '.join(mains)}."
    name, most = max(pairs.items(), key=lambda item: abs((item[1].value or 1.0) - 1))
    return f"{'; '.join(mains)}. The largest interaction is {name}, {_percent(most)}. {_orthogonal(most)}"


def _percent(ratio: Estimate) -> str:
    """`+17.1 % [+15 %, +19 %]`"""
    assert ratio.value is not None
    said = f"{100 * (ratio.value - 1):+.1f} %"
    if ratio.low is None or ratio.high is None:
        return said
    return f"{said} [{100 * (ratio.low - 1):+.1f}, {100 * (ratio.high - 1):+.1f}]"


def _orthogonal(interaction: Estimate) -> str:
    known = sure(interaction, 1.0)
    if known is None:
        return "One run of each gives no interval, so whether that is more than noise cannot be said: repeat the runs."
    if known:
        return "Its interval leaves out 0, so they disturb or help each other."
    return "Its interval holds 0: no interaction was seen, and none larger than the interval is likely."


def in_characters(found: Findings, plain: bool) -> str:
    """Each effect as a bar from "none", with its interval, for a terminal. `plain`: ASCII alone."""
    ratio = {name: one for name, one in found.effects.ratio.items() if name and one.value is not None}
    largest = sorted(ratio.items(), key=lambda item: -abs((item[1].value or 1.0) - 1))[:12]
    bars = [(name, one.value or 1.0, one.low, one.high) for name, one in largest]
    return f"effect on {found.response}, on over off; 1: none\n{text_bars(bars, 1.0, plain=plain)}"


def tables(found: Findings) -> tuple[Table, ...]:
    """The ablation where there are two factors, effects on both scales, what cannot be told apart."""
    made = []
    if one := found.ablation:
        rows = (
            ("A alone", show(one.gain_a)),
            ("B alone", show(one.gain_b)),
            ("both", show(one.gain_both)),
            ("both, if they were independent", show(one.expected)),
            ("interaction, ratio scale (1: none)", show(one.interaction)),
            ("interaction, rate scale (0: none)", show(one.interaction_rate)),
        )
        a, b = found.effects.design.factors
        made.append(Table(f"Ablation: A is {a}, B is {b}", ("", "to the baseline"), rows, numbers=False))
    ratio, difference = found.effects.ratio, found.effects.difference
    middles = (msgspec.structs.replace(scale[""], unit=found.response) for scale in (ratio, difference))
    lines = (
        *((name, show(one), show(difference[name])) for name, one in ratio.items() if name),
        ("middle (geometric, plain mean)", *map(show, middles)),
    )
    notes: tuple[str, ...] = (f"Intervals hold {ratio[''].level:.0%}; {ratio[''].method}.",)
    notes += tuple(
        f"{name} cannot be told from {', '.join(others)}"
        for name, others in found.effects.aliases.items()
        if ":" not in name
    )
    heads = ("effect", "ratio (on over off)", "difference (on less off)")
    made.append(Table(f"Effects on {found.response}", heads, lines, notes, numbers=False))
    names = found.effects.design.factors
    cells = tuple(
        (*("on" if on else "off" for on in settings), significant(mean), f"{runs}")
        for settings, mean, runs in found.cells
    )
    made.append(Table("What was measured", (*names, f"mean {found.response}", "runs"), cells))
    return tuple(made)


def pictures(found: Findings) -> tuple[Figure, ...]:
    """What moves the response most; for two factors also their lines, which are parallel where nothing interacts."""
    names = found.effects.design.factors
    middle = found.effects.difference[""].value or 0.0
    rows: list[Row] = []
    for name in names:
        half = (found.effects.difference[name].value or 0.0) / 2
        rows.append({"factor": name, "low": middle - half, "high": middle + half, "ends": "off … on"})
    heading = Heading("effects", "Mean response with each factor off and on", verdict(found))
    made = [tornado(heading, rows, middle, Axis("value", found.response))]
    if len(names) == 2:
        lines: list[Row] = [
            {"series": f"{names[1]} {'on' if settings[1] else 'off'}", "x": int(settings[0]), "y": mean}
            for settings, mean, _ in found.cells
        ]
        across = Axis("x", names[0], ticks=(0, 1), labels="datum.value == 0 ? 'off' : 'on'", domain=(-0.2, 1.2))
        caption = "On a logarithmic axis the lines are parallel where the two gains multiply."
        up = Axis("y", found.response, "log")
        made.append(curve(Heading("interaction", "Interaction", caption), lines, across, up))
    return tuple(made)


def page(found: Findings, about: str) -> Page:
    section = Section(
        "effects", "Effects", verdict(found), badge="given", tables=tables(found), figures=pictures(found)
    )
    return Page("Effects of a factorial experiment", (section,), about)
