"""What stands beside a load in, the samplers that can watch it out."""

from __future__ import annotations

from urllib.parse import urlsplit

from dynamometer.errors import TargetError
from dynamometer.plugins import available
from dynamometer.telemetry import rayserve
from dynamometer.telemetry.nvml import Nvml
from dynamometer.telemetry.prometheus import Prometheus
from dynamometer.telemetry.sampler import Sampler


def samplers(metrics_url: str, here: bool) -> tuple[tuple[Sampler, ...], tuple[str, ...]]:
    """Samplers beside the host's, and what is missing with the reason. `here`: the engine runs on this machine, so
    its GPUs are this machine's; those of another one are seen by its exporter alone."""
    found: list[Sampler] = []
    missing: list[str] = []
    if metrics_url:
        ray = urlsplit(metrics_url).path.rstrip("/") == rayserve.PATH
        found.append(rayserve.RayServe(metrics_url) if ray else Prometheus(metrics_url))
    if not here:
        missing.append("host and GPU of the engine (it runs elsewhere; name an exporter's page with --metrics-url)")
    elif available("pynvml"):
        try:
            found.append(Nvml())
        except TargetError as wrong:
            missing.append(f"nvml ({wrong})")
    return tuple(found), tuple(missing)
