"""A store's URL in, the module that speaks with it out: PostgreSQL or an object store."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Protocol, cast

from dynamometer.errors import UsageError
from dynamometer.record import objects, postgres
from dynamometer.record.stored import Stored
from dynamometer.types import Run


class Store(Protocol):
    """What either module does. Counts are rows by table, or bytes by file."""

    def push(self, directory: Path, url: str) -> dict[str, int]: ...
    def pull(self, url: str, run_id: str, directory: Path) -> Run: ...
    def stored(self, url: str) -> list[Stored]: ...
    def drop(self, url: str, run_ids: list[str]) -> int: ...


def store_of(url: str) -> Store:
    """By the URL's scheme; UsageError names those that there are."""
    scheme = url.partition("://")[0]
    if scheme in ("postgresql", "postgres"):
        return cast(Store, postgres)
    if scheme in objects.SCHEMES and "://" in url:
        return cast(Store, objects)
    raise UsageError(f"--store is {shown(url)!r}; give postgresql://USER@HOST/DATABASE or s3://BUCKET/FOLDER")


def shown(url: str) -> str:
    """The URL without its password."""
    return re.sub(r"(://[^:/@\s]*):[^@/\s]*@", r"\1:(not recorded)@", url)
