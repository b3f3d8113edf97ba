"""A trace of real traffic (Mooncake JSON lines, Azure LLM CSV, BurstGPT CSV) in; due offsets and requests to match out.

One reading serves both: request k of workload "trace" and due time k of law "trace" are the same row of the file.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np

from dynamometer import options as opt
from dynamometer.errors import UsageError
from dynamometer.types import Float64, Request
from dynamometer.workload.padding import fit
from dynamometer.workload.plan import Ask, Plan, as_they_come
from dynamometer.workload.readers import Line, csv_rows, existing, json_lines
from dynamometer.workload.words import most_words, words

FORMATS = ("auto", "mooncake", "azure", "burstgpt")
_WINDOW = ("format", "speed", "start", "stop")
_BLOCK_TOKENS = 512  # one Mooncake hash id stands for so many prompt tokens
_BLOCK = 3  # first part of the chance key of a block


class Row(msgspec.Struct, frozen=True):
    """One call of the trace. `at_s` counts from the file's own zero until `read_trace` moves it."""

    at_s: float
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()  # ids of the prompt's 512-token blocks: equal ids, equal text


class Trace(msgspec.Struct, frozen=True):
    """Rows in order of time; `at_s` counts from the first of them and is divided by the speed factor."""

    rows: tuple[Row, ...]
    read: int
    skipped: Mapping[str, int]

    @property
    def offsets_s(self) -> Float64:
        return np.array([row.at_s for row in self.rows])


def trace(ask: Ask) -> Plan:
    """The trace's requests: prompts of its lengths, its answer lengths (the workload's own lengths are not used).

    Options as `trace_offsets`; `block_tokens` (default 512) is the size of a Mooncake block. Ends with the trace.
    """
    opt.known(ask.workload.options, (*_WINDOW, "block_tokens"), ask.where)
    as_they_come(ask)
    found = read_trace(existing(ask.workload.path, ask.where), ask.workload.options)
    block = opt.whole(ask.workload.options, "block_tokens", _BLOCK_TOKENS, ask.where, low=1)
    return Plan(_requests(ask, found, block), found.read, len(found.rows), found.skipped, _notes(found))


class End(Protocol):
    """What a law is told of the load's end: the schedule's window."""

    @property
    def requests(self) -> int: ...

    @property
    def duration_s(self) -> float: ...

    def cut(self, due_s: Float64) -> Float64: ...


def law(rate: float, options: opt.Options, window: End, chance: np.random.Generator) -> Float64:
    """Law "trace": option `path` and those of `trace_offsets`. The trace's own times count, not the load's rate."""
    opt.known(options, (*_WINDOW, "path", "block_tokens"), "law 'trace'")
    path = existing(options.get("path", ""), "law 'trace' (option path)")
    offsets_s = window.cut(trace_offsets(path, options))
    if window.requests > len(offsets_s) and not window.duration_s:
        raise UsageError(f"{path} has {len(offsets_s):,} calls in its window; {window.requests:,} are asked for")
    return offsets_s


def trace_offsets(path: Path, options: opt.Options) -> Float64:
    """Seconds from the first call, ascending, one for each request that workload "trace" makes of the file.

    `format` (default auto); `start` and `stop`: only calls from so long to so long after the file's first one;
    `speed`: 2 replays twice as fast.
    """
    return read_trace(path, options).offsets_s


def read_trace(path: Path, options: opt.Options) -> Trace:
    """The calls of a trace. Calls without an answer (failed in their day) are set aside and counted."""
    where = "trace"
    existing(str(path), where)
    speed = opt.positive(options, "speed", 1.0, where)
    start_s, stop_s = opt.duration(options, "start", 0.0, where), opt.duration(options, "stop", np.inf, where)
    if stop_s <= start_s:
        raise UsageError(f"{where}: stop is {stop_s:g} s and start {start_s:g} s; stop must be later")
    rows: list[Row] = []
    skipped: Counter[str] = Counter()
    for line in _lines(path, opt.choice(options, "format", "auto", where, FORMATS)):
        row = line if isinstance(line, str) else _kept(line)
        if isinstance(row, str):
            skipped[row] += 1
        else:
            rows.append(row)
    read = len(rows) + skipped.total()
    if not rows:
        raise UsageError(f"{path} has no call that got an answer ({read} read)")
    rows.sort(key=lambda row: row.at_s)  # stable: calls of one instant keep the file's order
    zero_s = rows[0].at_s
    inside = [row for row in rows if start_s <= row.at_s - zero_s < stop_s]
    if not inside:
        raise UsageError(f"{path} has no call from {start_s:g} to {stop_s:g} s; it spans {rows[-1].at_s - zero_s:g} s")
    if len(inside) < len(rows):
        skipped["outside the window"] = len(rows) - len(inside)
    first_s = inside[0].at_s
    moved = tuple(msgspec.structs.replace(row, at_s=(row.at_s - first_s) / speed) for row in inside)
    return Trace(moved, read, dict(skipped))


def _kept(row: Row) -> Row | str:
    if row.output_tokens < 1:
        return "no answer (a failed call)"
    return row if row.input_tokens >= 1 else "no prompt"


