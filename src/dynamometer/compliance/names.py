"""What a card calls a licence in, ids out: SPDX ids, LicenseRef- ids of the catalogue, or none with the reason."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Final, cast

import msgspec

from dynamometer.compliance.catalogue import licences
from dynamometer.plugins import optional

if TYPE_CHECKING:
    from boolean.boolean import Expression

_NOTHING: Final = frozenset(
    {"", "unknown", "other", "none", "null", "n-a", "na", "tbd", "todo", "proprietary", "custom"}
)
_FILLER: Final = re.compile(r"\b(the|licen[cs]e|licensed|version|agreement|terms)\b|\bv(?=\d)", re.I)
_LONGEST: Final = 1000  # characters of an expression
_COMMON: Final[Mapping[str, str]] = {
    "apache": "Apache-2.0",
    "apache2": "Apache-2.0",
    "apache-2": "Apache-2.0",
    "apache2.0": "Apache-2.0",
    "apache-2.0": "Apache-2.0",
    "apache-software-2.0": "Apache-2.0",
    "mit": "MIT",
    "expat": "MIT",
    "bsd": "BSD-3-Clause",
    "cc-by-nc": "CC-BY-NC-4.0",
    "cc-by-nc-sa": "CC-BY-NC-SA-4.0",
    "cc-by": "CC-BY-4.0",
    "cc-by-sa": "CC-BY-SA-4.0",
    "cc0": "CC0-1.0",
    "gpl": "GPL-3.0-only",
    "lgpl": "LGPL-3.0-only",
    "agpl": "AGPL-3.0-only",
    "odbl": "ODbL-1.0",
    "odc-by": "ODC-By-1.0",
    "pddl": "PDDL-1.0",
    "c-uda": "C-UDA-1.0",
    "cdla-permissive-2.0": "CDLA-Permissive-2.0",
}


class Named(msgspec.Struct, frozen=True):
    """What was read. `choices`: alternatives (OR), each a set of ids that hold together (AND); empty: unknown."""

    said: str
    choices: tuple[tuple[str, ...], ...] = ()
    why: str = ""  # why it is unknown

    @property
    def expression(self) -> str:
        """As an SPDX expression, "unknown" when there is none."""
        parts = [" AND ".join(ids) for ids in self.choices]
        return " OR ".join(f"({part})" if len(parts) > 1 and " " in part else part for part in parts) or "unknown"


def read(value: object, name: object = None, link: object = None) -> Named:
    """A card's `license`, `license_name`, `license_link`. A list holds together: all of it applies."""
    if isinstance(value, list | tuple):
        return _together([_one(word) for word in value]) if value else Named("", (), "the list of licences is empty")
    said = _text(value)
    if key(said) in ("other", "custom", "unknown", "proprietary", "") and (_text(name) or _text(link)):
        return _other(_text(name), _text(link))
    return _one(said)


def _text(value: object) -> str:
    return value.strip() if isinstance(value, str) else "" if value is None else str(value)


def _other(name: str, link: str) -> Named:
    found = _one(name) if name else Named("")
    if found.choices:
        return found
    linked = from_link(link)
    if linked:
        return Named(name or link, ((linked,),))
    return Named(name or link, (), f"the card says {name or link!r}, which is no licence that is known here")


def from_link(link: str) -> str:
    """The licence whose own address the link is; "" when the address says nothing."""
    short = link.split("://")[-1].rstrip("/").lower()
    for entry in licences().values():
        own = entry.source.split("://")[-1].rstrip("/").lower()
        if short and "/" in own and short == own:
            return entry.id
    return ""


def key(text: str) -> str:
    """The spelling by which names are compared: lower case, hyphens, no filler words."""
    bare = _FILLER.sub(" ", text.lower().replace("_", "-").replace("licenseref-", "").replace("scancode-", ""))
    return re.sub(r"-{2,}", "-", re.sub(r"[\s,()]+", "-", bare.strip())).strip("-")


@cache
def _aliases() -> Mapping[str, str]:
    found: dict[str, str] = {**_COMMON}
    for entry in licences().values():
        for word in (entry.id, *entry.aliases):
            found.setdefault(key(word), entry.id)
    return found


def _one(value: object) -> Named:
    said = _text(value)
    if key(said) in _NOTHING:
        return Named(said, (), f"the card says {said!r}" if said else "the card names no licence")
    alias = _aliases().get(key(said))
    if alias:
        return Named(said, ((alias,),))
    return _expression(said)


def _expression(said: str) -> Named:
    """An SPDX expression such as `MIT OR Apache-2.0`."""
    unknown = Named(said, (), f"{said!r} is no licence that is known here")
    library = cast(ModuleType, optional("license_expression", "comply"))
    licensing = library.get_spdx_licensing()
    try:
        parsed = licensing.parse(said[:_LONGEST])
    except (library.ExpressionError, library.ParseError):
        return unknown
    strange = [name for name in licensing.unknown_license_keys(parsed) if key(name) not in _aliases()]
    return unknown if parsed is None or strange else Named(said, _choices(parsed))


def _choices(node: Expression) -> tuple[tuple[str, ...], ...]:
    """Alternatives of sets of ids."""
    operator = str(getattr(node, "operator", None) or "").strip()
    if operator == "OR":
        return tuple(one for child in node.args for one in _choices(child))
    if operator == "AND":
        return _product([_choices(child) for child in node.args])
    bare = getattr(node, "license_symbol", node)  # X WITH exception: the exception only adds permission
    name = str(bare.key)
    return ((_aliases().get(key(name), name),),)


def _product(sets: list[tuple[tuple[str, ...], ...]]) -> tuple[tuple[str, ...], ...]:
    found: tuple[tuple[str, ...], ...] = ((),)
    for part in sets:
        found = tuple(tuple(dict.fromkeys((*left, *right))) for left in found for right in part)
    return found


def _together(parts: list[Named]) -> Named:
    said = ", ".join(part.said for part in parts)
    unknown = [part for part in parts if not part.choices]
    if unknown:
        return Named(said, (), "; ".join(part.why for part in unknown))
    return Named(said, _product([part.choices for part in parts]))
