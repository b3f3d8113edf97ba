"""A kind and a name in, the callable out.

Built-ins are lines in a dict of import paths, loaded on use; others come from the entry-point group
`dynamometer.<kind>`. A name that exists twice is an error, never a silent win."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from typing import Final

from dynamometer.errors import UsageError

KINDS: Final = ("engine", "workload", "law", "policy", "sampler", "sink", "metric")

BUILT_IN: Final[dict[str, dict[str, str]]] = {
    "engine": {
        "openai.chat": "dynamometer.engines.openai:chat",
        "openai.completions": "dynamometer.engines.openai:completions",
        "openai.responses": "dynamometer.engines.responses:responses",
        "azure": "dynamometer.engines.azure:azure",
        "anthropic": "dynamometer.engines.anthropic:anthropic",
        "tgi": "dynamometer.engines.tgi:tgi",
        "lightllm": "dynamometer.engines.lightllm:lightllm",
        "ollama.chat": "dynamometer.engines.ollama:chat",
        "ollama.generate": "dynamometer.engines.ollama:generate",
        "llamacpp": "dynamometer.engines.llamacpp:llamacpp",
        "triton": "dynamometer.engines.triton:triton",
        "sglang": "dynamometer.engines.sglang:sglang",
        "inprocess": "dynamometer.engines.inprocess.lines:inprocess",
        "kserve.vllm": "dynamometer.engines.kserve:vllm",
        "kserve.trtllm": "dynamometer.engines.kserve:trtllm",
    },
    "workload": {
        "code": "dynamometer.workload.code:code",
        "python": "dynamometer.workload.code:python",
        "sql": "dynamometer.workload.code:sql",
        "javascript": "dynamometer.workload.code:javascript",
        "synthetic": "dynamometer.workload.synthetic:synthetic",
        "prefix": "dynamometer.workload.session:prefix",
        "session": "dynamometer.workload.session:session",
        "sharegpt": "dynamometer.workload.dataset:sharegpt",
        "jsonl": "dynamometer.workload.dataset:jsonl",
        "csv": "dynamometer.workload.dataset:table",
        "trace": "dynamometer.workload.trace:trace",
    },
    "law": {
        "poisson": "dynamometer.schedule.arrivals:poisson",
        "constant": "dynamometer.schedule.arrivals:constant",
        "gamma": "dynamometer.schedule.arrivals:gamma",
        "burst": "dynamometer.schedule.arrivals:burst",
        "ramp": "dynamometer.schedule.ramp:ramp",
        "step": "dynamometer.schedule.ramp:step",
        "trace": "dynamometer.workload.trace:law",
    },
    "policy": {},
    "sampler": {
        "host": "dynamometer.telemetry.host:Host",
        "prometheus": "dynamometer.telemetry.prometheus:Prometheus",
        "nvml": "dynamometer.telemetry.nvml:Nvml",
    },
    "sink": {},
    "metric": {},
}


def names(kind: str) -> dict[str, str]:
    """Every known name of the kind with where it comes from."""
    if kind not in BUILT_IN:
        raise UsageError(f"plugin kind is {kind!r}; one of {', '.join(KINDS)}")
    found = dict(BUILT_IN[kind])
    for point in entry_points(group=f"dynamometer.{kind}"):
        if point.name in found:
            twice = f"{found[point.name]} and {point.value}"
            raise UsageError(f"{kind} {point.name!r} is defined twice: {twice}; uninstall one")
        found[point.name] = point.value
    return found


def load(kind: str, name: str) -> object:
    """The object that the name stands for; an unknown name lists the known ones."""
    found = names(kind)
    if name not in found:
        raise UsageError(f"unknown {kind} {name!r}; known: {', '.join(sorted(found)) or 'none'}")
    return EntryPoint(name=name, value=found[name], group=f"dynamometer.{kind}").load()


def available(module: str) -> bool:
    """True if an optional package could be imported; it is not imported."""
    return find_spec(module) is not None


def optional(module: str, extra: str) -> object:
    """Imports an optional package or says which extra brings it."""
    from dynamometer.errors import MissingExtra

    try:
        return import_module(module)
    except ModuleNotFoundError as missing:
        if missing.name and missing.name.split(".")[0] == module.split(".")[0]:
            raise MissingExtra(module, extra) from missing
        raise
