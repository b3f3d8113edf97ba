"""torch in, an NVIDIA GPU out."""

from __future__ import annotations

from types import ModuleType

from dynamometer.kernels.backends import Backend, accelerator


def reach(torch: ModuleType) -> Backend | str:
    if not torch.version.cuda:
        return "this torch is built without CUDA"
    return accelerator(torch, "cuda", "cuda", {"cuda": str(torch.version.cuda)}, graphs=True)
