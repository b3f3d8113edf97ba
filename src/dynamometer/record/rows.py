"""Plans and facts in, columns out: the rows of requests.parquet and events.parquet as arrays, ready to be written."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from dynamometer.types import Chunk, Event, EventKind, Texts

KINDS: Final = tuple(EventKind)  # an event's kind is kept as its place in this list
KIND_CODE: Final[Mapping[str, int]] = {kind.value: code for code, kind in enumerate(KINDS)}
Column = npt.NDArray[np.generic]
Fact = Chunk | Event  # what the body said, or what the wire did

_CHUNK: Final = EventKind.CHUNK
_CHUNK_CODE: Final = KIND_CODE["chunk"]


class Plan(msgspec.Struct, frozen=True):
    """One row of requests.parquet, and the payload of a `plan` frame. See docs/record.md."""

    request: int
    phase: str = "load"
    family: str = ""
    session: str = ""
    turn: int = 0
    after: int = -1
    level: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0
    ignore_eos: bool = False
    prompt_sha: str = ""


class Events(msgspec.Struct, frozen=True):
    """Columns of events.parquet, all of one length. `kind` indexes `KINDS`, `note` indexes `notes`."""

    request: npt.NDArray[np.int32]
    kind: npt.NDArray[np.uint8]
    at_ns: npt.NDArray[np.int64]
    n: npt.NDArray[np.int64]
    bytes: npt.NDArray[np.int64]
    note: npt.NDArray[np.uint32]
    notes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.request)

    def columns(self) -> dict[str, Column]:
        """The columns as they stand in the file, by name."""
        return {
            "request": self.request,
            "kind": np.array(KINDS, dtype=object)[self.kind],
            "at_ns": self.at_ns,
            "n": self.n,
            "bytes": self.bytes,
            "note": np.array(self.notes, dtype=object)[self.note],
        }


def flat(facts: Iterable[Fact | Texts]) -> list[Fact]:
    """Each fact by itself."""
    return [one for fact in facts for one in (fact.chunks() if isinstance(fact, Texts) else (fact,))]


def _edges(fact: Fact | Texts) -> tuple[int, ...]:
    return (fact.at_ns[0], fact.at_ns[-1]) if isinstance(fact, Texts) else (fact.at_ns,)


class Rows:
    """Collects the facts of finished requests; `take` gives them as columns and starts anew."""

    __slots__ = ("_at_ns", "_bytes", "_codes", "_kind", "_n", "_note", "_notes", "_request")

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        self._request, self._kind, self._at_ns = array("i"), array("B"), array("q")
        self._n, self._bytes, self._note = array("q"), array("q"), array("I")
        self._notes: list[str] = []
        self._codes: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._kind)

    def add(self, request: int, facts: Sequence[Fact | Texts]) -> None:
        """The facts of one request. Its rows stand together, in time order; facts of one moment keep their order."""
        edges = [at for fact in facts for at in _edges(fact)]
        if any(map(int.__gt__, edges, edges[1:])):
            facts = sorted(flat(facts), key=lambda fact: fact.at_ns)
        single: list[Fact] = []
        for fact in facts:
            if isinstance(fact, Texts):
                self._add_facts(request, single)
                single = []
                self._add_texts(request, fact)
            else:
                single.append(fact)
        self._add_facts(request, single)

    def _add_facts(self, request: int, facts: Sequence[Fact]) -> None:
        notes = [fact.note for fact in facts]
        for note in set(notes) - self._codes.keys():
            self._learn(note)
        codes = self._codes
        self._request.extend([request] * len(facts))
        self._at_ns.extend([fact.at_ns for fact in facts])
        self._kind.extend([_CHUNK_CODE if f.kind is _CHUNK else KIND_CODE[f.kind.value] for f in facts])
        self._n.extend([fact.n for fact in facts])
        self._bytes.extend(
            [f.bytes if isinstance(f, Event) else len(f.text.encode("utf-8", "surrogatepass")) for f in facts]
        )
        self._note.extend([codes[note] for note in notes])

    def _add_texts(self, request: int, run: Texts) -> None:
        self._learn("content")
        length = len(run.texts)
        self._request += array("i", (request,)) * length
        self._at_ns.extend(run.at_ns)
        self._kind += array("B", (_CHUNK_CODE,)) * length
        self._n += array("q", (0,)) * length
        self._bytes.extend(map(len, run.texts))
        self._note += array("I", (self._codes["content"],)) * length

    def _learn(self, note: str) -> None:
        # the second of two parallel calls has the channel "tool 1"; a row's channel is "tool" for both
        plain = "tool" if note.startswith("tool ") else note
        if plain not in self._codes:
            self._codes[plain] = len(self._notes)
            self._notes.append(plain)
        self._codes[note] = self._codes[plain]

    def take(self) -> Events:
        columns = (self._request, self._kind, self._at_ns, self._n, self._bytes, self._note)
        notes = tuple(self._notes)
        self._start()
        request, kind, at_ns, n, size, note = (np.frombuffer(c, dtype=c.typecode) for c in columns)
        return Events(request, kind, at_ns, n, size, note, notes)


def plan_columns(plans: Iterable[Plan]) -> dict[str, Column]:
    """The columns of requests.parquet by name, ordered by request."""
    ordered = sorted(plans, key=lambda plan: plan.request)
    kinds = {"int": "int32", "str": "object", "float": "float64", "bool": "bool"}
    return {
        field.name: np.array([getattr(plan, field.name) for plan in ordered], dtype=kinds[type_name(field)])
        for field in msgspec.structs.fields(Plan)
    }


def type_name(field: msgspec.structs.FieldInfo) -> str:
    return field.type.__name__ if isinstance(field.type, type) else str(field.type)
