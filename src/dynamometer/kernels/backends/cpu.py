"""torch in, this machine's processor out. Its work is done when a call returns; peak memory is the process's."""

from __future__ import annotations

import resource
from pathlib import Path
from types import ModuleType

from dynamometer.kernels.backends import Backend


def reach(torch: ModuleType) -> Backend | str:
    facts = {"device": processor(), "torch": str(torch.__version__), "threads": str(torch.get_num_threads())}
    return Backend("cpu", "cpu", facts, lambda: None, lambda: None, peak_bytes)


def peak_bytes() -> int:
    """The largest resident size that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def processor() -> str:
    """The processor's name as Linux gives it; "CPU" where it does not."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.is_file() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "CPU")
