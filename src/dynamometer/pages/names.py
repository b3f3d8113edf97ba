"""The series of an engine's page in, the same facts under one name whatever the engine and its version out
(names.toml).
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Final

import msgspec

from dynamometer.pages.exposition import Series

ENGINES: Final = {
    "vllm:": "vLLM", "sglang:": "SGLang", "llamacpp:": "llama.cpp", "tgi_": "TGI", "lightllm_": "LightLLM",
    "nv_": "Triton", "trtllm_": "TensorRT-LLM", "DCGM_": "DCGM exporter",
}  # fmt: skip
PREFIXES: Final = tuple(ENGINES)
_COMBINE: Final[dict[str, Callable[[Sequence[float]], float]]] = {"sum": sum, "max": max}


class Metric(msgspec.Struct, frozen=True):
    """A fact and its names. `names`: the first that is there is taken; a tuple in it is a sum of several."""

    name: str
    kind: str  # gauge | counter | histogram
    names: tuple[str | tuple[str, ...], ...]
    combine: str = "sum"
    scale: float = 1.0
    device: tuple[str, ...] = ()  # labels that tell devices apart; without them all series become one value


class Reading(msgspec.Struct, frozen=True):
    name: str
    device: str
    value: float


@cache
def metrics() -> tuple[Metric, ...]:
    text = files("dynamometer.pages").joinpath("names.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text)["metric"], tuple[Metric, ...])


def engine_of(series: Iterable[Series]) -> str:
    """Which engine writes such a page; "" if none that is known."""
    for one in series:
        for prefix, engine in ENGINES.items():
            if one.name.startswith(prefix):
                return engine
    return ""


def readings(series: Sequence[Series]) -> list[Reading]:
    """One row a fact and device. A histogram gives NAME_sum, NAME_count and a NAME_bucket for each bound (device
    "le=…").
    """
    by_name: dict[str, list[Series]] = {}
    for one in series:
        by_name.setdefault(one.name, []).append(one)
    found: list[Reading] = []
    for metric in metrics():
        if metric.kind == "histogram":
            found += _histogram(metric, by_name)
        else:
            found += _plain(metric, by_name)
    return found


def absent(series: Sequence[Series]) -> tuple[str, ...]:
    """Facts that this engine gave under some name in versions known here, and that the page does not hold."""
    prefix = next((prefix for prefix, engine in ENGINES.items() if engine == engine_of(series)), "")
    if not prefix:
        return ()
    held = {reading.name.removesuffix("_sum") for reading in readings(series)}
    expected = [m.name for m in metrics() if any(_first(name).startswith(prefix) for name in m.names)]
    return tuple(dict.fromkeys(name for name in expected if name.removesuffix("_sum") not in held))


def _first(name: str | tuple[str, ...]) -> str:
    return name if isinstance(name, str) else name[0]


def _plain(metric: Metric, by_name: Mapping[str, list[Series]]) -> list[Reading]:
    for name in metric.names:
        parts = (name,) if isinstance(name, str) else name
        if not all(part in by_name for part in parts):
            continue
        by_device: dict[str, list[float]] = {}
        for one in (one for part in parts for one in by_name[part]):
            device = next((one.labels[label] for label in metric.device if label in one.labels), "")
            by_device.setdefault(device, []).append(one.value)
        combine = sum if len(parts) > 1 else _COMBINE[metric.combine]
        return [Reading(metric.name, device, combine(all_) * metric.scale) for device, all_ in by_device.items()]
    return []


def _histogram(metric: Metric, by_name: Mapping[str, list[Series]]) -> list[Reading]:
    for name in map(_first, metric.names):
        if f"{name}_count" not in by_name:
            continue
        found = [
            Reading(f"{metric.name}_{part}", "", sum(one.value for one in by_name[f"{name}_{part}"]))
            for part in ("sum", "count")
            if f"{name}_{part}" in by_name
        ]
        bounds: dict[float, float] = {}
        for one in by_name.get(f"{name}_bucket", []):
            if "le" in one.labels:
                bound = float(one.labels["le"])
                bounds[bound] = bounds.get(bound, 0.0) + one.value
        return found + [Reading(f"{metric.name}_bucket", f"le={bound:g}", bounds[bound]) for bound in sorted(bounds)]
    return []
