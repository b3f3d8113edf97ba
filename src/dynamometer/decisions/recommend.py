"""Options with their evidence, and the constraints, in; the recommendation, why, and what would flip it out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from dynamometer.decisions import gate
from dynamometer.decisions.constraints import Held, Permission, hold
from dynamometer.decisions.evidence import Evidence, Figure
from dynamometer.decisions.front import Choice, front
from dynamometer.decisions.row import Row, Standing, sign
from dynamometer.decisions.turning import chances, turns
from dynamometer.decisions.wish import Wish
from dynamometer.errors import UsageError
from dynamometer.types import Decision, Objective
from dynamometer.units import show, significant


class Recommendation(msgspec.Struct, frozen=True):
    decision: Decision
    chosen: str | None
    minimize: str
    against: str
    rows: tuple[Row, ...]
    chances: Mapping[str, float]  # share of the drawn cases in which an option is the best of those that hold
    notes: tuple[str, ...]


def recommend(
    wish: Wish, evidence: Sequence[Evidence], permissions: Mapping[str, Permission], slo: Sequence[Objective]
) -> Recommendation:
    """Judges every option, takes the best that holds all constraints, and looks for what would turn that."""
    rows = [_row(one, wish, permissions.get(one.option.name), slo) for one in evidence]
    against = wish.against or _second_axis(wish, rows)
    best_first = sorted(rows, key=lambda row: _rank(row, wish.minimize))
    rows = _with_front(best_first, wish, against)
    holding = [row for row in rows if row.standing == "holds" and row.objective]
    chosen = holding[0] if holding else None
    if chosen is None and all(row.objective is None for row in rows):
        known = sorted({one.name for row in rows for one in row.evidence.figures})
        raise UsageError(f"no option has the figure {wish.minimize!r}; known are {', '.join(known) or 'none'}")
    shares = chances(holding, wish)
    turned = turns(chosen, rows, wish) if chosen else _nearest(rows)
    decision = Decision(
        question=wish.question,
        answer=_answer(chosen, holding, rows, shares) + _doubted(chosen),
        because=_because(chosen, rows),
        flips=turned,
        evidence=_sources(rows),
    )
    notes = (*_gaps(wish, rows), *(note for row in rows for note in row.evidence.notes))
    name = chosen.name if chosen else None
    return Recommendation(decision, name, wish.minimize, against, tuple(rows), shares, notes)


def _row(evidence: Evidence, wish: Wish, permission: Permission | None, slo: Sequence[Objective]) -> Row:
    held = hold(evidence, wish.constraints, permission, slo)
    standing: Standing = "holds"
    if any(one.met is False for one in held):
        standing = "out"
    elif any(one.met is None for one in held):
        standing = "open"
    return Row(evidence.option.name, standing, held, evidence.figure(wish.minimize), evidence, permission)


def _gaps(wish: Wish, rows: Sequence[Row]) -> list[str]:
    """What was not weighed although it may matter."""
    formats = {row.evidence.option.weights for row in rows}
    gaps = []
    if len(formats) > 1 and wish.constraints.quality is None:
        gaps.append(
            f"the options differ in weights ({', '.join(sorted(formats))}) and no quality floor is set: not weighed"
        )
    if wish.constraints.licence is None:
        gaps.append("no licence was looked at: [constraints.licence] asks for it")
    return gaps


def _rank(row: Row, minimize: str) -> tuple[int, float]:
    order = {"holds": 0, "open": 1, "out": 2}
    value = row.objective.estimate.value if row.objective else None
    return order[row.standing], float("inf") if value is None else sign(minimize) * value


def _second_axis(wish: Wish, rows: Sequence[Row]) -> str:
    """The picture's other axis: quality if it is asked for, else the first limit's figure, else a tail latency."""
    slo = gate.objectives(wish.constraints.slo) if wish.constraints.slo else ()
    names = [wish.constraints.quality.metric] if wish.constraints.quality else []
    names += [f"{one.metric}_{one.statistic}_ms" if one.statistic else one.metric for one in slo]
    names += ["e2e_p95_ms", "tpot_p95_ms", "tpot_p50_ms", "power_w"]
    shared = [
        name
        for name in names
        if name != wish.minimize and sum(row.evidence.figure(name) is not None for row in rows) > 1
    ]
    return shared[0] if shared else ""


def _with_front(rows: Sequence[Row], wish: Wish, against: str) -> list[Row]:
    """Marks what no other option beats in both figures."""
    if not against:
        return list(rows)
    quality = wish.constraints.quality.metric if wish.constraints.quality else ""
    choices = []
    for row in rows:
        found = {name: row.evidence.figure(name) for name in (wish.minimize, against)}
        known = {
            name: sign(name, quality) * one.estimate.value
            for name, one in found.items()
            if one is not None and one.estimate.value is not None
        }
        choices.append(Choice(row.name, known))
    best = {one.name for one in front(choices, (wish.minimize, against))}
    return [msgspec.structs.replace(row, on_front=row.name in best) for row in rows]


def _nearest(rows: Sequence[Row]) -> tuple[str, ...]:
    """No option holds: what each lacks, the fewest lacks first."""
    ranked = sorted(rows, key=lambda row: len(row.lacking))
    return tuple(f"{row.name} would do if settled: {_told(row.lacking)}" for row in ranked[:4])


def _told(held: Sequence[Held]) -> str:
    return "; ".join(f"{one.constraint}, {one.why}" for one in held)


def _doubted(chosen: Row | None) -> str:
    """A recommendation on runs with doubts says so in the same breath."""
    runs = chosen.evidence.accounts if chosen else ()
    kinds = dict.fromkeys(doubt.kind for one in runs for doubt in one.summary.doubts)
    return f" Its runs carry doubts: {', '.join(kinds)}." if kinds else ""


def _answer(chosen: Row | None, holding: Sequence[Row], rows: Sequence[Row], shares: Mapping[str, float]) -> str:
    if chosen is None or chosen.objective is None:
        open_ = [row.name for row in rows if row.standing == "open"]
        more = f" {', '.join(open_)} could, once what is open is settled." if open_ else ""
        return f"No option holds every constraint.{more}"
    figure = f"{chosen.name}: {show(chosen.objective.estimate)} ({chosen.objective.provenance})"
    if len(holding) < 2:
        return f"{figure}, the only one that holds every constraint."
    second = holding[1]
    assert second.objective is not None
    a, b = chosen.objective.estimate.value or 0.0, second.objective.estimate.value or 0.0
    ratio = max(a, b) / min(a, b) if min(a, b) > 0 else 0.0
    text = f"{figure}, the best of the {len(holding)} that hold every constraint. "
    text += f"Next is {second.name} with {show(second.objective.estimate)}"
    text += f", {significant(ratio)} times." if ratio > 1 else "."
    if chosen.name in shares:
        text += f" Over the inputs' ranges {chosen.name} is the best in {shares[chosen.name]:.0%} of the cases."
    elif _overlap(chosen.objective, second.objective):
        text += " Their intervals overlap: take the next if something else speaks for it."
    return text


def _overlap(one: Figure, other: Figure) -> bool:
    a, b = one.estimate, other.estimate
    if a.low is None or a.high is None or b.low is None or b.high is None:
        return False
    return a.low <= b.high and b.low <= a.high


def _because(chosen: Row | None, rows: Sequence[Row]) -> tuple[str, ...]:
    found = [f"{chosen.name} holds {one.constraint}: {one.why}" for one in chosen.held] if chosen else []
    found += [f"{row.name} is {row.standing}: {_told(row.lacking)}" for row in rows if row.standing != "holds"]
    return tuple(found)


def _sources(rows: Sequence[Row]) -> tuple[str, ...]:
    lines = (f"{one.provenance}: {row.name} {one.name}, {one.source}" for row in rows for one in row.evidence.figures)
    return tuple(dict.fromkeys(lines))
