"""Lengths as text, padding to a token, plain words, shared prefixes, conversations."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from toy_tokens import count_tokens

from dynamometer import workload
from dynamometer.errors import MissingPath, UsageError
from dynamometer.types import Workload
from dynamometer.workload.lengths import parse
from dynamometer.workload.padding import fit, longest
from dynamometer.workload.plan import Estimated
from dynamometer.workload.session import zipf
from dynamometer.workload.words import vocabulary


def drawn(text: str, n: int = 4000) -> np.ndarray:
    lengths = parse(text, "input_tokens")
    assert lengths is not None
    chance = np.random.default_rng(0)
    return np.array([lengths.draw(chance) for _ in range(n)])


class TestLengths:
    def test_fixed(self) -> None:
        assert set(drawn("512", 10)) == {512}
        assert set(drawn("32k", 10)) == {32768}
        assert parse("", "input_tokens") is None

    def test_uniform_reaches_both_ends_alike(self) -> None:
        counts = np.bincount(drawn("uniform:3:7"), minlength=8)[3:]
        assert stats.chisquare(counts).pvalue > 0.001

    def test_normal_has_its_mean_and_spread(self) -> None:
        lengths = drawn("normal:512:64")
        assert lengths.mean() == pytest.approx(512, abs=4 * 64 / np.sqrt(4000))
        assert lengths.std() == pytest.approx(64, rel=0.05)

    def test_lognormal_has_its_median_and_sigma(self) -> None:
        lengths = drawn("lognormal:400:0.8")
        assert np.median(lengths) == pytest.approx(400, rel=0.06)
        assert np.log(lengths).std() == pytest.approx(0.8, rel=0.05)

    def test_bounds_bound(self) -> None:
        lengths = drawn("lognormal:400:2:100:1000")
        assert lengths.min() >= 100
        assert lengths.max() <= 1000
        assert set(drawn("normal:5:0.001:50:60", 5)) == {50}

    def test_a_histogram_file_gives_its_shares(self, tmp_path: Path) -> None:
        file = tmp_path / "lengths.csv"
        file.write_text("tokens,weight\n10,1\n20,3\n")
        lengths = drawn(f"histogram:{file}")
        assert (lengths == 20).mean() == pytest.approx(0.75, abs=0.03)
        file.write_text("low,high,weight\n1,4,2\n5,5,2\n")
        lengths = drawn(f"histogram:{file}")
        assert (lengths == 5).mean() == pytest.approx(0.5, abs=0.03)
        assert set(lengths) == {1, 2, 3, 4, 5}

    @pytest.mark.parametrize(
        "text",
        ["0", "-3", "1.5", "abc", "uniform:9:3", "uniform:1", "normal:512", "normal:512:-1", "lognormal:5:x", "512:3",
         "normal:512:1:9:3", "99999999999", "nan", "uniform:0:5", "gauss:1:2"],
    )  # fmt: skip
    def test_a_length_that_is_none_is_refused_in_one_line(self, text: str) -> None:
        with pytest.raises(UsageError, match="input_tokens") as wrong:
            parse(text, "input_tokens")
        assert "\n" not in str(wrong.value)

    @pytest.mark.parametrize(
        ("body", "line"),
        [
            ("", 1),
            ("a,b\n", 1),
            ("tokens,weight\n5\n", 2),
            ("tokens,weight\n5,1\nx,1\n", 3),
            ("low,high,weight\n9,3,1\n", 2),
        ],
    )
    def test_a_bad_histogram_names_its_line(self, tmp_path: Path, body: str, line: int) -> None:
        file = tmp_path / "lengths.csv"
        file.write_text(body)
        with pytest.raises(UsageError, match=rf"lengths\.csv:{line}:"):
            parse(f"histogram:{file}", "input_tokens")

    def test_a_histogram_that_is_not_there_or_empty_is_said_so(self, tmp_path: Path) -> None:
        with pytest.raises(MissingPath, match="no histogram file"):
            parse(f"histogram:{tmp_path / 'none.csv'}", "input_tokens")
        (tmp_path / "zero.csv").write_text("tokens,weight\n5,0\n")
        with pytest.raises(UsageError, match="no bin has a weight"):
            parse(f"histogram:{tmp_path / 'zero.csv'}", "input_tokens")


class TestPadding:
    def test_longest_is_the_largest_that_fits(self) -> None:
        for target in range(0, 60, 7):
            k, tokens = longest(lambda k: "ab " * k, 40, target, lambda text: 5 + 2 * text.count("a"))
            assert (k, tokens) == (max(0, min(40, (target - 5) // 2)), 5 + 2 * k)

    def test_a_head_that_is_too_long_stays_whole(self) -> None:
        assert fit("x" * 400, [" a"] * 9, " end", 10, Estimated(4)) == ("x" * 400 + " end", 101)

    def test_a_counter_in_leaps_gets_as_near_as_it_can_from_below(self) -> None:
        _, tokens = fit("", [" w"] * 100, "", 25, lambda text: len(text) // 20 * 10)
        assert tokens == 20


def test_the_vocabulary_has_hundreds_of_plain_words_each_once() -> None:
    assert len(vocabulary()) == len(set(vocabulary())) > 800
    assert all(word.isalpha() and word.islower() for word in vocabulary())


@pytest.mark.parametrize("tokens", [64, 1000, 16000])
def test_synthetic_prompts_have_exactly_the_tokens_asked_for(tokens: int) -> None:
    asked = Workload("synthetic", input_tokens=str(tokens), output_tokens="uniform:5:9")
    for request in islice(workload.build(asked, 0, count_tokens, "run"), 10):
        assert count_tokens(request.messages[0].content or "") == request.input_tokens == tokens
        assert 5 <= request.output_tokens <= 9


def test_a_synthetic_prompt_too_short_for_its_own_words_is_refused() -> None:
    with pytest.raises(UsageError, match=r"input_tokens is 3; the shortest prompt .* has \d+"):
        workload.build(Workload("synthetic", input_tokens="3"), 0, count_tokens, "run")


class TestPrefix:
    def test_prompts_of_a_group_share_an_opening_of_the_asked_length_and_groups_do_not(self) -> None:
        asked = Workload("prefix", input_tokens="300", options={"prefix_tokens": "200", "groups": "3"})
        by_group: dict[str, list[str]] = {}
        for request in islice(workload.build(asked, 0, count_tokens, "run"), 60):
            assert count_tokens(request.messages[0].content or "") == 300
            by_group.setdefault(request.family, []).append(request.messages[0].content or "")
        assert len(by_group) == 3
        openings = set()
        for prompts in by_group.values():
            shared = _common(prompts)
            assert count_tokens(shared) == pytest.approx(200, abs=3)
            openings.add(shared[:20])
        assert len(openings) == 3

    def test_zipf_makes_the_second_group_half_as_likely_at_exponent_one(self) -> None:
        shares = zipf(5, 1.0)
        assert shares.sum() == pytest.approx(1)
        assert shares[0] / shares[1] == pytest.approx(2)
        assert np.allclose(zipf(4, 0.0), 0.25)

    def test_a_prefix_that_leaves_no_room_is_refused(self) -> None:
        with pytest.raises(UsageError, match="shared prefix alone 256"):
            workload.build(Workload("prefix", input_tokens="256"), 0, count_tokens, "run")


def _common(prompts: list[str]) -> str:
    first, last = min(prompts), max(prompts)
    return first[: next(i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b)]


class TestSession:
    def test_each_turn_follows_its_own_predecessor_and_leaves_answers_to_the_engine(self) -> None:
        asked = Workload("session", output_tokens="50", options={"turns": "3", "sessions": "2", "think": "2s"})
        made = list(islice(workload.build(asked, 0, count_tokens, "run"), 12))
        assert [(r.session, r.turn, r.after) for r in made[:6]] == [
            ("s0", 0, -1), ("s1", 0, -1), ("s0", 1, 0), ("s1", 1, 1), ("s0", 2, 2), ("s1", 2, 3),
        ]  # fmt: skip
        assert [r.session for r in made[6:8]] == ["s2", "s3"]
        assert [m.role for m in made[4].messages] == ["user", "assistant", "user", "assistant", "user"]
        assert [m.content is None for m in made[4].messages] == [False, True, False, True, False]
        assert made[4].messages[:3] == made[2].messages  # the history is kept word for word
        assert [r.think_s for r in made[:6]] == [0, 0, 2, 2, 2, 2]
        frame = count_tokens("")  # of the chat template: once in a conversation, not in each turn
        assert [r.input_tokens for r in made if r.session == "s0"] == [
            128,
            128 + 50 + 128 - frame,
            2 * (128 + 50 - frame) + 128,
        ]

    def test_a_system_text_comes_first_and_carries_the_salt(self) -> None:
        asked = Workload("session", options={"system_tokens": "60", "turns": "2"})
        first = next(workload.build(asked, 0, count_tokens, "run"))
        assert [m.role for m in first.messages] == ["system", "user"]
        assert (first.messages[0].content or "").startswith("[")
        assert not (first.messages[1].content or "").startswith("[")

    def test_think_times_may_be_exponential(self) -> None:
        asked = Workload("session", options={"think": "exponential:2s", "turns": "50", "sessions": "20"})
        thinks = [r.think_s for r in islice(workload.build(asked, 0, None, "run"), 1000) if r.turn]
        assert np.mean(thinks) == pytest.approx(2, rel=0.15)
        assert stats.kstest(thinks, "expon", args=(0, 2)).pvalue > 0.001

    def test_turns_may_differ_and_nobody_is_left_out(self) -> None:
        asked = Workload("session", options={"turns": "uniform:1:4", "sessions": "5"})
        made = list(islice(workload.build(asked, 0, None, "run"), 200))
        turns: dict[str, list[int]] = {}
        for request in made:
            turns.setdefault(request.session, []).append(request.turn)
        assert all(seen == list(range(len(seen))) for seen in turns.values())
        assert {len(seen) for seen in list(turns.values())[:-5]} == {1, 2, 3, 4}

    @pytest.mark.parametrize("options", [{"think": "soon"}, {"think": "-1s"}, {"turns": "0"}, {"sessions": "0"}])
    def test_nonsense_is_refused(self, options: dict[str, str]) -> None:
        with pytest.raises(UsageError, match=next(iter(options))):
            list(islice(workload.build(Workload("session", options=options), 0, None, "run"), 20))
