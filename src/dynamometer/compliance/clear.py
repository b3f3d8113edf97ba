"""Parts with licences and the facts of a deployment in, what may be done out: status, checklist, boundary by use."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, Literal

import msgspec

from dynamometer.compliance.catalogue import Obligation, State, licence, state
from dynamometer.compliance.facts import USES, Facts, Use
from dynamometer.compliance.parts import Part

Status = Literal["permissive", "review", "unknown", "blocked"]
ORDER: Final[tuple[Status, ...]] = ("permissive", "review", "unknown", "blocked")
DISCLAIMER: Final = (
    "Not legal advice: a paraphrase of published texts, held against the facts given. "
    "The texts and your counsel decide."
)


class Item(msgspec.Struct, frozen=True):
    """One line of the checklist. `state`: due, or maybe when a fact is missing (`why` says which)."""

    licence: str
    kind: str
    clause: str
    text: str
    state: str
    source: str
    parts: tuple[str, ...]
    why: str = ""
    checked: str = ""


class PartStatus(msgspec.Struct, frozen=True):
    """`licence` as an SPDX expression; `chosen` the alternative that was taken where there are several."""

    kind: str
    name: str
    licence: str
    status: Status
    because: str
    source: str
    chosen: tuple[str, ...] = ()
    doubt: str = ""
    look_at: str = ""
    relation: str = ""


class Boundary(msgspec.Struct, frozen=True):
    use: Use
    status: Status
    because: str


class Clearance(msgspec.Struct, frozen=True):
    """The answer for one model. `cleared`: nothing stands in the way but the notices to keep (or what was accepted)."""

    model: str
    status: Status
    cleared: bool
    answer: str
    facts: Facts
    parts: tuple[PartStatus, ...]
    checklist: tuple[Item, ...]
    boundary: tuple[Boundary, ...]
    attribution: tuple[str, ...]
    look_at: tuple[str, ...]
    notes: tuple[str, ...]
    accepted: tuple[str, ...] = ()
    disclaimer: str = DISCLAIMER

    @property
    def weights(self) -> PartStatus:
        return next(part for part in self.parts if part.kind == "weights")


def strictest(statuses: Collection[Status]) -> Status:
    return max(statuses, key=ORDER.index, default="permissive")


def clear(
    model: str, parts: Sequence[Part], facts: Facts, accepted: Collection[str] = (), notes: Sequence[str] = ()
) -> Clearance:
    """Judges every part for every use asked for; the strictest counts."""
    judged = [max((_part(part, facts, use, model) for use in facts.use), key=_rank) for part in parts]
    status = strictest([one.status for one in judged])
    items = _checklist(parts, judged, facts, model)
    agreed = tuple(sorted(set(accepted) & {item.licence for item in items}))
    return Clearance(
        model=model,
        status=status,
        cleared=status == "permissive" or (status == "review" and _all_accepted(judged, items, agreed)),
        answer=_answer(status, judged, items, facts),
        facts=facts,
        parts=tuple(judged),
        checklist=items,
        boundary=tuple(_boundary(parts, facts, use, model) for use in USES),
        attribution=_attribution(judged, items),
        look_at=tuple(dict.fromkeys(one.look_at for one in judged if one.look_at)),
        notes=tuple(notes),
        accepted=agreed,
    )


def _rank(one: PartStatus) -> int:
    return ORDER.index(one.status)


def _part(part: Part, facts: Facts, use: Use, model: str) -> PartStatus:
    """The status of one part: the mildest of its alternatives, unless they contradict each other."""
    found = [(choice, *_all_of(choice, facts, use, model)) for choice in part.choices]
    shown = _result(part)
    if part.kind == "data":
        return _data(part, found, shown)
    if part.doubt and part.kind != "possible base":
        blocked = [(choice, why) for choice, status, why in found if status == "blocked"]
        if blocked:
            why = f"{part.doubt}; under {' AND '.join(blocked[0][0])}: {blocked[0][1]}"
            return msgspec.structs.replace(shown, status="blocked", because=why)
        return msgspec.structs.replace(shown, status="unknown", because=part.doubt)
    if not found:
        return msgspec.structs.replace(shown, status="unknown", because="no licence is known")
    choice, status, why = min(found, key=lambda one: ORDER.index(one[1]))
    if part.kind == "possible base":
        status = "permissive" if status == "permissive" else "review"
        why = f"possible inherited terms: {part.doubt}"
    return msgspec.structs.replace(shown, status=status, because=why, chosen=choice)


def _result(part: Part) -> PartStatus:
    return PartStatus(
        kind=part.kind,
        name=part.name,
        licence=part.expression,
        status="unknown",
        because="",
        source=part.source,
        doubt=part.doubt,
        look_at=part.look_at,
        relation=part.relation,
    )


def _data(part: Part, found: list[tuple[tuple[str, ...], Status, str]], shown: PartStatus) -> PartStatus:
    """Data is not what is shipped: non-commercial data is a reason to look, data that is not listed is told."""
    if any(status == "blocked" for _, status, _ in found):
        why = f"trained on data under {part.expression}: whether that binds the weights is not settled"
        return msgspec.structs.replace(shown, status="review", because=why, look_at=part.source)
    why = part.doubt or f"data under {part.expression}"
    return msgspec.structs.replace(shown, status="permissive", because=why, look_at="")


def _all_of(choice: tuple[str, ...], facts: Facts, use: Use, model: str) -> tuple[Status, str]:
    found = [_licence(identity, facts, use, model) for identity in choice]
    return max(found, key=lambda one: ORDER.index(one[0]))


def _licence(identity: str, facts: Facts, use: Use, model: str) -> tuple[Status, str]:
    """What a licence says to this use and these facts, with the clauses that decide."""
    held = [(term, state(term, facts, use, model)) for term in licence(identity).obligations]
    asked = [(term, seen) for term, seen in held if _weight(term, seen.state) == "review"]
    for term, seen in held:
        if _weight(term, seen.state) == "blocked":
            return "blocked", f"{identity} {term.clause}: {term.text}{f' ({seen.why})' if seen.why else ''}"
    due = [term.clause for term, seen in asked if seen.state == "due"]
    open_ = [f"{term.clause} ({seen.why})" for term, seen in asked if seen.state == "maybe"]
    if not asked:
        return "permissive", f"{identity}: {'notices to keep' if _notices(held) else 'nothing is due'}"
    told = ([f"to meet: {'; '.join(due)}"] if due else []) + open_
    return "review", f"{identity}, {', '.join(told)}"


def _notices(held: Sequence[tuple[Obligation, State]]) -> bool:
    return any(term.kind == "notice" and seen.state == "due" for term, seen in held)


def _weight(term: Obligation, held: str) -> Status:
    if held == "not" or term.kind in ("notice", "know"):
        return "permissive"
    if term.kind in ("forbidden", "separate") and held == "due":
        return "blocked"
    return "review"


def _checklist(parts: Sequence[Part], judged: Sequence[PartStatus], facts: Facts, model: str) -> tuple[Item, ...]:
    """Each obligation that is due or may be due, once, with the parts that bring it."""
    found: dict[tuple[str, str, str], Item] = {}
    for part, one in zip(parts, judged, strict=True):
        if part.kind == "data":
            continue
        ids = one.chosen or tuple(dict.fromkeys(identity for choice in part.choices for identity in choice))
        for identity in ids:
            for item in _items(identity, f"{part.kind} {part.name}", facts, model):
                key = (item.licence, item.clause, item.text)
                before = found.get(key)
                names = (*before.parts, *item.parts) if before else item.parts
                found[key] = msgspec.structs.replace(item, parts=tuple(dict.fromkeys(names)))
    order = ("forbidden", "separate", "act", "limit", "notice", "know")
    return tuple(sorted(found.values(), key=lambda item: order.index(item.kind)))


def _items(identity: str, part: str, facts: Facts, model: str) -> list[Item]:
    terms = licence(identity)
    found = []
    for term in terms.obligations:
        states = [state(term, facts, use, model) for use in facts.use]
        held = next((one for wanted in ("due", "maybe") for one in states if one.state == wanted), None)
        if held:
            found.append(
                Item(
                    licence=identity,
                    kind=term.kind,
                    clause=term.clause,
                    text=term.text,
                    state=held.state,
                    source=terms.source,
                    parts=(part,),
                    why=held.why,
                    checked=terms.checked,
                )
            )
    return found


def _boundary(parts: Sequence[Part], facts: Facts, use: Use, model: str) -> Boundary:
    found = [_part(part, facts, use, model) for part in parts]
    worst = max(found, key=_rank)
    return Boundary(use, worst.status, worst.because)


def _attribution(judged: Sequence[PartStatus], items: Sequence[Item]) -> tuple[str, ...]:
    """Texts to display or to put into a Notice file, of the licences that ask for an act or a notice here."""
    asked = {item.licence for item in items if item.kind in ("act", "notice")}
    ids = dict.fromkeys(identity for one in judged if one.kind != "data" for identity in one.chosen)
    return tuple(dict.fromkeys(line for identity in ids if identity in asked for line in licence(identity).attribution))


def _all_accepted(judged: Sequence[PartStatus], items: Sequence[Item], agreed: Collection[str]) -> bool:
    """Everything that asks for a person's eye was accepted, and no refusal hangs on a missing fact."""
    if any(one.status == "review" and one.kind in ("possible base", "data") for one in judged):
        return False
    if any(item.state == "maybe" and item.kind in ("forbidden", "separate") for item in items):
        return False
    needed = {item.licence for item in items if item.kind in ("act", "limit")}
    return needed <= set(agreed)


def _answer(status: Status, judged: Sequence[PartStatus], items: Sequence[Item], facts: Facts) -> str:
    uses = ", ".join(facts.use)
    decisive = next(one for one in judged if one.status == status)
    if status == "permissive":
        ids = " and ".join(dict.fromkeys(one.licence for one in judged if one.kind in ("weights", "base")))
        notices = any(item.kind == "notice" for item in items)
        due = "keep the notices" if notices else "nothing is due while no copy is handed on"
        return f"Yes for {uses}, under {ids}: {due}."
    if status == "review":
        acts = sum(item.kind in ("act", "limit") and item.state == "due" for item in items)
        asks = sum(item.state == "maybe" for item in items)
        told = ([f"{acts} to meet"] if acts else []) + ([f"{asks} that depend on facts not given"] if asks else [])
        because = "" if told else f" {decisive.because}"
        return f"With conditions for {uses}{': ' + ', '.join(told) if told else ''}.{because}"
    if status == "unknown":
        return f"Not cleared for {uses}: the licence of {decisive.kind} {decisive.name} is unknown. {decisive.because}"
    return f"No for {uses}: {decisive.kind} {decisive.name}. {decisive.because}"
