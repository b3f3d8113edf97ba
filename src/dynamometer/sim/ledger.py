"""Finished requests in, the rows of docs/record.md out, batch by batch: memory does not grow with simulated time.

With every token kept, a token is a chunk of one token, stamped when the client would read it. Without, an answer has two chunks: its
first token, and the rest when the last one came. Latencies, rates and counts are the same; gaps within an answer are averages.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from dynamometer.record.rows import KIND_CODE, Column, Events
from dynamometer.sim.sequence import Sequence
from dynamometer.types import Float64

NOTES = ("", "new", "content", "prompt", "output", "cached", "length")
_CODE = {note: code for code, note in enumerate(NOTES)}
_BATCH_TOKENS = 400_000
_BATCH_REQUESTS = 40_000
_REST = attrgetter(
    "index",
    "at_s",
    "sent_s",
    "admitted_s",
    "first_s",
    "first_lag_s",
    "last_s",
    "last_lag_s",
    "prompt",
    "output",
    "cached",
)


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
        self._tokens = 0
        self.count = self.failed = 0
        self.end_s = 0.0

    def finished(self, sequence: Sequence) -> None:
        self._done.append(sequence)
        self.count += 1
        self._tokens += sequence.output
        if len(self._done) >= _BATCH_REQUESTS or (self._keep and self._tokens >= _BATCH_TOKENS):
            self.flush()

    def refused(self, sequence: Sequence, now_s: float) -> None:
        sequence.last_s = now_s
        self.failed += 1
        self._done.append(sequence)

    def flush(self) -> None:
        """Hands on what has come together so far; call it at the end."""
        done, self._done, self._tokens = self._done, [], 0
        if not done:
            return
        done.sort(key=attrgetter("index"))
        self._requests(_plan_columns(done, self._level))
        answered = [s for s in done if not s.error]
        parts = [_thin(answered)] if answered else []
        if self._keep and answered:
            parts = [_full(answered)]
        parts += [_refusals([s for s in done if s.error])] if len(answered) < len(done) else []
        parts += [_preemptions(answered)] if any(s.evictions for s in answered) else []
        table = np.concatenate(parts) if len(parts) > 1 else parts[0]
        if len(parts) > 1:
            table = table[np.lexsort((table["rank"], table["at_ns"], table["request"]))]
        self.end_s = max(self.end_s, float(table["at_ns"].max()) / 1e9)
        notes: tuple[str, ...] = NOTES
        errors = {s.error for s in done if s.error}
        if errors:
            notes, table = _with_errors(table, [s for s in done if s.error])
        self._events(
            Events(
                table["request"].astype(np.int32),
                table["kind"].astype(np.uint8),
                table["at_ns"].astype(np.int64),
                table["n"].astype(np.int64),
                np.zeros(len(table), dtype=np.int64),
                table["note"].astype(np.uint32),
                notes,
            )
        )


_ROW = np.dtype([("request", "i4"), ("kind", "u1"), ("at_ns", "i8"), ("n", "i8"), ("note", "u4"), ("rank", "i4")])
Table = npt.NDArray[np.void]


def _plan_columns(done: list[Sequence], level: float) -> dict[str, Column]:
    return {
        "request": np.array([s.index for s in done], dtype=np.int32),
        "input_tokens": np.array([s.prompt for s in done], dtype=np.int32),
        "output_tokens": np.array([s.output for s in done], dtype=np.int32),
        "session": np.array([s.session for s in done], dtype=object),
        "family": np.array([s.family for s in done], dtype=object),
        "turn": np.array([s.turn for s in done], dtype=np.int32),
        "after": np.array([s.after for s in done], dtype=np.int32),
        "ignore_eos": np.ones(len(done), dtype=bool),
        "level": np.full(len(done), level),
    }


def _ns(seconds: Float64) -> npt.NDArray[np.int64]:
    return np.rint(seconds * 1e9).astype(np.int64)


class _Columns:
    """The facts that every answer has, one array each."""

    def __init__(self, done: list[Sequence]) -> None:
        table = np.array([_REST(s) for s in done], dtype=np.float64).T
        (self.index, self.due_s, self.sent_s, self.admitted_s, self.first_s, first_lag, self.last_s, last_lag) = table[
            :8
        ]
        self.prompt, self.output, self.cached = table[8:]
        self.first_seen_s = self.first_s + first_lag
        self.last_seen_s = np.maximum(self.last_s + last_lag, self.first_seen_s)


def _thin(done: list[Sequence]) -> Table:
    """Eleven rows an answer."""
    c = _Columns(done)
    rows: list[tuple[str, Float64, Float64 | int, str]] = [
        ("due", c.due_s, 0, ""),
        ("sent", c.sent_s, 1, "new"),
        ("admit", c.admitted_s, 0, ""),
        ("prefill", c.first_s, 0, ""),
        ("chunk", c.first_seen_s, 1, "content"),
        ("chunk", c.last_seen_s, c.output - 1, "content"),
        ("usage", c.last_seen_s, c.prompt, "prompt"),
        ("usage", c.last_seen_s, c.output, "output"),
        ("usage", c.last_seen_s, c.cached, "cached"),
        ("finish", c.last_seen_s, 0, "length"),
        ("done", c.last_seen_s, 0, ""),
    ]
    table = np.empty((len(done), len(rows)), dtype=_ROW)
    for place, (kind, at_s, n, note) in enumerate(rows):
        column = table[:, place]
        column["request"], column["kind"], column["at_ns"] = c.index, KIND_CODE[kind], _ns(at_s)
        column["n"], column["note"], column["rank"] = n, _CODE[note], place
    flat = table.reshape(-1)
    one = np.repeat(c.output < 2, len(rows)) & (np.tile(np.arange(len(rows)), len(done)) == 5)
    kept: Table = flat[~one]
    return kept


def _full(done: list[Sequence]) -> Table:
    """The same with a row for every token (for every verified step under speculation)."""
    thin = _thin(done)
    later = np.array([len(s.token_s) for s in done])
    times = np.concatenate([np.asarray(s.token_s, dtype=np.float64) for s in done]) if later.sum() else np.zeros(0)
    c = _Columns(done)
    share = np.concatenate([np.arange(1, k + 1) / k for k in later if k]) if later.sum() else np.zeros(0)
    start = np.repeat(c.first_seen_s - c.first_s, later)
    end = np.repeat(c.last_seen_s - c.last_s, later)
    counts = np.concatenate([list(s.yields) or [1] * len(s.token_s) for s in done]) if later.sum() else np.zeros(0)
    tokens = np.empty(len(times), dtype=_ROW)
    seen = np.minimum(times + start + (end - start) * share, np.repeat(c.last_seen_s, later))
    tokens["request"], tokens["kind"] = np.repeat(c.index, later), KIND_CODE["chunk"]
    tokens["at_ns"] = np.maximum(_ns(seen), np.repeat(_ns(c.first_seen_s), later))
    tokens["n"], tokens["note"], tokens["rank"] = counts, _CODE["content"], 5
    kept = thin[(thin["rank"] != 5)]
    table = np.concatenate([kept, tokens])
    ordered: Table = table[np.lexsort((table["rank"], table["at_ns"], table["request"]))]
    return ordered


def _preemptions(done: list[Sequence]) -> Table:
    found = [(s.index, KIND_CODE["preempt"], round(at_s * 1e9), 0, 0, 3) for s in done for at_s in s.evictions]
    return np.array(found, dtype=_ROW)


def _refusals(done: list[Sequence]) -> Table:
    found = []
    for s in done:
        at_ns = round(s.last_s * 1e9)
        found.append((s.index, KIND_CODE["due"], round(s.at_s * 1e9), 0, 0, 0))
        found.append((s.index, KIND_CODE["sent"], round(s.sent_s * 1e9), 1, _CODE["new"], 1))
        status = 429 if s.error.startswith("rate-limited") else 400
        found.append((s.index, KIND_CODE["error"], at_ns, status, 0, 10))
    return np.array(found, dtype=_ROW)


def _with_errors(table: Table, failed: list[Sequence]) -> tuple[tuple[str, ...], Table]:
    """The table with the reasons as notes of the error rows."""
    reasons = sorted({s.error for s in failed})
    code = {reason: len(NOTES) + i for i, reason in enumerate(reasons)}
    by_request = {s.index: code[s.error] for s in failed}
    rows = np.flatnonzero(table["kind"] == KIND_CODE["error"])
    table["note"][rows] = [by_request[int(request)] for request in table["request"][rows]]
    return (*NOTES, *reasons), table


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
