"""A model's card in, the parts that carry a licence out: weights, code, what they were made from, data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from dynamometer.compliance import find, names
from dynamometer.compliance.card import Card, LicenceFile
from dynamometer.compliance.datasets import dataset
from dynamometer.compliance.names import Named

PartKind = Literal["weights", "code", "base", "possible base", "data"]
_DEEPEST: Final = 8  # bases of bases


class Part(msgspec.Struct, frozen=True):
    """One thing with a licence. `choices`: alternatives, each a set of ids that hold together; none: unknown.

    `doubt`: why the licence is not certain although something was read; `look_at`: where to look then.
    """

    kind: PartKind
    name: str
    choices: tuple[tuple[str, ...], ...]
    source: str
    doubt: str = ""
    look_at: str = ""
    relation: str = ""

    @property
    def expression(self) -> str:
        return Named("", self.choices).expression


def parts(card: Card, given: Mapping[str, Named], online: bool = True) -> tuple[Part, ...]:
    """Weights and code of the card, then its bases to the end of the chain, then its declared data.

    `given`: licences that the user states for names, which win over what is found.
    """
    own = [_weights(card, given), *_code(card)]
    chain = _chain(card, given, online)
    if not chain:
        own += _possible(card, own[0])
    data = [_data(name) for name in card.datasets]
    return (*own, *chain, *data)


def _weights(card: Card, given: Mapping[str, Named]) -> Part:
    stated = _stated(card.name, given)
    if stated:
        return Part("weights", card.name, stated.choices, "stated by you")
    model_files = [file for file in card.files if file.part == "weights"]
    general = [file for file in card.files if file.part == "any"]
    return _agreed(card, model_files or general)


def _agreed(card: Card, texts: list[LicenceFile]) -> Part:
    """The card's tag and the licence texts must say the same; what they disagree about is unknown."""
    tag = card.tag or Named("", (), "there is no card")
    where = f"{card.origin} and {', '.join(file.name for file in texts)}" if texts else card.origin
    read = tuple(dict.fromkeys(identity for file in texts for identity in file.read.ids))
    unread = [file for file in texts if not file.read.ids]
    part = Part("weights", card.name, tag.choices or ((read,) if read else ()), where)
    if any(file.read.beyond for file in texts):
        more = "; ".join(one for file in texts for one in file.read.beyond)
        return _doubted(part, f"the text adds to the licence that it holds: {more}", texts)
    if unread and not read:
        quotes = "; ".join(alarm for file in unread for alarm in file.read.alarms[:2])
        why = f"{', '.join(file.name for file in unread)} holds a text that is not known here"
        return _doubted(part, f"{why}{': ' + quotes if quotes else ''}", unread)
    if not tag.choices and not read:
        why = tag.why or "no licence is named"
        return msgspec.structs.replace(part, doubt=why, look_at=f"the card and files of {card.name}")
    if not read or _same(tag, read):
        return part
    if not tag.choices:
        strange = tag.said and names.key(tag.said) not in ("other", "unknown", "custom")
        if strange:
            return _doubted(part, f"{tag.why}; the text is {' AND '.join(read)}", texts)
        return msgspec.structs.replace(part, source=f"from file {', '.join(file.name for file in texts)}")
    both = (*(choice for choice in tag.choices), read)
    part = msgspec.structs.replace(part, choices=both)
    return _doubted(part, f"the card says {tag.expression}, the text is {' AND '.join(read)}", texts)


def _doubted(part: Part, doubt: str, texts: list[LicenceFile]) -> Part:
    return msgspec.structs.replace(part, doubt=doubt, look_at=", ".join(file.name for file in texts))


def _same(tag: Named, read: tuple[str, ...]) -> bool:
    """Whether one of the tag's alternatives holds all that was read from the texts (-only and -or-later share one)."""
    bare = {_family(identity) for identity in read}
    return any(bare <= {_family(identity) for identity in choice} for choice in tag.choices) or bare <= {
        _family(identity) for choice in tag.choices for identity in choice
    }


def _family(identity: str) -> str:
    return identity.removesuffix("-only").removesuffix("-or-later")


def _code(card: Card) -> list[Part]:
    """LICENSE-CODE, or the plain LICENSE where the weights have a text of their own, or what the card says of code."""
    own = [file for file in card.files if file.part == "code"]
    if not own and any(file.part == "weights" for file in card.files):
        own = [file for file in card.files if file.part == "any"]
    if own:
        read = tuple(dict.fromkeys(identity for file in own for identity in file.read.ids))
        where = ", ".join(file.name for file in own)
        doubt = "" if read else f"{where} holds a text that is not known here"
        return [Part("code", card.name, (read,) if read else (), where, doubt, "" if read else where)]
    if card.code:
        why = card.code.why
        return [Part("code", card.name, card.code.choices, card.origin, why, card.origin if why else "")]
    return []


def _stated(name: str, given: Mapping[str, Named]) -> Named | None:
    low = name.lower()
    return next((named for key, named in given.items() if key.lower() in (low, low.split("/")[-1])), None)


def _chain(card: Card, given: Mapping[str, Named], online: bool) -> list[Part]:
    """What the model was made from, and what that was made from, each once."""
    found: list[Part] = []
    seen = {card.name.lower()}
    waiting = [(base, card.relation, 1) for base in find.bases_of(card)]
    while waiting:
        name, relation, depth = waiting.pop(0)
        if name.lower() in seen or depth > _DEEPEST:
            continue
        seen.add(name.lower())
        stated = _stated(name, given)
        if stated:
            found.append(Part("base", name, stated.choices, "stated by you", relation=relation))
            continue
        base = find.look_up(name, online)
        if base is None:
            found.append(_unknown_base(name, relation))
            continue
        part = _weights(base, given)
        found.append(msgspec.structs.replace(part, kind="base", relation=relation))
        waiting += [(one, base.relation, depth + 1) for one in find.bases_of(base)]
    return found


def _unknown_base(name: str, relation: str) -> Part:
    guess = find.hint(name)
    why = f"the licence of {name} is not known here" + (f"; its name suggests {' AND '.join(guess)}" if guess else "")
    look = f"the card of {name}, or state it: --base {name}=LICENCE"
    return Part("base", name, (), "the card names it", why, look, relation)


def _possible(card: Card, own: Part) -> list[Part]:
    """A name that suggests an origin which the card does not state: possible terms, never certain ones."""
    stated = {identity for choice in own.choices for identity in choice}
    saved = [note.removeprefix("config.json was saved from ") for note in card.notes if "saved from" in note]
    marks = [card.name, *saved]
    found = []
    listed = find.rule(card.name)
    for mark in marks:
        if listed and mark == card.name:
            continue  # the maker's own model: the list knows what it was made from
        guess = tuple(identity for identity in find.hint(mark) if identity not in stated)
        if guess:
            doubt = f"the card states no base; {mark} suggests terms of {' AND '.join(guess)}"
            look = f"what {card.name} was made from"
            found.append(Part("possible base", mark, (guess,), "the name alone", doubt, look))
    return found


def _data(name: str) -> Part:
    entry = dataset(name)
    if entry is None:
        return Part("data", name, (), "declared in the card", "the data set is not in the list", f"the card of {name}")
    read = names.read(entry.licence)
    why = "" if read.choices else entry.note or read.why
    return Part("data", name, read.choices, entry.source, why, entry.source if why else "")
