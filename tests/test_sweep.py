"""A sweep finds what is known of a simulated engine, stops when it may, and goes on where it was stopped."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from load_runs import write_closed

from dynamometer import sweep
from dynamometer.cli.fit import command as fit_command
from dynamometer.cli.options import DriveOptions
from dynamometer.cli.sweep import command
from dynamometer.cli.sweep_run import _conclude
from dynamometer.decisions.curve import curve, read_point
from dynamometer.decisions.gate import objectives
from dynamometer.decisions.trial import attainment_of, read_trial
from dynamometer.errors import MissingPath, UsageError
from dynamometer.hardware.stepcost import StepCost
from dynamometer.models.search import RateRules, SweepRules, capacity
from dynamometer.policies.batching import Batching
from dynamometer.record.store import read_run
from dynamometer.report import sweep_page
from dynamometer.sim.rules import Rules
from dynamometer.sim.setup import Cache, Setup
from dynamometer.simulate import Wanted, simulate
from dynamometer.sweep import Plan, Record
from dynamometer.types import Experiment, Load, Run, Target, Workload

WEIGHTS_S, SEQUENCE_S = 0.010, 0.0005  # a step: the knee is where their shares are equal, at 20
LINE = StepCost((1, 1001), (WEIGHTS_S + SEQUENCE_S, WEIGHTS_S + 1001 * SEQUENCE_S))
ENGINE = Setup(LINE, Cache(1_000_000), Rules(Batching("continuous", 256, 8192)))
SERVICE_S = 0.05
QUEUE = Setup(StepCost((1,), (SERVICE_S,)), Cache(100_000), Rules(Batching("continuous", 1, 64)))  # one at a time
QUIET = DriveOptions("", "", None, 0, 0, "", True, False, True)


def record(plan: Plan, slo: str = "", output: str = "40") -> Record:
    work = Workload("synthetic", input_tokens="1", output_tokens=output)
    limits = objectives(slo) if slo else ()
    return Record(plan, Experiment("s", Target("simulated://", "m", api="simulated"), work, Load(), slo=limits))


def driver(setup: Setup, stop_at: int = 0) -> tuple[sweep.Drive, list[str]]:
    made: list[str] = []

    def drive(experiment: Experiment, place: Path) -> Run:
        made.append(place.name)
        run, _ = simulate(experiment, setup, place, Wanted())
        return msgspec.structs.replace(run, status="interrupted") if len(made) == stop_at else run

    return drive, made


def test_the_load_range_and_the_knee_are_found_without_being_told(tmp_path: Path) -> None:
    wanted, steps = record(Plan(levels=SweepRules(), requests=0)), []
    sweep.begin(tmp_path, wanted)
    drive, made = driver(ENGINE)
    ended = sweep.run(tmp_path, wanted, drive, steps.append)
    assert not ended.stopped
    found = curve(sweep.points(tmp_path))
    assert found.saturation.knee.value == pytest.approx(WEIGHTS_S / SEQUENCE_S, rel=0.1)
    assert found.saturation.limit.value == pytest.approx(1 / SEQUENCE_S, rel=0.1)
    assert len(made) <= 16
    assert made[:4] == ["c0001", "c0002", "c0004", "c0008"]
    assert sweep_page.level_verdict(found).startswith("The knee is at ")
    assert steps[0].left_s is None
    assert all(step.left_s > 0 for step in steps[1:])


def test_a_stopped_sweep_goes_on_with_what_it_has(tmp_path: Path) -> None:
    wanted = record(Plan(levels=SweepRules(last=8)))
    sweep.begin(tmp_path, wanted)
    stopped, _ = driver(ENGINE, stop_at=2)
    assert sweep.run(tmp_path, wanted, stopped, lambda _: None).stopped
    drive, made = driver(ENGINE)
    sweep.begin(tmp_path, sweep.read(tmp_path))  # the same sweep is no conflict
    assert not sweep.run(tmp_path, wanted, drive, lambda _: None).stopped
    assert "c0001" not in made
    assert {point.asked for point in sweep.points(tmp_path)} >= {1.0, 2.0, 4.0, 8.0}


def test_an_interrupted_run_is_finished_before_the_next_load(tmp_path: Path) -> None:
    wanted = record(Plan(levels=SweepRules(last=4, runs=2)))
    sweep.begin(tmp_path, wanted)
    write_closed(tmp_path / "c0001", 1, status="interrupted")
    seen: list[str] = []

    def drive(experiment: Experiment, place: Path) -> Run:
        seen.append(place.name)
        write_closed(place, experiment.load.concurrency)
        return read_run(place)

    sweep.run(tmp_path, wanted, drive, lambda _: None)
    assert seen == ["c0001", "c0002"]


def test_a_folder_with_another_sweep_is_refused(tmp_path: Path) -> None:
    sweep.begin(tmp_path, record(Plan(levels=SweepRules())))
    with pytest.raises(UsageError, match="holds another sweep"):
        sweep.begin(tmp_path, record(Plan(levels=SweepRules(last=7))))
    with pytest.raises(MissingPath, match="is no sweep"):
        sweep.read(tmp_path / "nowhere")


def within(rate: float, wait_s: float) -> float:
    """The share of a queue M/D/1 that waits at most so long (Crommelin 1932)."""
    rho = rate * SERVICE_S
    terms = []
    for j in range(int(wait_s / SERVICE_S) + 1):
        u = rate * (j * SERVICE_S - wait_s)
        terms.append(u**j * math.exp(-u) / math.factorial(j))
    return (1 - rho) * sum(terms)


def test_the_highest_rate_is_that_of_the_queue_s_theory(tmp_path: Path) -> None:
    plan = Plan(rates=RateRules(attainment=0.9, confirmations=1), duration_s=80.0)
    wanted = record(plan, "ttft_p90<160ms", output="1")  # three services: waits of two are within
    sweep.begin(tmp_path, wanted)
    drive, _ = driver(QUEUE)
    ended = sweep.run(tmp_path, wanted, drive, lambda _: None)
    tried = sweep.trials(tmp_path)
    found = capacity([one.trial for one in tried], plan.rates)
    assert found.confirmed
    assert found.rate.value is not None
    assert found.rate.value * SERVICE_S < 1
    truth = within(found.rate.value, 0.11)
    assert truth == pytest.approx(0.9, abs=0.05)
    assert _conclude(tmp_path, wanted, ended, QUIET) == 0
    page = (tmp_path / "report.html").read_text()
    for words in ("requests/s meet ttft_p90", "Goodput against load", "Requests within the objective", "Little"):
        assert words in page


def test_no_rate_within_the_objective_is_said_and_sets_the_exit_code(tmp_path: Path) -> None:
    wanted = record(Plan(rates=RateRules(attainment=0.9), requests=60), "ttft_p90<10ms", output="1")
    sweep.begin(tmp_path, wanted)
    drive, _ = driver(QUEUE)
    ended = sweep.run(tmp_path, wanted, drive, lambda _: None)
    assert _conclude(tmp_path, wanted, ended, QUIET) == 1
    assert json.loads((tmp_path / "summary.json").read_text())["verdict"].startswith("No rate met")


def test_a_request_that_was_never_answered_is_a_miss(tmp_path: Path) -> None:
    wanted = record(Plan(rates=RateRules()), "ttft_p99<1s", output="1")
    run = msgspec.structs.replace(
        wanted.experiment, load=Load("poisson", rate=60.0), duration_s=5.0, grace_s=1.0, slo=objectives("ttft_p99<1s")
    )
    simulate(run, QUEUE, tmp_path / "r", Wanted())
    trial = read_trial(tmp_path / "r").trial
    assert trial.good / trial.total < 0.5  # three times what the queue can do
    assert trial.total > 200


def test_the_share_is_that_of_the_percentile_and_others_are_refused() -> None:
    assert attainment_of(objectives("ttft_p99<500ms,tpot_p99<50ms")) == 0.99
    for slo, said in (
        ("ttft_mean<500ms", "no share of the requests"),
        ("output_tokens_per_s>100", "no limit on a request's own time"),
        ("ttft_p99<500ms,tpot_p50<50ms", "several percentiles"),
    ):
        with pytest.raises(UsageError, match=said):
            attainment_of(objectives(slo))


def test_the_roofline_s_shares_come_from_facts_in_the_record(tmp_path: Path) -> None:
    facts = {"model_weights_bytes": 1e9, "model_cache_bytes_per_token": 1000, "device_bytes_per_s": 100e9, "slots": 64}
    write_closed(tmp_path / "r", 4, engine=facts)
    point = read_point(tmp_path / "r")
    steps_per_s = point.tokens_per_s.value / 4  # a step reads the weights, and four caches of 60 + 50 / 2 tokens
    share = steps_per_s * (1e9 + 4 * 85 * 1000) / 100e9
    assert point.bottleneck.name == "memory bandwidth"
    assert f"{share:.0%} of the peak memory bandwidth" in point.bottleneck.evidence


def test_little_s_law_is_checked_at_every_level(tmp_path: Path) -> None:
    for x in (1, 2, 4, 8):
        write_closed(tmp_path / f"c{x}", x)
    result = CliRunner().invoke(fit_command, [str(tmp_path)], catch_exceptions=False)
    assert "Little's law" in result.output
    assert result.output.count("holds") >= 4
    assert "broken" not in result.output


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--from", "0"], "whole numbers of at least 1"),
        (["--from", "8", "--to", "4"], "from 8 to 4"),
        (["--load", "open"], "give it: --slo"),
        (["--slo", "ttft_mean<1s"], "no share of the requests"),
        (["--duration", "0s"], "--duration"),
        (["--resume", "nowhere"], "is no sweep"),
        (["--workload", "trace"], "has its own times"),
    ],
)
def test_bad_usage_is_one_clear_line(args: list[str], said: str) -> None:
    result = CliRunner().invoke(command, args)
    assert isinstance(result.exception, UsageError)
    assert said in str(result.exception)


@pytest.mark.real
def test_a_sweep_of_the_packaged_model_on_llama_cpp(tmp_path: Path) -> None:
    size = ["--to", "8", "--slots", "4", "-n", "4", "-d", "6s", "--output-tokens", "8", "--runs", "5", "-o", "s"]
    words = [sys.executable, "-m", "dynamometer", "sweep", *size, "--json", "--no-sense-check"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["driver"] == "measured"
    assert len(found["points"]) >= 4
    facts = read_run(tmp_path / "s" / "c0001").engine
    assert facts["model_weights_bytes"] == pytest.approx(facts["model_bytes"], rel=0.02)
    assert facts["device_bytes_per_s"] > 1e9
    assert (tmp_path / "s" / "report.html").is_file()
    assert found["points"][0]["bottleneck"]["name"] != "unknown"
