"""Faults put into a fake engine, a sensor or a client in; each one found, and none where there is none, out."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import numpy as np
import pytest
import slow_engine
from click.testing import CliRunner
from loopback import DONE, LAST, STREAM, Exchange, chunk, closed, event, experiment, serving
from slow_engine import STALL_MS, Asked, is_slow
from wire_run import manifest

from dynamometer import schedule as schedules
from dynamometer.cli.tail import command
from dynamometer.client.drive import run as drive
from dynamometer.decisions.tail import Attribution, attribute
from dynamometer.engines.openai import chat
from dynamometer.metrics import coincidence, views
from dynamometer.record.clock import RunClock, origin
from dynamometer.record.log import SampleLog, WireLog
from dynamometer.record.store import open_run, read_run
from dynamometer.report.html import write_report
from dynamometer.telemetry.interpreter import Interpreter
from dynamometer.telemetry.sampler import beside
from dynamometer.types import Load, Message, Request, Sample

N = 240
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d}}\n\n'


class Sensor:
    """A sampler whose value the fault sets."""

    missing = ()

    def __init__(self, name: str, rest: float = 0.0) -> None:
        self.name, self.value = name, rest

    def read(self, at_ns: int) -> list[Sample]:
        return [Sample("test", self.name, "", at_ns, self.value)]


async def answer(exchange: Exchange, wait_s: float, tokens: int = 3, prompt: int = 10, gap_s: float = 0.0) -> None:
    await asyncio.sleep(wait_s)
    await exchange.send(STREAM + chunk(event("a")))
    for _ in range(tokens - 2):
        await asyncio.sleep(gap_s)
        await exchange.send(chunk(event("b")))
    await exchange.send(chunk(event("c", "stop") + USAGE % (prompt, tokens) + DONE) + LAST)


def measured(
    directory: Path,
    script: Callable[[Exchange], object],
    load: Load | None = None,
    samplers: tuple[object, ...] = (),
    requests: int = N,
) -> Path:
    """Drives the real client at the fake engine and leaves a run's record."""
    begun = origin()
    clock, log = RunClock(begun), WireLog(directory / "wire.log", begun.monotonic_ns)
    samples = SampleLog(directory / "samples.jsonl")
    asked: Iterator[Request] = (Request(i, (Message("user", f"{i} x"),), 64) for i in itertools.count())
    with serving(script) as served:  # type: ignore[arg-type]
        at = experiment(served.url, load or closed(4), {"retries": 1}, requests=requests)
        plan = None if at.load.law == "closed" else schedules.build(at.load, 0, requests, 0.0)
        with beside(samplers, clock.now_ns, samples.append, every_s=0.02):  # type: ignore[arg-type]
            drive(at, asked, plan, chat, log, lambda _: None)
    log.close()
    samples.close()
    (directory / "run.json").write_bytes(msgspec.json.encode(manifest("openai.chat")))
    return directory


def told(directory: Path, *metrics: str) -> Attribution:
    with closing(open_run(directory)) as connection:
        views.install(connection, read_run(directory))
        return attribute(connection, read_run(directory), metrics or ("ttft", "e2e"))


def named(found: Attribution, *verdicts: str) -> list[str]:
    """Traits of those verdicts, strongest first, of all tails."""
    wanted = verdicts or ("found",)
    return [cause.trait for tail in found.tails for cause in tail.causes if cause.verdict in wanted]


def usual(number: int, random: np.random.Generator) -> Asked:
    return Asked(prompt=int(random.integers(90, 110)))


def test_a_long_prompt_is_found(tmp_path: Path) -> None:
    slow_engine.run(tmp_path, lambda i, r: Asked(wait_ms=150, prompt=4000) if is_slow(i) else usual(i, r))
    found = told(tmp_path)
    assert named(found)[0] == "prompt_tokens"
    assert "long prompt (4,000 against 1" in found.decision.answer
    first = found.tails[0].causes[0]
    assert first.effect > 0.9
    assert first.share == 1


def test_a_long_answer_is_found_in_the_whole_time_and_not_in_the_first_token(tmp_path: Path) -> None:
    slow_engine.run(tmp_path, lambda i, r: Asked(tokens=60) if is_slow(i) else usual(i, r))
    found = told(tmp_path)
    (e2e,) = [tail for tail in found.tails if tail.metric == "e2e" and tail.level == 0.95]
    assert e2e.causes[0].trait == "output_tokens"
    assert "output_tokens" not in {one.trait for tail in found.tails if tail.metric == "ttft" for one in tail.causes}


