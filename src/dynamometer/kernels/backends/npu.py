"""torch in, an Ascend NPU out, through torch_npu."""

from __future__ import annotations

from types import ModuleType

from dynamometer.kernels.backends import Backend, plugin


def reach(torch: ModuleType) -> Backend | str:
    return plugin(torch, "npu", "torch_npu")
