"""Foretelling serving points: the law that made them is found, own points help, odd ones do not spoil others."""

from __future__ import annotations

import numpy as np
import pytest

from dynamometer.errors import UsageError
from dynamometer.models.serving import Points, coefficients, leave_series_out

pytest.importorskip("scipy")


def made(seed: int, odd: bool = False, series: int = 12, each: int = 15) -> Points:
    """Points of a law of two causes, with an effect of each series and 2 % of noise."""
    chance = np.random.default_rng(seed)
    n = series * each
    batch = chance.uniform(0, 5, n)
    causes = np.stack([chance.uniform(0.002, 0.02, n), np.exp(batch) * 1e-4], axis=1)
    label = np.repeat(np.arange(series), each)
    effect = chance.normal(0, 0.15, series)[label]
    seconds = causes @ [1.3, 0.8] * np.exp(effect + chance.normal(0, 0.02, n))
    if odd:
        seconds[label == 0] *= 4
    nearness = np.stack([batch, chance.uniform(0, 1, n)], axis=1)
    return Points(causes, nearness, label % 3, label % 4, label % 2, label % 5, label, seconds)


def miss(points: Points, own: int = 0, without: int = -1) -> float:
    found = leave_series_out(points, own=own)
    keep = found.known & (points.series != without)
    return float(np.mean(np.abs(found.seconds / points.seconds - 1)[keep]))


def test_the_coefficients_of_the_law_are_found_and_are_never_negative() -> None:
    points = made(1)
    found = coefficients(points, np.arange(len(points.seconds)))
    assert found == pytest.approx([1.3, 0.8], rel=0.15)
    useless = Points(
        np.column_stack([points.causes, -points.causes[:, 0]]),
        *(getattr(points, name) for name in Points.__struct_fields__[1:]),
    )
    assert (coefficients(useless, np.arange(len(points.seconds))) >= 0).all()


def test_three_points_of_a_series_tell_its_own_effect() -> None:
    points = made(2)
    assert miss(points, own=3) < 0.5 * miss(points)
    assert miss(points, own=3) < 0.05


def test_a_series_of_four_times_the_time_does_not_double_the_error_of_the_others() -> None:
    assert miss(made(3, odd=True), without=0) < 2 * miss(made(3), without=0)


def test_the_intervals_hold_what_they_promise() -> None:
    points = made(4, series=30)
    found = leave_series_out(points)
    z = np.abs(np.log(points.seconds / found.seconds)) / found.spread
    assert 0.70 < np.mean(z < 1.2816) <= 1.0


def test_a_series_too_small_to_give_points_away_is_not_predicted_from_its_own() -> None:
    points = made(5, series=4, each=6)
    assert not leave_series_out(points, own=3).known.any()
    with pytest.raises(UsageError, match="too few"):
        leave_series_out(made(6, series=1, each=5))
