"""NVIDIA's management library in, `Sample` rows of each GPU out: use, memory, power, energy, PCIe, clocks,
throttling.

Utilization and power are NVML's means over its last window (20 ms to 1 s, by model). The energy counter is exact, so
energy over a run is the counter's rise, never power times time. A sensor that a card lacks is named once, never a 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Final, cast

from dynamometer.errors import TargetError, UsageError
from dynamometer.plugins import optional
from dynamometer.types import Sample

SOURCE: Final = "nvml"
Sensor = Callable[[ModuleType, object], float]

# Sensor -> how to ask for it. PCIe throughput takes NVML 20 ms each, its measuring window.
SENSORS: Final[Mapping[str, Sensor]] = {
    "gpu_utilization_ratio": lambda nvml, gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100,
    "gpu_memory_busy_ratio": lambda nvml, gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).memory / 100,
    "gpu_memory_used_bytes": lambda nvml, gpu: nvml.nvmlDeviceGetMemoryInfo(gpu).used,
    "gpu_power_w": lambda nvml, gpu: nvml.nvmlDeviceGetPowerUsage(gpu) / 1e3,
    "gpu_power_limit_w": lambda nvml, gpu: nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1e3,
    "gpu_energy_j": lambda nvml, gpu: nvml.nvmlDeviceGetTotalEnergyConsumption(gpu) / 1e3,
    "gpu_pcie_sent_bytes_per_s": lambda nvml, gpu: nvml.nvmlDeviceGetPcieThroughput(gpu, 0) * 1024,
    "gpu_pcie_received_bytes_per_s": lambda nvml, gpu: nvml.nvmlDeviceGetPcieThroughput(gpu, 1) * 1024,
    "gpu_clock_mhz": lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),
    "gpu_memory_clock_mhz": lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM),
    "gpu_temperature_c": lambda nvml, gpu: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),
}
# Why the clock is below its highest: NVML's bit -> row with 1 or 0. Idle is no throttling.
REASONS: Final[Mapping[str, str]] = {
    "nvmlClocksThrottleReasonGpuIdle": "gpu_idle",
    "nvmlClocksThrottleReasonSwPowerCap": "gpu_throttled_by_power_cap",
    "nvmlClocksThrottleReasonHwSlowdown": "gpu_throttled_by_hardware",
    "nvmlClocksThrottleReasonSwThermalSlowdown": "gpu_throttled_by_heat_software",
    "nvmlClocksThrottleReasonHwThermalSlowdown": "gpu_throttled_by_heat_hardware",
    "nvmlClocksThrottleReasonHwPowerBrakeSlowdown": "gpu_throttled_by_power_brake",
}


class Nvml:
    """A sampler. `devices`: GPU numbers as NVML counts them, which need not be CUDA's order; None = all."""

    def __init__(self, devices: Sequence[int] | None = None, library: ModuleType | None = None) -> None:
        self._nvml = library or cast(ModuleType, optional("pynvml", "gpu"))
        try:
            self._nvml.nvmlInit()
            count = int(self._nvml.nvmlDeviceGetCount())
        except self._nvml.NVMLError as wrong:
            raise TargetError(f"NVML cannot be used ({wrong}); nvidia-smi tells whether a driver is loaded") from wrong
        chosen = list(range(count)) if devices is None else list(devices)
        beyond = [number for number in chosen if not 0 <= number < count]
        if beyond:
            raise UsageError(f"GPU {beyond[0]} is not here; NVML counts {count}, from 0")
        self._gpus = {number: self._nvml.nvmlDeviceGetHandleByIndex(number) for number in chosen}
        self._missing: dict[tuple[str, int], str] = {}

    @property
    def missing(self) -> tuple[str, ...]:
        return tuple(f"{SOURCE}.{name} (GPU {gpu}: {why})" for (name, gpu), why in sorted(self._missing.items()))

    def read(self, at_ns: int) -> list[Sample]:
        rows: list[Sample] = []
        for number, gpu in self._gpus.items():
            found = {
                name: value for name in SENSORS if (value := self._ask(name, SENSORS[name], number, gpu)) is not None
            }
            bits = self._ask("gpu_throttled", _throttle_bits, number, gpu)
            if bits is not None:
                for constant, name in REASONS.items():
                    found[name] = float(bool(int(bits) & int(getattr(self._nvml, constant))))
            rows += [Sample(SOURCE, name, str(number), at_ns, float(value)) for name, value in found.items()]
        return rows

    def _ask(self, name: str, sensor: Sensor, number: int, gpu: object) -> float | None:
        """None if the card has no such sensor, or it fails now; a sensor that was lacking is not asked again."""
        if (name, number) in self._missing:
            return None
        try:
            return sensor(self._nvml, gpu)
        except self._nvml.NVMLError as wrong:
            self._missing[name, number] = str(wrong)
            return None


def _throttle_bits(nvml: ModuleType, gpu: object) -> float:
    return int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu))


def facts(library: ModuleType | None = None) -> dict[str, str | int | float]:
    """What a record says of the GPUs: driver, CUDA version, and each card's name and memory in bytes."""
    nvml = library or cast(ModuleType, optional("pynvml", "gpu"))
    nvml.nvmlInit()
    cuda = int(nvml.nvmlSystemGetCudaDriverVersion())
    found: dict[str, str | int | float] = {
        "nvidia_driver": str(nvml.nvmlSystemGetDriverVersion()),
        "cuda_driver": f"{cuda // 1000}.{cuda % 1000 // 10}",
    }
    for number in range(int(nvml.nvmlDeviceGetCount())):
        gpu = nvml.nvmlDeviceGetHandleByIndex(number)
        found[f"gpu{number}"] = str(nvml.nvmlDeviceGetName(gpu))
        found[f"gpu{number}_memory_bytes"] = int(nvml.nvmlDeviceGetMemoryInfo(gpu).total)
    return found
