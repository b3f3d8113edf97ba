"""Energy of a device from whichever sensor can be believed; case D04."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest
from answer_rows import connect, plain, run

from dynamometer.decisions import energy
from dynamometer.decisions.energy import Series, device_energy, per_token, total, watt_hours
from dynamometer.metrics.summary import summarize


def series(*pairs: tuple[float, float]) -> Series:
    return Series(np.array([p[0] for p in pairs], dtype=float), np.array([p[1] for p in pairs], dtype=float))


POWER = series((0, 50), (1, 250), (2, 250), (3, 50))  # W
COUNTER = series((0, 1000), (3, 1600))  # J
STUCK = series((0, 1000), (3, 1000))


def test_case_d04_without_a_counter_power_is_integrated_never_0() -> None:
    """(50 + 250) / 2 + 250 + (250 + 50) / 2 = 550 J; 550 / 300 tokens = 1.833 J; 550 / 3,600 = 0.1528 Wh."""
    found = device_energy("a", power=POWER)
    assert found.joules == 550
    assert found.method == "integrated from power samples"
    assert per_token(total([found]), 300).value == pytest.approx(1.833, abs=5e-4)
    assert watt_hours(550) == pytest.approx(0.1528, abs=5e-5)


def test_case_d04_a_counter_is_exact() -> None:
    found = device_energy("b", counter=COUNTER)
    assert (found.joules, found.mean_w, found.method) == (600, 200, "counter")


def test_case_d04_a_counter_that_stands_still_under_power_is_stale() -> None:
    found = device_energy("c", STUCK, series((0, 65), (3, 65)))
    assert found.joules == pytest.approx(195)
    assert found.method == "counter stale; integrated from power samples"


def test_case_d04_not_supported_is_na_in_every_sum() -> None:
    whole = total([device_energy("b", counter=COUNTER), device_energy("d")])
    assert whole.value is None
    assert whole.method == "d: no energy counter and no power samples"
    assert per_token(whole, 300).value is None


def test_a_counter_that_falls_is_not_believed() -> None:
    found = device_energy("e", series((0, 1000), (1, 1200), (2, 100)), POWER)
    assert found.joules == 550
    assert found.method.startswith("counter fell")


def test_a_stale_counter_alone_has_no_energy() -> None:
    assert device_energy("f", STUCK).joules is None


def test_sensors_that_disagree_are_both_told() -> None:
    assert device_energy("g", COUNTER, POWER).method == "counter"  # 550 against 600: within a tenth
    assert "550 J" in device_energy("g", series((0, 0), (3, 1000)), POWER).method


def test_no_token_no_energy_a_token() -> None:
    assert per_token(total([device_energy("b", counter=COUNTER)]), 0).method == "no token came in the window"


def test_a_run_gives_joules_a_token_of_each_meter_and_never_adds_them() -> None:
    answers = plain(50, ttft=20, step=10, tokens=3, every=100)  # 5 s, 150 tokens
    rows = [("power_w", at * 100.0, 20.0) for at in range(51)]
    with closing(connect(answers, rows)) as connection:
        connection.executemany(
            "insert into samples values ('nvml', 'gpu_energy_j', '0', ?, ?)",
            [(at * 100_000_000, 1000.0 + at * 10.0) for at in range(51)],
        )
        connection.executemany(  # a second sampler of the same board must not double it
            "insert into samples values ('prometheus', 'gpu_energy_j', '0', ?, ?)",
            [(at * 100_000_000, 5.0 + at * 10.0) for at in range(51)],
        )
        summarize(connection, run(), steady=False)
        meters = {one.meter: one for one in energy.used(connection)}
    assert meters["gpu"].mean_w == pytest.approx(100)
    assert meters["cpu"].mean_w == pytest.approx(20)
    joules = meters["gpu"].joules.value
    assert joules is not None
    assert meters["gpu"].joules_per_output_token.value == pytest.approx(joules / 150, rel=0.03)
    assert len(meters["gpu"].devices) == 1


def test_a_run_without_sensors_has_no_energy() -> None:
    with closing(connect(plain(10))) as connection:
        summarize(connection, run(), steady=False)
        assert energy.used(connection) == ()
