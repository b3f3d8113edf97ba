"""The batch that a bandwidth, a latency and a memory allow: by hand, and what the printed formula leaves out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamometer.errors import UsageError
from dynamometer.hardware import fitting, gpu
from dynamometer.hardware.edge import Site, batch, printed_formula


def test_latency_limits_the_batch_to_what_can_be_read_in_time() -> None:
    """(0.05 s × 100 GB/s × 0.8 − 1 GB) / 10 MB = 300."""
    found = batch(Site(100e9, 10e6, weights_bytes=1e9), 0.05)
    assert (found.batch, found.limit) == (300, "latency")
    assert found.step_s == pytest.approx(0.05)
    assert found.throughput == pytest.approx(300 / 0.05)


def test_memory_limits_it_when_less_fits_than_could_be_read() -> None:
    found = batch(Site(100e9, 10e6, weights_bytes=1e9, memory_bytes=2e9), 0.05)
    assert (found.batch, found.limit, found.by_latency, found.by_memory) == (100, "memory", 300, 100)


def test_compute_limits_it_when_each_sample_is_dear() -> None:
    found = batch(Site(100e9, 10e6, rate=1e12, sample_flops=1e9), 0.05)
    assert (found.batch, found.limit) == (50, "compute")


def test_no_batch_meets_a_target_below_the_weights_own_reading() -> None:
    found = batch(Site(10e9, 1e6, weights_bytes=4e9), 0.1)
    assert found.batch == 0
    assert found.step_s > 0.1


def test_the_printed_formula_gives_neither_its_own_answers_nor_a_batch() -> None:
    """204.8e9 / 12.4e6 × 0.8 is 13,213 samples a second; printed beside it stood 132, and 44 for 68.3e9."""
    assert printed_formula(204.8e9, 12.4e6) == pytest.approx(13212.9, abs=0.1)
    assert printed_formula(68.3e9, 12.4e6) == pytest.approx(4406.5, abs=0.1)
    in_ten_ms = batch(Site(204.8e9, 12.4e6), 0.01)
    assert in_ten_ms.batch == 132


@given(latency=st.floats(1e-3, 10), more=st.floats(1.0, 5.0), weights=st.floats(0, 1e9))
def test_more_time_never_allows_less(latency: float, more: float, weights: float) -> None:
    site = Site(50e9, 12.4e6, weights_bytes=weights)
    assert batch(site, latency).batch <= batch(site, latency * more).batch


@pytest.mark.parametrize("site", [Site(0, 1), Site(1, 0), Site(1, 1, efficiency=0), Site(1, 1, efficiency=1.5)])
def test_nonsense_is_refused(site: Site) -> None:
    with pytest.raises(UsageError):
        batch(site, 0.1)


def test_r1_itself_fits_no_edge_board_but_its_small_distills_do() -> None:
    rows = {row.model: row for row in fitting.on_device(gpu.load("jetson-orin-nx-8gb"), "deepseek-r1", 4096)}
    assert rows["deepseek-r1"].format == ""
    assert rows["deepseek-r1"].bytes > 200e9
    assert rows["deepseek-r1-distill-qwen-1.5b"].format == "fp16"
    assert rows["deepseek-r1-distill-qwen-7b"].format in ("q5_k_m", "q4_k_m")
    assert rows["deepseek-r1-distill-qwen-14b"].format == ""
    ceiling = rows["deepseek-r1-distill-qwen-7b"].ceiling
    assert 10 < ceiling < 102.4e9 / 4e9


def test_no_built_in_by_that_name_is_an_error() -> None:
    with pytest.raises(UsageError, match="nothing-like-it"):
        fitting.on_device(gpu.load("rk3588"), "nothing-like-it", 4096)
