"""A scaler by name and a deployment in, Kubernetes manifests as YAML text out. Templates are data beside this file."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Final

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined

from dynamometer.errors import RecordError, UsageError
from dynamometer.policies.hpa import Hpa
from dynamometer.policies.keda import Keda
from dynamometer.policies.scalers import Named, scaler

_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,46}[a-z0-9])?\Z")
_ENGINES: Final = {
    "vllm": ("vllm/vllm-openai:latest", 8000, "/health", "vllm:num_requests_running", "vllm:num_requests_waiting"),
    "triton": (
        "nvcr.io/nvidia/tritonserver:latest-py3",
        8000,
        "/v2/health/ready",
        "",
        "nv_inference_pending_request_count",
    ),
    "llama.cpp": (
        "ghcr.io/ggml-org/llama.cpp:server",
        8080,
        "/health",
        "llamacpp:requests_processing",
        "llamacpp:requests_deferred",
    ),
}


class Deployed(msgspec.Struct, frozen=True):
    """What runs in a pod. `start_s`: the longest start that the startup probe allows."""

    name: str = "llm"
    engine: str = "vllm"
    model: str = ""
    metric: str = "in-flight"
    start_s: float = 600.0
    gpus: int = 1
    load: tuple[float, float, float, float] = (50.0, 500.0, 30.0, 180.0)  # from, to (1/s), over, in all (s)

    def __post_init__(self) -> None:
        if not _NAME.match(self.name):
            raise UsageError(f"name is {self.name!r}; give lower case letters, digits and -, at most 48")


def manifests(named: Named, deployed: Deployed) -> dict[str, str]:
    """File name → YAML: the Deployment with its probes and Service, the autoscaler, the load Job.

    Ray Serve scales itself and takes no manifest: Refused with UsageError.
    """
    if named.policy == "ray":
        raise UsageError("Ray Serve takes autoscaling_config in its own file, not a manifest; use --policy hpa or keda")
    values = _values(named, deployed)
    files = ("deployment.yaml", "hpa.yaml" if named.policy == "hpa" else "scaledobject.yaml", "load-job.yaml")
    return {name: _environment().get_template(f"{name}.j2").render(values) for name in files}


def write(named: Named, deployed: Deployed, folder: Path) -> list[Path]:
    """Writes the manifests into a folder, which is made."""
    made = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in manifests(named, deployed).items():
            (folder / name).write_text(text, encoding="utf-8")
            made.append(folder / name)
    except OSError as wrong:
        raise RecordError(f"{folder} cannot be written: {wrong.strerror}; give another place") from wrong
    return made


@cache
def _environment() -> Environment:
    loader = PackageLoader("dynamometer", "report/templates/kubernetes")
    return Environment(
        loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=False, autoescape=False
    )


def _values(named: Named, deployed: Deployed) -> dict[str, object]:
    """What the templates name."""
    image, port, health, running, waiting = _ENGINES.get(deployed.engine, _ENGINES["vllm"])
    made = scaler(named)
    hpa, rule = (
        (made, None) if isinstance(made, Hpa) else (made.hpa, made.rule) if isinstance(made, Keda) else (None, None)
    )
    assert hpa is not None
    sides = (("scaleUp", hpa.behavior.up), ("scaleDown", hpa.behavior.down)) if hpa.behavior else ()
    gauges = [waiting] if deployed.metric == "waiting" or not running else [running, waiting]
    over = {"running": [running or waiting]}.get(deployed.metric, gauges)
    first, to, over_s, whole_s = deployed.load
    url = f"http://{deployed.name}:{port}/v1"
    load = ["bench", "--url", url, "--rate", f"{first:g}", "--arrivals", "ramp", "--arrival", f"to={to:g}"]
    load += ["--arrival", f"over={over_s:g}s", "--duration", f"{whole_s:g}s", "--out", "/runs/surge"]
    return {
        "name": deployed.name,
        "image": image,
        "port": port,
        "health": health,
        "args": _args(deployed),
        "gpus": deployed.gpus,
        "start_s": round(deployed.start_s),
        "start_failures": max(1, round(deployed.start_s / 2)),
        "drain_s": 120,
        "least": named.least if rule else max(1, named.least),
        "most": named.most,
        "kind": hpa.kind,
        "metric": f"llm_{deployed.metric.replace('-', '_')}",
        "target": _quantity(named.target),
        "target_plain": f"{named.target:g}",
        "behavior": sides,
        "idle": rule.idle if rule else None,
        "polling_s": max(1, round(rule.polling_s)) if rule else 30,
        "cooldown_s": round(rule.cooldown_s) if rule else 300,
        "activation": f"{rule.activation_milli / 1000:g}" if rule else "0",
        "prometheus": "http://prometheus.monitoring:9090",
        "query": " + ".join(f'sum({gauge}{{service="{deployed.name}"}})' for gauge in over),
        "load_image": "dynamometer:latest",
        "load_args": load,
    }


def _args(deployed: Deployed) -> list[str]:
    if not deployed.model:
        return []
    return ["-m", deployed.model] if deployed.engine == "llama.cpp" else ["--model", deployed.model]


def _quantity(value: float) -> str:
    """A Kubernetes quantity, quoted: thousandths where it is no whole number."""
    return f'"{value:.0f}"' if value == int(value) else f'"{round(value * 1000)}m"'
