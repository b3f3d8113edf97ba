"""The saturation fit on public curves and on an H200: errors on levels it did not see, and how often intervals hold."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np
import pytest

from dynamometer.models import saturation
from dynamometer.models.forms import THROUGHPUT

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
import curves  # noqa: E402


@pytest.fixture(scope="module")
def public() -> list[tuple[np.ndarray, np.ndarray]]:
    """Every eighth curve: the whole takes a minute and is what benchmarks/curves.py is for."""
    return list(curves.curves(BENCHMARKS / "data" / "serving_aic.csv").values())[::8]


def test_left_out_levels_are_predicted_better_than_by_the_hyperbola(public: list) -> None:
    errors = {}
    for name, families in (("chosen", THROUGHPUT), ("hyperbola", THROUGHPUT[:1])):
        misses = [m for x, y in public for i in range(1, len(x) - 1) for m in curves.left_out(x, y, [i], families)]
        errors[name] = np.median(np.abs([miss.error for miss in misses]))
        if name == "chosen":
            assert 0.84 <= np.mean([miss.held for miss in misses]) <= 0.97
    assert errors["chosen"] < 0.03
    assert errors["chosen"] < 0.8 * errors["hyperbola"]


def test_extrapolations_of_two_levels_miss_less_than_a_tenth_and_their_intervals_hold(public: list) -> None:
    misses = [m for x, y in public if len(x) >= 6 for m in curves.left_out(x, y, [len(x) - 2, len(x) - 1], THROUGHPUT)]
    assert len(misses) >= 20
    assert np.median(np.abs([miss.error for miss in misses])) < 0.10
    assert 0.80 <= np.mean([miss.held for miss in misses]) <= 0.99


@pytest.mark.parametrize("estimator", ["output_tokens_per_s", "windowed_tokens_per_s"])
def test_an_h200_is_fitted_within_two_and_a_half_percent_at_every_load(estimator: str) -> None:
    with (BENCHMARKS / "data" / "h200_closed.csv").open() as file:
        rows = list(csv.DictReader(file))
    x = np.array([float(row["concurrency"]) for row in rows])
    y = np.array([float(row[estimator]) for row in rows])
    found = saturation.fit(x, y)
    assert max(abs(row.error) for row in found.residuals()) < 0.025
    assert found.knee.value == pytest.approx(38, abs=4)
