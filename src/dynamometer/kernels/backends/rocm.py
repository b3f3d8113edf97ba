"""torch in, an AMD GPU out. ROCm's torch answers under the name of CUDA and says so in torch.version.hip."""

from __future__ import annotations

from types import ModuleType

from dynamometer.kernels.backends import Backend, accelerator


def reach(torch: ModuleType) -> Backend | str:
    if not getattr(torch.version, "hip", None):
        return "this torch is built without ROCm"
    return accelerator(torch, "rocm", "cuda", {"hip": str(torch.version.hip)}, graphs=True)
