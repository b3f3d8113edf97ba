"""GPU sensors in our units, each missing one named. A stand-in answers as the library does; the real card is opt-in."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace

import pytest

from dynamometer.errors import TargetError, UsageError
from dynamometer.telemetry.nvml import REASONS, SENSORS, Nvml, facts


class NVMLError(Exception):
    pass


def library(**other: object) -> ModuleType:
    """What pynvml has, with the answers of one card; `other` replaces functions."""
    found = ModuleType("pynvml")
    answers: dict[str, object] = {
        "NVMLError": NVMLError,
        "NVML_CLOCK_SM": 1,
        "NVML_CLOCK_MEM": 2,
        "NVML_TEMPERATURE_GPU": 0,
        "nvmlInit": lambda: None,
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda number: f"gpu{number}",
        "nvmlDeviceGetUtilizationRates": lambda gpu: SimpleNamespace(gpu=97, memory=40),
        "nvmlDeviceGetMemoryInfo": lambda gpu: SimpleNamespace(used=8 * 2**30, total=80 * 2**30),
        "nvmlDeviceGetPowerUsage": lambda gpu: 345_600,
        "nvmlDeviceGetEnforcedPowerLimit": lambda gpu: 700_000,
        "nvmlDeviceGetTotalEnergyConsumption": lambda gpu: 5_000_000,
        "nvmlDeviceGetPcieThroughput": lambda gpu, way: 1000 * (way + 1),
        "nvmlDeviceGetClockInfo": lambda gpu, which: 1980 if which == 1 else 2619,
        "nvmlDeviceGetTemperature": lambda gpu, which: 61,
        "nvmlDeviceGetCurrentClocksThrottleReasons": lambda gpu: 0x4 | 0x20,
        "nvmlSystemGetDriverVersion": lambda: "580.1",
        "nvmlSystemGetCudaDriverVersion": lambda: 12090,
        "nvmlDeviceGetName": lambda gpu: "NVIDIA H200",
    }
    bits = (0x1, 0x4, 0x8, 0x20, 0x40, 0x80)
    for name, value in {**answers, **dict(zip(REASONS, bits, strict=True)), **other}.items():
        setattr(found, name, value)
    return found


def test_units_are_ours() -> None:
    told = {row.name: row.value for row in Nvml([0], library()).read(7)}
    assert told["gpu_utilization_ratio"] == 0.97
    assert told["gpu_memory_used_bytes"] == 8 * 2**30
    assert told["gpu_power_w"] == pytest.approx(345.6)
    assert told["gpu_energy_j"] == 5000
    assert told["gpu_pcie_sent_bytes_per_s"] == 1000 * 1024
    assert told["gpu_pcie_received_bytes_per_s"] == 2000 * 1024
    assert (told["gpu_clock_mhz"], told["gpu_memory_clock_mhz"]) == (1980, 2619)


def test_throttle_reasons_become_one_row_each() -> None:
    told = {row.name: row.value for row in Nvml([0], library()).read(7)}
    assert told["gpu_throttled_by_power_cap"] == 1
    assert told["gpu_throttled_by_heat_software"] == 1
    assert told["gpu_throttled_by_hardware"] == 0
    assert told["gpu_idle"] == 0


def test_each_gpu_has_its_rows() -> None:
    rows = Nvml(None, library()).read(7)
    assert {row.device for row in rows} == {"0", "1"}
    assert len(rows) == 2 * (len(SENSORS) + len(REASONS))
    assert all(row.at_ns == 7 and row.source == "nvml" for row in rows)


def test_a_card_without_an_energy_counter_says_so_and_gives_no_zero() -> None:
    asked = []

    def lacking(gpu: object) -> int:
        asked.append(gpu)
        raise NVMLError("Not Supported")

    sampler = Nvml([0], library(nvmlDeviceGetTotalEnergyConsumption=lacking))
    names = {row.name for row in sampler.read(0) + sampler.read(1)}
    assert "gpu_energy_j" not in names
    assert "gpu_power_w" in names
    assert sampler.missing == ("nvml.gpu_energy_j (GPU 0: Not Supported)",)
    assert len(asked) == 1


def test_without_a_driver_it_says_what_to_look_at() -> None:
    def fails() -> None:
        raise NVMLError("Driver Not Loaded")

    with pytest.raises(TargetError, match=r"Driver Not Loaded.*nvidia-smi"):
        Nvml(None, library(nvmlInit=fails))


def test_a_gpu_that_is_not_here_is_refused() -> None:
    with pytest.raises(UsageError, match=r"GPU 5 is not here; NVML counts 2"):
        Nvml([0, 5], library())


def test_facts_name_driver_and_cards() -> None:
    told = facts(library())
    assert told["nvidia_driver"] == "580.1"
    assert told["cuda_driver"] == "12.9"
    assert told["gpu1"] == "NVIDIA H200"
    assert told["gpu0_memory_bytes"] == 80 * 2**30


@pytest.mark.gpu
def test_a_real_card_answers() -> None:
    sampler = Nvml()
    told = {row.name: row.value for row in sampler.read(0)}
    assert 0 < told["gpu_power_w"] <= told["gpu_power_limit_w"] * 1.1
    assert 0 <= told["gpu_utilization_ratio"] <= 1
    assert told["gpu_memory_used_bytes"] > 0
    assert "gpu_energy_j" in told or "gpu_energy_j" in " ".join(sampler.missing)
