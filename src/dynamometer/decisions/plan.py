"""Options with evidence and the conditions in; the fleet, the runner-up, what would flip it and the whole table out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from dynamometer.decisions.capacity import (
    Conditions,
    Fleet,
    Level,
    Option,
    capacity,
    cheapest_mix,
    ends,
    fewest,
    price_that_flips,
)
from dynamometer.decisions.front import Choice, front
from dynamometer.models.power import Operating, score
from dynamometer.types import Decision
from dynamometer.units import significant


class Excluded(msgspec.Struct, frozen=True):
    """A candidate that was not weighed, or that no load of could meet the objective."""

    name: str
    why: str


class Row(msgspec.Struct, frozen=True):
    """One option as it was judged. Figures are at its capacity; `alone` is the fleet of this kind only."""

    name: str
    provenance: str
    source: str
    gpus: int
    usd_per_hour: float
    capacity_per_s: float
    latency_ms: float | None
    output_tokens_per_s: float | None
    usd_per_million_output_tokens: float | None
    power_w: float | None
    joules_per_output_token: float | None
    score: float | None  # joint throughput-power objective, 1 for the chosen fleet's first kind; lower is better
    on_front: bool  # nothing beats it in cost, latency and power together
    why: str
    alone: Fleet


class Planned(msgspec.Struct, frozen=True):
    """The plan; its fields are the keys of `dyno plan --json`. `fleet` None: no option meets the objective."""

    fleet: Fleet | None
    replicas: int
    usd_per_hour: float | None
    usd_per_day: float | None
    usd_per_thousand_requests: float | None  # over the day's mean load
    runner_up: Fleet | None
    conditions: Conditions
    objective: str
    options: tuple[Row, ...]
    excluded: tuple[Excluded, ...]
    provenance: Mapping[str, str]  # of the capacity of each kind in the fleet
    checks: tuple[str, ...]
    notes: tuple[str, ...]
    decision: Decision


class Context(msgspec.Struct, frozen=True):
    """What else a plan is told. `mean_over_peak`: of the day's load; `duty_hours`: in which the fleet is on."""

    objective: str
    mean_over_peak: float = 1.0
    duty_hours: float = 24.0
    excluded: tuple[Excluded, ...] = ()
    checks: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def choose(options: Sequence[Option], conditions: Conditions) -> tuple[Fleet | None, Fleet | None]:
    """(the cheapest fleet, the cheapest of one kind that is made of other kinds)."""
    best = cheapest_mix(options, conditions)
    if best is None:
        return None, None
    others = [
        found
        for option in options
        if set(best.counts) != {option.name} and (found := fewest(option, conditions)) is not None
    ]
    return best, min(others, key=lambda found: found.usd_per_hour, default=None)


def plan(
    options: Sequence[Option],
    conditions: Conditions,
    context: Context,
    chosen: tuple[Fleet, Fleet | None] | None = None,
) -> Planned:
    """The plan. `chosen`: fleet and runner-up, if a check left others than the arithmetic's."""
    best, second = choose(options, conditions) if chosen is None else chosen
    rows = _rows(options, conditions, best)
    judged = {row.name for row in rows}
    failed = tuple(Excluded(one.name, _failed(one, conditions)) for one in options if one.name not in judged)
    mean = conditions.peak_per_s * context.mean_over_peak
    named = {option.name: option.provenance.value for option in options}
    return Planned(
        best,
        best.replicas if best else 0,
        best.usd_per_hour if best else None,
        best.usd_per_hour * context.duty_hours if best else None,
        1000 * best.usd_per_hour / 3600 / mean if best else None,
        second,
        conditions,
        context.objective,
        rows,
        (*failed, *context.excluded),
        {name: named[name] for name in best.counts} if best else {},
        context.checks,
        context.notes,
        _decide(best, second, rows, options, conditions, context, failed),
    )


def _failed(option: Option, conditions: Conditions) -> str:
    if not option.levels:
        return option.source
    first = option.levels[0]
    chance = "an unknown chance" if first.chance is None else f"a chance of {first.chance:.0%}"
    at = f"at its lowest load, {significant(first.rate_per_s)} requests/s, it has {chance}"
    return f"{at}, {conditions.probability:.0%} is wanted ({first.why})"


def _rows(options: Sequence[Option], conditions: Conditions, best: Fleet | None) -> tuple[Row, ...]:
    """Options that can meet the objective, the cheapest fleet first."""
    known = [
        (option, level, alone)
        for option in options
        if (level := capacity(option, conditions.probability)) is not None
        and (alone := fewest(option, conditions)) is not None
    ]
    known.sort(key=lambda row: row[2].usd_per_hour)
    unbeaten = {one.name for one in front([_choice(o, level) for o, level, _ in known], ("usd", "ms", "w"))}
    reference = next((o for o, _, _ in known if best and o.name in best.counts), None)
    scores = _scores([(o, level) for o, level, _ in known], reference.name if reference else "")
    return tuple(
        _row(
            option, level, alone, scores.get(option.name), option.name in unbeaten, ends(option, conditions.probability)
        )
        for option, level, alone in known
    )


