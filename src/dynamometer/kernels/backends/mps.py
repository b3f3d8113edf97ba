"""torch in, an Apple GPU out. Metal reports what is allocated now, not a peak."""

from __future__ import annotations

import platform
from types import ModuleType

from dynamometer.kernels.backends import Backend


def reach(torch: ModuleType) -> Backend | str:
    if not torch.backends.mps.is_available():
        return "torch finds no Metal device"
    facts = {"device": f"Apple GPU ({platform.machine()})", "torch": str(torch.__version__)}
    return Backend("mps", "mps", facts, torch.mps.synchronize, lambda: None, lambda: 0)
