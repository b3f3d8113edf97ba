"""Finished requests in, the rows of docs/record.md out, batch by batch: memory does not grow with simulated time.

With every token kept, a token is a chunk of one token, stamped when the client would read it. Without, an answer has
two chunks: its first token, and the rest when the last one came. Latencies, rates and counts are the same; gaps within
an answer are averages.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from operator import attrgetter
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from dynamometer.record.rows import KIND_CODE, Column, Events
from dynamometer.sim.sequence import Sequence
from dynamometer.types import Float64

NOTES = ("", "new", "content", "prompt", "output", "cached", "length")
_CODE = {note: code for code, note in enumerate(NOTES)}
_BATCH_TOKENS = 400_000
_BATCH_REQUESTS = 10_000
_LAST_CHUNK = 5
_FIELDS: Final = (
    *("index", "at_s", "sent_s", "admitted_s", "first_s", "last_s"),
    *("prompt", "output", "cached", "first_lag_s", "last_lag_s"),
)
_FACTS_OF: Final = attrgetter(*_FIELDS)


class RowLedger:
    """Turns sequences into columns. `events` and `requests` take a batch each time enough has come together."""

    def __init__(
        self,
        events: Callable[[Events], None],
        requests: Callable[[dict[str, Column]], None],
        keep_tokens: bool = True,
        level: float = 0.0,
    ) -> None:
        self._events, self._requests, self._keep, self._level = events, requests, keep_tokens, level
        self._done: list[Sequence] = []
        self._brief = array("d")  # _FIELDS of each answer of which nothing else is kept
        self._tokens = 0
        self.count = self.failed = 0
        self.end_s = 0.0

    def finished(self, sequence: Sequence) -> None:
        self.count += 1
        if self._keep or sequence.family or sequence.session or sequence.evictions:
            self._done.append(sequence)
            self._tokens += sequence.output
        else:
            self._brief.extend(_FACTS_OF(sequence))
        if self.count % _BATCH_REQUESTS == 0 or (self._keep and self._tokens >= _BATCH_TOKENS):
            self.flush()

    def refused(self, sequence: Sequence, now_s: float) -> None:
        sequence.last_s = now_s
        self.failed += 1
        self._done.append(sequence)

    def flush(self) -> None:
        """Hands on what has come together so far; call it at the end."""
        brief, self._brief = self._brief, array("d")
        if brief:
            found = np.frombuffer(brief, dtype=np.float64).reshape(-1, len(_FIELDS))
            found = found[np.argsort(found[:, 0], kind="stable")]
            self._requests(_lengths(found, self._level))
            self._tell(_thin(_Columns(found), _BRIEF), NOTES)
        done, self._done, self._tokens = self._done, [], 0
        if not done:
            return
        done.sort(key=attrgetter("index"))
        self._requests(_plan_columns(done, self._level))
        answered = [s for s in done if not s.error]
        failed = [s for s in done if s.error]
        reasons = sorted({s.error for s in failed})
        parts: list[Table] = []
        if answered:
            parts.append(_full(answered) if self._keep else _thin(_columns(answered), _BRIEF))
        if failed:
            parts.append(_refusals(failed, reasons))
        if any(s.evictions for s in answered):
            parts.append(_preemptions(answered))
        self._tell(parts[0] if len(parts) == 1 else _merged(parts), (*NOTES, *reasons))

    def _tell(self, table: Table, notes: tuple[str, ...]) -> None:
        self.end_s = max(self.end_s, float(table.at_ns.max()) / 1e9)
        nothing = np.zeros(len(table.request), dtype=np.int64)
        self._events(Events(table.request, table.kind, table.at_ns, table.n, nothing, table.note, notes))


class Table(NamedTuple):
    """Rows as columns. `rank` orders what happens at one moment."""

    request: npt.NDArray[np.int32]
    kind: npt.NDArray[np.uint8]
    at_ns: npt.NDArray[np.int64]
    n: npt.NDArray[np.int64]
    note: npt.NDArray[np.uint32]
    rank: npt.NDArray[np.int32]


def _rows(table: Table, keep: npt.NDArray[np.bool_] | npt.NDArray[np.int64]) -> Table:
    """The rows of a mask, or in an order."""
    request, kind, at_ns, n, note, rank = table
    return Table(request[keep], kind[keep], at_ns[keep], n[keep], note[keep], rank[keep])


def _merged(parts: list[Table]) -> Table:
    """All rows, by request and time."""
    request, kind, at_ns, n, note, rank = (np.concatenate(column) for column in zip(*parts, strict=True))
    table = Table(request, kind, at_ns, n, note, rank)
    return _rows(table, np.lexsort((rank, at_ns, request)))


def _plan_columns(done: list[Sequence], level: float) -> dict[str, Column]:
    """Columns of requests.parquet; those of conversations and families only where there are any."""
    columns = _lengths(np.array([_FACTS_OF(s) for s in done], dtype=np.float64), level)
    if any(s.session or s.family for s in done):
        columns["session"] = np.array([s.session for s in done], dtype=object)
        columns["family"] = np.array([s.family for s in done], dtype=object)
        columns["turn"] = _column(done, "turn").astype(np.int32)
        columns["after"] = _column(done, "after").astype(np.int32)
    return columns


def _lengths(found: Float64, level: float) -> dict[str, Column]:
    """What was asked, from rows of _FIELDS."""
    return {
        "request": found[:, _FIELDS.index("index")].astype(np.int32),
        "input_tokens": found[:, _FIELDS.index("prompt")].astype(np.int32),
        "output_tokens": found[:, _FIELDS.index("output")].astype(np.int32),
        "ignore_eos": np.ones(len(found), dtype=bool),
        "level": np.full(len(found), level),
    }


def _column(done: list[Sequence], name: str) -> Float64:
    return np.fromiter(map(attrgetter(name), done), dtype=np.float64, count=len(done))


def _ns(seconds: Float64) -> npt.NDArray[np.int64]:
    return np.rint(seconds * 1e9).astype(np.int64)


class _Columns:
    """The facts that every answer has, one array each."""

    def __init__(self, found: Float64) -> None:
        """`found`: a row of _FIELDS an answer."""
        self.index, self.due_s, self.sent_s, self.admitted_s, self.first_s, self.last_s = found[:, :6].T
        self.prompt, self.output, self.cached, first_lag_s, last_lag_s = found[:, 6:].T
        self.first_seen_s = self.first_s + first_lag_s
        self.last_seen_s = np.maximum(self.last_s + last_lag_s, self.first_seen_s)

    def __len__(self) -> int:
        return len(self.index)


def _columns(done: list[Sequence]) -> _Columns:
    return _Columns(np.array([_FACTS_OF(s) for s in done], dtype=np.float64))


_FACTS: Final = (
    ("due", ""),
    ("sent", "new"),
    ("admit", ""),
    ("prefill", ""),
    ("chunk", "content"),
    ("chunk", "content"),
    ("usage", "prompt"),
    ("usage", "output"),
    ("usage", "cached"),
    ("finish", "length"),
    ("done", ""),
)
_BRIEF: Final = (0, 1, 4, 5, 6, 7, 9, 10)  # where only two chunks of an answer are kept


def _thin(c: _Columns, places: tuple[int, ...]) -> Table:
    """The rows of _FACTS at these places for each answer."""
    last = c.last_seen_s
    times = (c.due_s, c.sent_s, c.admitted_s, c.first_s, c.first_seen_s, last, last, last, last, last, last)
    zero, one = np.zeros(len(c)), np.ones(len(c))
    counts = (zero, one, zero, zero, one, c.output - 1, c.prompt, c.output, c.cached, zero, zero)
    size = len(places)
    table = Table(
        request=np.repeat(c.index.astype(np.int32), size),
        kind=np.tile(np.array([KIND_CODE[_FACTS[p][0]] for p in places], dtype=np.uint8), len(c)),
        at_ns=_ns(np.stack([times[p] for p in places], axis=1)).reshape(-1),
        n=np.stack([counts[p] for p in places], axis=1).astype(np.int64).reshape(-1),
        note=np.tile(np.array([_CODE[_FACTS[p][1]] for p in places], dtype=np.uint32), len(c)),
        rank=np.tile(np.array(places, dtype=np.int32), len(c)),
    )
    if (c.output < 2).any():  # there is no second token
        return _rows(table, ~(np.repeat(c.output < 2, size) & (table.rank == _LAST_CHUNK)))
    return table


def _full(done: list[Sequence]) -> Table:
    """The same with a row for every token (for every verified step under speculation)."""
    c = _columns(done)
    thin = _thin(c, tuple(range(len(_FACTS))))
    later = np.array([len(s.token_s) for s in done])
    times = np.array([at_s for s in done for at_s in s.token_s], dtype=np.float64)
    nth = np.arange(len(times)) - np.repeat(np.cumsum(later) - later, later) + 1
    share = nth / np.repeat(np.maximum(later, 1), later)
    start, end = np.repeat(c.first_seen_s - c.first_s, later), np.repeat(c.last_seen_s - c.last_s, later)
    seen = np.minimum(times + start + (end - start) * share, np.repeat(c.last_seen_s, later))
    counts = [n for s in done for n in (s.yields or [1] * len(s.token_s))]
    tokens = Table(
        request=np.repeat(c.index, later).astype(np.int32),
        kind=np.full(len(times), KIND_CODE["chunk"], dtype=np.uint8),
        at_ns=np.maximum(_ns(seen), np.repeat(_ns(c.first_seen_s), later)),
        n=np.asarray(counts, dtype=np.int64),
        note=np.full(len(times), _CODE["content"], dtype=np.uint32),
        rank=np.full(len(times), _LAST_CHUNK, dtype=np.int32),
    )
    return _merged([_rows(thin, thin.rank != _LAST_CHUNK), tokens])


def _table(found: list[tuple[int, str, float, int, int, int]]) -> Table:
    """A few rows: (request, kind, seconds, n, note, rank)."""
    request, kind, at_s, n, note, rank = zip(*found, strict=True)
    return Table(
        np.array(request, dtype=np.int32),
        np.array([KIND_CODE[k] for k in kind], dtype=np.uint8),
        _ns(np.array(at_s, dtype=np.float64)),
        np.array(n, dtype=np.int64),
        np.array(note, dtype=np.uint32),
        np.array(rank, dtype=np.int32),
    )


def _preemptions(done: list[Sequence]) -> Table:
    return _table([(s.index, "preempt", at_s, 0, 0, 3) for s in done for at_s in s.evictions])


def _refusals(failed: list[Sequence], reasons: list[str]) -> Table:
    """Due, sent and an error each; the error's note is its place behind the usual ones."""
    found: list[tuple[int, str, float, int, int, int]] = []
    for s in failed:
        status = 429 if s.error.startswith("rate-limited") else 400
        found.append((s.index, "due", s.at_s, 0, 0, 0))
        found.append((s.index, "sent", s.sent_s, 1, _CODE["new"], 1))
        found.append((s.index, "error", s.last_s, status, len(NOTES) + reasons.index(s.error), 10))
    return _table(found)


class Tally:
    """A ledger that keeps a few numbers of each request instead of rows: for fits and benchmarks."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, float, float, float, float, int, int]] = []
        self.failed = 0

    def finished(self, sequence: Sequence) -> None:
        first_s = sequence.first_s + sequence.first_lag_s
        last_s = max(first_s, sequence.last_s + sequence.last_lag_s)
        self.rows.append(
            (sequence.index, sequence.at_s, sequence.sent_s, first_s, last_s, sequence.prompt, sequence.output)
        )

    def refused(self, sequence: Sequence, now_s: float) -> None:
        self.failed += 1

    def table(self) -> Float64:
        """Columns: index, due, sent, first, last (seconds), prompt, output (tokens); ordered by index."""
        if not self.rows:
            return np.zeros((0, 7))
        table = np.asarray(self.rows, dtype=np.float64)
        ordered: Float64 = table[np.argsort(table[:, 0], kind="stable")]
        return ordered
