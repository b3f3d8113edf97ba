"""A backend in, what must stand beside every figure out: device, driver, versions, date."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version

from dynamometer.kernels.backends import Backend
from dynamometer.kernels.backends.cpu import processor
from dynamometer.record.clock import wall_ns

_PACKAGES = ("triton", "numpy", "torchao", "openvino", "onnx", "fa3-fwd", "flash-attn", "flash-attn-4")


def describe(backend: Backend) -> dict[str, str]:
    """Device, its driver, the versions of what computes, and the day."""
    facts = dict(backend.facts)
    if backend.name in ("cuda", "rocm"):
        facts["driver"] = _driver()
    facts["host"] = f"{processor()}, {os.cpu_count()} processors, Linux {platform.release()}"
    for package in _PACKAGES:
        try:
            facts[package] = version(package)
        except PackageNotFoundError:
            continue
    facts["date"] = datetime.fromtimestamp(wall_ns() / 1e9, UTC).strftime("%Y-%m-%d")
    return facts


def _driver() -> str:
    """The GPU's driver by its own tool; "unknown" without it."""
    for command in (
        ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
        ["rocm-smi", "--showdriverversion"],
    ):
        try:
            said = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
        except (OSError, subprocess.SubprocessError):
            continue
        lines = said.strip().splitlines()
        return lines[0] if lines else "unknown"
    return "unknown"