@pytest.mark.parametrize(
    ("trait", "met"),
    [
        ("retries", Asked(wait_ms=150, retries=1)),
        ("late_ms", Asked(late_ms=150)),
        ("idle_ms", Asked(wait_ms=60, pause_ms=300)),
    ],
)
def test_what_happened_to_the_request_is_found(tmp_path: Path, trait: str, met: Asked) -> None:
    slow_engine.run(tmp_path, lambda i, r: met if is_slow(i) else usual(i, r), streams=1 if trait == "idle_ms" else 4)
    assert trait in named(told(tmp_path))


@pytest.mark.parametrize(
    ("name", "rest", "high"),
    [
        ("requests_waiting", 0, 9),  # queue at the server
        ("requests_running", 2, 64),  # batch size
        ("kv_cache_usage_ratio", 0.2, 0.99),  # cache pressure
        ("cpu_foreign_cores", 0.1, 2.0),
        ("cpu_steal_cores", 0.0, 1.0),
        ("cgroup_throttled_s", 0.0, 0.08),
        ("client_loop_lag_ms", 0.1, 90.0),
        ("client_gc_pause_ms", 0.0, 60.0),
        ("memory_available_bytes", 8e9, 1e8),
        ("gpu_throttled_by_heat_hardware", 0, 1),
        ("gpu_clock_mhz", 1980, 700),
        ("gpu_pcie_received_bytes_per_s", 1e8, 2e10),
    ],
)
def test_what_a_sensor_says_meanwhile_is_found(tmp_path: Path, name: str, rest: float, high: float) -> None:
    """Another sensor reads noise all the time and is not blamed."""
    middles, noise = slow_engine.run(tmp_path, usual, stalls=True), np.random.default_rng(2)
    other = "frequency_mhz" if name != "frequency_mhz" else "gpu_clock_mhz"
    still = {name: lambda at: high if any(abs(at - m) <= STALL_MS / 2 + 20 for m in middles) else rest}
    slow_engine.sampled(tmp_path, {**still, other: lambda _: float(noise.random())})
    found = told(tmp_path)
    assert named(found)[0] == name
    assert other not in named(found)


def test_preemptions_that_a_counter_shows_are_found(tmp_path: Path) -> None:
    middles = slow_engine.run(tmp_path, usual, stalls=True)
    slow_engine.sampled(tmp_path, {"preemptions_total": lambda at: float(sum(m - STALL_MS / 2 < at for m in middles))})
    assert named(told(tmp_path))[0] == "preemptions_total"


def test_a_cold_start_is_found(tmp_path: Path) -> None:
    slow_engine.run(tmp_path, lambda i, r: Asked(wait_ms=300) if i < 20 else usual(i, r))
    found = told(tmp_path)
    assert "cold_start" in named(found, "found", "coincides")
    assert "cold start" in found.decision.answer


def test_one_spell_is_told_as_what_chance_could_have_done(tmp_path: Path) -> None:
    """A sensor was high for a second, and so was latency, once: that is no proof."""
    slow_engine.run(tmp_path, lambda i, r: Asked(wait_ms=150) if 200 <= i < 220 else usual(i, r))
    with closing(open_run(tmp_path)) as connection:
        begin, end = connection.execute(
            "select min(at_ns) / 1e6, max(at_ns) / 1e6 from events where request between 200 and 219"
        ).fetchone() or (0, 0)
    noise = np.random.default_rng(2)
    series = {"cpu_foreign_cores": lambda at: 2.0 if begin <= at <= end else 0.1}
    others = dict.fromkeys(("requests_waiting", "requests_running", "kv_cache_usage_ratio"), lambda _: noise.random())
    slow_engine.sampled(tmp_path, {**series, **others})
    found = told(tmp_path)
    assert "cpu_foreign_cores" in named(found, "coincides")
    assert "chance could have done that" in found.decision.answer


def test_nothing_is_found_where_nothing_is_different(tmp_path: Path) -> None:
    """Twelve records with noise in every trait; at the bound of 5 % one alarm has a chance of 46 %, three of 2 %."""
    alarms = 0
    for seed in range(12):
        place, noise = tmp_path / str(seed), np.random.default_rng(seed)
        slow_engine.run(place, lambda i, r: Asked(wait_ms=float(r.exponential(20)), prompt=int(r.integers(9, 900)),
                                                  tokens=4, late_ms=float(r.exponential(0.1))), seed=seed)  # fmt: skip
        names = ("requests_waiting", "kv_cache_usage_ratio", "cpu_foreign_cores", "gpu_clock_mhz")
        slow_engine.sampled(place, dict.fromkeys(names, lambda _, noise=noise: float(noise.random())))  # type: ignore[misc]
        found = told(place, "ttft")
        alarms += bool(named(found))
        assert bool(named(found)) != found.decision.answer.startswith("Nothing was found")
    assert alarms <= 2


