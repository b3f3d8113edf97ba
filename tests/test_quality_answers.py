"""Answers are judged as numbers, formulas, letters and code; the sandbox holds what it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dynamometer.errors import UsageError
from dynamometer.quality.finals import Outcome, final_number, judge_number
from dynamometer.quality.questions import Question, read, texts
from dynamometer.quality.sandbox import Limits, code_of, judge_code, run
from dynamometer.quality.sides import Said
from dynamometer.quality.trial import judged
from dynamometer.quality.word_problems import problems, solutions


class TestE06:
    """Right answers that scorers lose to a comma, a currency, a full stop, a separator or an unescaped dot."""

    @pytest.mark.parametrize(
        ("gold", "answer", "number"),
        [
            ("#### 72", "The total is 72 clips, altogether.", 72),
            ("#### 29", "It costs $29.00.", 29),
            ("#### 9,500", "So \\boxed{$9{,}500}", 9500),
            ("#### 4", "We get 3 4", 4),
            ("#### -3", "#### -3.", -3),
            ("#### 18", "18 eggs, so #### 18 dollars a day for 7 days", 18),
        ],
    )
    def test_the_number_is_found_and_right(self, gold: str, answer: str, number: int) -> None:
        assert final_number(answer).value == number
        assert judge_number(answer, gold) == Outcome.RIGHT

    @pytest.mark.parametrize("answer", ["", ",", "I do not know.", "<think>it is 72", "7" * 5000])
    def test_no_number_is_unparsed_and_not_wrong(self, answer: str) -> None:
        assert judge_number(answer, "#### 72") == Outcome.UNPARSED

    @pytest.mark.parametrize(
        ("answer", "number"),
        [
            ("1,234,567.50 m", "2469135/2"), ("-$4.50", "-9/2"), ("$-4.50", "-9/2"), ("10-3", "3"), ("5 - 3", "3"),
            ("it is -3", "-3"), ("\u22127", "-7"), ("\\frac{1}{2}", "1/2"), ("-\\dfrac{3}{4}", "-3/4"), ("3/4", "3/4"),
            ("**72**", "72"), ("5, 10", "10"), ("The answer is 8, because 2 * 4", "8"), ("12 %", "12"),
            ("<think>5</think> 6", "6"), ("9\\,500", "9500"), ("9\u202f500", "9500"), ("#### \nthen 3", "3"),
            ("#### 1\nno: #### 2", "2"), ("1.2e3", "1200"), ("x1 = 5", "5"), ("\uff17\uff12", "72"),
        ],
    )  # fmt: skip
    def test_the_whole_kind(self, answer: str, number: str) -> None:
        assert str(final_number(answer).value) == number

    @pytest.mark.parametrize("wrong", ["500", "000", "34", "7"])
    def test_a_part_of_the_number_is_wrong(self, wrong: str) -> None:
        assert judge_number(wrong, "#### 9,500") == Outcome.WRONG


def test_a_cut_answers_last_number_is_no_answer() -> None:
    question = Question("1", "number", "?", "#### 12")
    assert judged("a", question, Said("first 3 × 4 = 12", "length")).outcome == Outcome.UNPARSED
    assert judged("a", question, Said("first 3 × 4 = 12", "stop")).outcome == Outcome.RIGHT
    assert judged("a", question, Said("#### 12\n and so", "length")).outcome == Outcome.RIGHT


def test_no_answer_is_an_error_and_not_wrong() -> None:
    row = judged("a", Question("1", "number", "?", "#### 12"), Said("", error="HTTP 400 too long"))
    assert (row.outcome, row.note) == (Outcome.ERROR, "HTTP 400 too long")


def test_formulas_are_compared_as_mathematics() -> None:
    pytest.importorskip("math_verify")
    from dynamometer.quality.mathematics import judge_mathematics

    for answer, gold in (("$\\frac{1}{2}$", "0.5"), ("\\boxed{x+1}", "1+x"), ("so \\boxed{(2,3]}", "(2,3]")):
        assert judge_mathematics(answer, gold) == Outcome.RIGHT, answer
    assert judge_mathematics("\\boxed{x-1}", "1+x") == Outcome.WRONG
    assert judge_mathematics("\\boxed{\\frac{7}{2}}", "it is \\boxed{\\frac{7}{2}}") == Outcome.RIGHT
    assert judge_mathematics("", "1") == Outcome.UNPARSED


def test_generated_problems_are_right_by_arithmetic() -> None:
    """The answer of each is that of its own last step, and every step's equation holds."""
    import re

    for text in solutions(200, seed=5):
        answer = int(text.rpartition("#### ")[2])
        steps = re.findall(r"(\d+) ([×/+-]) (\d+) = (\d+)", text)
        for a, sign, b, c in steps:
            value = {"×": int(a) * int(b), "+": int(a) + int(b), "-": int(a) - int(b), "/": int(a) / int(b)}[sign]
            assert value == int(c), text
        assert int(steps[-1][3]) == answer
        assert answer >= 0


