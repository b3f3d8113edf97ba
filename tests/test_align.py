"""Engines are compared when they were asked alike; otherwise the comparison is refused with each reason."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec
import pytest
from answer_rows import Answer, connect, plain, run

from dynamometer.decisions.align import CHECKS, align, memory, unfairness
from dynamometer.decisions.compare import Measured, measure
from dynamometer.errors import Refused, UsageError
from dynamometer.types import Doubt, Load, Run

ENGINE = {"engine": "A", "engine_version": "1", "quantization": "BF16", "slots": 4, "threads": 1}
MACHINE = {"cpu": "x", "cores_usable": 2, "memory_bytes": 10}


def one(answers: Sequence[Answer], samples: Sequence[tuple[str, float, float]] = (), **changes: object) -> Measured:
    made = run(id=str(changes.pop("id", "run-a")), engine={**ENGINE}, machine={**MACHINE})
    made = msgspec.structs.replace(made, **changes)
    return measure(connect(answers, samples), made)


def engine(name: str, **facts: object) -> dict[str, object]:
    return {**ENGINE, "engine": name, **facts}


def test_engines_asked_alike_are_compared_and_the_faster_is_said_to_be_so() -> None:
    a = one(plain(100, ttft=50, step=10))
    b = one(plain(100, ttft=50, step=20), id="run-b", engine=engine("B"))
    told = align([a, b])
    assert [side.engine for side in told.sides] == ["A", "B"]
    assert told.sides[0].figures["tpot_p95"].value == pytest.approx(10.0)
    assert told.sides[1].figures["tpot_p95"].value == pytest.approx(20.0)
    real = {(one.change.metric, one.change.statistic): one for one in told.differences}
    assert real["tpot", "p95"].real
    assert real["tpot", "p95"].change.verdict == "slower"
    assert real["tpot", "p95"].engines == ("A", "B")
    assert not real["ttft", "p95"].real


def changed(load: Load | None = None, **changes: object) -> Measured:
    made = one(plain(40), id="run-b", engine=engine("B"))
    if load:
        experiment = msgspec.structs.replace(made.run.experiment, load=load)
        changes["run"] = msgspec.structs.replace(made.run, experiment=experiment)
    return msgspec.structs.replace(made, **changes)


def with_run(made: Measured, **changes: object) -> Measured:
    return msgspec.structs.replace(made, run=msgspec.structs.replace(made.run, **changes))


def answered(**changes: object) -> Measured:
    answers = [msgspec.structs.replace(answer, **changes) for answer in plain(40)]
    return one(answers, id="run-b", engine=engine("B"))


@pytest.mark.parametrize(
    ("other", "check", "told"),
    [
        (changed(Load("closed", 8)), "load", "another load"),
        (answered(usage={"output": 2, "prompt": 7}), "tokens-out", "made 2 tokens an answer and not 3"),
        (answered(usage={"output": 3, "prompt": 9}), "tokens-in", "another tokenizer or chat template"),
        (
            answered(usage={"output": 3, "prompt": 7, "cached": 5}),
            "cache",
            "71% of the prompt tokens in its cache and not 0%",
        ),
        (answered(usage={}), "counting", "estimated"),
        (answered(asked=64), "stop", "another stop rule"),
        (answered(ignore_eos=True), "stop", "another stop rule"),
        (with_run(changed(), engine=engine("B", quantization="Q8_0")), "weights", "computes in Q8_0 and not in BF16"),
        (with_run(changed(), engine=engine("B", slots=8)), "slots", "had slots: 8 and not 4"),
        (with_run(changed(), engine=engine("B", threads=2)), "threads", "had threads: 2 and not 1"),
        (with_run(changed(), machine={**MACHINE, "cpu": "y"}), "machine", "another machine (cpu: y and not x)"),
        (with_run(changed(), doubts=(Doubt("late", "too late", "", fatal=True),)), "validity", "too late"),
    ],
)
def test_an_unfair_comparison_is_refused_with_its_reason(other: Measured, check: str, told: str) -> None:
    first = one(plain(40))
    assert check in [name for name, _ in unfairness([first, other])]
    with pytest.raises(Refused, match=re.escape(told)) as refused:
        align([first, other])
    assert "--allow" in str(refused.value)
    names = {name for name, _ in unfairness([first, other])}
    assert align([first, other], allow=names).unfair


def test_other_prompts_are_found_by_their_hashes() -> None:
    first, other = one(plain(40)), changed()
    for number, made in enumerate((first, other)):
        made.connection.execute(f"update requests set prompt_sha = request || '-' || {number}")
    with pytest.raises(Refused, match=r"other prompts \(40 of 40\); use --same-prompts"):
        align([first, other])


def test_number_types_are_the_same_under_each_engines_name_for_them() -> None:
    first = one(plain(40))
    for name in ("bfloat16", "BF16", "bf16"):
        assert unfairness([first, with_run(changed(), engine=engine("B", quantization=name))]) == []
    unknown = with_run(changed(), engine={"engine": "endpoint"})
    assert unfairness([first, unknown]) == []


def test_memory_is_the_highest_sum_over_the_engines_processes() -> None:
    samples = [
        ("rss_bytes", 0.0, 5.0),
        ("rss_bytes", 0.0, 6.0),
        ("rss_bytes", 1.0, 20.0),
        ("pss_bytes", 0.0, 3.0),
        ("pss_bytes", 0.0, 4.0),
    ]
    told = memory(one(plain(40), samples))
    assert told.value == 7.0
    assert "pss_bytes" in told.method
    assert memory(one(plain(40), samples[:3])).value == 20.0


def test_memory_that_was_not_seen_is_not_zero() -> None:
    told = memory(one(plain(40)))
    assert told.value is None
    assert told.method


def test_two_runs_of_one_engine_are_told_apart() -> None:
    told = align([one(plain(40)), one(plain(40), id="run-b")])
    assert told.differences[0].engines == ("A (run-a)", "A (run-b)")


def test_many_pairs_say_how_many_differences_chance_would_make() -> None:
    told = align([one(plain(40)), changed(), one(plain(40), id="run-c", engine=engine("C"))])
    assert len({one.engines for one in told.differences}) == 3
    assert "by chance alone" in told.notes[0]


def test_one_run_alone_and_an_unknown_check_are_refused() -> None:
    with pytest.raises(UsageError, match="two runs or more"):
        align([one(plain(40))])
    with pytest.raises(UsageError, match="one of prompts, stop"):
        align([one(plain(40)), changed()], allow=["weight"])
    assert isinstance(one(plain(4)).run, Run)
    assert "weights" in CHECKS
