"""One request of another tool's file in, its events as we would have written them out; and the run around them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from dynamometer.record.rows import Events, Plan, Rows
from dynamometer.types import Chunk, Event, EventKind, Load

_NS = 1e9


class Taken(msgspec.Struct, frozen=True):
    """One request. Times in seconds on the file's own clock. `chunks_s`: when text came, as far as the file tells."""

    sent_s: float
    end_s: float
    chunks_s: tuple[float, ...] = ()
    due_s: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    error: str = ""
    cancelled: bool = False
    session: str = ""
    turn: int = 0


class Imported(msgspec.Struct, frozen=True):
    """One benchmark of a file. `figures`: what the tool itself says, by name with unit; `requests` may be empty."""

    tool: str
    version: str
    model: str
    url: str
    load: Load
    began_wall_ns: int  # 0: the file does not say
    requests: tuple[Taken, ...]
    figures: Mapping[str, float]
    notes: tuple[str, ...] = ()


def rows(requests: Sequence[Taken]) -> tuple[list[Plan], Events, int]:
    """Plans, events and the last moment in ns; the first request is sent at 0, and the order is that of sending."""
    ordered = sorted(requests, key=lambda one: one.sent_s)
    zero_s = min((one.sent_s if one.due_s is None else min(one.due_s, one.sent_s) for one in ordered), default=0.0)
    made, plans, last_ns = Rows(), [], 0
    for number, one in enumerate(ordered):
        plans.append(
            Plan(number, session=one.session, turn=one.turn, input_tokens=one.input_tokens or 0,
                 output_tokens=one.output_tokens or 0)
        )  # fmt: skip
        facts = _facts(number, one, zero_s)
        made.add(number, facts)
        last_ns = max(last_ns, *(fact.at_ns for fact in facts))
    return plans, made.take(), last_ns


def _facts(number: int, one: Taken, zero_s: float) -> list[Chunk | Event]:
    def at(time_s: float) -> int:
        return round((time_s - zero_s) * _NS)

    sent_ns, end_ns = at(one.sent_s), at(one.end_s)
    due_ns = sent_ns if one.due_s is None else min(at(one.due_s), sent_ns)
    facts: list[Chunk | Event] = [
        Event(number, EventKind.DUE, due_ns),
        Event(number, EventKind.SENT, sent_ns, n=1),
    ]
    facts += [Chunk(EventKind.CHUNK, at(time_s), note="content") for time_s in one.chunks_s]
    last_ns = max(end_ns, *(fact.at_ns for fact in facts))
    for note, count in (("prompt", one.input_tokens), ("output", one.output_tokens), ("cached", one.cached_tokens)):
        if count is not None:
            facts.append(Event(number, EventKind.USAGE, last_ns, n=count, note=note))
    if one.cancelled:
        facts.append(Event(number, EventKind.CANCEL, last_ns, note="interrupt"))
    elif one.error:
        facts.append(Event(number, EventKind.ERROR, last_ns, note=one.error[:500]))
    else:
        facts.append(Event(number, EventKind.DONE, last_ns))
    return facts


def table(value: object) -> Mapping[str, object]:
    """A JSON object; anything else is as good as an empty one."""
    return value if isinstance(value, dict) else {}


def listed(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def whole(value: object) -> int | None:
    found = number(value)
    return None if found is None else round(found)