def test_a_larger_count_of_problems_has_the_smaller_one_in_it() -> None:
    assert problems(300, 1)[:20] == problems(20, 1)
    assert problems(20, 1) != problems(20, 2)
    assert len({one.id for one in problems(300)}) == 300
    assert all(judge_number(one.reference, one.reference) == Outcome.RIGHT for one in problems(300))


class TestFiles:
    def test_a_windows_file_with_blank_and_foreign_lines_is_read_and_counted(self, tmp_path: Path) -> None:  # case E02
        raw = b'\xef\xbb\xbf{"question":"1+1?","answer":"#### 2"}\r\n\r\n{"question":"?","answer":"none"}\n'
        path = tmp_path / "g.jsonl"
        path.write_bytes(raw + b'{"question":"dr\xe2\x80\xa8ei?","answer":"#### 3"}')
        found = read("gsm8k", str(path))
        assert [one.id for one in found.questions] == ["1", "3"]
        assert found.skipped == {"no number in its answer": 1}

    def test_choices_of_arc_and_mmlu(self, tmp_path: Path) -> None:
        rows = [
            {"question": "q", "choices": ["x", "y"], "answer": 1},
            {"question": "q", "choices": {"text": ["x", "y", "z"], "label": ["1", "2", "3"]}, "answerKey": "3"},
            {"question": "q", "choices": ["x", "y"], "answer": "A"},
            {"question": "q", "choices": ["x", "y"], "answer": "Z"},
        ]
        path = tmp_path / "c.jsonl"
        path.write_text("\n".join(json.dumps(row) for row in rows))
        found = read("choice", str(path))
        assert [one.reference for one in found.questions] == ["B", "C", "A"]
        assert found.skipped == {"its answer is none of its choices": 1}

    def test_a_file_without_a_question_says_why(self, tmp_path: Path) -> None:
        path = tmp_path / "e.jsonl"
        path.write_text('{"text": "x"}\n')
        with pytest.raises(UsageError, match="no question"):
            read("gsm8k", str(path))

    def test_texts_of_a_plain_file_come_in_parts(self, tmp_path: Path) -> None:
        path = tmp_path / "t.txt"
        path.write_text("word " * 1000)
        assert len(texts(str(path))) == 5


class TestSandbox:
    def test_a_program_that_leaves_before_its_tests_did_not_pass(self) -> None:
        assert run("x = 1").finished
        assert not run("import os; os._exit(0)").finished
        assert not run("import sys; sys.exit(0)").finished

    def test_time_memory_and_files_are_limited(self) -> None:
        limits = Limits(cpu_s=1, wall_s=5, memory_bytes=256 << 20, file_bytes=1 << 20)
        assert "CPU" in run("while True: pass", limits).why
        assert "MemoryError" in run("x = bytearray(1 << 30)", limits).why
        assert not run("open('a', 'wb').write(b'x' * (2 << 20))", limits).finished
        assert "not done" in run("import time; time.sleep(9)", Limits(wall_s=0.5)).why

    def test_the_environment_is_empty_and_the_folder_its_own(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SECRET", "s3cret")
        assert run("import os; assert 'SECRET' not in os.environ; assert os.listdir('.') == ['program.py']").finished

    def test_where_there_is_no_network_none_is_reached(self) -> None:
        ran = run("import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect(('127.0.0.1', 9))")
        assert ran.finished != ("no-network" in ran.held)

    def test_functions_are_judged_by_their_tests(self) -> None:
        opening, tests = "def f(x):\n", "assert f(1) == 2"
        assert judge_code("Sure:\n```python\ndef f(x):\n    return x + 1\n```", opening, tests)[0] == Outcome.RIGHT
        assert judge_code("    return x + 1", opening, tests)[0] == Outcome.RIGHT
        assert judge_code("    return x", opening, tests)[0] == Outcome.WRONG
        assert judge_code("", opening, tests)[0] == Outcome.UNPARSED
        assert code_of("```\na\n``` and ```py\nb\n```") == "b\n"
