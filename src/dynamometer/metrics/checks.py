"""The doubts."""

from dynamometer.types import Doubt


def check(connection: object, run: object, window: object) -> tuple[Doubt, ...]:
    return ()
