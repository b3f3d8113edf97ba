"""Sections in, one HTML text out that needs nothing else: scripts, styles, specs and numbers are inside it.

The page works offline and without scripts (the pictures' numbers are tables too). All text is escaped; a content
security policy allows only the scripts that this file put there, by their hash, so that a model's answer or a server's
error message cannot run anything even if an escape were forgotten.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Literal

import msgspec
from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from dynamometer import __version__
from dynamometer.report.figure import Figure
from dynamometer.report.table import Table, figure_text, markdown
from dynamometer.report.theme import DARK, FONT, LIGHT, THEMES, css_variables, vega_config
from dynamometer.types import Doubt, Estimate

SCRIPTS = ("vega", "vega-lite", "vega-embed")
Tone = Literal["good", "bad", "warn", "plain"]


class Fact(msgspec.Struct, frozen=True):
    """One line of an environment. `code`: set in a fixed-width face."""

    name: str
    value: str
    code: bool = False


class Facts(msgspec.Struct, frozen=True):
    title: str
    facts: tuple[Fact, ...]


class Recipe(msgspec.Struct, frozen=True):
    """Something to copy: a command, a specification."""

    title: str
    text: str


class Key(msgspec.Struct, frozen=True):
    """A figure that is shown large. `name` without a unit; the unit is the estimate's."""

    name: str
    estimate: Estimate


class Section(msgspec.Struct, frozen=True):
    """One run, or one part of a study, in the order in which it is read."""

    anchor: str
    title: str
    verdict: str
    badge: str = ""  # measured | simulated | quoted
    tone: Tone = "plain"
    because: tuple[str, ...] = ()
    key: tuple[Key, ...] = ()
    doubts: tuple[Doubt, ...] = ()
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()
    environment: tuple[Facts, ...] = ()
    recipes: tuple[Recipe, ...] = ()


class Page(msgspec.Struct, frozen=True):
    title: str
    sections: tuple[Section, ...]
    subtitle: str = ""


def render(page: Page) -> str:
    """The page as one HTML text. Pure: the same page gives the same bytes."""
    scripts = _scripts() if any(section.figures for section in page.sections) else ()
    themes = {theme.name: vega_config(theme) for theme in THEMES}
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            page=page,
            version=__version__,
            policy=_policy([text for _, text in scripts] + [_text("templates", "page.js")]),
            style=Markup(_style()),
            scripts=[(Markup(licence), Markup(text)) for licence, text in scripts],
            script=Markup(_text("templates", "page.js")),
            themes=_data(themes),
            single=len(page.sections) == 1,
        )
    )


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("dynamometer", "report/templates"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(data=_data, figure=figure_text, markdown=markdown, lines=str.splitlines)
    return environment


def _data(value: object) -> Markup:
    """A value as JSON that is safe inside a script element: no `<`, so no `</script>` and no `<!--`."""
    text = msgspec.json.encode(value).decode()
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return Markup(text)


@cache
def _text(folder: str, name: str) -> str:
    return files("dynamometer.report").joinpath(folder, name).read_text(encoding="utf-8")


@cache
def _scripts() -> tuple[tuple[str, str], ...]:
    """(licence, text) of each vendored script; the licences ask to stay with every copy."""
    return tuple((_text("assets", f"LICENSE.{name}"), _text("assets", f"{name}.min.js")) for name in SCRIPTS)


def _style() -> str:
    """The style sheet with the colours of both themes; paper is always light."""
    light, dark = css_variables(LIGHT), css_variables(DARK)
    colours = (
        f":root{{{light};--font:{FONT}}}"
        f"@media (prefers-color-scheme:dark){{:root:not([data-theme=light]){{{dark}}}}}"
        f":root[data-theme=dark]{{{dark}}}"
        f"@media print{{:root,:root:not([data-theme=light]),:root[data-theme=dark]{{{light}}}}}"
    )
    return colours + _text("templates", "page.css")


def _policy(scripts: Sequence[str]) -> str:
    """A content security policy: nothing is loaded from anywhere, and only these scripts run."""
    hashes = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts)
    allowed = " ".join(f"'sha256-{value}'" for value in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
