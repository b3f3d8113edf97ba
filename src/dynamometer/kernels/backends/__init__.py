"""A torch device's name in, what a bench needs of it out: synchronise, peak memory, facts. One small file a maker.

A file's `reach(torch)` returns a `Backend`, or one line that says why this machine has none. They take the torch module
as an argument, so that those which cannot run on a machine can be exercised there with a stand-in; docs/kernels.md says
which ones were.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType

import msgspec

from dynamometer.errors import UsageError

NAMES = ("cuda", "rocm", "npu", "mlu", "xpu", "mps", "cpu")  # the first that is there is "auto"


class Backend(msgspec.Struct, frozen=True):
    """`device`: what torch calls it. `graphs`: runs can be captured and replayed. `peak_bytes` 0: it cannot say."""

    name: str
    device: str
    facts: Mapping[str, str]
    synchronize: Callable[[], None]
    reset_peak: Callable[[], None]
    peak_bytes: Callable[[], int]
    graphs: bool = False


def reach(name: str, torch: ModuleType) -> Backend:
    """The backend of that name, or the best one for "auto"; a UsageError says what is missing."""
    if name != "auto" and name not in NAMES:
        raise UsageError(f"device is {name!r}; one of auto, {', '.join(NAMES)}")
    reasons = []
    for one in NAMES if name == "auto" else (name,):
        found = import_module(f"dynamometer.kernels.backends.{one}").reach(torch)
        if isinstance(found, Backend):
            return found
        reasons.append(f"{one}: {found}")
    raise UsageError("; ".join(reasons))


def accelerator(torch: ModuleType, name: str, attribute: str, extra: Mapping[str, str], graphs: bool) -> Backend | str:
    """A device whose torch module, torch.<attribute>, speaks like torch.cuda: that is what plug-ins for others do."""
    module = getattr(torch, attribute, None)
    if module is None:
        return f"this torch has no torch.{attribute}"
    if not module.is_available():
        return f"torch.{attribute} finds no device"
    index = module.current_device()
    facts = {"device": str(module.get_device_name(index)), "torch": str(torch.__version__), **extra}
    return Backend(
        name,
        f"{attribute}:{index}",
        facts,
        module.synchronize,
        module.reset_peak_memory_stats,
        lambda: int(module.max_memory_allocated()),
        graphs,
    )


def plugin(torch: ModuleType, name: str, package: str) -> Backend | str:
    """A device that a package beside torch brings: importing it adds torch.<name>."""
    try:
        found = import_module(package)
    except ImportError:
        return f"{package} is not installed"
    return accelerator(torch, name, name, {package: str(getattr(found, "__version__", "unknown"))}, graphs=False)
