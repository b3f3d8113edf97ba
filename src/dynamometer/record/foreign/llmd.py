"""A Benchmark Report of llm-d, version 0.2 (JSON or YAML), in; its figures, which is all it holds, out.

Source: the published schema, 0.2 and 0.2.1: aggregates with a unit, never single requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from types import ModuleType
from typing import cast

from dynamometer.errors import UsageError
from dynamometer.plugins import optional
from dynamometer.record.foreign.taken import Imported, number, table, whole
from dynamometer.types import Load

STATISTICS = ("mean", "p50", "p90", "p95", "p99", "p99p9")


def mine(content: object) -> bool:
    found = table(content)
    return str(found.get("version", "")).startswith("0.2") and "results" in found and "run" in found


def from_yaml(data: bytes, where: str) -> object:
    """Reads YAML where its package is there."""
    yaml = cast(ModuleType, optional("yaml", "comply"))
    try:
        return cast(object, yaml.safe_load(data))
    except yaml.YAMLError as wrong:
        raise UsageError(f"{where} is no YAML: {str(wrong).splitlines()[0]}") from wrong


def read(content: object) -> list[Imported]:
    found = table(content)
    aggregate = table(table(table(found["results"]).get("request_performance")).get("aggregate"))
    figures: dict[str, float] = {}
    for part in ("requests", "latency", "throughput"):
        for name, value in table(aggregate.get(part)).items():
            figures |= _statistics(name, value)
    asked = table(table(table(found.get("scenario")).get("load")).get("standardized"))
    rate, streams = number(asked.get("rate_qps")), whole(asked.get("concurrency"))
    time = table(table(found["run"]).get("time"))
    return [
        Imported(
            str(asked.get("tool") or "llm-d"), str(asked.get("tool_version") or ""), _model(found), "",
            Load("poisson", 0, rate) if rate else Load("closed", streams or 1), _wall_ns(str(time.get("start") or "")),
            (), figures, ("figures only: a Benchmark Report holds no single request",),
        )
    ]  # fmt: skip


def _statistics(name: str, value: object) -> dict[str, float]:
    single = number(value)
    if single is not None:
        return {name: single}
    held = table(value)
    known = ((statistic, number(held.get(statistic))) for statistic in STATISTICS)
    return {f"{name} {statistic} ({held.get('units')})": figure for statistic, figure in known if figure is not None}


def _model(found: Mapping[str, object]) -> str:
    stack = table(found.get("scenario")).get("stack")
    for component in stack if isinstance(stack, list) else []:
        model = table(table(table(component).get("standardized")).get("model"))
        if model.get("name"):
            return str(model["name"])
    return ""


def _wall_ns(text: str) -> int:
    try:
        return round(datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() * 1e9)
    except ValueError:
        return 0
