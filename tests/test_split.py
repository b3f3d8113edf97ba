"""Device time of prompts and of answers, recovered from the answers of engines whose times are known."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest
from answer_rows import Answer, connect, run

from dynamometer.decisions import split
from dynamometer.decisions.split import Split
from dynamometer.errors import Refused
from dynamometer.metrics.summary import summarize
from dynamometer.types import Provenance

PROMPT_MS, STEP_MS = 0.5, 10.0  # a prompt token, a decode step


def found(answers: list[Answer], **changes: object) -> Split:
    with closing(connect(answers)) as connection:
        summarize(connection, run(**changes), steady=False)
        return split.split([split.sums(connection)])


def alone(count: int = 60, prompt: int = 400, output: int = 21, cached: int = 0) -> list[Answer]:
    """One request after the other: a prompt takes 0.5 ms a fresh token, then a token comes every 10 ms."""
    first = PROMPT_MS * (prompt - cached)
    each = first + STEP_MS * (output - 1)
    usage = {"prompt": prompt, "output": output} | ({"cached": cached} if cached else {})
    chunks = [first + STEP_MS * i for i in range(output)]
    return [Answer(sent=i * each, chunks=chunks, usage=usage) for i in range(count)]


def batched(count: int = 400, slots: int = 4, queue: bool = False) -> list[Answer]:
    """A small engine: it computes one prompt at a time and all others wait meanwhile; else every running answer gets a
    token each 10 ms. A slot's next request is sent when its last one ended, or, with `queue`, one answer earlier."""
    chance = np.random.default_rng(3)
    prompts = chance.integers(50, 400, count)
    outputs = chance.integers(5, 60, count)
    now, next_up = 0.0, 0
    waiting: list[tuple[int, float]] = []
    running: dict[int, list[float]] = {}
    sent: dict[int, float] = {}
    done: list[tuple[int, list[float]]] = []
    extra = 2 if queue else 0
    while len(done) < count:
        while next_up < count and len(waiting) + len(running) < slots + extra:
            waiting.append((next_up, now))
            sent[next_up] = now
            next_up += 1
        if waiting and len(running) < slots:
            index, _ = waiting.pop(0)
            now += PROMPT_MS * prompts[index]
            running[index] = [now]
        else:
            now += STEP_MS
            for times in running.values():
                times.append(now)
        ended = [i for i, times in running.items() if len(times) >= outputs[i]]
        done.extend((index, running.pop(index)) for index in ended)
    return [
        Answer(
            sent=sent[index],
            chunks=[t - sent[index] for t in times],
            usage={"prompt": int(prompts[index]), "output": int(outputs[index])},
        )
        for index, times in sorted(done)
    ]


def test_an_engine_that_serves_one_after_the_other_shows_both_times_exactly() -> None:
    seen = found(alone())
    assert seen.prefill_tokens_per_s is not None
    assert seen.prefill_tokens_per_s[1] == pytest.approx(1000 / PROMPT_MS, rel=0.03)
    # 21 tokens in 20 steps of 10 ms: the first one comes with the prompt
    assert seen.decode_tokens_per_s[1] == pytest.approx(105, rel=0.01)
    assert seen.input_tokens == pytest.approx(400)
    assert seen.output_tokens == pytest.approx(21, rel=0.01)


def test_input_and_output_times_add_up_to_the_busy_time() -> None:
    seen = found(batched())
    assert seen.prefill_tokens_per_s is not None
    paid = seen.input_tokens / seen.prefill_tokens_per_s[1] + seen.output_tokens / seen.decode_tokens_per_s[1]
    assert paid * seen.requests == pytest.approx(seen.busy_s, rel=1e-6)


@pytest.mark.parametrize("queue", [False, True])
def test_a_batching_engine_shows_the_device_time_of_a_prompt_token_even_when_requests_queue(queue: bool) -> None:
    """Charging a request's whole wait to its prompt would be several times too much when it queues."""
    seen = found(batched(queue=queue))
    assert seen.prefill_tokens_per_s is not None
    assert seen.prefill_tokens_per_s[1] == pytest.approx(1000 / PROMPT_MS, rel=0.01)
    low, value, high = seen.prefill_tokens_per_s
    assert low < value < high


def test_cached_input_takes_no_time_and_its_share_is_told() -> None:
    seen = found(alone(prompt=400, cached=300))
    assert seen.cached_share == pytest.approx(0.75)
    assert seen.prefill_tokens_per_s is not None
    assert seen.prefill_tokens_per_s[1] == pytest.approx(2000, rel=0.1)


def test_failed_answers_cost_time_and_bring_no_tokens() -> None:
    good = alone(40)
    each = good[1].sent
    broken = [Answer(sent=(40 + i) * each, chunks=good[0].chunks, error="reset: gone") for i in range(40)]
    seen, without = found([*good, *broken]), found(good)
    assert seen.decode_tokens_per_s[1] == pytest.approx(without.decode_tokens_per_s[1] / 2, rel=0.1)


def test_idle_time_is_no_device_time() -> None:
    answers = [Answer(sent=a.sent * 2, chunks=a.chunks, usage=a.usage) for a in alone()]
    seen = found(answers)
    assert seen.busy_share == pytest.approx(0.5, abs=0.02)
    assert seen.decode_tokens_per_s[1] == pytest.approx(105, rel=0.01)


def test_answers_that_came_whole_are_refused() -> None:
    whole = [Answer(sent=i * 100.0, done=90.0, usage={"prompt": 5, "output": 9}) for i in range(20)]
    with pytest.raises(Refused):
        found(whole)


def test_prompts_without_a_length_leave_the_bill_to_the_output() -> None:
    answers = [Answer(sent=a.sent, chunks=a.chunks, usage={"output": 21}) for a in alone()]
    seen = found(answers)
    assert seen.prefill_tokens_per_s is None
    assert all(one.name != "prefill_tokens_per_s" for one in split.inputs(seen, [run()]))


def test_the_inputs_say_whether_they_were_measured_or_simulated() -> None:
    seen = found(alone())
    for driver in (Provenance.MEASURED, Provenance.SIMULATED):
        made = split.inputs(seen, [run(driver=driver)])
        assert {one.provenance for one in made} == {driver}
    with pytest.raises(Refused, match="one kind"):
        split.inputs(seen, [run(), run(driver=Provenance.SIMULATED)])
