"""The comparison against real models (llama.cpp's library and server) and servers that lack what it needs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from dynamometer.cli import dyno
from dynamometer.errors import Refused
from dynamometer.quality.divergence import along
from dynamometer.quality.questions import Question
from dynamometer.quality.sides import Json, Side, Way, ask, hear, heard_along, same_template, template_of

pytest.importorskip("xllamacpp", reason="llama.cpp is not installed: pip install 'dynamometer[llamacpp]'")

from dynamometer.cli.quality_sides import Local, named, opened
from dynamometer.engines.embedded import model_file, silent
from dynamometer.quality.logits import reader

TEXT = "The capital of France is Paris. 7 + 5 = 12, and 12 - 5 = 7."


@pytest.fixture(scope="module")
def side() -> Iterator[Side]:
    with opened(named("baseline", "Q8_0", "", "", "", silent), Local(2, 512, 1), silent) as (made, _):
        yield made


@pytest.mark.real
class TestLlamaCpp:
    def test_the_servers_list_is_the_top_of_the_librarys_vocabulary(self, side: Side) -> None:
        """Two ways to the same numbers: teacher forcing in the library, and one request a token over HTTP."""
        heard, way = hear(side, TEXT, 20, 12)
        assert way == Way.STEPS
        with reader(model_file("smollm2", "Q8_0"), 64, 1) as model:
            ids = model.tokens(TEXT)[:12]
            logs = model.log_probabilities(ids)
        assert heard.tokens == tuple(map(str, ids))
        assert np.exp(logs).sum(axis=1) == pytest.approx(1.0, abs=1e-3)
        for row, top in zip(logs, heard.tops, strict=False):
            for token, value in top.items():
                # one token after another and all at once differ in the order of sums, and so in the last digits
                assert row[int(token)] == pytest.approx(value, abs=0.15)

    def test_a_model_against_itself_loses_nothing(self) -> None:
        file = model_file("smollm2", "Q8_0")
        with reader(file, 64, 1) as a, reader(file, 64, 1) as b:
            ids = a.tokens(TEXT)
            found = along("t", ids, a.log_probabilities(ids), b.log_probabilities(ids))
        assert max(found.kl) == 0
        assert all(found.agree)

    def test_a_coarser_cache_loses_more_and_is_really_there(self) -> None:
        file = model_file("smollm2", "Q8_0")
        lost = {}
        for kind in ("Q8_0", "Q4_0"):
            with reader(file, 64, 1) as a, reader(file, 64, 1, kind) as b:
                ids = a.tokens(TEXT)
                lost[kind] = np.mean(along("t", ids, a.log_probabilities(ids), b.log_probabilities(ids)).kl)
        assert 0 < lost["Q8_0"] < lost["Q4_0"]

    def test_choices_and_templates(self, side: Side) -> None:
        assert {"rendered", "tokens", "prompt tokens"} == side.template.keys()
        said = ask(side, Question("1", "choice", "2 + 2 =\nA. 4\nB. 9\nAnswer:", "A", ("4", "9")), 1, 0)
        assert said.text in ("A", "B")

    def test_the_verb_goes_on_where_it_was_stopped(self, tmp_path: Path) -> None:
        words = ["quality", "--baseline", "Q8_0", "--candidate", "Q4_0", "-n", "3", "--max-tokens", "8", "--texts", "5"]
        words += ["--tokens", "24", "--out", str(tmp_path / "q"), "--json"]
        first = json.loads(CliRunner().invoke(dyno, words, catch_exceptions=False).output)
        assert first["texts"]["exact"]
        assert first["texts"]["kl"]["value"] > 0
        rows = (tmp_path / "q" / "answers.jsonl").read_text().splitlines()
        assert len(rows) == 6
        (tmp_path / "q" / "answers.jsonl").write_text("\n".join(rows[:4]) + '\n{"side":"cand')  # killed in a line
        again = json.loads(CliRunner().invoke(dyno, words, catch_exceptions=False).output)
        assert again["answers"] == first["answers"]
        other = CliRunner().invoke(dyno, [*words, "--max-tokens", "9"])
        assert "another comparison" in str(other.exception)


def server(prompt_tokens: int, echo: bool = False) -> Side:
    """A server as vLLM answers: echoed log-probabilities where it has them."""

    def call(path: str, body: object = None, *, root: bool = False) -> tuple[int, Json]:
        if path == "/chat/completions":
            return 200, {
                "choices": [{"message": {"content": "#### 4"}, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": prompt_tokens, "completion_tokens": 3},
            }
        if path == "/completions" and echo:
            logprobs = {
                "tokens": ["a", "b", "c", "x"],
                "token_logprobs": [None, -0.1, -2.0, -1.0],
                "top_logprobs": [None, {"b": -0.1, "z": -3.0}, {"q": -0.5, "c": -2.0}, {"x": -1.0}],
            }
            return 200, {"choices": [{"text": "abcx", "logprobs": logprobs}], "usage": {"prompt_tokens": 3}}
        return 404, {"error": "no such route"}

    made = Side("baseline", "s", "m", call)
    return Side("baseline", "s", "m", call, template_of(made))


def test_other_chat_templates_are_refused() -> None:
    assert "prompt tokens" in same_template(server(20), server(20))
    with pytest.raises(Refused, match="chat differently"):
        same_template(server(20), server(24))


def test_echoed_log_probabilities_are_read_without_the_token_made_after_them() -> None:
    heard, way = hear(server(20, echo=True), "abc", 2, 99)
    assert way == Way.ECHO
    assert heard.given == (-0.1, -2.0)
    found = heard_along("t", heard, heard)
    assert found.kl == [0.0, 0.0]
    assert not found.exact


def test_a_server_without_log_probabilities_is_told() -> None:
    with pytest.raises(Refused, match="neither the prompt's log-probabilities"):
        hear(server(20), "abc", 2, 99)
