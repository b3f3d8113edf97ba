"""The device table: spellings, sources, conflicts, and no sparse figure sold as dense."""

from __future__ import annotations

import pytest

from dynamometer.errors import UsageError
from dynamometer.hardware import gpu

WANTED = [
    "a10",
    "a100-pcie",
    "a100-sxm",
    "l40s",
    "rtx-4090",
    "rtx-6000-ada",
    "h100-pcie",
    "h100-sxm",
    "h100-nvl",
    "h200",
    "h800",
    "b200",
    "gb200",
    "b300",
    "mi300x",
    "mi325x",
    "mi355x",
    "tpu-v5e",
    "tpu-v6e",
    "gaudi-3",
    "ascend-910b",
    "ascend-910c",
    "mlu370",
    "jetson-orin-nx-16gb",
    "jetson-agx-orin",
    "rk3588",
    "apple-m2-ultra",
    "apple-m3-ultra",
    "apple-m4-ultra",
    "epyc-9654",
    "xeon-8480",
]


@pytest.mark.parametrize("name", WANTED)
def test_a_device_has_memory_and_bandwidth_with_a_source(name: str) -> None:
    device = gpu.load(name)
    for figure in (device.memory_bytes, device.bandwidth, *device.rates.values()):
        assert figure.low > 0
        assert figure.sources
        assert all(gpu.source_text(key) != key for key in figure.sources)
    assert list(device.bandwidth.values) == sorted(device.bandwidth.values)


@pytest.mark.parametrize(
    ("text", "count", "name"),
    [
        ("A100-80GB", 1, "a100-sxm"),
        ("NVIDIA H100 80GB HBM3", 1, "h100-sxm"),
        ("8xH100-SXM", 8, "h100-sxm"),
        ("2 × A100", 2, "a100-sxm"),
        ("H100 x8", 8, "h100-sxm"),
        ("rtx 4090", 1, "rtx-4090"),
        ("NVIDIA GeForce RTX 4090", 1, "rtx-4090"),
        ("MLU370-X8", 1, "mlu370"),
        ("A100 40GB", 1, "a100-sxm-40gb"),
        ("Ascend 910B", 1, "ascend-910b"),
    ],
)
def test_usual_spellings_are_understood(text: str, count: int, name: str) -> None:
    times, device = gpu.fleet(text)
    assert device is not None
    assert (times, device.name) == (count, name)


def test_a_size_that_no_variant_has_is_kept_as_stated_and_said() -> None:
    device = gpu.find("Jetson-Orin-NX-4GB")
    assert device is not None
    assert device.memory_bytes.high == 4e9
    assert "no NVIDIA Jetson Orin NX" in device.note


def test_conflicting_public_figures_are_all_kept() -> None:
    rate = gpu.load("ascend-910b").rates["fp16"]
    assert rate.conflict
    assert (rate.low, rate.high) == (256e12, 320e12)


def test_dense_rates_are_not_the_sparse_ones_of_the_headline() -> None:
    assert gpu.load("h100-sxm").rates["bf16"].high == pytest.approx(989e12)
    assert gpu.load("l40s").rates["fp8"].high == pytest.approx(733e12)
    for device in gpu.devices():
        if device.sparse and "fp8" in device.rates and "bf16" in device.rates:
            assert device.rates["fp8"].high <= 4.1 * device.rates["bf16"].high


def test_eight_bit_integers_are_slow_on_blackwell_ultra() -> None:
    b300 = gpu.load("b300")
    assert b300.rates["int8"].high < b300.rates["fp8"].high / 25


def test_an_unknown_device_lists_near_names() -> None:
    with pytest.raises(UsageError, match="h100"):
        gpu.get("h100-ultra")
    assert gpu.find("toaster") is None
