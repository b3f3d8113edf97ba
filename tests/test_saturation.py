"""Saturation curves on known truth: parameters, knee, choice, coverage, refusals."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dynamometer.errors import Refused, UsageError
from dynamometer.models import saturation
from dynamometer.models.forms import THROUGHPUT, Form
from dynamometer.models.leastsq import solve
from dynamometer.types import Float64

LEVELS = np.array([1, 2, 4, 8, 16, 32, 64, 128], dtype=float)
A, B = 11_161.0, 74.0  # an 8B model on one H100


def hyperbola(x: Float64) -> Float64:
    return A * x / (B + x)


def noisy(y: Float64, seed: int, sigma: float = 0.04) -> Float64:
    return np.asarray(y * np.exp(sigma * np.random.default_rng(seed).standard_normal(len(y))))


class TestLeastSquares:
    @pytest.mark.parametrize("form", THROUGHPUT, ids=lambda form: form.name)
    def test_each_family_finds_its_own_parameters_again(self, form: Form) -> None:
        truth = {
            "hyperbola": [9.3, 4.3],
            "usl": [5.0, -4.0, -10.0],
            "hill": [9.3, 4.3, -0.2],
            "two regimes": [-4.5, -9.0, -8.0, 3.0],
        }[form.name]
        y = np.exp(form.curve(np.array([truth]), LEVELS))
        found = solve(form.curve, LEVELS, np.log(y), form.starts(LEVELS, y[0]), form.box(LEVELS, y[0]))
        assert np.allclose(form.curve(found.theta, LEVELS), np.log(y), atol=2e-3)
        assert found.theta[0][0] == pytest.approx(truth[0], abs=0.05)

    def test_a_batch_gives_what_its_members_give_alone(self) -> None:
        form = THROUGHPUT[0]
        y = np.log([noisy(hyperbola(LEVELS), seed) for seed in range(5)])
        starts, bounds = form.starts(LEVELS, hyperbola(LEVELS)), form.box(LEVELS, hyperbola(LEVELS))
        together = solve(form.curve, LEVELS, y, starts, bounds).theta
        alone = np.array([solve(form.curve, LEVELS, row[None], starts, bounds).theta[0] for row in y])
        assert np.allclose(together, alone, atol=1e-5)

    def test_a_weight_of_zero_leaves_a_point_out(self) -> None:
        form, y = THROUGHPUT[0], hyperbola(LEVELS)
        spoilt = np.log(np.where(LEVELS == 8, 3 * y, y))[None]
        weight = (LEVELS != 8).astype(float)[None]
        found = solve(form.curve, LEVELS, spoilt, form.starts(LEVELS, y), form.box(LEVELS, y), weight)
        assert np.exp(found.theta[0]) == pytest.approx([A, B], rel=1e-3)

    def test_scipy_finds_no_better_minimum(self) -> None:
        from scipy.optimize import least_squares

        form = THROUGHPUT[2]
        for seed in range(5):
            y = np.log(noisy(hyperbola(LEVELS), seed, 0.1))
            bounds = form.box(LEVELS, np.exp(y))
            ours = solve(form.curve, LEVELS, y[None], form.starts(LEVELS, np.exp(y)), bounds).cost[0]
            start = form.starts(LEVELS, np.exp(y))[0]
            theirs = least_squares(lambda p, y=y: form.curve(p, LEVELS) - y, start, bounds=bounds)
            assert ours <= 2 * theirs.cost * 1.001


def test_a_hyperbola_is_chosen_for_a_hyperbola_and_its_knee_is_b() -> None:
    x = np.repeat(LEVELS, 3)
    found = saturation.fit(x, noisy(hyperbola(x), 0))
    assert found.chosen.form.name == "hyperbola"
    assert found.chosen.fit.parameters["a"].value == pytest.approx(A, rel=0.1)
    assert found.knee.value == pytest.approx(B, rel=0.1)
    assert found.knee.low is not None
    assert found.knee.high is not None
    assert found.knee.low < B < found.knee.high
    assert found.limit.value == pytest.approx(A, rel=0.1)
    assert found.top.value == pytest.approx(hyperbola(np.array([128.0]))[0], rel=0.05)


def test_a_curve_with_two_regimes_is_not_called_a_hyperbola() -> None:
    step_s = 0.006 + 0.00002 * np.minimum(LEVELS, 32) + 0.0004 * np.maximum(LEVELS - 32, 0)
    found = saturation.fit(LEVELS, LEVELS / step_s)
    assert found.chosen.form.name == "two regimes"
    assert found.chosen.fit.parameters["b"].value == pytest.approx(32, rel=0.02)
    assert found.chosen.fit.parameters["t"].value == pytest.approx(0.006, rel=0.01)


def test_usl_s_peak_is_the_root_of_one_less_sigma_over_kappa() -> None:
    sigma, kappa = 0.02, 0.0004
    y = 100 * LEVELS / (1 + sigma * (LEVELS - 1) + kappa * LEVELS * (LEVELS - 1))
    found = saturation.fit(LEVELS, y)
    assert found.chosen.form.name == "usl"
    peak = math.sqrt((1 - sigma) / kappa)
    best = 100 * peak / (1 + sigma * (peak - 1) + kappa * peak * (peak - 1))
    assert found.limit.value == pytest.approx(best, rel=0.01)


def test_the_knee_is_where_power_is_largest() -> None:
    found = saturation.fit(LEVELS, hyperbola(LEVELS))
    x = np.geomspace(1, 128, 5000)
    power = hyperbola(x) ** 2 / x  # throughput over latency, by Little's law
    assert found.knee.value == pytest.approx(x[power.argmax()], rel=0.02)


def test_a_knee_outside_the_measured_range_is_not_told() -> None:
    low = LEVELS[:5]
    beyond = saturation.fit(low, hyperbola(low))
    assert beyond.knee.value is None
    assert "beyond the highest" in beyond.knee.method
    high = LEVELS * 200
    below = saturation.fit(high, hyperbola(high))
    assert below.knee.value is None
    assert "below the lowest" in below.knee.method


def test_ninety_percent_intervals_of_parameters_and_knee_hold_about_ninety_percent() -> None:
    x = np.repeat(LEVELS, 2)
    held = {"a": 0, "b": 0, "knee": 0}
    n = 0
    for seed in range(300):
        found = saturation.fit(x, noisy(hyperbola(x), seed), resamples=150, families=THROUGHPUT[:1])
        n += 1
        parts = {**found.chosen.fit.parameters, "knee": found.knee}
        for name, truth in (("a", A), ("b", B), ("knee", B)):
            low, high = parts[name].low, parts[name].high
            held[name] += (low is None or low <= truth) and (high is None or truth <= high)
    for name, count in held.items():
        assert 0.83 <= count / n <= 0.98, (name, count / n)


def test_with_four_runs_a_level_runs_are_drawn_again_and_the_coverage_stays() -> None:
    x = np.repeat(LEVELS[1:7], 4)
    held = n = 0
    for seed in range(300):
        found = saturation.fit(x, noisy(hyperbola(x), seed, 0.05), resamples=150, families=THROUGHPUT[:1])
        b = found.chosen.fit.parameters["b"]
        assert b.low is not None
        assert b.high is not None
        held += b.low <= B <= b.high
        n += 1
    assert 0.82 <= held / n <= 0.98


def test_ninety_percent_predictions_hold_about_ninety_percent_of_new_runs() -> None:
    held = n = 0
    for seed in range(60):
        found = saturation.fit(LEVELS, noisy(hyperbola(LEVELS), seed), resamples=2)
        for new in (3.0, 24.0, 100.0):
            run = noisy(hyperbola(np.array([new])), 10_000 + 10 * seed + int(new))[0]
            said = saturation.predict(found, new)
            assert said.low is not None
            assert said.high is not None
            held += said.low <= run <= said.high
            n += 1
    assert 0.84 <= held / n <= 0.97


@pytest.fixture(scope="module")
def found() -> saturation.Saturation:
    return saturation.fit(LEVELS, noisy(hyperbola(LEVELS), 1))


class TestExtrapolation:
    def test_it_is_refused_unless_asked(self, found: saturation.Saturation) -> None:
        with pytest.raises(Refused, match="512 lies outside the measured range 1 to 128"):
            saturation.predict(found, 512)
        assert saturation.predict(found, 512, extrapolate=True).method.startswith("extrapolated from 1 to 128")

    def test_its_interval_widens_with_the_distance(self, found: saturation.Saturation) -> None:
        widths = []
        for x in (128.0, 129.0, 256.0, 1024.0):
            said = saturation.predict(found, x, extrapolate=True)
            assert said.low is not None
            assert said.high is not None
            widths.append(math.log(said.high / said.low))
        assert widths == sorted(widths)
        assert widths[-1] > 2 * widths[0]

    def test_it_holds_the_truth_of_a_hyperbola(self, found: saturation.Saturation) -> None:
        said = saturation.predict(found, 512, extrapolate=True)
        assert said.low is not None
        assert said.high is not None
        assert said.low < hyperbola(np.array([512.0]))[0] < said.high

    @pytest.mark.parametrize("x", [0.0, -1.0, math.nan, math.inf])
    def test_a_concurrency_that_is_none_is_refused(self, found: saturation.Saturation, x: float) -> None:
        with pytest.raises(UsageError, match="give a number above 0"):
            saturation.predict(found, x, extrapolate=True)


def test_residuals_name_the_level_that_misses() -> None:
    y = hyperbola(LEVELS)
    y[3] *= 1.2
    rows = saturation.fit(LEVELS, y).residuals()
    assert [row.x for row in rows] == list(LEVELS)
    assert max(rows, key=lambda row: abs(row.left_out or 0)).x == 8
    assert rows[0].left_out is None


def test_three_levels_are_too_few_and_bad_values_are_refused() -> None:
    with pytest.raises(Refused, match="3 load levels are too few"):
        saturation.fit(np.array([1.0, 2, 4, 4]), np.array([1.0, 2, 3, 3]))
    with pytest.raises(UsageError, match="above 0"):
        saturation.fit(LEVELS, np.zeros(8))
    with pytest.raises(UsageError, match="finite"):
        saturation.fit(LEVELS, np.full(8, math.nan))


def test_a_straight_line_has_no_limit_and_no_knee() -> None:
    found = saturation.fit(LEVELS, 100 * LEVELS)
    assert found.limit.value is None
    assert found.knee.value is None


def test_throughput_that_falls_is_fitted_without_failing() -> None:
    found = saturation.fit(LEVELS, 1000 / LEVELS)
    assert found.knee.value is None


def test_the_same_seed_gives_the_same_intervals() -> None:
    y = noisy(hyperbola(LEVELS), 3)
    assert saturation.fit(LEVELS, y, seed=5).knee == saturation.fit(LEVELS, y, seed=5).knee
