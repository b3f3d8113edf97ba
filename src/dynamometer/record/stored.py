"""A run as a store lists it, in; nothing else: what PostgreSQL and object stores have in common."""

from __future__ import annotations

import msgspec


class Stored(msgspec.Struct, frozen=True):
    """A run in a store."""

    run: str
    stored_at: str  # ISO 8601, UTC
    status: str
    experiment: str
