"""A policy's name with its options as text in, the scaler out: for the command line, manifests and studies alike.

Names and defaults are those of the systems' own documentation.
"""

from __future__ import annotations

from typing import Final

import msgspec

from dynamometer import options as opt
from dynamometer.errors import UsageError
from dynamometer.policies.autoscale import Scaler
from dynamometer.policies.hpa import DOWN, UP, Behavior, Bounds, Direction, Hpa, Limit, Timing, Tolerance
from dynamometer.policies.keda import Rule, keda
from dynamometer.policies.rayserve import RayServe

POLICIES: Final = ("hpa", "keda", "ray")
_HPA: Final = (
    "sync",
    "kind",
    "tolerance",
    "tolerance-up",
    "tolerance-down",
    "behavior",
    "up-window",
    "up-policies",
    "up-select",
    "down-window",
    "down-policies",
    "down-select",
)
_KEDA: Final = (*_HPA, "polling", "cooldown", "initial-cooldown", "activation", "idle")
_RAY: Final = (
    "upscale-delay",
    "downscale-delay",
    "to-zero-delay",
    "upscaling-factor",
    "downscaling-factor",
    "look-back",
    "push",
    "control",
)
OPTIONS: Final[dict[str, tuple[str, ...]]] = {"hpa": _HPA, "keda": _KEDA, "ray": _RAY}


class Named(msgspec.Struct, frozen=True):
    """A scaler by name. `target`: what one replica should carry, in the metric's unit. `options`: those in OPTIONS."""

    policy: str
    target: float
    least: int
    most: int
    options: opt.Options = {}

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise UsageError(f"policy is {self.policy!r}; one of {', '.join(POLICIES)}")
        if not 0 < self.target < 1e12:
            raise UsageError(f"the target is {self.target:g}; give what one replica should carry, above 0")
        opt.known(self.options, OPTIONS[self.policy], f"policy {self.policy!r}")


def scaler(named: Named) -> Scaler:
    """The policy with an empty memory."""
    if named.policy == "ray":
        return ray(named)
    rule, where = named.options, f"policy {named.policy!r}"
    timing = Timing(sync_s=_positive_s(rule, "sync", 15.0, where))
    both = opt.number(rule, "tolerance", 0.1, where, low=0, high=1)
    tolerance = Tolerance(
        opt.number(rule, "tolerance-up", both, where, low=0, high=10),
        opt.number(rule, "tolerance-down", both, where, low=0, high=1),
    )
    milli = max(1, round(named.target * 1000))
    if named.policy == "hpa":
        kind = opt.choice(rule, "kind", "pods", where, ("pods", "average-value", "value"))
        return Hpa(milli, kind, Bounds(named.least, named.most), behavior(rule, where), tolerance, timing)
    object_ = Rule(
        milli,
        round(opt.number(rule, "activation", 0.0, where, low=0) * 1000),
        named.least,
        named.most,
        opt.whole(rule, "idle", 0, where, low=0) if "idle" in rule else None,
        _positive_s(rule, "polling", 30.0, where),
        opt.duration(rule, "cooldown", 300.0, where),
        opt.duration(rule, "initial-cooldown", 0.0, where),
        opt.choice(rule, "kind", "average-value", where, ("average-value", "value")),
    )
    return keda(object_, behavior(rule, where), tolerance, timing)


def ray(named: Named) -> RayServe:
    """Ray Serve's scaler."""
    rule, where = named.options, "policy 'ray'"
    zero_s = opt.duration(rule, "to-zero-delay", 0.0, where) if "to-zero-delay" in rule else None
    return RayServe(
        target=named.target,
        least=named.least,
        most=named.most,
        upscale_delay_s=opt.duration(rule, "upscale-delay", 30.0, where),
        downscale_delay_s=opt.duration(rule, "downscale-delay", 600.0, where),
        to_zero_delay_s=zero_s,
        upscaling=opt.positive(rule, "upscaling-factor", 1.0, where),
        downscaling=opt.positive(rule, "downscaling-factor", 1.0, where),
        look_back_s=_positive_s(rule, "look-back", 30.0, where),
        metrics_s=_positive_s(rule, "push", 10.0, where),
        control_s=_positive_s(rule, "control", 0.1, where),
    )


def behavior(rule: opt.Options, where: str) -> Behavior | None:
    """behavior.scaleUp and behavior.scaleDown; None with behavior=no: the controller's older rules."""
    if not opt.flag(rule, "behavior", True, where):
        return None
    return Behavior(_direction(rule, "up", UP, where), _direction(rule, "down", DOWN, where))


def _direction(rule: opt.Options, side: str, default: Direction, where: str) -> Direction:
    text = rule.get(f"{side}-policies")
    limits = default.limits if text is None else tuple(_limit(part, where) for part in text.split(",") if part.strip())
    return Direction(
        opt.duration(rule, f"{side}-window", default.window_s, where),
        limits,
        opt.choice(rule, f"{side}-select", default.select, where, ("max", "min", "disabled")),
    )


def _limit(text: str, where: str) -> Limit:
    """ "percent:100:15s" or "pods:4:15s"."""
    parts = text.strip().split(":")
    if len(parts) != 3:
        raise UsageError(f"{where}: policy {text.strip()!r}; give kind:value:period, e.g. percent:100:15s,pods:4:15s")
    number = opt.whole({"value": parts[1]}, "value", 0, f"{where}: {text.strip()!r}", low=1)
    return Limit(parts[0], number, opt.duration({"period": parts[2]}, "period", 15.0, where))


def _positive_s(rule: opt.Options, name: str, default: float, where: str) -> float:
    found = opt.duration(rule, name, default, where)
    if found <= 0:
        raise UsageError(f"{where}: {name} is {rule[name]!r}; give a time above 0")
    return found
