"""A fault in, wire log and samples of a load on a fake engine in virtual time out: free of this machine's noise."""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
from wire_run import MS, manifest

from dynamometer.record import log
from dynamometer.types import Sample

N = 400
STREAMS = 4
STALL_MS = 120.0
SAMPLED_MS = 20.0


class Asked(msgspec.Struct, frozen=True):
    """What one request is and meets, in ms and tokens. `pause_ms`: the stream rests before it."""

    late_ms: float = 0.0
    wait_ms: float = 0.0  # beyond the usual 20 ms
    prompt: int = 100
    tokens: int = 4
    retries: int = 0
    pause_ms: float = 0.0


Fault = Callable[[int, np.random.Generator], Asked]


def is_slow(number: int) -> bool:
    """One request in 16, the first after an eighth of the run."""
    return number >= 50 and number % 16 == 13


def run(directory: Path, fault: Fault, stalls: bool = False, streams: int = STREAMS, seed: int = 3) -> list[float]:
    """Writes the record. `stalls`: the server stands still now and then; the middles of those times in ms come back."""
    random = np.random.default_rng(seed)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "run.json").write_bytes(msgspec.json.encode(manifest("openai.chat")))
    wire = log.WireLog(directory / "wire.log", 0)
    free = [float(stream) for stream in range(streams)]
    still = [500.0 * at + 700.0 for at in range(40)] if stalls else []
    for number in range(N):
        asked = fault(number, random)
        due = heapq.heappop(free) + asked.pause_ms
        sent = due + asked.late_ms + float(random.exponential(0.1))
        first = sent + asked.wait_ms + 20.0 * float(random.lognormal(0, 0.15))
        for begin in still:
            if sent < begin + STALL_MS and first > begin:
                first = max(first, begin + STALL_MS + float(random.exponential(2)))
        heapq.heappush(free, _write(wire, number, (due, sent, first), asked, random))
    wire.close()
    return [begin + STALL_MS / 2 for begin in still]


def _write(
    wire: log.WireLog, number: int, times: tuple[float, float, float], asked: Asked, random: np.random.Generator
) -> float:
    due, sent, at = times
    stamp = round(due * MS)
    wire.append(log.PLAN, number, stamp, json.dumps({"request": number, "phase": "load", "output_tokens": 64}).encode())
    wire.append(log.DUE, number, stamp)
    for attempt in range(1 + asked.retries):
        if attempt:
            wire.append(log.RETRY, number, round((sent + 0.5) * MS), b"HTTP 503, Retry-After 0")
        frame = json.dumps({"attempt": attempt + 1, "bytes": 300 + asked.prompt, "connection": "reused"}).encode()
        wire.append(log.SENT, number, round((sent + attempt) * MS), frame)
    wire.append(log.HEADERS, number, round(at * MS), b'{"status":200,"headers":{}}')
    for token in range(asked.tokens):
        at += float(random.lognormal(1, 0.1)) if token else 0.0
        choice = {"index": 0, "delta": {"content": "x"}, "finish_reason": "stop" if token == asked.tokens - 1 else None}
        wire.append(log.BODY, number, round(at * MS), b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n")
    last: dict[str, object] = {
        "choices": [],
        "usage": {"prompt_tokens": asked.prompt, "completion_tokens": asked.tokens},
    }
    wire.append(log.BODY, number, round(at * MS), b"data: " + json.dumps(last).encode() + b"\n\ndata: [DONE]\n\n")
    wire.append(log.END, number, round(at * MS))
    return at


def sampled(directory: Path, series: dict[str, Callable[[float], float]], until_ms: float = 12_000.0) -> None:
    """Adds a reading of each series every 20 ms."""
    lines = [
        msgspec.json.encode(Sample("test", name, "", round(at * MS), value(float(at))))
        for at in np.arange(0.0, until_ms, SAMPLED_MS)
        for name, value in series.items()
    ]
    (directory / "samples.jsonl").write_bytes(b"\n".join(lines) + b"\n")
