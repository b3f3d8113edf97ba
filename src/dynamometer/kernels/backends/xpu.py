"""torch in, an Intel GPU out."""

from __future__ import annotations

from types import ModuleType

from dynamometer.kernels.backends import Backend, accelerator


def reach(torch: ModuleType) -> Backend | str:
    return accelerator(torch, "xpu", "xpu", {}, graphs=False)
