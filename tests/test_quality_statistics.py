"""Paired statistics and divergence against arithmetic, exact tests and simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dynamometer.decisions.quantization import Format, beaten_by_none, choose
from dynamometer.errors import UsageError
from dynamometer.quality.divergence import Along, along, kl_at_least, log_softmax, summary
from dynamometer.quality.paired import drop_of, mcnemar, paired, questions_for, questions_unpaired, smallest_drop
from dynamometer.types import Estimate


def test_mcnemar_is_the_exact_binomial_test() -> None:
    assert mcnemar(0, 0) == 1.0
    assert mcnemar(5, 5) == 1.0
    assert mcnemar(0, 10) == pytest.approx(2 * 0.5**10)
    assert mcnemar(12, 3) == pytest.approx(2 * sum(math.comb(15, k) for k in range(4)) / 2**15)
    assert mcnemar(3, 12) == mcnemar(12, 3)
    assert mcnemar(40_000, 41_000) == pytest.approx(math.erfc(999 / math.sqrt(2 * 81_000)), rel=0.01)


def test_the_interval_of_a_drop_holds_it_as_often_as_it_says() -> None:
    chance, hits = np.random.default_rng(3), 0
    for trial in range(300):
        lost, won, _ = chance.multinomial(400, [0.12, 0.06, 0.82])
        found = drop_of(400, int(lost), int(won), trial)
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= 6.0 <= found.high
    assert 0.91 <= hits / 300 <= 0.98  # 0.95 within three standard errors


def test_pairs_that_do_not_differ_are_no_proof() -> None:
    found = drop_of(100, 0, 0)
    assert found.high == pytest.approx(100 * (1 - 0.025**0.01))
    assert "no verdict" in paired([True] * 50, [True] * 50).verdict


def test_so_many_questions_show_the_drop_in_four_trials_of_five() -> None:
    """By simulation: the number that the formula gives has the power that it promises."""
    n, chance = questions_for(0.046, 0.12), np.random.default_rng(1)
    drawn = chance.multinomial(n, [0.083, 0.037, 0.88], 2000)
    share = np.mean([mcnemar(int(lost), int(won)) < 0.05 for lost, won, _ in drawn])
    assert 0.76 <= share <= 0.84  # the exact test is a little more careful than the formula


def test_pairing_saves_questions_and_a_smaller_drop_needs_more() -> None:
    assert questions_for(0.046, 0.12) < questions_unpaired(0.046, 0.8)
    assert questions_for(0.01, 0.12) > questions_for(0.046, 0.12) > questions_for(0.068, 0.12)
    n = questions_for(0.05, 0.1)
    assert smallest_drop(n, 0.1) == pytest.approx(0.05, rel=0.01)
    with pytest.raises(UsageError):
        questions_for(0.2, 0.1)


def test_verdicts_are_given_outside_the_noise_alone() -> None:
    worse = paired([True] * 100, [True] * 80 + [False] * 20)
    assert worse.verdict.startswith("worse")
    assert (worse.lost, worse.won, worse.both) == (20, 0, 80)
    assert paired([False] * 20 + [True] * 80, [True] * 100).verdict.startswith("better")
    assert paired([True] * 99 + [False], [True] * 98 + [False] * 2).verdict.startswith("no verdict")
    close = paired([True] * 1000, [True] * 999 + [False], margin=2.0)
    assert close.verdict.startswith("not worse by more than 2 points")


def test_divergence_of_known_distributions() -> None:
    p, q = np.log(np.array([[0.5, 0.5], [0.9, 0.1]], np.float32)), np.log(np.array([[0.25, 0.75]] * 2, np.float32))
    found = along("t", [0, 1], p, q)
    assert found.kl == [pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3), rel=1e-5)]
    assert found.baseline == [pytest.approx(math.log(0.5))]
    assert along("t", [0, 1], p, p).kl == [0.0]


def test_cut_lists_give_a_lower_bound_that_is_exact_when_they_are_whole() -> None:
    chance = np.random.default_rng(0)
    for _ in range(50):
        p, q = (log_softmax(chance.normal(0, 2, (1, 40)).astype(np.float32))[0] for _ in range(2))
        true = float((np.exp(p) * (p - q)).sum())
        tops = [{str(int(i)): float(x[i]) for i in np.argsort(-x)} for x in (p, q)]
        assert kl_at_least(tops[0], tops[1]) == pytest.approx(true, rel=1e-3)
        for n in (1, 5, 20):
            cut = [dict(list(top.items())[:n]) for top in tops]
            assert -1e-9 <= kl_at_least(cut[0], cut[1]) <= true + 1e-6


def test_perplexity_and_drift_come_from_the_log_probabilities() -> None:
    n = 300
    made = [Along(f"{at}", [0.1] * n, [True] * n, [-1.0] * n, [-1.0 - 0.001 * i for i in range(n)]) for at in range(6)]
    found = summary(made)
    assert found.perplexity[0].value == pytest.approx(math.e)
    assert found.drift_slope.value == pytest.approx(-0.1)
    assert found.bands[0].drift.value == pytest.approx(-0.0075)
    assert [band.last for band in found.bands] == [16, 32, 64, 128, 256, 300]
    assert summary(made[:3]).kl.low is None  # three texts do not say how texts differ


def _format(name: str, size: int, rate: float, agreement: float | None, kl: float | None) -> Format:
    def one(value: float | None) -> Estimate | None:
        return None if value is None else Estimate(value, value, value, 9, "")

    return Format(name, size, None, None, one(rate), one(kl), one(agreement))


def test_the_fastest_that_agrees_enough_is_chosen_and_what_flips_it_is_said() -> None:
    formats = [
        _format("F16", 400, 50, None, None),
        _format("Q8", 200, 70, 98, 0.004),
        _format("Q5", 150, 60, 96, 0.01),
        _format("Q4", 100, 90, 90, 0.05),
        _format("Q3", 120, 40, 80, 0.2),
    ]
    found = choose(formats, 95)
    assert found.answer == "Q8"
    assert found.flips[0].startswith("if 90.0 % were enough, Q4")
    assert "Q5" in found.flips[1]
    assert choose(formats, 99).answer == "F16"
    assert beaten_by_none(formats) == ("F16", "Q8", "Q5", "Q4")


def test_a_gate_with_a_margin_closes_unless_the_loss_is_shown_to_be_smaller() -> None:
    from dynamometer.cli.quality_run import closes

    few, many = paired([True] * 6, [True] * 6), paired([True] * 400, [True] * 400)
    worse = paired([True] * 100, [True] * 80 + [False] * 20)
    assert closes(few, 2)  # six equal answers show nothing about two points
    assert not closes(many, 2)
    assert closes(worse, 2)
    assert closes(worse, 0)
    assert not closes(few, 0)
    assert closes(None, 2)
    assert not closes(None, 0)