def _row(option: Option, level: Level, alone: Fleet, joint: float | None, on_front: bool, end: str) -> Row:
    pace = level.output_tokens_per_s
    return Row(
        option.name,
        option.provenance.value,
        option.source,
        option.gpus,
        option.usd_per_hour,
        level.rate_per_s,
        level.latency_ms,
        pace,
        option.usd_per_hour / (pace * 3600) * 1e6 if pace else None,
        option.power_w,
        option.power_w / pace if option.power_w and pace else None,
        joint,
        on_front,
        f"{level.why}; {end}",
        alone,
    )


def _choice(option: Option, level: Level) -> Choice:
    """Cost and power of an answered request a second, and the latency at capacity."""
    figures = {"usd": option.usd_per_hour / level.rate_per_s}
    if level.latency_ms is not None:
        figures["ms"] = level.latency_ms
    if option.power_w is not None:
        figures["w"] = option.power_w / level.rate_per_s
    return Choice(option.name, figures)


def _scores(known: Sequence[tuple[Option, Level]], reference: str) -> dict[str, float]:
    """The joint objective of throughput and power per device, at equal weights."""
    points = {
        option.name: Operating(
            option.name,
            level.output_tokens_per_s / option.gpus,
            option.power_w / option.gpus,
            "wall",  # of one kind for all options; which one, the option's source says
        )
        for option, level in known
        if option.power_w and level.output_tokens_per_s
    }
    if reference not in points:
        return {}
    return {name: score(point, points[reference]) for name, point in points.items()}


def _decide(
    best: Fleet | None,
    second: Fleet | None,
    rows: Sequence[Row],
    options: Sequence[Option],
    conditions: Conditions,
    context: Context,
    failed: Sequence[Excluded],
) -> Decision:
    question = f"What carries {significant(conditions.peak_per_s)} requests/s within {context.objective}?"
    if best is None:
        reasons = tuple(f"{one.name}: {one.why}" for one in (*failed, *context.excluded))
        return Decision(
            question, "No option that was weighed meets the objective with the wanted probability.", reasons
        )
    by_name = {row.name: row for row in rows}
    words = sorted({by_name[name].provenance for name in best.counts if name in by_name})
    answer = (
        f"{best.text}: {significant(best.usd_per_hour)} USD an hour, {best.gpus} devices; "
        f"capacity {' and '.join(words)}. {conditions.probability:.0%} sure, with {conditions.headroom:.0%} headroom"
        + ("." if conditions.lose == "none" else f", and it holds the peak after the loss of a {conditions.lose}.")
    )
    if second is not None:
        more = second.usd_per_hour / best.usd_per_hour - 1
        kinds = ", ".join(by_name[name].provenance for name in second.counts if name in by_name)
        answer += f" Runner-up: {second.text} ({kinds}), {more:+.0%}."
    because = (
        *(
            f"one {name} carries {significant(by_name[name].capacity_per_s)} requests/s: {by_name[name].why}"
            for name in best.counts
            if name in by_name
        ),
        f"it is as large as it is for: {best.binds}",
        *(_runner(best, second, by_name) if second is not None else ()),
        *_measured(best, rows),
    )
    evidence = tuple(f"{by_name[name].provenance}: {by_name[name].source}" for name in best.counts if name in by_name)
    return Decision(question, answer, because, _flips(best, second, options, conditions), evidence)


def _runner(best: Fleet, second: Fleet, rows: Mapping[str, Row]) -> tuple[str, ...]:
    """Why the runner-up lost, in its own figures."""
    name = next(iter(second.counts))
    first = next(iter(best.counts))
    if name not in rows or first not in rows:
        return ()
    a, b = rows[first], rows[name]
    per = [3600 * row.capacity_per_s / row.usd_per_hour for row in (a, b)]
    text = (
        f"the runner-up {name} answers {significant(per[1])} requests a dollar at its capacity, {first} "
        f"{significant(per[0])}"
    )
    if per[1] > per[0]:
        text += "; it loses by whole replicas: the fleet is small, and a spare of it is dearer"
    return (text,)


def _measured(best: Fleet, rows: Sequence[Row]) -> tuple[str, ...]:
    """Where the choice rests on a simulation, the cheapest fleet that rests on measurements."""
    chosen = [row for row in rows if row.name in best.counts]
    seen = [row for row in rows if row.provenance == "measured"]
    if not seen or all(row.provenance == "measured" for row in chosen):
        return ()
    other = seen[0].alone
    more = other.usd_per_hour / best.usd_per_hour - 1
    return (f"measured, not simulated: {other.text} for {significant(other.usd_per_hour)} USD an hour ({more:+.0%})",)


def _flips(best: Fleet, second: Fleet | None, options: Sequence[Option], conditions: Conditions) -> tuple[str, ...]:
    """Prices, then each condition let go alone."""
    found = [price_that_flips(best, second)] if second is not None else []
    if second is not None and second.usd_range[0] < best.usd_range[1]:
        found.append("the two fleets' published price ranges overlap: ask for quotes before believing the order")
    let_go = (
        ("at even odds instead", msgspec.structs.replace(conditions, probability=0.5)),
        ("without headroom", msgspec.structs.replace(conditions, headroom=0.0)),
        ("without a loss", msgspec.structs.replace(conditions, lose="none")),
    )
    for words, easier in let_go:
        other = cheapest_mix(options, easier)
        saved = best.usd_per_hour - other.usd_per_hour if other is not None else 0.0
        if other is not None and saved > 1e-9 * best.usd_per_hour:
            found.append(f"{words}: {other.text}, {significant(saved)} USD an hour less")
    return tuple(found)
