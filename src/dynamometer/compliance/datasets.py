"""A data set's name as a card declares it in, its licence and source from a known list out."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

import msgspec


class Dataset(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`licence` as its maker states it; "other": parts with terms of their own, see `note`."""

    names: tuple[str, ...]
    licence: str
    source: str
    note: str = ""


class _List(msgspec.Struct, frozen=True):
    seen: str
    dataset: tuple[Dataset, ...]


@cache
def _known() -> Mapping[str, Dataset]:
    text = files("dynamometer.compliance").joinpath("datasets.toml").read_text(encoding="utf-8")
    return {name: one for one in msgspec.convert(tomllib.loads(text), _List).dataset for name in one.names}


def dataset(name: str) -> Dataset | None:
    """The list's entry for a name, with or without its owner; None when it is not in the list."""
    low = name.strip().lower()
    return _known().get(low) or (_known().get(low.split("/")[-1]) if low.count("/") == 0 else None)