def test_a_fault_in_a_real_server_is_found_by_the_real_client(tmp_path: Path) -> None:
    """Over a socket, so with this machine's noise in it: the fault is a hundred times the usual wait."""

    async def script(exchange: Exchange) -> None:
        slow = exchange.number >= 30 and exchange.number % 16 == 13
        await answer(exchange, 0.5 if slow else 0.005, prompt=4000 if slow else 100 + exchange.number % 7)

    found = told(measured(tmp_path, script, samplers=(Sensor("requests_waiting"),)))
    assert named(found)[0] == "prompt_tokens"


def _memory(random: np.random.Generator, n: int, phi: float) -> np.ndarray:
    """A series in which neighbours are alike: AR(1)."""
    value = np.zeros(n)
    for at in range(1, n):
        value[at] = phi * value[at - 1] + random.normal()
    return value


@pytest.mark.parametrize("phi", [0.0, 0.9])
def test_false_alarms_stay_near_the_bound_also_where_neighbours_are_alike(phi: float) -> None:
    """100 runs of 400 requests whose latency has nothing to do with any of six traits."""
    random, alarms = np.random.default_rng(11), 0
    for run in range(100):
        latency = _memory(random, 400, phi)
        slow = latency > np.quantile(latency, 0.95)
        moved, _ = coincidence.turned(slow, run, 999)
        traits = [coincidence.ranks(_memory(random, 400, phi)) for _ in range(6)]
        chances = coincidence.holm(np.array([coincidence.chance(rank, slow, moved) for rank in traits]))
        alarms += bool((chances < 0.05).any())
    assert alarms <= 12  # 5 expected at the bound; more than 12 has a chance of 0.1 %


def test_shuffling_single_requests_would_raise_false_alarms() -> None:
    """Why the shuffles go by blocks."""
    random, alarms = np.random.default_rng(11), 0
    for _ in range(100):
        latency = _memory(random, 400, 0.9)
        slow = latency > np.quantile(latency, 0.95)
        rank = coincidence.ranks(_memory(random, 400, 0.9))
        moved = np.argsort(random.random((499, 400)), axis=1)[:, : int(slow.sum())]
        alarms += coincidence.chance(rank, slow, moved) < 0.05
    assert alarms > 12


def test_every_turn_keeps_the_number_of_slow_requests() -> None:
    slow = np.zeros(103, np.bool_)
    slow[[3, 4, 5, 50, 51, 52, 99, 100, 101, 102]] = True
    moved, length = coincidence.turned(slow)
    assert length > 1
    assert moved.min() >= 0
    assert moved.max() < 103
    assert all(len(set(row)) == 10 for row in moved[:200].tolist())


def test_ranks_of_equal_values_are_the_mean_of_theirs() -> None:
    assert coincidence.ranks(np.array([5.0, 1.0, 5.0, 9.0])).tolist() == [2.5, 1.0, 2.5, 4.0]
    slow = np.array([False, False, False, True])
    assert coincidence.effect(coincidence.ranks(np.array([1.0, 2.0, 3.0, 4.0])), slow) == 1.0


def test_holm_is_as_it_is_in_the_textbook() -> None:
    assert coincidence.holm(np.array([0.01, 0.04, 0.03])).tolist() == pytest.approx([0.03, 0.06, 0.06])


def test_a_short_run_says_how_many_answers_it_takes(tmp_path: Path) -> None:
    async def script(exchange: Exchange) -> None:
        await answer(exchange, 0.0)

    measured(tmp_path, script, requests=20)
    done = CliRunner().invoke(command, [str(tmp_path)])
    assert done.exit_code == 0
    assert "P95 needs 100" in done.output
    assert json.loads(CliRunner().invoke(command, [str(tmp_path), "--json"]).output)["tails"][0]["limit_ms"] is None


def test_the_page_has_the_section(tmp_path: Path) -> None:
    slow_engine.run(tmp_path, lambda i, r: Asked(wait_ms=150, prompt=4000) if is_slow(i) else usual(i, r))
    assert "Slow requests go with: long prompt" in write_report(tmp_path).read_text()


def test_the_clients_pauses_are_samples() -> None:
    """The collector's pauses are summed, of the loop's lags the worst counts, and both start anew."""
    now = itertools.count(0, 5_000_000)
    with Interpreter(lambda: next(now)) as sampler:
        gc.collect()
        sampler.note(2_000_000)
        sampler.note(9_000_000)
        lag, pause = sampler.read(7)
    assert (lag.value, lag.at_ns) == (9.0, 7)
    assert pause.value >= 5.0
    assert [sample.value for sample in sampler.read(8)] == [0.0, 0.0]
