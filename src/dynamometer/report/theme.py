"""A named theme in, the colours of the page and of its pictures out, so that both change together.

The series colours start from Okabe and Ito's set and were moved until every pair differs by 15 or more (CIE 1976), for
normal sight and for the three common colour-blindnesses, and each has a contrast of 3 : 1 to its card (WCAG 2.2,
1.4.11).
"""

from __future__ import annotations

import msgspec

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', 'DejaVu Sans', sans-serif"


class Theme(msgspec.Struct, frozen=True):
    """Colours as #rrggbb. `series` in the order of use."""

    name: str
    background: str
    card: str
    text: str
    muted: str
    line: str
    link: str
    good: str
    bad: str
    warn: str
    series: tuple[str, ...]


LIGHT = Theme(
    name="light",
    background="#f6f7f9",
    card="#ffffff",
    text="#16202c",
    muted="#566170",
    line="#dfe3e8",
    link="#0b62a8",
    good="#0a7a55",
    bad="#b3261e",
    warn="#9a5b00",
    series=("#0067a2", "#b03b01", "#299064", "#d26aa1", "#bd8300", "#3799e0", "#5a6468", "#6c53ce"),
)
DARK = Theme(
    name="dark",
    background="#10151c",
    card="#18202a",
    text="#e8edf3",
    muted="#a3afbd",
    line="#303b48",
    link="#7cc4ff",
    good="#4fd1a1",
    bad="#ff8a80",
    warn="#ffc266",
    series=("#54b5eb", "#ff8f4e", "#50de98", "#b878a7", "#f1b31f", "#a3daf7", "#b4b8b7", "#8494ff"),
)
THEMES = (LIGHT, DARK)


def css_variables(theme: Theme) -> str:
    """The theme as CSS custom properties, `--card:#ffffff;…`."""
    names = ("background", "card", "text", "muted", "line", "link", "good", "bad", "warn")
    colours = [f"--{name}:{getattr(theme, name)}" for name in names]
    colours += [f"--series-{at}:{colour}" for at, colour in enumerate(theme.series)]
    return ";".join([*colours, f"color-scheme:{theme.name}"])


def vega_config(theme: Theme) -> dict[str, object]:
    """The theme as a Vega-Lite `config`. The specs hold no colour; they name the styles at its end."""
    axis = {
        "gridColor": theme.line,
        "domainColor": theme.line,
        "tickColor": theme.line,
        "labelColor": theme.muted,
        "titleColor": theme.muted,
        "titleFontWeight": "normal",
        "labelFontSize": 11,
        "titleFontSize": 12,
        "titlePadding": 8,
        "labelOverlap": "greedy",
    }
    first = theme.series[0]
    return {
        "background": None,
        "font": FONT,
        "padding": 4,
        "view": {"stroke": None},
        "axis": axis,
        "legend": {
            "orient": "top",
            "direction": "horizontal",
            "title": None,
            "labelColor": theme.text,
            "labelFontSize": 12,
            "labelLimit": 220,
            "symbolStrokeWidth": 2.5,
            "symbolOpacity": 1,
            "titleColor": theme.muted,
            "titleFontWeight": "normal",
            "offset": 22,
            "columnPadding": 16,
        },
        "range": {
            "category": list(theme.series),
            "heatmap": {"scheme": "viridis"},
            "ramp": {"scheme": "viridis"},
        },
        "line": {"color": first, "strokeWidth": 2, "strokeJoin": "round"},
        "point": {"color": first, "filled": True, "size": 22},
        "circle": {"color": first},
        "bar": {"color": first},
        "area": {"color": first},
        "rule": {"color": theme.muted},
        "tick": {"color": theme.text},
        "text": {"color": theme.text, "fontSize": 11},
        "style": {
            "limit": {"stroke": theme.text, "strokeDash": [5, 4], "strokeWidth": 1.25},
            "limit-label": {"fill": theme.text, "fontSize": 11},
            "faint": {"fill": theme.muted, "fillOpacity": 0.14, "stroke": None},
            "median": {"fill": theme.text},
            "edge": {"stroke": theme.card, "strokeWidth": 1},
        },
    }