def interval_rates(offsets_s: Float64, interval_s: float) -> Float64:
    """Calls per second in each interval from 0 on; the last interval counts as a whole one."""
    bins = int(offsets_s[-1] // interval_s) + 1
    counts, _ = np.histogram(offsets_s, bins=bins, range=(0, bins * interval_s))
    return counts / interval_s


def _notes(found: Trace) -> tuple[str, ...]:
    offsets_s = found.offsets_s
    span_s = float(offsets_s[-1])
    if not span_s:
        return (f"{len(offsets_s):,} calls at one instant", "the trace ends; it is not repeated")
    interval_s = max(span_s / 20, 1e-3)
    rates = interval_rates(offsets_s, interval_s)
    return (
        f"{len(offsets_s):,} calls over {span_s:,.1f} s: {len(offsets_s) / span_s:.3g}/s on average",
        f"{rates.min():.3g} to {rates.max():.3g} calls/s over intervals of {interval_s:.3g} s",
        "the trace ends; it is not repeated",
    )


def _requests(ask: Ask, found: Trace, block_tokens: int) -> Iterator[Request]:
    @lru_cache(maxsize=8192)
    def block(number: int, first: bool) -> str:
        """The chat template's tokens and the salt fall in the first block; the salt is one for the run."""
        wanted = block_tokens if first else block_tokens + template
        own = words(most_words(block_tokens), ask.chance(_BLOCK, number))
        return fit(ask.opening("trace") if first else "", own, "", wanted, ask.count)[0]

    template = ask.count("")
    for index, row in enumerate(found.rows):
        full = row.blocks[: row.input_tokens // block_tokens]
        rest = row.input_tokens - len(full) * block_tokens
        head = "".join(block(number, place == 0) for place, number in enumerate(full))
        if not full:
            salt = ask.opening("trace" if row.blocks else index)
            # a prompt so short that the salt does not fit fills no cache block, but it is never empty
            head = salt if ask.count(salt) < row.input_tokens else words(1, ask.chance(index))[0].strip()
        begun = len(row.blocks) > len(full)  # the last block is part filled: a longer prompt may go on with it
        chance = ask.chance(_BLOCK, row.blocks[len(full)]) if begun else ask.chance(index)
        text, tokens = fit(head, words(most_words(rest), chance), "", row.input_tokens, ask.count)
        yield ask.request(index, text, tokens, row.output_tokens, "trace")


def _lines(path: Path, form: str) -> Iterator[Row | str]:
    if form == "auto":
        form = _format(path)
    if form == "mooncake":
        for line in json_lines(path):
            yield _mooncake(line)
    else:
        read = _azure if form == "azure" else _burstgpt
        for line in csv_rows(path):
            yield read(line)


def _format(path: Path) -> str:
    with path.open("rb") as file:
        head = file.readline(65536).decode("utf-8-sig", "replace").strip()
    if head.startswith("{"):
        return "mooncake"
    if "ContextTokens" in head:
        return "azure"
    if "Request tokens" in head:
        return "burstgpt"
    raise UsageError(
        f"{path}:1: neither Mooncake JSON lines nor an Azure or BurstGPT header; name it with option format"
    )


def _whole(line: Line, name: str) -> int:
    value = line.fields.get(name)
    try:
        number = float(str(value))
        if number != int(number) or number < 0:
            raise ValueError
    except (ValueError, OverflowError):
        raise UsageError(f"{line.at}: {name} is {value!r}; give a whole number of at least 0") from None
    return int(number)


def _seconds(line: Line, name: str, scale: float = 1.0) -> float:
    value = line.fields.get(name)
    try:
        number = float(str(value))
    except ValueError:
        number = np.nan
    if not np.isfinite(number):
        raise UsageError(f"{line.at}: {name} is {value!r}; give a number")
    return number * scale


def _mooncake(line: Line) -> Row:
    """{"timestamp": milliseconds, "input_length", "output_length", "hash_ids": [block, …]}."""
    blocks = line.fields.get("hash_ids", [])
    if not isinstance(blocks, list) or not all(isinstance(b, int) and 0 <= b < 2**63 for b in blocks):
        raise UsageError(f"{line.at}: hash_ids must be a list of whole numbers of at least 0")
    at_s = _seconds(line, "timestamp", 1e-3)
    return Row(at_s, _whole(line, "input_length"), _whole(line, "output_length"), tuple(blocks))


_AZURE_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(\.\d+)?(?:Z|\+00:00)?\Z")


def _azure(line: Line) -> Row:
    """TIMESTAMP (UTC, seven decimals, which the standard parser refuses), ContextTokens, GeneratedTokens."""
    text = str(line.fields.get("TIMESTAMP", "")).strip()
    match = _AZURE_TIME.match(text)
    try:
        whole_s = datetime.fromisoformat(f"{match[1]} {match[2]}").replace(tzinfo=UTC).timestamp() if match else np.nan
    except ValueError:
        whole_s = np.nan
    if not match or np.isnan(whole_s):
        raise UsageError(f"{line.at}: TIMESTAMP is {text!r}; give a UTC time such as 2023-11-16 18:15:46.6805900")
    return Row(whole_s + float(match[3] or 0), _whole(line, "ContextTokens"), _whole(line, "GeneratedTokens"))


def _burstgpt(line: Line) -> Row:
    """Timestamp in seconds; a call that failed has 0 response tokens."""
    return Row(_seconds(line, "Timestamp"), _whole(line, "Request tokens"), _whole(line, "Response tokens"))
