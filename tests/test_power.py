"""Energy a token, joint score, Pareto front."""

from __future__ import annotations

import numpy as np
import pytest

from dynamometer.errors import Refused, UsageError
from dynamometer.models import power
from dynamometer.models.power import Operating

BATCH = np.array([8.0, 16, 32, 64, 128, 256])


def test_the_two_parameters_of_energy_are_found_again() -> None:
    found = power.fit_energy(BATCH, 0.05 + 5.2 / BATCH)
    assert found.parameters["e0"].value == pytest.approx(0.05)
    assert found.parameters["e1"].value == pytest.approx(5.2)
    assert found.misfit == pytest.approx(0, abs=1e-9)
    assert power.predict_energy(found, 100) == pytest.approx(0.05 + 0.052)


def test_ninety_percent_intervals_of_energy_hold_about_ninety_percent() -> None:
    chance = np.random.default_rng(0)
    held, n = {"e0": 0, "e1": 0}, 800
    for _ in range(n):
        found = power.fit_energy(BATCH, (0.05 + 5.2 / BATCH) * np.exp(0.03 * chance.standard_normal(6)))
        for name, truth in (("e0", 0.05), ("e1", 5.2)):
            part = found.parameters[name]
            assert part.low is not None
            assert part.high is not None
            held[name] += part.low <= truth <= part.high
    assert all(count / n == pytest.approx(0.9, abs=0.04) for count in held.values()), held


def test_a_part_that_would_be_negative_is_zero() -> None:
    found = power.fit_energy(BATCH, 5 / BATCH**1.2)
    assert found.parameters["e0"].value == 0
    assert (found.parameters["e1"].value or 0) > 0
    assert power.fit_energy(BATCH, 0.1 + 0 * BATCH).parameters["e1"].value == pytest.approx(0, abs=1e-12)


def test_energy_outside_the_measured_batches_is_refused_unless_asked() -> None:
    found = power.fit_energy(BATCH, 0.05 + 5.2 / BATCH)
    with pytest.raises(Refused, match="batch 512 lies outside the measured range 8 to 256"):
        power.predict_energy(found, 512)
    assert power.predict_energy(found, 512, extrapolate=True) == pytest.approx(0.05 + 5.2 / 512)


def test_too_few_batches_and_missing_readings_are_refused() -> None:
    with pytest.raises(Refused, match="2 batches are too few"):
        power.fit_energy(np.array([8.0, 8, 16]), np.array([1.0, 1, 0.5]))
    with pytest.raises(UsageError, match="a missing reading is no reading of 0"):
        power.fit_energy(BATCH, 0 * BATCH)


def test_idle_power_is_told_apart() -> None:
    point = Operating("a", 1000, 500, "gpu", idle_w=100)
    assert power.energy(point) == power.Energy(0.5, pytest.approx(0.4), pytest.approx(0.2), "gpu")
    assert power.energy(Operating("a", 1000, 500, "wall")).net_j is None
    with pytest.raises(UsageError, match="idle 600 W is not between"):
        power.energy(Operating("a", 1000, 500, "gpu", idle_w=600))


def test_the_joint_score_is_one_at_the_reference_and_weighs_as_told() -> None:
    reference = Operating("ref", 1000, 400, "gpu")
    assert power.score(reference, reference) == pytest.approx(1)
    twice = Operating("twice", 2000, 600, "gpu")
    assert power.score(twice, reference, alpha=0.7, beta=0.3) == pytest.approx(0.7 / 2 + 0.3 * 1.5)
    with pytest.raises(UsageError, match="weights"):
        power.score(twice, reference, alpha=0, beta=0)


def test_the_front_holds_what_nothing_beats_in_both() -> None:
    points = [
        Operating("slow", 100, 100, "gpu"),
        Operating("worse", 90, 150, "gpu"),
        Operating("fast", 300, 400, "gpu"),
        Operating("middle", 200, 200, "gpu"),
        Operating("same as middle", 200, 200, "gpu"),
        Operating("waste", 300, 500, "gpu"),
    ]
    assert [point.name for point in power.pareto(points)] == ["slow", "middle", "fast"]


def test_gpu_and_wall_power_are_not_compared() -> None:
    with pytest.raises(UsageError, match="of different meters"):
        power.pareto([Operating("a", 1, 1, "gpu"), Operating("b", 1, 1, "wall")])
    with pytest.raises(UsageError, match="one of gpu, cpu, wall"):
        power.energy(Operating("a", 1, 1, "rack"))
