"""The coding prompts: right answers, exact lengths, variety."""

from __future__ import annotations

import ast
import shutil
import subprocess
import tomllib
from collections import Counter
from importlib.resources import files
from itertools import islice
from pathlib import Path

import duckdb
import numpy as np
import pytest
from toy_tokens import count_tokens

from dynamometer import workload
from dynamometer.errors import UsageError
from dynamometer.types import Workload
from dynamometer.workload import filler
from dynamometer.workload.code import DIFFICULTIES, FAMILIES, tasks


@pytest.mark.parametrize("language", FAMILIES)
def test_there_are_forty_templates_in_three_difficulties_and_hundreds_of_prompts(language: str) -> None:
    table = tomllib.loads((files("dynamometer.workload") / "tasks" / f"{language}.toml").read_text())
    levels = Counter(template["difficulty"] for template in table["task"])
    assert sum(levels.values()) >= 40
    assert set(levels) == set(DIFFICULTIES)
    assert min(levels.values()) >= 10
    prompts = {task.text for task in tasks(language)}
    assert len(prompts) == len(tasks(language)) >= 450
    assert not [text for text in prompts if "@" in text]


def test_every_python_answer_makes_its_function_pass_its_check() -> None:
    table = tomllib.loads((files("dynamometer.workload") / "tasks" / "python.toml").read_text())
    keys, *rows = table["names"]
    for template in table["task"]:
        for row in (rows[0], rows[-1]):
            code, answer, check = (template[name] for name in ("code", "answer", "check"))
            for key, word in zip(keys, row, strict=True):
                code, answer, check = (text.replace(f"@{key}@", word) for text in (code, answer, check))
            assert "\n" not in answer
            assert code.count("____") == 1
            space: dict[str, object] = {}
            exec(code.replace("____", answer), space)
            assert eval(check, space) is True, code


def test_every_sql_answer_is_five_lines_and_runs_on_the_tables_of_its_prompt() -> None:
    with duckdb.connect() as base:
        for task in tasks("sql"):
            assert len(task.answer.splitlines()) == 5
            made = task.text[: task.text.rindex(");") + 2].replace("CREATE TABLE", "CREATE TABLE IF NOT EXISTS")
            base.execute(made)
            base.execute(f"EXPLAIN {task.answer}")


@pytest.mark.skipif(not shutil.which("node"), reason="needs node to parse JavaScript")
def test_every_javascript_task_parses(tmp_path: Path) -> None:
    source = tmp_path / "tasks.mjs"
    functions = [task.text.rpartition("\n\n")[0] for task in tasks("javascript")]
    source.write_text("\n".join(f"{{ {function} }}" for function in functions))
    found = subprocess.run(["node", "--check", str(source)], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr


def test_javascript_tasks_are_some_ten_lines_without_await() -> None:
    for task in tasks("javascript"):
        function = task.text.rpartition("\n\n")[0]
        assert 8 <= len(function.splitlines()) <= 13
        assert "await" not in function


@pytest.mark.parametrize("name", ["code", "python", "sql", "javascript"])
@pytest.mark.parametrize("tokens", [400, 512, 2048])
def test_prompts_have_exactly_the_tokens_asked_for(name: str, tokens: int) -> None:
    requests = islice(workload.build(Workload(name, input_tokens=str(tokens)), 1, count_tokens, "run"), 24)
    for request in requests:
        text = request.messages[0].content
        assert text is not None
        assert count_tokens(text) == request.input_tokens == tokens


def test_bare_tasks_are_not_padded() -> None:
    first = next(workload.build(Workload("python", fresh=False), 0, count_tokens))
    assert first.messages[0].content in {task.text for task in tasks("python")}
    assert first.reference


def test_the_three_families_take_turns() -> None:
    made = islice(workload.build(Workload("code"), 0, None, "run"), 6)
    assert [request.family for request in made] == [*FAMILIES.values(), *FAMILIES.values()]


def test_no_task_comes_twice_before_all_have_come_once() -> None:
    n = len(tasks("python", "hard"))
    asked = Workload("python", fresh=False, options={"difficulty": "hard"})
    made = [request.messages[0].content for request in islice(workload.build(asked, 0), 2 * n)]
    assert len(set(made[:n])) == len(set(made[n:])) == n
    assert made[:n] != made[n:]


def test_a_spread_of_lengths_is_kept_and_a_task_is_never_cut() -> None:
    asked = Workload("python", input_tokens="uniform:1:700")
    for request in islice(workload.build(asked, 0, count_tokens, "run"), 60):
        text = request.messages[0].content
        assert text is not None
        assert request.input_tokens == count_tokens(text)
        assert text.endswith("and nothing else.")


def test_a_length_below_the_longest_task_is_refused_with_that_length() -> None:
    with pytest.raises(UsageError, match=r"input_tokens is 20; the longest task .* alone has some \d+ tokens"):
        workload.build(Workload("sql", input_tokens="20"), 0, count_tokens, "run")


def test_padding_in_python_is_python_and_fresh_for_each_request() -> None:
    blocks = "".join(islice(filler.blocks("python", np.random.default_rng(0)), 200))
    ast.parse(blocks)
    asked = Workload("python", input_tokens="600", fresh=False)
    made = [request.messages[0].content or "" for request in islice(workload.build(asked, 0, count_tokens), 50)]
    assert len({text[:200] for text in made}) == 50


def test_making_a_512_token_prompt_asks_the_tokenizer_at_most_twenty_times() -> None:
    calls = 0

    def counted(text: str) -> int:
        nonlocal calls
        calls += 1
        return count_tokens(text)

    made = workload.build(Workload("code", input_tokens="512"), 0, counted, "run")
    before = calls
    list(islice(made, 30))
    assert (calls - before) / 30 <= 20
