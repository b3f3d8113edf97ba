"""Sensitivity against functions whose answer is known on paper."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from dynamometer.decisions.flip import flips, sensitivity
from dynamometer.decisions.sensitivity import (
    Factor,
    break_even,
    curve,
    draw,
    heat,
    quantile,
    sobol,
    tornado,
)
from dynamometer.errors import MissingExtra, UsageError
from dynamometer.types import Float64

A = Factor("a", 0.0, 1.0, 2.0)
B = Factor("b", 0.0, 1.0, 2.0)
FIXED = Factor("c", 3.0, 3.0, 3.0)


def added(values: Mapping[str, Float64]) -> Float64:
    return values["a"] + 2 * values["b"]


def ratio(values: Mapping[str, Float64]) -> Float64:
    return values["x"] / values["y"]


def test_the_tornado_ranks_by_swing_and_leaves_out_what_does_not_move() -> None:
    swings = tornado(added, (A, B, FIXED))
    assert [swing.name for swing in swings] == ["b", "a"]
    assert (swings[0].low, swings[0].high) == (1.0, 5.0)


def test_elasticity_of_a_ratio_is_plus_and_minus_one() -> None:
    swings = {s.name: s for s in tornado(ratio, (Factor("x", 1, 2, 3), Factor("y", 4, 5, 6)))}
    assert swings["x"].elasticity == pytest.approx(1, abs=1e-6)
    assert swings["y"].elasticity == pytest.approx(-1, abs=1e-6)


def test_sobol_shares_of_a_sum_are_its_variances() -> None:
    """Var(a + 2b) = v + 4v for equal laws: 1/5 and 4/5, alone and in total, for a sum has no interactions."""
    indices = {index.name: index for index in sobol(added, (A, B, FIXED), 2048)}
    assert set(indices) == {"a", "b"}
    for name, share in (("a", 0.2), ("b", 0.8)):
        assert indices[name].first == pytest.approx(share, abs=0.03)
        assert indices[name].total == pytest.approx(share, abs=0.03)


def test_sobol_sees_an_interaction_that_the_tornado_can_not() -> None:
    """(a - 1)(b - 1) at its base is flat in each factor alone; all its variance is interaction."""

    def saddle(values: Mapping[str, Float64]) -> Float64:
        return (values["a"] - 1) * (values["b"] - 1)

    assert tornado(saddle, (A, B)) == ()
    for index in sobol(saddle, (A, B), 2048):
        assert index.first == pytest.approx(0, abs=0.05)
        assert index.total == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("shape", [(0.0, 0.5, 2.0), (1.0, 1.0, 3.0), (1.0, 3.0, 3.0)])
def test_a_triangle_has_its_mean_and_variance(shape: tuple[float, float, float]) -> None:
    low, base, high = shape
    values = draw((Factor("t", low, base, high),), 40_000)["t"]
    assert values.mean() == pytest.approx((low + base + high) / 3, rel=1e-3)
    variance = (low**2 + base**2 + high**2 - low * base - low * high - base * high) / 18
    assert values.var() == pytest.approx(variance, rel=1e-2)
    assert low <= values.min() <= values.max() <= high


def test_an_interval_holds_95_of_100_draws_on_either_side_of_its_base() -> None:
    values = draw((Factor("i", 80.0, 100.0, 150.0, "interval"),), 40_000)["i"]
    assert float(np.mean(values < 80)) == pytest.approx(0.025, abs=2e-3)
    assert float(np.mean(values > 150)) == pytest.approx(0.025, abs=2e-3)
    assert float(np.median(values)) == pytest.approx(100, rel=1e-3)


def test_a_factor_without_a_range_stays_where_it_is() -> None:
    assert quantile(FIXED, np.array([0.1, 0.9])).tolist() == [3.0, 3.0]


def test_the_same_seed_draws_the_same_cases() -> None:
    one, two, three = (draw((A, B), 100, seed)["a"] for seed in (1, 1, 2))
    assert (one == two).all()
    assert (one != three).any()


def test_break_even_is_where_the_target_is_met() -> None:
    factors = (Factor("x", 1, 2, 3), Factor("y", 4, 5, 6))
    assert break_even(ratio, factors, "y", 0.8, (0.1, 100)) == pytest.approx(2.5)
    assert break_even(ratio, factors, "y", 1e9, (0.1, 100)) is None


def test_of_several_break_evens_the_nearest_is_told() -> None:
    def hill(values: Mapping[str, Float64]) -> Float64:
        return (values["h"] - 2) ** 2

    factors = (Factor("h", 1, 4, 5),)
    assert break_even(hill, factors, "h", 1.0, (0.2, 80)) == pytest.approx(3)


def test_flips_come_with_the_smallest_change_first_and_say_whether_the_range_holds_them() -> None:
    factors = (Factor("x", 1, 2, 3), Factor("y", 4, 5, 6))
    found = flips(ratio, factors, 0.5)
    assert [flip.name for flip in found] == ["x", "y"] or [flip.name for flip in found] == ["y", "x"]
    by_name = {flip.name: flip for flip in found}
    assert by_name["x"].at == pytest.approx(2.5)
    assert by_name["x"].inside
    assert by_name["y"].at == pytest.approx(4)


def test_curve_and_heat_table_cover_the_ranges() -> None:
    points = curve(added, (A, B), "a", 3)
    assert points == ((0.0, 2.0), (1.0, 3.0), (2.0, 4.0))
    cells = heat(added, (A, B), "a", "b", 3)
    assert len(cells) == 9
    assert {(cell.x, cell.y): cell.result for cell in cells}[(2.0, 0.0)] == 2.0


def test_the_words_name_what_matters_most() -> None:
    found = sensitivity(added, (A, B), "usd_per_request", size=256)
    assert found.matters_most == "b"
    assert found.words.startswith("B matters most: from 0 to 2 the price of a request goes from 1 to 5")


def test_nothing_matters_when_nothing_moves() -> None:
    found = sensitivity(lambda values: values["c"], (FIXED,), "usd_per_request")
    assert found.matters_most is None
    assert found.tornado == found.sobol == ()


def test_without_salib_everything_else_is_there_and_the_note_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(module: str, extra: str) -> object:
        raise MissingExtra("SALib", extra)

    monkeypatch.setattr("dynamometer.decisions.sensitivity.optional", missing)
    found = sensitivity(added, (A, B), "usd_per_request")
    assert found.sobol == ()
    assert "dynamometer[fit]" in found.sobol_note
    assert found.matters_most == "b"


def test_an_unknown_factor_is_named() -> None:
    with pytest.raises(UsageError, match="one of a, b"):
        curve(added, (A, B), "z")
