"""An experiment in, the simulator's requests out: lengths, times, conversations and shared openings, without the words.

A simulator needs no text. Where the workload states its lengths, only lengths are drawn, so an hour at hundreds of
requests a second costs no prompts; else the same prompts are made as for a measurement, and counted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import islice

import numpy as np

from dynamometer.schedule import build as schedule_of
from dynamometer.sim.feed import Streams
from dynamometer.sim.kernel import NEVER
from dynamometer.sim.sequence import Sequence
from dynamometer.types import Experiment, Float64, Request, Workload
from dynamometer.workload.lengths import Lengths, parse
from dynamometer.workload.plan import Estimated, plan

_STREAM = 0x51A5
_BLOCK = 4096
_LENGTHS_ONLY = ("code", "python", "sql", "javascript", "synthetic")


def due_s(experiment: Experiment) -> Float64 | None:
    """When each request is due; None in a closed loop."""
    if experiment.load.law == "closed":
        return None
    return schedule_of(experiment.load, experiment.seed, experiment.requests, experiment.duration_s).due_s


def streams(experiment: Experiment) -> Streams:
    """The closed loop of the experiment."""
    until_s = experiment.duration_s if experiment.duration_s > 0 else NEVER
    return Streams(experiment.load.concurrency, until_s)


def conversations(experiment: Experiment) -> bool:
    """True where a request may have to wait for an answer."""
    return experiment.workload.name not in _LENGTHS_ONLY


def sequences(experiment: Experiment, due: Float64 | None) -> Iterator[Sequence]:
    """The requests in order, as many as are due, or as a closed loop may ask for."""
    workload = experiment.workload
    given, wanted = parse(workload.input_tokens, "input_tokens"), parse(workload.output_tokens, "output_tokens")
    most = len(due) if due is not None else experiment.requests
    if workload.name in _LENGTHS_ONLY and given is not None and wanted is not None:
        found = _lengths(given, wanted, experiment.seed)
    else:
        found = _asked(workload, experiment.seed)
    if most:
        found = islice(found, most)
    if due is None:
        return found
    return _timed(found, due)


def _timed(found: Iterator[Sequence], due: Float64) -> Iterator[Sequence]:
    for start in range(0, len(due), _BLOCK):
        for at_s, sequence in zip(due[start : start + _BLOCK].tolist(), found, strict=False):
            sequence.at_s = sequence.sent_s = at_s
            yield sequence


def _lengths(given: Lengths, wanted: Lengths, seed: int) -> Iterator[Sequence]:
    chance = np.random.default_rng([seed, _STREAM])
    index = 0
    while True:
        for prompt, output in zip(_draw(given, chance), _draw(wanted, chance), strict=True):
            yield Sequence(index, 0.0, prompt, output)
            index += 1


def _draw(lengths: Lengths, chance: np.random.Generator) -> list[int]:
    if lengths.fixed is not None:
        return [lengths.fixed] * _BLOCK
    if lengths.kind == "uniform":
        drawn: list[int] = chance.integers(int(lengths.a), int(lengths.b), size=_BLOCK, endpoint=True).tolist()
        return drawn
    return [lengths.draw(chance) for _ in range(_BLOCK)]


def _asked(workload: Workload, seed: int) -> Iterator[Sequence]:
    count = Estimated()
    history: dict[int, int] = {}  # request → tokens of its prompt and answer, for the turn after it
    for request in plan(workload, seed, count, salt="simulated").requests:
        yield _sequence(request, count, history)


def _sequence(request: Request, count: Estimated, history: dict[int, int]) -> Sequence:
    """One request. A later turn shares the whole conversation so far; else a named family of openings may be shared."""
    said = sum(count(m.content) for m in request.messages if m.content)
    before = history.pop(request.after, 0)
    prompt = max(1, request.input_tokens or said + (before if request.after >= 0 else 0))
    sequence = Sequence(request.index, 0.0, prompt, max(1, request.output_tokens))
    sequence.family, sequence.session, sequence.turn = request.family, request.session, request.turn
    sequence.after, sequence.think_s = request.after, request.think_s
    if request.session:
        sequence.key = sequence.prefix = _key(request.session)
        sequence.prefix_tokens = prompt if request.turn == 0 else max(before, prompt - said)
        history[request.index] = prompt + sequence.output
    elif request.family.startswith("prefix-"):
        sequence.key = sequence.prefix = _key(request.family)
        sequence.prefix_tokens = _shared(request, count)
    return sequence


def _shared(request: Request, count: Estimated) -> int:
    """Tokens of the shared opening: all of the first message, or all but its last paragraph if it is the only one."""
    first = request.messages[0].content or ""
    return count(first if len(request.messages) > 1 else first.rpartition("\n\n")[0] or first)


def _key(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=6).digest(), "big")
