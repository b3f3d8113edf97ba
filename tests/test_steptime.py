"""Fitting step times: a log that is made from a known law must give the law back; what it does not show is refused."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from dynamometer.errors import MissingPath, RecordError, Refused, UsageError
from dynamometer.hardware.stepcost import Host, StepCost, linear, linear_table, pairs, scaled, window_pairs
from dynamometer.models.frontend import fit_front, ready_s
from dynamometer.models.steplog import Phase, Seen, Steps, chosen, depth, phases, prompt_pairs
from dynamometer.models.steptime import calibrate, errors, fit_cost, predict_device, predict_done
from dynamometer.record.steplog import read_requests, read_steps
from dynamometer.replay import predict
from dynamometer.sim.door import Door
from dynamometer.sim.sequence import Sequence

pytest.importorskip("scipy")

TRUE = StepCost(
    (1, 64, 512, 4096),
    (0.005, 0.0055, 0.012, 0.090),
    context_s=2e-8,
    sequence_s=1e-5,
    host=Host(decode_s=0.002, graph_s=(0.007,), eager_s=(0.014, 0.018), graph_tokens=512, prepare_s=0.001),
    depth=2,
)


def made_log(cost: StepCost, seed: int, count: int = 1500, noise: float = 0.005) -> Steps:
    """An engine that schedules ahead: decode steps with prompts now and then, by the law of `cost` with noise."""
    chance = np.random.default_rng(seed)
    n = chance.integers(1, 60)
    columns = {name: np.zeros(count) for name in ("prompts", "tokens", "n", "context")}
    for i in range(count):
        n = int(np.clip(n + chance.integers(-2, 3), 1, 80))
        columns["n"][i], columns["context"][i] = n, n * chance.integers(300, 900)
        if chance.random() < 0.06:
            columns["prompts"][i], columns["tokens"][i] = 1, chance.choice([100, 300, 700, 1500, 3500])
    zeros = np.zeros(count)
    fresh = np.arange(count) == 0
    plain = Steps(
        zeros,
        zeros,
        columns["prompts"],
        columns["tokens"],
        zeros,
        columns["n"],
        columns["context"],
        zeros,
        zeros,
        fresh,
    )
    device = predict_device(cost, plain) * (1 + noise * chance.standard_normal(count))
    tokens = columns["tokens"] + columns["n"]
    eager = chance.choice(cost.host.eager_s, count)
    launch = np.where(columns["tokens"] > 0, np.where(tokens <= 512, cost.host.graph_s[0], eager), cost.host.decode_s)
    scheduled, done, end, free = np.zeros(count), np.zeros(count), 0.0, 0.0
    for i in range(count):
        scheduled[i] = free
        launched = free + launch[i]
        if i:
            done[i - 1] = free = max(end, launched)
        end = max(max(end, scheduled[i] + cost.host.prepare_s) + device[i], launched)
        free = max(free, launched)
    done[-1] = end
    return Steps(
        scheduled,
        done,
        columns["prompts"],
        columns["tokens"],
        zeros,
        columns["n"],
        columns["context"],
        zeros,
        zeros,
        fresh,
    )


def test_a_made_log_gives_its_law_back() -> None:
    fitted = fit_cost([made_log(TRUE, seed) for seed in (1, 2, 3)])
    assert fitted.depth == 2
    assert fitted.host.graph_tokens == 512
    assert fitted.host.decode_s + 60 * fitted.host.decode_per_sequence_s < 0.0066  # hidden, but below a step's spacing
    assert np.median(fitted.host.eager_s) == pytest.approx(0.016, rel=0.15)
    for tokens, n, context in ((4, 4, 2000), (40, 40, 24_000), (1540, 40, 24_000), (3520, 20, 10_000)):
        probe = Steps(*(np.array([float(v)]) for v in (0, 0, 1, tokens - n, 0, n, context, 0, 0)), np.array([False]))
        assert predict_device(fitted, probe)[0] == pytest.approx(predict_device(TRUE, probe)[0], rel=0.04)


def test_parameters_have_intervals_and_left_out_phases_are_predicted_within_their_noise() -> None:
    made = [Phase(f"p{i}", made_log(TRUE, i), empty(), 0) for i in range(4)]
    found = calibrate(made, resamples=12)
    assert found.fit.held_out is not None
    assert found.fit.held_out < 0.02
    step = found.fit.parameters["per context token"]
    assert step.low is not None
    assert step.high is not None
    assert step.low <= TRUE.context_s * 1.1
    assert step.high >= TRUE.context_s * 0.9


def empty() -> Seen:
    return Seen(*(np.zeros(0) for _ in range(6)))


def test_a_log_that_waits_for_each_step_is_seen_as_such() -> None:
    count = 200
    n = np.tile([1.0, 4.0, 8.0, 2.0], 50)
    took = 0.01 + 0.001 * n
    scheduled = np.concatenate([[0.0], np.cumsum(took + 0.0005)[:-1]])
    zeros = np.zeros(count)
    log = Steps(scheduled, scheduled + took, zeros, zeros, zeros, n, n * 100, zeros, zeros, np.arange(count) == 0)
    assert depth(log) == 1
    fitted = fit_cost([log])
    assert fitted.host.decode_s == pytest.approx(0.0005, rel=0.05)
    assert np.median(errors(fitted, log)) < 0.02


def test_too_short_a_log_is_refused() -> None:
    with pytest.raises(Refused, match="decode steps in a row"):
        fit_cost([made_log(TRUE, 1, count=20)])


def test_the_front_ends_work_is_found_from_what_the_scheduler_counts() -> None:
    chance = np.random.default_rng(1)
    sent = np.sort(chance.uniform(0, 4, 400))
    ready = ready_s(sent, 0.002) + 0.001
    scheduled = np.arange(0, 4.5, 0.006)
    counted = np.searchsorted(ready, scheduled, side="right")
    started = np.diff(counted, prepend=0)
    zeros = np.zeros(len(scheduled))
    steps = Steps(
        scheduled, scheduled + 0.006, zeros, zeros, zeros, zeros + 3, zeros, started.astype(float), zeros, zeros > 0
    )
    last = sent + 0.5
    host = fit_front([Phase("p", steps, Seen(sent, sent, sent + 0.1, last, zeros[:400] + 5, zeros[:400] + 9))], Host())
    assert host.accept_s + host.arrive_s == pytest.approx(0.003, abs=0.0011)


def test_the_fits_front_end_is_the_simulators() -> None:
    sent = np.sort(np.random.default_rng(2).uniform(0, 0.2, 60))
    door = Door(0.003, 0.0)
    asked = [Sequence(i, float(at_s), 1, 1) for i, at_s in enumerate(sent)]
    for sequence in asked:
        door.enter(sequence, sequence.at_s)
    door.leave(10.0)
    assert [s.visible_s for s in asked] == pytest.approx(list(ready_s(sent, 0.003)))


def test_the_curve_between_and_beyond_its_knots() -> None:
    cost = StepCost((1, 10, 20), (1.0, 10.0, 30.0))
    assert [linear(cost, t) for t in (0, 1, 5.5, 10, 15, 20, 25)] == pytest.approx([0, 1, 5.5, 10, 20, 30, 40])
    assert linear_table(cost, 26)[25] == pytest.approx(40)
    assert scaled(cost, 2.0).linear_s == (2.0, 20.0, 60.0)
    with pytest.raises(UsageError, match="factor above 0"):
        scaled(cost, 0.0)


def test_pairs_count_what_each_new_token_sees() -> None:
    assert pairs(3, 10) == 11 + 12 + 13
    assert window_pairs(3, 10, 5) == 15
    assert window_pairs(4, 0, 3) == 1 + 2 + 3 + 3
    assert window_pairs(3, 10, 0) == pairs(3, 10)
    zero = np.zeros(1)
    two = Steps(zero, zero, zero + 2, zero + 6, zero, zero, zero, zero, zero, zero > 0)
    assert prompt_pairs(two)[0] == 2 * pairs(3, 0)


def write_log(folder: Path) -> None:
    """A step log folder with three phases of a made engine."""
    head = "i,t_sched,sched_us,t_done,n_ctx,tok_ctx,past_ctx,n_gen,tok_gen,past_gen,n_run,n_wait,kv,n_new,n_pre"
    steps = ["# a comment", head]
    seen = ["phase,id,t_sched,t_send,t_first,t_last,n_in,n_out_req,n_out,status,chunks,deltas"]
    i, offset = 0, 0.0
    for seed, phase in enumerate(("open_r1", "open_r2", "closed_c2")):
        log = made_log(TRUE, seed, count=600)
        for k in range(600):
            s, d, p = log.scheduled_s[k], log.done_s[k], log.prompts[k]
            t, n, c = log.prompt_tokens[k], log.decoding[k], log.context[k]
            steps.append(f"{i},{s + offset},100,{d + offset},{p:.0f},{t:.0f},0,{n:.0f},{n:.0f},{c:.0f},{n:.0f},0,0,0,0")
            i += 1
        for k in range(12):
            at = offset + 0.1 * k
            seen.append(f"{phase},{k},{at},{at},{at + 0.05},{at + 0.4},64,50,50,ok,50,1")
        seen.append(f"{phase},99,{offset},{offset},{offset},{offset},64,50,0,error,0,")
        offset += float(log.done_s[-1]) + 1
        i += 10  # the log has a gap between phases
    for name, lines in (("serve_steps.csv.gz", steps), ("serve_requests.csv.gz", seen)):
        with gzip.open(folder / name, "wt") as file:
            file.write("\n".join(lines) + "\n")


def test_a_step_log_folder_becomes_phases_and_phases_predict_each_other(tmp_path: Path) -> None:
    write_log(tmp_path)
    found = phases(read_steps(tmp_path), read_requests(tmp_path))
    assert [p.name for p in found] == ["open_r1", "open_r2", "closed_c2"]
    assert [p.concurrency for p in found] == [0, 0, 2]
    assert all(len(p.seen) == 12 for p in found)  # the failed request is left out
    assert all(p.steps.fresh.sum() == 1 for p in found)
    outcome = predict(found, [], ["open_r2"])
    assert outcome.fitted == ("open_r1", "closed_c2")
    (phase,) = outcome.phases
    assert phase.step_error < 0.05
    assert {f.figure for f in phase.figures} >= {"ttft_p50_ms", "e2e_mean_ms", "output_tokens_per_s"}
    with pytest.raises(UsageError, match="no phase 'x'"):
        chosen(found, ["x"])
    with pytest.raises(UsageError, match="name the phases"):
        predict(found, [], [])


def test_a_broken_step_log_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(MissingPath, match="serve_steps"):
        read_steps(tmp_path)
    (tmp_path / "serve_steps.csv.gz").write_bytes(b"no gzip")
    with pytest.raises(RecordError, match="can't be read"):
        read_steps(tmp_path)
    with gzip.open(tmp_path / "serve_steps.csv.gz", "wt") as file:
        file.write("i,t_sched\n1,2\n")
    with pytest.raises(RecordError, match="t_done"):
        read_steps(tmp_path)


def test_predictions_use_the_steps_before_and_not_the_step_itself() -> None:
    log = made_log(TRUE, 5, noise=0.0)
    assert np.median(errors(TRUE, log)) < 0.005
    moved = Steps(**{**{f: getattr(log, f) for f in Steps.__struct_fields__}, "done_s": log.done_s.copy()})
    moved.done_s[700] += 0.05
    assert predict_done(TRUE, moved)[700] == pytest.approx(predict_done(TRUE, log)[700])


def one_at_a_time(n: int, step_s: float, prompt_s: float, requests: int = 6, length: int = 32) -> Phase:
    """A loop of `n` that prefills, then decodes a batch step by step; its clients see a token when its step ends."""
    width = requests * length
    prompt, chance = np.arange(width) % length == 0, np.random.default_rng(n)
    took = np.where(prompt, prompt_s, step_s) * (1 + 0.02 * chance.standard_normal(width))
    done = np.cumsum(took + 1e-6)
    whole = np.full(width, float(n))
    count = np.where(prompt, whole, 0)
    steps = Steps(
        done - took, done, count, 64 * count, 0 * whole, np.where(prompt, 0, whole), 100 * whole, count, 0 * whole,
        np.arange(width) == 0,
    )  # fmt: skip
    first, last = done[::length], done[length - 1 :: length]
    sent = done[::length] - took[::length]
    seen = Seen(*(np.repeat(v, n) for v in (sent, sent, first, last, 64 + 0 * sent, length + 0 * sent)))
    return Phase(f"closed_c{n}", steps, seen, n)


def test_a_client_that_sees_tokens_as_their_steps_end_waits_for_no_front_end() -> None:
    host = fit_front([one_at_a_time(n, 0.004, 0.05) for n in (1, 4)], Host())
    assert (host.reply_s, host.reply_first_s, host.reply_per_sequence_s) == (0, 0, 0)


def test_what_one_load_cannot_tell_apart_is_time_of_every_step() -> None:
    cost = fit_cost([one_at_a_time(4, 0.004, 0.05).steps])
    probe = Steps(*(np.array([float(v)]) for v in (0, 0, 0, 0, 0, 1, 100, 0, 0)), np.array([False]))
    assert predict_device(cost, probe)[0] == pytest.approx(0.004, rel=0.1)
