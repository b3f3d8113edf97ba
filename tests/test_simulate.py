"""dyno simulate and dyno study from end to end, with costs and links behind them."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from dynamometer.cli import dyno
from dynamometer.cli.study_run import Claim, Row, catalogue, judge, read
from dynamometer.errors import Refused, UsageError
from dynamometer.hardware import gpu, source
from dynamometer.hardware.enginecost import Split, communication_s, parts, step_cost
from dynamometer.hardware.links import LINKS, all_reduce_s, all_to_all_s, usual
from dynamometer.hardware.profiles import PROFILES, profile
from dynamometer.hardware.roofline import decode_floor
from dynamometer.hardware.stepcost import StepCost
from dynamometer.metrics.summary import summarize
from dynamometer.record.store import open_run, read_run
from dynamometer.sim.asks import due_s, sequences
from dynamometer.sim.setup import Cache, Setup
from dynamometer.simulate import Wanted, band, simulate
from dynamometer.types import Estimate, Experiment, Load, Provenance, Target, Workload

STEADY = StepCost((1, 64), (0.010, 0.010))


def experiment(rate: float = 20.0, law: str = "constant", **changed: object) -> Experiment:
    workload = Workload("synthetic", input_tokens="100", output_tokens="11")
    base = Experiment("t", Target("simulated://"), workload, Load(law, rate=rate), duration_s=5.0)
    return msgspec.structs.replace(base, **changed)


def dyno_runs(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(dyno, list(words))
    error = result.exception
    code = error.exit_code if isinstance(error, UsageError | Refused) else result.exit_code
    return code, result.output + str(error or "")


def test_the_rows_give_the_times_that_arithmetic_gives(tmp_path: Path) -> None:
    run, _ = simulate(experiment(), Setup(STEADY, Cache(100_000)), tmp_path / "r", Wanted())
    assert run.driver is Provenance.SIMULATED
    assert run.status == "complete"
    found = summarize(open_run(tmp_path / "r"), run, steady=False)
    assert found.driver is Provenance.SIMULATED
    metrics = found.metrics
    assert metrics.requests_ok == 100
    assert metrics.tpot_ms.p50 == pytest.approx(10, abs=0.01)
    assert metrics.ttft_ms.p50 == pytest.approx(10, abs=10)  # its own step, after what is left of the running one
    assert metrics.itl_ms.p50 == pytest.approx(10, abs=0.01)
    assert not found.doubts


def test_two_rows_an_answer_give_the_same_latencies_rates_and_counts(tmp_path: Path) -> None:
    load = experiment(50, "poisson")
    found = {}
    for rows in ("tokens", "answers"):
        run, _ = simulate(load, Setup(STEADY, Cache(100_000)), tmp_path / rows, Wanted(rows=rows))
        found[rows] = summarize(open_run(tmp_path / rows), run, steady=False)
    full, thin = found["tokens"].metrics, found["answers"].metrics
    for name in ("ttft_ms", "tpot_ms", "e2e_ms"):
        assert getattr(full, name).p50 == pytest.approx(getattr(thin, name).p50)
        assert getattr(full, name).mean == pytest.approx(getattr(thin, name).mean)
    assert full.output_tokens_per_s == pytest.approx(thin.output_tokens_per_s)
    assert [d.kind for d in read_run(tmp_path / "answers").doubts] == ["thinned-rows"]


def test_a_simulation_asks_what_the_client_would_ask_at_the_same_times() -> None:
    from dynamometer.schedule import build as schedule_of
    from dynamometer.workload.plan import Estimated, build

    load = experiment(30, "poisson", workload=Workload("prefix", output_tokens="12", fresh=False), seed=5)
    due = due_s(load)
    assert due is not None
    assert np.array_equal(due, schedule_of(load.load, load.seed, 0, load.duration_s).due_s)
    asked = list(sequences(load, due))
    client = [r for r, _ in zip(build(load.workload, load.seed, Estimated()), asked, strict=False)]
    assert [(s.index, s.output, s.prompt, s.family) for s in asked] == [
        (r.index, r.output_tokens, r.input_tokens, r.family) for r in client
    ]
    assert {s.prefix for s in asked if s.family == asked[0].family} == {asked[0].prefix}


def test_refusals_are_errors_in_the_rows_and_never_fast_answers(tmp_path: Path) -> None:
    setup = Setup(STEADY, Cache(160))
    load = experiment(5, workload=Workload("synthetic", input_tokens="uniform:50:300", output_tokens="11"))
    run, _ = simulate(load, setup, tmp_path / "r", Wanted())
    metrics = summarize(open_run(tmp_path / "r"), run, steady=False).metrics
    assert metrics.requests_failed > 0
    assert metrics.requests_ok + metrics.requests_failed == 25


def test_outside_the_calibration_it_doubts_and_far_outside_it_refuses(tmp_path: Path) -> None:
    narrow = msgspec.structs.replace(STEADY, largest_tokens=1000, largest_context=250)
    load = experiment(40)
    run, _ = simulate(load, Setup(narrow, Cache(100_000)), tmp_path / "near", Wanted())
    assert "outside-calibration" in [d.kind for d in run.doubts]
    tiny = msgspec.structs.replace(narrow, largest_context=10)
    with pytest.raises(Refused, match="calibrate on a heavier run"):
        simulate(load, Setup(tiny, Cache(100_000)), tmp_path / "far", Wanted())
    simulate(load, Setup(tiny, Cache(100_000)), tmp_path / "anyway", Wanted(extrapolate=True))


def test_the_band_of_a_prediction_widens_with_the_error_of_the_step() -> None:
    narrow, wide = (band(experiment(), Setup(STEADY, Cache(100_000)), spread) for spread in (0.05, 0.3))
    for name in ("e2e_p50_ms", "ttft_p50_ms"):
        a, b = narrow[name], wide[name]
        assert a.low is not None and a.high is not None and b.low is not None and b.high is not None  # noqa: PT018
        assert b.low <= a.low <= a.value <= a.high <= b.high  # type: ignore[operator]
    assert narrow["e2e_p50_ms"].level == 0.8


def test_no_device_beats_its_roofline_and_no_share_of_peak_is_above_one() -> None:
    model, device = source.resolve("llama-3.1-8b"), gpu.get("h200")
    ideal = step_cost(model, device, Split(), profile("ideal"))
    floor = decode_floor(model, device.bandwidth.low, 0, [0])
    assert ideal.linear_s[0] == pytest.approx(floor.seconds, rel=0.01)
    for name, engine in PROFILES.items():
        cost = step_cost(model, device, Split(), engine)
        assert all(real >= best for real, best in zip(cost.linear_s, ideal.linear_s, strict=True)), name
        assert list(cost.linear_s) == sorted(cost.linear_s)
    assert 131_072 / ideal.context_s == pytest.approx(device.bandwidth.low, rel=0.01)  # bytes of a token's cache


def test_the_profile_of_vllm_gives_the_decode_steps_that_an_h200_was_seen_to_take() -> None:
    """4.87 ms at one sequence of 600 tokens and 8.74 ms at 128 sequences of 575, medians of thousands of steps."""
    cost = step_cost(source.resolve("llama-3.1-8b"), gpu.get("h200"), Split(), profile("vllm"))
    for n, context, seen_s in ((1, 572, 0.00487), (16, 9217, 0.00531), (128, 73_665, 0.00874)):
        line = np.interp(n, cost.tokens, cost.linear_s)
        assert line + cost.sequence_s * n + cost.context_s * context == pytest.approx(seen_s, rel=0.15)


def test_collectives_follow_alpha_and_beta() -> None:
    link = LINKS["nvlink4"]
    assert all_reduce_s(link, 8, 0) == pytest.approx(17.4e-6)
    assert all_reduce_s(link, 8, 374e9) == pytest.approx(2 * 7 / 8, rel=1e-3)
    assert all_to_all_s(link, 4, 306e9) == pytest.approx(3 / 4, rel=1e-3)
    assert all_reduce_s(link, 1, 1e9) == 0
    assert usual("NVLink5", 0).name == "nvlink5"
    assert usual("", 64e9).name == "pcie5"
    model, device = source.resolve("llama-3.1-70b"), gpu.get("h100")
    slow, fast = (communication_s(model, device, Split(tp=4, link=name), 32) for name in ("pcie5", "nvlink4"))
    assert 160 * 10.6e-6 < fast < 0.003  # 160 all-reduces of half a megabyte
    assert slow > 3 * fast


def test_experts_cost_what_tokens_touch_and_imbalance_costs_more() -> None:
    model, device, engine = source.resolve("mixtral-8x7b"), gpu.get("h100"), profile("ideal")
    one, many = (parts(model, device, Split(tp=2, link="nvlink4"), engine, n).weights_s for n in (1, 256))
    assert 3 < many / one < 4  # two of eight experts against all, beside attention
    uneven = parts(model, device, Split(tp=2, ep=True, imbalance=1.5, link="nvlink4"), engine, 256)
    even = parts(model, device, Split(tp=2, ep=True, link="nvlink4"), engine, 256)
    assert uneven.weights_s > 1.3 * even.weights_s
    assert uneven.communication_s > even.communication_s


def test_the_verb_writes_a_run_that_other_verbs_read(tmp_path: Path) -> None:
    out = tmp_path / "r"
    words = ["simulate", "--gpu", "H200", "--model", "llama-3.1-8b", "-r", "8", "-i", "256", "--output-tokens", "32"]
    code, text = dyno_runs(*words, "-d", "3s", "-o", str(out), "-w", "synthetic")
    assert code == 0, text
    assert "Simulated" in text
    assert "not calibrated" in text
    for name in ("run.json", "requests.parquet", "events.parquet", "summary.json", "report.html", "prediction.json"):
        assert (out / name).is_file(), name
    assert json.loads((out / "summary.json").read_text())["driver"] == "simulated"
    assert "measured" not in text.lower()
    other = ["simulate", str(out), "--gpu", "A100", "--model", "llama-3.1-8b", "-o", str(tmp_path / "s"), "--json"]
    code, again = dyno_runs(*other)
    assert code == 0, again
    assert read_run(tmp_path / "s").experiment.workload == read_run(out).experiment.workload
    assert dyno_runs(*words, "-o", str(out))[0] == 2  # a run is there already


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["-r", "1"], "name what to simulate"),
        (["--gpu", "H200", "--model", "no-such", "-r", "1"], "no-such"),
        (["--gpu", "L4", "--model", "llama-3.1-70b", "-r", "1"], "does not fit"),
        (["--gpu", "H200", "--model", "llama-3.1-8b", "--tp", "3", "--count", "3", "-r", "1"], "cannot be split"),
        (["--gpu", "H200", "--model", "llama-3.1-8b", "--count", "3", "--tp", "2", "-r", "1"], "no multiple"),
        (["--gpu", "H200", "--model", "llama-3.1-8b", "--batching", "magic", "-r", "1"], "batching is 'magic'"),
        (["--gpu", "H200", "--model", "llama-3.1-8b", "--speculate", "x", "-r", "1"], "--speculate"),
        (["--gpu", "H200", "--model", "llama-3.1-8b", "--disaggregate", "0:1", "-r", "1"], "--disaggregate"),
        (["--gpu", "H200", "--model", "llama-3.1-8b", "--link", "string", "-r", "1"], "link is 'string'"),
        (["nothing.toml", "--gpu", "H200", "--model", "llama-3.1-8b"], "neither an experiment file"),
        (["--predict", "rest"], "--predict needs one --calibrate"),
    ],
)
def test_wrong_words_get_one_clear_line(words: list[str], says: str, tmp_path: Path) -> None:
    code, text = dyno_runs("simulate", *words, "-i", "100", "-w", "synthetic", "-o", str(tmp_path / "r"))
    assert code == 2
    assert says in text
    assert "Traceback" not in text


def test_a_load_without_a_request_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no request is due"):
        simulate(experiment(1e-6, "poisson"), Setup(STEADY, Cache(1000)), tmp_path / "r", Wanted())
    assert not (tmp_path / "r").exists()


def test_a_small_board_can_be_simulated_too() -> None:
    cost = step_cost(source.resolve("qwen3-0.6b"), gpu.get("rk3588"), Split(), profile("llama.cpp"))
    assert 0.02 < cost.linear_s[0] < 0.2  # 1.2 GB of weights at some 30 GB/s, 70 % of it


def test_every_ready_study_can_be_read_and_one_runs(tmp_path: Path) -> None:
    assert set(catalogue()) >= {"batching", "paged-kv", "long-context", "topology", "disaggregation", "what-if"}
    assert all(read(name).cases for name in catalogue())
    code, text = dyno_runs("study", "topology", "--quick", "-k", "2", "--json")
    found = json.loads(text)
    assert code in (0, 1)
    assert found["driver"] == "simulated"
    assert "does not fit" in next(r["refused"] for r in found["rows"] if "H100" in r["case"])
    assert dyno_runs("study", "no-such")[0] == 2


def test_a_claim_survives_falls_or_cannot_be_told() -> None:
    def row(name: str, low: float, high: float) -> Row:
        return Row(name, {"x": Estimate((low + high) / 2, low, high, 3, "")})

    claim = Claim("x", ("a", "b"), "someone")
    assert judge(claim, (row("a", 5, 6), row("b", 1, 2))).holds is True
    assert judge(claim, (row("a", 1, 2), row("b", 5, 6))).holds is False
    assert judge(claim, (row("a", 1, 5), row("b", 4, 6))).holds is None
    assert judge(claim, (row("a", 1, 5),)).holds is None
