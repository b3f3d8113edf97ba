"""Twins: one experiment through the real client against a fake engine, and through the simulator of the same engine.

The rows must say the same: what was due when, how many tokens came, and the latencies up to what the client's machine
adds.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
from loopback import DONE, LAST, STREAM, Exchange, chunk, drive, event, serving

from dynamometer.hardware.stepcost import StepCost
from dynamometer.metrics.summary import summarize
from dynamometer.record import manifest
from dynamometer.record.clock import origin
from dynamometer.record.store import open_run
from dynamometer.sim.setup import Cache, Setup
from dynamometer.simulate import Wanted, simulate
from dynamometer.types import Experiment, Load, Message, Provenance, Request, Target, Workload

PROMPT_S, STEP_S, TOKENS = 0.060, 0.020, 8
LOAD = Load("constant", rate=2.0)  # an answer takes 0.2 s, so each request finds the engine idle
WORKLOAD = Workload("synthetic", input_tokens="100", output_tokens=str(TOKENS), fresh=False)


async def fake_engine(exchange: Exchange) -> None:
    """A first token after 60 ms, then one every 20 ms, on an absolute clock; usage at the end."""
    loop = asyncio.get_running_loop()
    start = loop.time()
    await exchange.send(STREAM)
    for i in range(TOKENS):
        await asyncio.sleep(max(0.0, start + PROMPT_S + i * STEP_S - loop.time()))
        await exchange.send(chunk(event("x", "length" if i == TOKENS - 1 else None)))
    usage = json.dumps({"choices": [], "usage": {"prompt_tokens": 100, "completion_tokens": TOKENS}}).encode()
    await exchange.send(chunk(b"data: " + usage + b"\n\n") + chunk(DONE) + LAST)


def asked(index: int) -> Request:
    return Request(index, (Message("user", "hello"),), TOKENS, input_tokens=100, ignore_eos=True)


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(measured, simulated) run directories of one experiment."""
    folder = tmp_path_factory.mktemp("twins")
    measured, simulated = folder / "measured", folder / "simulated"
    measured.mkdir()
    with serving(fake_engine) as served:
        target = Target(served.url, "m", api="openai.chat")
        at = Experiment("twin", target, WORKLOAD, LOAD, requests=16)
        run = manifest.begin(at, origin(), Provenance.MEASURED, {}, "")
        manifest.write(measured, run)
        driven = drive(at, map(asked, itertools.count()), measured)
    manifest.write(measured, manifest.finish(run, "complete", driven.report.end_ns, {}, ()))
    cost = StepCost((1, 100), (STEP_S, PROMPT_S))
    simulate(at, Setup(cost, Cache(100_000)), simulated, Wanted())
    return measured, simulated


def test_both_were_due_at_the_same_times(twins: tuple[Path, Path]) -> None:
    query = "select at_ns from events where kind = 'due' order by request"
    due = [open_run(p).execute(query).fetchnumpy() for p in twins]
    first, second = (np.asarray(d["at_ns"], dtype=np.int64) for d in due)
    assert np.array_equal(first - first[0], second - second[0])


def test_both_count_the_same_requests_chunks_and_tokens(twins: tuple[Path, Path]) -> None:
    query = """
      select kind, note, count(*) as rows, sum(n) filter (kind = 'usage') as tokens from events
      where kind in ('due', 'sent', 'chunk', 'usage', 'finish', 'done') and note not in ('reused', 'new', 'cached')
      group by kind, note order by kind, note"""
    measured, simulated = (open_run(p).execute(query).fetchall() for p in twins)
    assert measured == simulated


def test_both_give_the_same_latencies_and_rates(twins: tuple[Path, Path]) -> None:
    found = []
    for path in twins:
        run = manifest.read(path)
        found.append(summarize(open_run(path), run, steady=False).metrics)
    measured, simulated = found
    assert simulated.ttft_ms.p50 == pytest.approx(PROMPT_S * 1e3)
    assert simulated.tpot_ms.p50 == pytest.approx(STEP_S * 1e3)
    assert measured.ttft_ms.p50 == pytest.approx(simulated.ttft_ms.p50, abs=8)
    assert measured.tpot_ms.p50 == pytest.approx(simulated.tpot_ms.p50, abs=2)
    assert measured.e2e_ms.p50 == pytest.approx(simulated.e2e_ms.p50, abs=10)
    assert measured.requests_ok == simulated.requests_ok == 16
    assert measured.output_tokens == simulated.output_tokens == 16 * TOKENS
    assert measured.output_tokens_per_s == pytest.approx(simulated.output_tokens_per_s, rel=0.05)


def test_only_the_label_tells_them_apart(twins: tuple[Path, Path]) -> None:
    runs = [manifest.read(p) for p in twins]
    assert [r.driver for r in runs] == [Provenance.MEASURED, Provenance.SIMULATED]
    assert msgspec.structs.asdict(runs[0].experiment) == msgspec.structs.asdict(runs[1].experiment)
