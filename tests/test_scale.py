"""The fleet's replay, its account, the lint, the manifests and the verb: truth from arithmetic, and real schemas."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import kubernetes_validate
import msgspec
import numpy as np
import pytest
import yaml
from click.testing import CliRunner, Result

from dynamometer import surge
from dynamometer.cli import dyno
from dynamometer.cli.scale_manifest import read_manifest
from dynamometer.decisions.scale_lint import Settings, lint
from dynamometer.decisions.scaling import Answers, Frame, account, flaps
from dynamometer.errors import DynoError, UsageError
from dynamometer.hardware import coldstart
from dynamometer.hardware.stepcost import StepCost
from dynamometer.policies.autoscale import Change, Course
from dynamometer.policies.batching import Batching
from dynamometer.policies.hpa import Tolerance
from dynamometer.policies.scalers import Named
from dynamometer.report.manifests import Deployed, manifests
from dynamometer.sim.rules import Rules
from dynamometer.sim.setup import Cache, Setup

STEP_S = 0.01


def one_slot() -> Setup:
    """An engine that serves one request at a time, a token in 10 ms: its service time is known exactly."""
    cost = StepCost((1, 4096), (STEP_S, STEP_S), source="test")
    return Setup(cost, Cache(100_000), Rules(batching=Batching("continuous", 1, 4096)))


def load(rates: list[tuple[float, float]], output: int = 10, surge_s: float = 0.0) -> surge.Traffic:
    """Even arrivals: (requests/s, seconds) one after the other."""
    due, at_s = [], 0.0
    for rate, length_s in rates:
        due.append(at_s + np.arange(int(rate * length_s)) / rate)
        at_s += length_s
    times = np.concatenate(due)
    return surge.Traffic(times, np.ones(len(times)), np.full(len(times), float(output)), surge_s, at_s)


def case(policy: str = "hpa", target: float = 2.0, **more: object) -> surge.Case:
    options = dict(more.pop("options", {}) or {})  # type: ignore[call-overload]
    named = Named(policy, target, int(str(more.pop("least", 1))), int(str(more.pop("most", 10))), options)
    made = surge.Case(named, coldstart.parse("20s"), probe={"scrape": "1s"} if policy != "ray" else {})
    return msgspec.structs.replace(made, **more)


# ── the fleet ──


def test_a_fleet_that_need_not_grow_serves_each_request_in_its_service_time() -> None:
    scaled, course = surge.replay(load([(5.0, 200.0)]), one_slot(), case())
    assert course.changes == ()
    assert scaled.requests == scaled.answered == 1000
    assert scaled.p99_ms == pytest.approx(10 * STEP_S * 1e3, rel=0.02)  # a prompt's step gives the first of ten tokens
    assert scaled.replica_hours == pytest.approx(200 / 3600)
    assert scaled.first_scale_s is None
    assert "never grew" in scaled.decision.answer


def test_a_surge_waits_for_the_metric_the_controller_and_the_cold_start_in_turn() -> None:
    scaled, course = surge.replay(load([(5.0, 30.0), (50.0, 90.0)], surge_s=30.0), one_slot(), case())
    grown = course.changes[0]
    assert grown.at_s == 45.0  # at 30 s, when the load rises, the metric is still low; rounds are 15 s apart
    assert scaled.first_scale_s == 45.0
    assert scaled.first_ready_s == 45.0 + 20.0
    assert grown.after == 5  # one replica may become five in one period: four pods are more than 100 %
    assert scaled.steady_replicas == 10
    assert scaled.p99_peak_ms is not None
    assert scaled.p99_before_ms is not None
    assert scaled.p99_swing == pytest.approx(scaled.p99_peak_ms / scaled.p99_before_ms)
    assert scaled.p99_swing > 10


@pytest.mark.parametrize("policy", ["hpa", "keda", "ray"])
def test_no_request_is_lost_or_invented_and_replica_time_is_the_area_below_the_replicas(policy: str) -> None:
    traffic = load([(5.0, 20.0), (40.0, 60.0), (2.0, 200.0)])
    extra = {"downscale-delay": "20s", "upscale-delay": "5s"} if policy == "ray" else {"down-window": "15s"}
    scaled, course = surge.replay(traffic, one_slot(), case(policy, options=extra))
    assert scaled.answered + scaled.dropped + scaled.unanswered == len(traffic.due_s)
    held = sum(m.held for m in course.moments if m.at_s < traffic.end_s)  # a sample a second
    assert course.replica_s == pytest.approx(held, rel=0.05)
    assert any(change.after < change.before for change in course.changes)
    assert all(1 <= change.after <= 10 for change in course.changes)


def test_a_removed_replica_ends_what_it_has() -> None:
    quick = {"down-window": "0s", "down-policies": "percent:100:15s"}
    traffic = load([(40.0, 40.0), (0.2, 60.0)], output=50)
    scaled, course = surge.replay(traffic, one_slot(), case(options=quick, initial=8, most=8))
    assert course.changes[-1].after < 8
    assert scaled.answered == len(traffic.due_s)


def test_from_nothing_requests_wait_in_front_until_a_replica_is_ready() -> None:
    waking = case("keda", options={"polling": "5s"}, least=0, initial=0)
    scaled, course = surge.replay(load([(1.0, 60.0)]), one_slot(), waking)
    assert course.changes[0].before == 0
    assert course.changes[0].at_s == 5.0
    assert scaled.answered == 60
    assert scaled.first_ready_s == 25.0
    assert scaled.most_waiting == pytest.approx(25, abs=1)


def test_a_full_queue_drops_and_says_so() -> None:
    from dynamometer.policies.admission import Admission

    full = one_slot()
    full = msgspec.structs.replace(full, rules=msgspec.structs.replace(full.rules, admission=Admission(queue=2)))
    scaled, _ = surge.replay(load([(50.0, 20.0)]), full, case(most=1))
    assert scaled.dropped == pytest.approx(1000 - 20 * 10, rel=0.1)  # ten a second are served


def test_the_same_seed_gives_the_same_course_and_another_one_does_not() -> None:
    random = case(start=coldstart.parse("lognormal:20s:1.5"))
    traffic = load([(5.0, 10.0), (50.0, 50.0)])
    first, again, other = (surge.replay(traffic, one_slot(), random, seed)[1] for seed in (1, 1, 2))
    assert first == again
    assert first.starts_s != other.starts_s


def test_gpu_utilization_climbs_to_the_maximum_where_requests_in_flight_do_not() -> None:
    calm = load([(9.0, 300.0)])  # nine tenths of one replica
    by_gpu = case(metric="gpu-utilization", target=0.3, probe={"scrape": "1.37s", "window": "30s"})
    assert surge.replay(calm, one_slot(), case(target=4.0))[0].peak_replicas == 1
    assert surge.replay(calm, one_slot(), by_gpu)[0].peak_replicas > 1


# ── the account ──


def frame(**more: object) -> Frame:
    return msgspec.structs.replace(Frame(0.0, 100.0, 1.0, 1), **more)


def test_a_request_without_an_answer_is_slower_than_all_that_have_one() -> None:
    times = np.arange(1000) / 10
    answers = Answers(times, times + 0.1, times + 0.2, open=20)
    scaled = account(answers, Course((), (), (), 0.0, 20, 100.0), frame())
    assert scaled.p99_ms is None
    assert "20 of 1,020" in scaled.estimates["p99_ms"].method
    assert scaled.late == 20


def test_nothing_asked_gives_no_number() -> None:
    none = np.empty(0)
    scaled = account(Answers(none, none, none), Course((), (), (), 0.0, 0, 1.0), frame())
    assert scaled.p99_ms is None
    assert scaled.late_share.value is None


def test_flaps_are_changes_of_direction_that_follow_each_other_soon() -> None:
    assert flaps([(0.0, 2), (30.0, 3), (60.0, -1), (90.0, 1)]) == 2
    assert flaps([(0.0, 2), (400.0, -1)]) == 0
    assert flaps([]) == 0


def test_cost_is_replica_hours_times_the_price() -> None:
    times = np.arange(100) / 10
    course = Course((Change(5.0, 1, 2, 2, ""),), (), (), 7200.0, 0, 100.0)
    scaled = account(Answers(times, times + 0.1, times + 0.2), course, frame(usd_per_hour=3.0))
    assert scaled.usd == pytest.approx(6.0)
    assert scaled.usd_per_1k_requests == pytest.approx(60.0)


# ── cold starts ──


def test_a_cold_start_has_the_law_that_its_words_say() -> None:
    chance = np.random.default_rng(0)
    uniform = [coldstart.parse("uniform:10s:20s").draw(chance) for _ in range(2000)]
    assert 10 <= min(uniform) < 10.2 < 19.8 < max(uniform) <= 20
    logs = np.log([coldstart.parse("lognormal:40s:1.5").draw(chance) for _ in range(4000)])
    assert np.exp(np.median(logs)) == pytest.approx(40, rel=0.03)
    assert np.exp(logs.std()) == pytest.approx(1.5, rel=0.03)
    measured = coldstart.seen([3.0, 5.0], "two runs")
    assert {measured.draw(chance) for _ in range(50)} == {3.0, 5.0}


@pytest.mark.parametrize(
    "text", ["", "fast", "uniform:20s:10s", "lognormal:0s:2", "lognormal:9s:0.5", "gamma:1s:2", "-3s"]
)
def test_what_is_no_law_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        coldstart.parse(text)


# ── the lint (published faults) ──


def codes(**more: object) -> list[str]:
    return [one.code for one in lint(msgspec.structs.replace(Settings("hpa", "in-flight", 64.0), **more))]


def test_a_target_above_what_the_gauge_can_show_can_never_scale() -> None:
    found = lint(Settings("hpa", "requests_processing", 2.0, most_per_pod=1.0))
    assert found[0].code == "target-above-maximum"
    assert "target above the metric's maximum" in found[0].says
    assert "queue length or requests in flight" in found[0].remedy


def test_a_target_just_below_the_maximum_lies_inside_the_tolerance() -> None:
    assert codes(target=60.0, most_per_pod=64.0) == ["target-inside-tolerance"]
    assert codes(target=60.0, most_per_pod=64.0, tolerance=Tolerance(0.05, 0.05)) == []
    assert codes(target=58.0, most_per_pod=64.0) == []


def test_gpu_utilization_is_a_saturating_signal_and_a_counter_is_no_gauge() -> None:
    assert "saturating-signal" in codes(metric="gpu_utilization", target=0.6)
    assert "saturating-signal" in codes(metric="DCGM_FI_DEV_GPU_UTIL", target=60.0)
    assert "saturating-signal" in codes(metric="duty_cycle", target=60.0)
    assert "counter-as-gauge" in codes(metric="queue_latency_us_total", target=1000.0)
    assert "counter-as-gauge" in codes(metric="queue_latency", kind="counter", target=1000.0)
    assert codes(metric="vllm:num_requests_waiting", target=8.0) == []


def test_a_noisy_metric_without_a_shrinking_window_flaps_in_words_and_in_the_replay() -> None:
    assert "no-stabilization" in codes(target=4.0, shrink_window_s=0.0)
    assert "no-stabilization" not in codes(target=4.0, shrink_window_s=300.0)
    chance = np.random.default_rng(3)
    due = np.cumsum(chance.exponential(1 / 25.0, 15_000))
    noisy = surge.Traffic(due, np.ones(15_000), np.full(15_000, 10.0), 0.0, 600.0)
    noisy = msgspec.structs.replace(
        noisy, due_s=due[due < 600], prompt=np.ones((due < 600).sum()), output=np.full((due < 600).sum(), 10.0)
    )
    loose = surge.replay(noisy, one_slot(), case(target=1.0, initial=4, options={"down-window": "0s"}))[0]
    firm = surge.replay(noisy, one_slot(), case(target=1.0, initial=4))[0]
    assert loose.flaps > 5 * max(1, firm.flaps)


def test_every_finding_has_a_remedy() -> None:
    every = Settings(
        "hpa",
        "gpu_util_total",
        2.0,
        1.0,
        least=0,
        shrink_window_s=0.0,
        grow_window_s=120.0,
        cold_start_s=60.0,
        late_s=5.0,
    )
    found = lint(every)
    assert len(found) >= 5
    assert all(one.remedy and one.says for one in found)


# ── manifests ──


@pytest.mark.parametrize("policy", ["hpa", "keda"])
@pytest.mark.parametrize("engine", ["vllm", "triton", "llama.cpp"])
def test_manifests_hold_against_the_published_schemas_of_kubernetes(policy: str, engine: str) -> None:
    named = Named(policy, 12.5, 1, 20, {"down-policies": "pods:2:60s", "up-select": "min"})
    for text in manifests(named, Deployed(engine=engine, model="m")).values():
        for document in yaml.safe_load_all(text):
            if document["kind"] == "ScaledObject":
                document = inner_hpa(document)
            kubernetes_validate.validate(document, "1.37", strict=True)


def inner_hpa(scaled: dict[str, dict[str, object]]) -> dict[str, object]:
    """The HPA that KEDA makes of a ScaledObject: bounds, behaviour and an external metric."""
    spec = scaled["spec"]
    trigger = spec["triggers"][0]  # type: ignore[index]
    behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]  # type: ignore[index]
    metric = {
        "type": "External",
        "external": {
            "metric": {"name": "s0-prometheus"},
            "target": {"type": trigger["metricType"], "averageValue": trigger["metadata"]["threshold"]},
        },
    }
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": scaled["metadata"],
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", **spec["scaleTargetRef"]},  # type: ignore[dict-item]
            "minReplicas": max(1, int(str(spec["minReplicaCount"]))),
            "maxReplicas": spec["maxReplicaCount"],
            "behavior": behavior,
            "metrics": [metric],
        },
    }


def test_the_schema_would_refuse_a_wrong_field() -> None:
    text = manifests(Named("hpa", 8.0, 1, 4), Deployed())["hpa.yaml"].replace("maxReplicas", "maximumReplicas")
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(yaml.safe_load(text), "1.37", strict=True)


@pytest.mark.parametrize("policy", ["hpa", "keda"])
def test_a_manifest_that_is_read_again_gives_the_same_scaler(policy: str, tmp_path: Path) -> None:
    from dynamometer.policies.scalers import scaler

    options = {"up-window": "30s", "down-policies": "pods:2:60s,percent:10:60s", "down-select": "min"}
    if policy == "keda":
        options |= {"polling": "15s", "cooldown": "60s", "activation": "3"}
    named = Named(policy, 12.5, 2, 20, options)
    file = "hpa.yaml" if policy == "hpa" else "scaledobject.yaml"
    (tmp_path / file).write_text(manifests(named, Deployed())[file])
    found = read_manifest(tmp_path / file)
    again = Named(found.policy, found.target or 0.0, found.least or 0, found.most or 0, found.options)
    assert scaler(again) == scaler(named)


def test_ray_serve_takes_no_manifest() -> None:
    with pytest.raises(UsageError, match="autoscaling_config"):
        manifests(Named("ray", 8.0, 1, 4), Deployed())


@pytest.mark.parametrize("name", ["", "LLM", "a b", "x: y", "-a", "a" * 60])
def test_a_name_that_kubernetes_refuses_is_refused_here(name: str) -> None:
    with pytest.raises(UsageError):
        Deployed(name=name)


# ── the verb ──

QUICK = ["scale", "--from", "2", "--to", "30", "--over", "5s", "--before", "10s", "--hold", "30s", "--max", "4"]


def run(*words: str) -> Result:
    return CliRunner().invoke(dyno, words)


def test_the_json_has_what_a_script_needs() -> None:
    found = run(*QUICK, "--json", "--price", "2.5")
    assert found.exit_code == 0
    data = json.loads(found.stdout)
    assert data["provenance"] == "simulated"
    assert all(a["at_s"] < b["at_s"] for a, b in pairwise(data["replicas"]))
    assert {"at_s", "asked", "ready"} == set(data["replicas"][0])
    assert data["p99_ms"] > 0
    assert data["flaps"] == 0
    assert data["replica_hours"] >= 2 * 45 / 3600 - 1e-9
    assert data["usd"] == pytest.approx(2.5 * data["replica_hours"])
    assert "first_scale_s" in data


def test_three_policies_stand_side_by_side_on_one_page(tmp_path: Path) -> None:
    page = tmp_path / "surge.html"
    found = run(*QUICK, "--policy", "hpa,keda,ray", "--out", str(page))
    assert found.exit_code == 0
    text = page.read_text()
    assert "Replicas, queue and P99" in text
    assert text.count("course-") >= 3


def test_sensitivity_ranks_what_to_change_first() -> None:
    found = run(*QUICK, "--sensitivity", "--json", "--target", "8", "--set", "scrape=5s")
    data = json.loads(found.stdout)
    assert {"target", "minimum", "cold start"} <= {line["name"] for line in data["what_to_change"]}


def test_lint_alone_exits_with_one_for_a_setting_that_cannot_work() -> None:
    found = run(
        "scale", "--lint", "--metric", "llamacpp:requests_processing", "--target", "2", "--metric-max", "1", "--json"
    )
    assert found.exit_code == 1
    assert json.loads(found.stdout)["findings"][0]["code"] == "target-above-maximum"
    assert run("scale", "--lint").exit_code == 0


def test_a_manifest_is_replayed_and_judged(tmp_path: Path) -> None:
    written = run(*QUICK, "--manifests", str(tmp_path / "k8s"), "--target", "48")
    assert written.exit_code == 0
    again = run(*QUICK[:1], "--manifest", str(tmp_path / "k8s" / "hpa.yaml"), *QUICK[1:])
    assert again.exit_code == 0, again.output
    text = (tmp_path / "k8s" / "hpa.yaml").read_text().replace("llm_in_flight", "DCGM_FI_DEV_GPU_UTIL")
    (tmp_path / "gpu.yaml").write_text(text)
    assert run("scale", "--lint", "--manifest", str(tmp_path / "gpu.yaml")).exit_code == 1


@pytest.mark.parametrize(
    "words",
    [
        ["--policy", "magic"],
        ["--target", "0"],
        ["--target", "nan"],
        ["--min", "5", "--max", "2"],
        ["--metric", "happiness"],
        ["--policy", "ray", "--metric", "waiting"],
        ["--set", "up-policies=many"],
        ["--set", "nonsense=1"],
        ["--cold-start", "soon"],
        ["--from", "0"],
        ["--to", "90000", "--hold", "60s"],
        ["--measured"],
        ["--arrivals", "poisson"],
        ["--arrivals", "trace"],
        ["--over", "0s"],
        ["--profile", "nothing"],
        ["--manifest", "not-there.yaml"],
        ["not-a-run"],
        ["--initial", "50"],
        ["--late", "soon"],
        ["--routing", "nowhere"],
        ["--manifests", "k8s", "--name", "Bad Name"],
    ],
)
def test_bad_usage_is_one_line(words: list[str]) -> None:
    found = run(*QUICK, *words)
    assert found.exit_code != 0
    assert isinstance(found.exception, DynoError | SystemExit), found.exception
    if isinstance(found.exception, DynoError):
        assert "\n" not in str(found.exception)
        assert found.exception.exit_code == 2


# ── a real fleet's account ──


def test_ray_serves_page_tells_asked_and_ready_replicas_apart() -> None:
    from dynamometer.telemetry.rayserve import readings

    replicas = [{"state": "RUNNING"}, {"state": "STARTING"}, {"state": "STOPPING"}]
    engine = {"target_num_replicas": 2, "replicas": replicas}
    page = {"applications": {"default": {"deployments": {"Engine": engine}}}}
    found = {one.name: one.value for one in readings(json.dumps(page).encode(), 5)}
    assert found == {"replicas_asked": 2.0, "replicas_ready": 1.0}
    assert readings(b'{"applications": {}}', 5) == []
    with pytest.raises(msgspec.DecodeError):
        readings(b"<html>", 5)


def test_the_samplers_take_ray_serves_page_for_what_it_is() -> None:
    from dynamometer.telemetry.choice import samplers
    from dynamometer.telemetry.rayserve import RayServe

    found, _ = samplers("http://127.0.0.1:1/api/serve/applications/", here=False)
    assert isinstance(found[0], RayServe)
    assert found[0].read(0) == []
    assert "cannot be read" in found[0].missing[0]


def recorded_fleet(directory: Path) -> Path:
    """A simulated run with a sensor's replicas beside it: one until 12 s, asked for three at 10 s."""
    words = "--gpu H100 --model llama-3.1-8b --rate 20 -i 64 --output-tokens 8 -d 40s --no-band --quiet --out"
    found = run("simulate", *words.split(), str(directory))
    assert found.exit_code == 0, found.output
    lines = []
    for second in range(41):
        for name, value in (("replicas_asked", 1 if second < 10 else 3), ("replicas_ready", 1 if second < 12 else 3)):
            lines.append({"source": "rayserve", "name": name, "device": "a/b", "at_ns": second * 10**9, "value": value})
    (directory / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return directory


def test_a_recorded_fleet_gives_the_same_account_as_a_replay(tmp_path: Path) -> None:
    directory = recorded_fleet(tmp_path / "run")
    scaled = surge.measured(directory, 5.0, 1.0, 2.0)
    assert scaled.provenance == "measured"
    assert scaled.first_scale_s == pytest.approx(10, abs=0.2)  # from the first request that was due
    assert scaled.first_ready_s == pytest.approx(12, abs=0.2)
    assert scaled.steady_replicas == 3
    assert scaled.replica_hours == pytest.approx((10 * 1 + 30 * 3) / 3600, rel=0.03)
    assert scaled.requests == scaled.answered
    found = run("scale", str(directory), "--measured", "--surge-at", "5s", "--max", "3", "--min", "1")
    assert found.exit_code == 0, found.output
    assert "Replay against the real fleet" in found.output


def test_a_run_without_a_sensor_of_replicas_is_one_and_says_how_to_see_them(tmp_path: Path) -> None:
    directory = recorded_fleet(tmp_path / "run")
    (directory / "samples.jsonl").unlink()
    found = surge.measured(directory, 0.0, 1.0)
    assert found.first_scale_s is None
    assert (found.steady_replicas, found.peak_replicas) == (1, 1)
    assert found.replica_hours == pytest.approx(found.replicas[-1].at_s / 3600, abs=1 / 3600)
    assert any("--metrics-url" in note for note in found.notes)


def test_the_surge_is_a_ready_study() -> None:
    from dynamometer.cli.study_run import read

    study = read("surge")
    assert study.verb == "scale"
    assert any("32.1" in note and "47.6" in note and "quoted" in note for note in study.notes)
    found = run("study", "surge", "--quick", "--repeats", "2", "--json")
    assert found.exit_code in (0, 1), found.output
    data = json.loads(found.stdout)
    assert {row["case"] for row in data["rows"]} == {case.name for case in study.cases}
    assert all(row["figures"]["replica_hours"]["value"] > 0 for row in data["rows"])


@pytest.mark.live
def test_ray_serves_own_policy_decides_the_same() -> None:
    config = pytest.importorskip("ray.serve.config")
    policy = pytest.importorskip("ray.serve.autoscaling_policy")
    from types import SimpleNamespace

    from dynamometer.policies.autoscale import Pod, Seen
    from dynamometer.policies.rayserve import RayServe

    chance = np.random.default_rng(1)
    for _ in range(20):
        up_s, down_s = float(chance.integers(0, 20)), float(chance.integers(0, 40))
        factors = (float(chance.uniform(0.2, 2)), float(chance.uniform(0.2, 2)))
        target = float(chance.uniform(0.5, 5))
        settings = config.AutoscalingConfig(
            min_replicas=0, max_replicas=50, target_ongoing_requests=target, upscale_delay_s=up_s,
            downscale_delay_s=down_s, upscaling_factor=factors[0], downscaling_factor=factors[1],
        )  # fmt: skip
        ours = RayServe(target, 0, 50, up_s, down_s, None, factors[0], factors[1])
        state, asked, running, load = {}, 1, 1, 0.0
        for tick in range(1500):
            if tick % 50 == 0:
                load = float(chance.choice([0.0, 1.0, 5.0, 40.0, 200.0]))
            if tick % 7 == 0:
                running = asked
            seen = Seen(tick / 10, asked, tuple(Pod(0) for _ in range(running)), round(load * 1000))
            choice, ours = ours.step("control", seen)
            context = SimpleNamespace(
                config=settings, current_num_replicas=running, target_num_replicas=asked, total_num_requests=load,
                policy_state=state,
            )  # fmt: skip
            theirs = policy._get_cold_start_scale_up_replicas(context)
            if theirs is None:
                raw, _ = policy._core_replica_queue_length_policy(context)
                scaled = policy._apply_scaling_factors(raw, running, settings)
                if running == 0 and scaled > 0:
                    theirs = scaled
                else:
                    theirs, state = policy._apply_delay_logic(max(0, scaled), asked, settings, state, tick / 10)
            assert choice.replicas == min(max(theirs, 0), 50)
            asked = choice.replicas
