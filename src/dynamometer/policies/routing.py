"""Which replica takes a request: loads in, an index out. Pure; the simulator and the gateway share these rules."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

from dynamometer.errors import UsageError


def round_robin(turn: int, key: int, loads: Sequence[int]) -> int:
    """Each in turn; loads are ignored."""
    return turn % len(loads)


def least_loaded(turn: int, key: int, loads: Sequence[int]) -> int:
    """The replica with the fewest requests in flight, the first of equals."""
    return loads.index(min(loads))


def two_choices(turn: int, key: int, loads: Sequence[int]) -> int:
    """The less loaded of two that a hash of the turn picks: near the best balance with two look-ups."""
    mixed = mix(turn)
    first, second = mixed % len(loads), (mixed >> 20) % len(loads)
    return first if loads[first] <= loads[second] else second


def affinity(turn: int, key: int, loads: Sequence[int]) -> int:
    """The same key (a session or a shared prefix) always lands on the same replica; without a key, the least loaded."""
    return mix(key) % len(loads) if key >= 0 else least_loaded(turn, key, loads)


def mix(number: int) -> int:
    """A well-spread 40-bit hash of an integer (SplitMix64's finalizer)."""
    z = (number + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return (z ^ (z >> 31)) >> 24


RULES = {"round-robin": round_robin, "least-loaded": least_loaded, "two-choices": two_choices, "affinity": affinity}

BLIND = frozenset({"round-robin"})  # rules that look at no load


def rule(name: str) -> object:
    """The routing function of that name."""
    if name not in RULES:
        raise UsageError(f"routing is {name!r}; one of {', '.join(RULES)}")
    return RULES[name]


def place(tenant: str, salt: str) -> float:
    """Where a tenant stands between 0 and 1. Those below a canary's share are its tenants, so a share that grows keeps
    the tenants it had. `salt`: another salt chooses other tenants."""
    digest = sha256(f"{salt}\0{tenant}".encode()).digest()
    return int.from_bytes(digest[:7], "big") / (1 << 56)
