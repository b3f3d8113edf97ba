"""Data files as people have them: Windows marks, broken lines, model turns first, prompts beyond the context."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest

from dynamometer.errors import MissingPath, UsageError
from dynamometer.types import Request, Workload
from dynamometer.workload.plan import Estimated, Plan, plan

WORD = Estimated(chars_per_token=5)  # "word " is one token


def planned(name: str, path: Path, output: str = "16", **options: str) -> Plan:
    asked = Workload(name, path=str(path), output_tokens=output, fresh=False, options=options)
    return plan(asked, 0, WORD)


def used(made: Plan) -> list[Request]:
    return list(islice(made.requests, made.used))


def prompts(made: Plan) -> list[str]:
    return [request.messages[-1].content or "" for request in used(made)]


SHAREGPT = [
    {
        "id": "a",
        "conversations": [
            {"from": "gpt", "value": "Hello, how can I help?"},
            {"from": "human", "value": "Name a prime."},
            {"from": "gpt", "value": "7"},
        ],
    },
    {"id": "b", "conversations": [{"from": "human", "value": "alone"}]},
    {"id": "c", "conversations": []},
    {"id": "d"},
    {
        "id": "e",
        "conversations": [
            {"from": "system", "value": "Be brief."},
            {"from": "user", "value": "Hi"},
            {"from": "chatgpt", "value": "Hey"},
        ],
    },
    {"id": "f", "conversations": [{"from": "human", "value": "   "}, {"from": "gpt", "value": "?"}]},
    {"id": "g", "conversations": [{"from": "human", "value": "word " * 3000}, {"from": "gpt", "value": "ok"}]},
]


class TestShareGpt:  # case E01
    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        (tmp_path / "sharegpt.json").write_text(json.dumps(SHAREGPT))
        return tmp_path / "sharegpt.json"

    def test_prompts_are_human_turns_and_references_the_answers_to_them(self, file: Path) -> None:
        first, second = used(planned("sharegpt", file))
        assert [(m.role, m.content) for m in first.messages] == [("user", "Name a prime.")]
        assert first.reference == "7"
        assert [(m.role, m.content) for m in second.messages] == [("system", "Be brief."), ("user", "Hi")]

    def test_every_record_left_out_is_counted_with_its_reason(self, file: Path) -> None:
        made = planned("sharegpt", file)
        assert (made.read, made.used) == (7, 2)
        assert made.skipped == {
            "no answer": 1, "no turns": 2, "an empty question": 1, "prompt over 1,024 tokens": 1,
        }  # fmt: skip
        assert made.account().startswith("7 read, 2 used; skipped: 2 no turns")

    def test_the_length_limit_can_be_set(self, file: Path) -> None:
        assert planned("sharegpt", file, max_input_tokens="0", max_total_tokens="0").used == 3
        assert planned("sharegpt", file, max_input_tokens="4000", max_total_tokens="3010").used == 2

    def test_lengths_as_they_come_are_those_of_the_answers(self, file: Path) -> None:
        assert [request.output_tokens for request in used(planned("sharegpt", file, output=""))] == [1, 1]

    def test_a_file_cut_off_names_the_line(self, tmp_path: Path) -> None:
        (tmp_path / "cut.json").write_text('[\n{"id": "a"},\n{"id": ')
        with pytest.raises(UsageError, match=r"cut\.json:3: .*cut off"):
            planned("sharegpt", tmp_path / "cut.json")

    def test_records_that_are_no_objects_are_counted(self, tmp_path: Path) -> None:
        (tmp_path / "odd.json").write_text(json.dumps([1, None, {"conversations": [1]}, SHAREGPT[0]]))
        assert planned("sharegpt", tmp_path / "odd.json").skipped == {
            "not a JSON object": 2, "a turn without a known role or text": 1,
        }  # fmt: skip


E02 = bytes.fromhex(
    "efbbbf7b2270726f6d7074223a2265696e73227d0d0a0d0a7b2270726f6d7074223a227a776569227d0a7b2270726f6d7074223a226472e2"
    "80a86569227d0a7b2270726f6d7074223a22227d0a7b2270726f6d7074223a226375740a7b2270726f6d7074223a226c617374227d"
)


class TestJsonLines:
    def test_marks_blank_lines_and_line_separators_in_text_are_no_trouble(self, tmp_path: Path) -> None:  # case E02
        (tmp_path / "windows.jsonl").write_bytes(E02)
        made = planned("jsonl", tmp_path / "windows.jsonl", lenient="yes")
        assert prompts(made) == ["eins", "zwei", "dr\u2028ei", "last"]
        assert made.skipped == {"an empty prompt": 1, "not a JSON object": 1}

    def test_a_broken_line_is_named_unless_told_to_be_lenient(self, tmp_path: Path) -> None:  # case E02
        (tmp_path / "windows.jsonl").write_bytes(E02)
        with pytest.raises(UsageError, match=r"windows\.jsonl:6: not a JSON object"):
            planned("jsonl", tmp_path / "windows.jsonl")

    def test_messages_keep_their_roles_and_a_closing_model_turn_is_the_reference(self, tmp_path: Path) -> None:
        turns = [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Hello"},
            {"role": "user", "content": "Bye"},
            {"role": "assistant", "content": "See you"},
        ]
        (tmp_path / "chat.jsonl").write_text(json.dumps({"messages": turns, "max_tokens": 7}))
        (request,) = used(planned("jsonl", tmp_path / "chat.jsonl"))
        assert [m.role for m in request.messages] == ["system", "user", "assistant", "user"]
        assert (request.reference, request.output_tokens) == ("See you", 7)

    def test_a_field_of_ones_own_can_be_the_prompt(self, tmp_path: Path) -> None:
        (tmp_path / "own.jsonl").write_text('{"frage": "was?", "answer": "das", "system": "Kurz."}')
        (request,) = used(planned("jsonl", tmp_path / "own.jsonl", prompt_field="frage"))
        assert [m.content for m in request.messages] == ["Kurz.", "was?"]
        assert request.reference == "das"
        with pytest.raises(UsageError, match=r"own\.jsonl:1: there is no field prompt or question"):
            planned("jsonl", tmp_path / "own.jsonl")

    def test_prompts_go_round_and_round_in_the_order_asked_for(self, tmp_path: Path) -> None:
        (tmp_path / "ten.jsonl").write_text("\n".join(json.dumps({"prompt": f"p{i}"}) for i in range(10)))
        first = [r.messages[0].content for r in islice(planned("jsonl", tmp_path / "ten.jsonl").requests, 20)]
        assert first == [f"p{i}" for i in range(10)] * 2
        shuffled = planned("jsonl", tmp_path / "ten.jsonl", order="shuffled").requests
        second = [r.messages[0].content for r in islice(shuffled, 20)]
        assert sorted(second[:10], key=str) == sorted(second[10:], key=str) == [f"p{i}" for i in range(10)]
        assert second[:10] != second[10:]

    def test_fresh_prompts_begin_differently_each_round(self, tmp_path: Path) -> None:
        (tmp_path / "one.jsonl").write_text('{"prompt": "p"}')
        made = plan(Workload("jsonl", path=str(tmp_path / "one.jsonl")), 0, WORD, "run")
        texts = [r.messages[0].content or "" for r in islice(made.requests, 5)]
        assert len({text[:14] for text in texts}) == 5
        assert all(text.endswith("\np") for text in texts)

    @pytest.mark.parametrize("length", ['"many"', "-5", "1.5"])
    def test_an_answer_length_that_is_none_names_its_line(self, tmp_path: Path, length: str) -> None:
        (tmp_path / "bad.jsonl").write_text(f'{{"prompt": "p"}}\n{{"prompt": "p", "max_tokens": {length}}}')
        with pytest.raises(UsageError, match=r"bad\.jsonl:2: the answer length is"):
            planned("jsonl", tmp_path / "bad.jsonl")


class TestContext:  # case E08
    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        rows = [{"prompt": "word " * n, "max_tokens": 200} for n in (100, 8100, 30_000)]
        (tmp_path / "long.jsonl").write_text("\n".join(map(json.dumps, rows)))
        return tmp_path / "long.jsonl"

    def test_what_does_not_fit_the_context_is_dropped_and_counted(self, file: Path) -> None:
        made = planned("jsonl", file, context_tokens="8192")
        assert [r.input_tokens for r in used(made)] == [100]
        assert made.skipped == {"over the context of 8,192 tokens": 2}

    def test_or_its_answer_is_lowered_by_an_explicit_rule(self, file: Path) -> None:
        made = planned("jsonl", file, context_tokens="8192", over="lower")
        assert [(r.input_tokens, r.output_tokens) for r in used(made)] == [(100, 200), (8100, 92)]
        assert made.skipped == {"over the context of 8,192 tokens": 1}

    def test_without_a_limit_all_are_sent(self, file: Path) -> None:
        assert planned("jsonl", file).used == 3


class TestCsv:
    def test_columns_are_found_by_name_and_cells_may_hold_line_breaks(self, tmp_path: Path) -> None:
        text = '\ufeffid,prompt,answer,max_tokens\r\n1,"two\nlines",yes,9\r\n\r\n2,one,,\r\n'
        (tmp_path / "data.csv").write_bytes(text.encode())
        first, second = used(planned("csv", tmp_path / "data.csv"))
        assert (first.messages[0].content, first.reference, first.output_tokens) == ("two\nlines", "yes", 9)
        assert (second.messages[0].content, second.output_tokens) == ("one", 16)

    def test_a_cell_longer_than_the_parser_s_default_is_read(self, tmp_path: Path) -> None:
        (tmp_path / "big.csv").write_text("prompt\n" + "x" * 400_000 + "\n")
        assert used(planned("csv", tmp_path / "big.csv"))[0].input_tokens == 80_000

    @pytest.mark.parametrize(
        ("body", "words"),
        [("prompt,b\n1\n", r"data\.csv:2: 1 cells, the header has 2"), ("", r"data\.csv:1: the header is missing"),
         ("a,b\n1,2\n", r"data\.csv:2: there is no field"), ("prompt\n", "no usable record .it is empty")],
    )  # fmt: skip
    def test_what_is_wrong_is_said_with_its_line(self, tmp_path: Path, body: str, words: str) -> None:
        (tmp_path / "data.csv").write_text(body)
        with pytest.raises(UsageError, match=words):
            planned("csv", tmp_path / "data.csv")

    def test_a_file_in_another_encoding_is_said_to_be(self, tmp_path: Path) -> None:
        (tmp_path / "latin.csv").write_bytes("prompt\ngrün\n".encode("latin-1"))
        with pytest.raises(UsageError, match="not UTF-8"):
            planned("csv", tmp_path / "latin.csv")
        (tmp_path / "latin.jsonl").write_bytes('{"prompt": "grün"}'.encode("latin-1"))
        with pytest.raises(UsageError, match=r"latin\.jsonl:1: not a JSON object"):
            planned("jsonl", tmp_path / "latin.jsonl")


def test_a_file_with_nothing_to_use_says_why(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text('{"prompt": ""}\n')
    with pytest.raises(UsageError, match=r"no usable record .1 an empty prompt"):
        planned("jsonl", tmp_path / "empty.jsonl")


def test_a_missing_file_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(MissingPath, match="there is no file"):
        planned("jsonl", tmp_path / "none.jsonl")
    with pytest.raises(UsageError, match="needs a file"):
        plan(Workload("jsonl"), 0, None, "run")


@pytest.mark.parametrize("name", ["jsonl", "csv", "sharegpt", "trace"])
def test_a_prompt_length_that_would_be_ignored_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "data").write_text('{"prompt": "p", "timestamp": 1, "input_length": 1, "output_length": 1}\n')
    with pytest.raises(UsageError, match="have their own lengths"):
        plan(Workload(name, path=str(tmp_path / "data"), input_tokens="512"), 0, WORD, "run")
