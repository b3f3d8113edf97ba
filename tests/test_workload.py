"""What every workload keeps: seeds, salts, lengths, and independence of the number of workers (case B15)."""

from __future__ import annotations

import subprocess
import sys
from itertools import islice

import msgspec
import numpy as np
import pytest
from toy_tokens import count_tokens

from dynamometer import plugins, workload
from dynamometer.errors import UsageError
from dynamometer.types import Request, Workload
from dynamometer.workload.plan import Ask, made_to_length, plan

MADE_UP = ("code", "python", "sql", "javascript", "synthetic", "prefix", "session")


def some(asked: Workload, n: int = 100, seed: int = 0, salt: str = "run") -> list[Request]:
    return list(islice(workload.build(asked, seed, count_tokens, salt), n))


def texts(requests: list[Request]) -> list[str]:
    return ["\n".join(message.content or "" for message in request.messages) for request in requests]


@pytest.mark.parametrize("name", MADE_UP)
class TestEveryMadeUpWorkload:
    def test_a_hundred_prompts_are_a_hundred_different_prompts(self, name: str) -> None:  # case B15
        assert len(set(texts(some(Workload(name))))) == 100

    def test_the_same_seed_and_salt_give_the_same_prompts_again(self, name: str) -> None:  # case B15
        assert some(Workload(name), 40) == some(Workload(name), 40)
        assert some(Workload(name, fresh=False), 40, salt="one") == some(Workload(name, fresh=False), 40, salt="two")

    def test_two_runs_of_one_seed_share_no_beginning(self, name: str) -> None:  # case B15
        first, second = (texts(some(Workload(name), 40, salt=salt)) for salt in ("run 1", "run 2"))
        assert not {text[:10] for text in first} & {text[:10] for text in second}

    def test_another_seed_gives_other_prompts(self, name: str) -> None:
        first, second = (texts(some(Workload(name, fresh=False), 40, seed=seed)) for seed in (1, 2))
        assert len(set(first) & set(second)) <= 4  # small pools of bare tasks may meet

    def test_indices_count_from_zero(self, name: str) -> None:
        assert [request.index for request in some(Workload(name), 20)] == list(range(20))

    def test_lengths_are_what_the_counter_says(self, name: str) -> None:
        for request, text in zip(some(Workload(name), 12), texts(some(Workload(name), 12)), strict=True):
            if len(request.messages) == 1:
                assert request.input_tokens == count_tokens(text)

    def test_a_misspelt_option_is_refused_with_the_right_ones(self, name: str) -> None:
        with pytest.raises(UsageError, match="has no option 'lenght'; it takes"):
            plan(Workload(name, options={"lenght": "1"}), 0, count_tokens, "run")

    def test_an_answer_length_is_needed(self, name: str) -> None:
        with pytest.raises(UsageError, match="needs output_tokens"):
            some(Workload(name, output_tokens=""), 1)


def test_another_process_makes_the_same_prompts() -> None:
    code = (
        "import sys, hashlib; from itertools import islice; from dynamometer import workload;"
        "from dynamometer.types import Workload; import msgspec;"
        "requests = list(islice(workload.build(Workload('code', input_tokens='300'), 5, None, 'r'), 30));"
        "sys.stdout.write(hashlib.sha256(msgspec.json.encode(requests)).hexdigest())"
    )
    import hashlib

    here = list(islice(workload.build(Workload("code", input_tokens="300"), 5, None, "r"), 30))
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert there == hashlib.sha256(msgspec.json.encode(here)).hexdigest()


def test_a_fresh_workload_without_a_salt_is_refused() -> None:
    with pytest.raises(UsageError, match="has no salt"):
        plan(Workload("code"), 0)


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(UsageError, match="seed is -1"):
        plan(Workload("code"), -1, None, "run")


def test_a_workload_that_does_not_exist_lists_those_that_do() -> None:
    with pytest.raises(UsageError, match="unknown workload 'cod'; known: code"):
        plan(Workload("cod"), 0, None, "run")


def test_without_a_tokenizer_lengths_are_said_to_be_estimates() -> None:
    assert any("estimates at 3.5 characters" in note for note in _notes({"chars_per_token": "3.5"}))
    assert not any("estimates" in note for note in plan(Workload("code"), 0, count_tokens, "run").notes)


def _notes(options: dict[str, str]) -> tuple[str, ...]:
    return plan(Workload("code", options=options), 0, None, "run").notes


def test_a_counter_is_learnt_from_usage() -> None:
    seen = [("x" * chars, 20 + round(chars / 3.2)) for chars in (100, 400, 900, 1600)]
    learnt = workload.calibrate(seen)
    assert learnt.chars_per_token == pytest.approx(3.2, rel=0.01)
    assert learnt.overhead_tokens == pytest.approx(20, abs=1)
    assert learnt("x" * 3200) == pytest.approx(1020, abs=3)
    assert workload.calibrate([("x" * 100, 25)]).chars_per_token == 4
    assert any("estimates at 3.2" in note for note in plan(Workload("code"), 0, learnt, "run").notes)
    for empty in ([], [("", 0)]):
        with pytest.raises(UsageError, match="at least one text"):
            workload.calibrate(empty)


def test_keys_of_chance_that_look_alike_are_different_streams() -> None:
    ask = Ask(Workload(), 0, count_tokens, "")
    drawn = [ask.chance(*key).random() for key in ((1,), (1, 0), (0, 1), (0,), (1, 0, 0))]
    assert len(set(drawn)) == 5


def test_prompt_and_arrival_streams_of_one_seed_are_different() -> None:
    from dynamometer.schedule.arrivals import chance

    ask = Ask(Workload(), 3, count_tokens, "")
    assert not np.isclose(chance(3).random(), ask.chance().random())


def test_every_workload_is_a_plugin_that_loads() -> None:
    wanted = {*MADE_UP, "sharegpt", "jsonl", "csv", "trace"}
    assert wanted <= set(plugins.names("workload"))
    assert all(callable(plugins.load("workload", name)) for name in wanted)


def test_a_tokenizer_is_wanted_where_prompts_are_made_to_a_length() -> None:
    assert made_to_length(Workload("code", input_tokens="512"))
    assert made_to_length(Workload("trace"))
    assert not made_to_length(Workload("code"))
    assert not made_to_length(Workload("jsonl"))
