"""torch in, a Cambricon MLU out, through torch_mlu."""

from __future__ import annotations

from types import ModuleType

from dynamometer.kernels.backends import Backend, plugin


def reach(torch: ModuleType) -> Backend | str:
    return plugin(torch, "mlu", "torch_mlu")
