"""Something that runs in; which of our functions it called, and how often, out."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import FrameType

import dynamometer

PACKAGE = str(Path(dynamometer.__file__).parent) + "/"

Hop = tuple[str, str]  # file within the package, qualified name


class Hops:
    """Calls by function, and which functions had been called before a certain one was first."""

    def __init__(self, calls: Counter[Hop], before: frozenset[Hop]) -> None:
        self.calls, self.before = calls, before

    def per_request(self, fewer: Hops, requests: int) -> set[Hop]:
        """Functions that were called at least once more for each of `requests` further requests."""
        return {hop for hop, count in self.calls.items() if count - fewer.calls[hop] >= requests}


def trace(work: Callable[[], object], until: Hop) -> Hops:
    """Runs `work` and counts the calls of our own functions in this thread. `until`: what sends the first byte.

    Comprehensions, lambdas and bodies of modules and classes have frames too; they belong to the function around.
    """
    calls: Counter[Hop] = Counter()
    before: list[frozenset[Hop]] = []

    def called(frame: FrameType, kind: str, _: object) -> None:
        code, path = frame.f_code, frame.f_code.co_filename
        named = code.co_flags & CO_OPTIMIZED and not code.co_name.startswith("<")
        if kind == "call" and named and path.startswith(PACKAGE):
            hop = (path.removeprefix(PACKAGE), code.co_qualname)
            if hop == until and not before:
                before.append(frozenset(calls))
            calls[hop] += 1

    sys.setprofile(called)
    try:
        work()
    finally:
        sys.setprofile(None)
    return Hops(calls, before[0] if before else frozenset())
