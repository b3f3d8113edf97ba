"""Factorial effects and ablations by arithmetic."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dynamometer.errors import UsageError
from dynamometer.models import effects


class TestAblation:
    def test_the_worked_example_has_an_interaction_of_one_percent_on_the_ratio_scale(self) -> None:
        found = effects.ablation([1842], [2157], [2396], [2834], "tokens/s")
        assert found.gain_a.value == pytest.approx(1.171, abs=5e-4)
        assert found.gain_b.value == pytest.approx(1.301, abs=5e-4)
        assert found.gain_both.value == pytest.approx(1.539, abs=5e-4)
        assert found.expected.value == pytest.approx(1.5232, abs=5e-4)
        assert found.interaction.value == pytest.approx(2834 * 1842 / (2157 * 2396))
        assert found.interaction.value == pytest.approx(1.010, abs=5e-4)
        assert found.interaction_rate.value == pytest.approx(2834 - 2157 - 2396 + 1842)  # +123 tokens/s

    def test_one_run_of_each_gives_no_interval_and_says_why(self) -> None:
        found = effects.ablation([1842], [2157], [2396], [2834], "tokens/s")
        assert found.interaction.low is None
        assert "repeat the runs" in found.interaction.method

    def test_ninety_percent_intervals_of_the_interaction_hold_about_ninety_percent(self) -> None:
        chance = np.random.default_rng(0)
        held, n, truth = 0, 1500, 1.05
        for _ in range(n):
            runs = [
                list(mean * np.exp(0.02 * chance.standard_normal(3)))
                for mean in (100.0, 117.0, 130.0, 100 * 1.17 * 1.30 * truth)
            ]
            found = effects.ablation(*runs, "tokens/s").interaction
            assert found.low is not None
            assert found.high is not None
            held += found.low <= truth <= found.high
        assert held / n == pytest.approx(0.90, abs=0.025)

    def test_a_failed_run_is_refused(self) -> None:
        with pytest.raises(UsageError, match="both has"):
            effects.ablation([1], [2], [3], [0], "tokens/s")
        with pytest.raises(UsageError, match="A has"):
            effects.ablation([1], [], [3], [1], "tokens/s")


class TestFull:
    def test_two_factors_are_four_runs_in_standard_order(self) -> None:
        assert effects.full(["a", "b"]).rows.tolist() == [[-1, -1], [1, -1], [-1, 1], [1, 1]]

    def test_columns_are_orthogonal(self) -> None:
        rows = effects.full(["a", "b", "c"]).rows
        assert np.array_equal(rows.T @ rows, 8 * np.eye(3))

    def test_known_effects_are_found_on_both_scales(self) -> None:
        design = effects.full(["fast", "wide", "deep"])
        on = design.rows > 0
        y = [100 * 1.2**a * 0.9**b * (1.1 if a and c else 1.0) for a, b, c in on]
        found = effects.analyse(design, [[v] for v in y], "tokens/s")
        assert found.ratio["wide"].value == pytest.approx(0.9)
        assert found.ratio["fast:deep"].value == pytest.approx(math.sqrt(1.1))
        assert found.ratio["fast"].value == pytest.approx(1.2 * math.sqrt(1.1))
        assert found.ratio["fast:wide"].value == pytest.approx(1)
        assert found.difference["wide"].value == pytest.approx(
            np.mean(np.array(y)[on[:, 1]]) - np.mean(np.array(y)[~on[:, 1]])
        )
        assert found.difference["wide"].unit == "tokens/s"
        assert found.aliases == {}

    def test_an_effect_that_is_none_is_called_none_about_nine_times_in_ten(self) -> None:
        design, chance = effects.full(["a", "b"]), np.random.default_rng(1)
        inside = 0
        for _ in range(800):
            y = [list(np.exp(0.05 * chance.standard_normal(2))) for _ in range(4)]
            found = effects.analyse(design, y, "x").ratio["a"]
            assert found.low is not None
            assert found.high is not None
            inside += found.low <= 1 <= found.high
        assert inside / 800 == pytest.approx(0.9, abs=0.035)

    def test_repeats_are_complete_and_each_is_shuffled(self) -> None:
        order = effects.order_of(effects.full(["a", "b", "c"]), 3, np.random.default_rng(0))
        assert [repeat for _, repeat in order] == [0] * 8 + [1] * 8 + [2] * 8
        blocks = [[row for row, _ in order[i : i + 8]] for i in (0, 8, 16)]
        assert all(sorted(block) == list(range(8)) for block in blocks)
        assert blocks[0] != blocks[1] != list(range(8))


class TestFractional:
    def test_a_half_fraction_of_four_factors_is_eight_orthogonal_runs_with_its_aliases(self) -> None:
        design = effects.fractional(["w", "x", "y", "z"], ["D=ABC"])
        assert len(design.rows) == 8
        assert np.array_equal(design.rows.T @ design.rows, 8 * np.eye(4))
        aliases = design.aliases()
        assert aliases["w:x"] == ("y:z",)
        assert "w" not in aliases  # main effects are clear of two-factor interactions: resolution IV

    def test_resolution_three_aliases_main_effects_and_says_so(self) -> None:
        design = effects.fractional(["a", "b", "c"], ["C=AB"])
        assert design.aliases()["c"] == ("a:b",)

    def test_main_effects_of_a_fraction_are_found(self) -> None:
        design = effects.fractional(["a", "b", "c", "d"], ["D=ABC"])
        y = [[50 * 1.5**a * 0.8**d] for a, _, _, d in design.rows > 0]
        found = effects.analyse(design, y, "tokens/s").ratio
        assert found["a"].value == pytest.approx(1.5)
        assert found["d"].value == pytest.approx(0.8)
        assert found["b"].value == pytest.approx(1)

    @pytest.mark.parametrize("generator", ["D=AD", "C=AB", "D=", "D=AA", "D=A", "nonsense", "D=AXB"])
    def test_a_generator_that_is_none_is_refused(self, generator: str) -> None:
        with pytest.raises(UsageError, match="generator"):
            effects.fractional(["a", "b", "c", "d"], [generator])


def test_bad_designs_are_refused() -> None:
    for names in ([], ["a", "a"], [str(i) for i in range(13)]):
        with pytest.raises(UsageError, match="different names"):
            effects.full(names)
    design = effects.full(["a"])
    with pytest.raises(UsageError, match="2 rows, 1 are measured"):
        effects.analyse(design, [[1.0]], "x")
    with pytest.raises(UsageError, match="row 2 of the design"):
        effects.analyse(design, [[1.0], [-1.0]], "x")
    with pytest.raises(UsageError, match="leave no factor free"):
        effects.fractional(["a"], ["B=A"])
