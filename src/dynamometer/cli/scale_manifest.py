"""A Kubernetes manifest in (HorizontalPodAutoscaler or KEDA ScaledObject, YAML or JSON), a scaler's settings out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import cast

import msgspec

from dynamometer.errors import MissingPath, UsageError
from dynamometer.plugins import optional

_SUFFIX = {"m": 1e-3, "": 1.0, "k": 1e3, "M": 1e6, "Ki": 1024.0, "Mi": 1024.0**2}
_GAUGE = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*(?=\s*[{\[)]|\s*\Z)")
_FUNCTIONS = (
    "sum",
    "avg",
    "max",
    "min",
    "rate",
    "irate",
    "increase",
    "avg_over_time",
    "max_over_time",
    "by",
    "without",
)
Node = Mapping[str, object]


class Written(msgspec.Struct, frozen=True):
    """What a manifest says; None and "" where it says nothing."""

    policy: str = ""
    metric: str = ""
    target: float | None = None
    least: int | None = None
    most: int | None = None
    options: dict[str, str] = {}


def read_manifest(path: Path) -> Written:
    """The first scaler of the file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as wrong:
        raise MissingPath(f"{path} cannot be read; give a HorizontalPodAutoscaler or ScaledObject in YAML") from wrong
    for document in _documents(path, text):
        kind, spec = document.get("kind"), _node(document.get("spec"))
        if kind == "HorizontalPodAutoscaler":
            return _hpa(path, spec)
        if kind == "ScaledObject":
            return _keda(path, spec)
    raise UsageError(f"{path} holds no HorizontalPodAutoscaler and no ScaledObject")


def _documents(path: Path, text: str) -> Iterator[Node]:
    if text.lstrip().startswith("{"):
        try:
            yield _node(msgspec.json.decode(text))
        except msgspec.DecodeError as wrong:
            raise UsageError(f"{path} is no JSON: {wrong}") from wrong
        return
    yaml = cast(ModuleType, optional("yaml", "scale"))
    try:
        yield from [_node(one) for one in yaml.safe_load_all(text)]
    except yaml.YAMLError as wrong:
        raise UsageError(f"{path} is no YAML: {' '.join(str(wrong).split())}") from wrong


def _node(value: object) -> Node:
    return cast(Node, value) if isinstance(value, dict) else {}


def _list(value: object) -> list[Node]:
    return [_node(one) for one in value] if isinstance(value, list) else []


def _hpa(path: Path, spec: Node) -> Written:
    metrics = _list(spec.get("metrics"))
    if len(metrics) != 1:
        raise UsageError(f"{path} has {len(metrics)} metrics; a replay takes one: give --metric and --target by hand")
    kind = str(metrics[0].get("type", ""))
    body = _node(metrics[0].get(kind[:1].lower() + kind[1:]))
    name = str(body.get("name") or _node(body.get("metric")).get("name", ""))
    target = _node(body.get("target"))
    how = str(target.get("type", ""))
    if how == "Utilization":
        amount: object = float(str(target.get("averageUtilization", 0))) / 100
    else:
        amount = target.get("averageValue" if how == "AverageValue" else "value")
    options = _behavior(_node(spec.get("behavior")))
    options["kind"] = {"Pods": "pods", "Resource": "pods"}.get(kind, "value" if how == "Value" else "average-value")
    return Written(
        "hpa", name, quantity(amount, path), _whole(spec, "minReplicas", 1), _whole(spec, "maxReplicas", 10), options
    )


def _keda(path: Path, spec: Node) -> Written:
    triggers = _list(spec.get("triggers"))
    if len(triggers) != 1:
        raise UsageError(f"{path} has {len(triggers)} triggers; a replay takes one: give --metric and --target by hand")
    meta = _node(triggers[0].get("metadata"))
    options = _behavior(_node(_node(_node(spec.get("advanced")).get("horizontalPodAutoscalerConfig")).get("behavior")))
    for field, name in (
        ("pollingInterval", "polling"),
        ("cooldownPeriod", "cooldown"),
        ("initialCooldownPeriod", "initial-cooldown"),
    ):
        if field in spec:
            options[name] = f"{spec[field]}s"
    if "idleReplicaCount" in spec:
        options["idle"] = str(spec["idleReplicaCount"])
    if "activationThreshold" in meta:
        options["activation"] = str(meta["activationThreshold"])
    options["kind"] = "value" if triggers[0].get("metricType") == "Value" else "average-value"
    target = meta.get("threshold") or meta.get("value")
    metric = _of_query(str(meta.get("query", ""))) or str(triggers[0].get("type", ""))
    return Written(
        "keda",
        metric,
        quantity(target, path),
        _whole(spec, "minReplicaCount", 0),
        _whole(spec, "maxReplicaCount", 100),
        options,
    )


def _of_query(query: str) -> str:
    """The first series that a query names; running + waiting is requests in flight."""
    names = [name for name in _GAUGE.findall(query) if name not in _FUNCTIONS]
    if any("running" in n or "processing" in n for n in names) and any(
        "waiting" in n or "deferred" in n for n in names
    ):
        return "in-flight"
    if names and re.search(r"\b(rate|irate|increase)\s*\(", query):
        return "rate"
    return names[0] if names else ""


def _behavior(node: Node) -> dict[str, str]:
    made: dict[str, str] = {}
    for side, name in (("scaleUp", "up"), ("scaleDown", "down")):
        rules = _node(node.get(side))
        if "stabilizationWindowSeconds" in rules:
            made[f"{name}-window"] = f"{rules['stabilizationWindowSeconds']}s"
        if "selectPolicy" in rules:
            made[f"{name}-select"] = str(rules["selectPolicy"]).lower()
        if "tolerance" in rules:
            made[f"tolerance-{name}"] = str(rules["tolerance"])
        limits = _list(rules.get("policies"))
        if limits:
            made[f"{name}-policies"] = ",".join(
                f"{str(one.get('type', '')).lower()}:{one.get('value')}:{one.get('periodSeconds')}s" for one in limits
            )
    return made


def quantity(value: object, path: Path) -> float:
    """A Kubernetes quantity: 2, "500m", "1k"."""
    match = re.match(r"([0-9.]+)([a-zA-Z]*)\Z", str(value))
    if not match or match[2] not in _SUFFIX:
        raise UsageError(f"{path}: the target is {value!r}; give a quantity such as 64 or 500m")
    return float(match[1]) * _SUFFIX[match[2]]


def _whole(spec: Node, name: str, default: int) -> int:
    value = spec.get(name, default)
    if not isinstance(value, int):
        raise UsageError(f"{name} is {value!r}; give a whole number")
    return value
