"""Claims about joules and money in, findings out: energy a token against power limit and roofline, cost a token as
arithmetic.

A device draws between some 15 % of its power limit (idle) and the limit. A token takes at least its share of the
fastest step.
"""

from __future__ import annotations

import re
from typing import Final

from dynamometer.decisions.claim import concurrency
from dynamometer.decisions.finding import Finding, implausible, impossible, inconsistent, not_checkable, possible
from dynamometer.decisions.rules_memory import least_bytes
from dynamometer.decisions.rules_speed import floor_of
from dynamometer.decisions.subject import Subject, cited
from dynamometer.hardware import roofline
from dynamometer.hardware.model import Model, matmul_active
from dynamometer.units import significant as show

ENERGY: Final = frozenset({"energy_per_token", "joules_per_token", "energy", "tokens_per_joule", "energy_efficiency"})
COST: Final = frozenset({"cost_per_million_tokens", "price_per_million_tokens", "cost_per_token", "cost", "price"})
METRICS: Final = ENERGY | COST

_IDLE: Final = 0.15
_SOURCE: Final = "power limit × least time a token; idle draw taken as 15 % of the limit"


def judge(s: Subject) -> list[Finding]:
    """Every energy or cost rule that applies."""
    if s.claim.value is None or s.claim.value <= 0:
        return [not_checkable("the claim has no figure above 0")]
    return [_cost(s)] if s.claim.metric in COST else [_energy(s)]


def joules_per_token(s: Subject) -> float | None:
    """The claim in joules a token; None when the unit is another."""
    claim, value = s.claim, s.claim.value or 0.0
    unit = claim.unit.lower().replace(" ", "")
    if claim.metric == "tokens_per_joule" or unit.startswith("tok"):
        return 1 / value
    head = unit.split("/")[0]
    scale = {"j": 1.0, "mj": 1e-3, "kj": 1e3, "wh": 3600.0, "mwh": 3.6, "kwh": 3.6e6}.get(head)
    if scale is None:
        return None
    per = re.search(r"/(1k|1000|k|million|1m|m)(tok|$)", unit)
    tokens = {"1k": 1e3, "1000": 1e3, "k": 1e3, "million": 1e6, "1m": 1e6, "m": 1e6}[per[1]] if per else 1.0
    return value * scale / tokens


def _energy(s: Subject) -> Finding:
    claim, model, device = s.claim, s.model, s.device
    joules = joules_per_token(s)
    if joules is None:
        return not_checkable(f"the unit {claim.unit!r} is no energy a token; give J")
    if model is None or model.missing or device is None or device.tdp_w is None:
        return not_checkable("model and a device with a known power limit are needed", "name both")
    need, text = least_bytes(s, model)
    if need > s.memory:
        line = f"{model.name}: {text} against {show(s.memory / 1e9, 4)} GB: it does not fit"
        return impossible(line, cited(device, device.memory_bytes), "more devices")
    batch = concurrency(claim)
    return _at_batch(s, model, joules, batch) if batch else _at_any_batch(s, model, joules)


def _at_batch(s: Subject, model: Model, joules: float, batch: int) -> Finding:
    assert s.device is not None
    assert s.device.tdp_w is not None
    watts = s.device.tdp_w.high * s.count
    floor = floor_of(s, model, batch, s.weights or "auto")
    each = floor.seconds / batch
    line = (
        f"{model.name}, batch {batch}: at least {show(each * 1e3, 3)} "
        f"ms a token × {show(watts * _IDLE, 4)} to {show(watts, 4)} W = "
        f"{show(each * watts * _IDLE, 3)} to {show(each * watts, 3)} J at the floor; claimed {show(joules, 3)} J"
    )
    where = f"{_SOURCE}; {cited(s.device, s.device.tdp_w)}"
    if joules < each * watts * _IDLE:
        return impossible(line, where, "a larger batch shares the weights' reading")
    if joules > 30 * each * watts:
        return implausible(line, where, "say what else is counted")
    return possible(line, where)


def _at_any_batch(s: Subject, model: Model, joules: float) -> Finding:
    """No batch stated: between compute-bound at full rate and one sequence alone."""
    assert s.device is not None
    assert s.device.tdp_w is not None
    watts = s.device.tdp_w.high * s.count
    weights = s.weights or "auto"
    rate = roofline.rate_of(s.device, roofline.arithmetic(weights))
    alone = floor_of(s, model, 1, weights).seconds
    least = 2 * matmul_active(model) / (rate.high * s.count) if rate else alone / 256
    line = (
        f"{model.name}: one sequence alone takes at least {show(alone * 1e3, 3)} "
        f"ms, {show(alone * watts, 3)} J at {show(watts, 4)} W; full compute "
        f"takes {show(least * watts, 2)} J; claimed {show(joules, 3)} J"
    )
    where = f"{_SOURCE}; {cited(s.device, s.device.tdp_w)}"
    if joules < least * watts * _IDLE:
        return impossible(line, where)
    if joules < least * watts:
        return implausible(
            f"{line}, less than at the full rate and full power", where, "state the batch and the power drawn"
        )
    if joules > 30 * alone * watts:
        return implausible(f"{line}, more than 30 times one sequence alone", where, "say what else is counted")
    shared = alone * watts / joules
    tail = (
        f"; at full power that is {show(watts / joules, 3)} tokens/s, a batch of {shared:.2g} or more"
        if shared > 1
        else ""
    )
    return possible(line + tail, where, "state the batch" if shared > 1 else "")


def _cost(s: Subject) -> Finding:
    """Price an hour over tokens an hour must give the printed cost."""
    claim = s.claim
    price = re.search(
        r"\$?\s*([\d.]+)\s*(?:\$|USD)?\s*(?:/|per )\s*(?:GPU[- ]?)?(?:h\b|hr\b|hour)", claim.context, re.IGNORECASE
    )
    rate = re.search(r"([\d,.]+)\s*(?:output )?(?:tokens?|tok)\s*/\s*s", claim.context, re.IGNORECASE)
    if not price or not rate:
        return not_checkable("price an hour and tokens a second are not both stated", "state both")
    per_million = float(price[1]) * s.count / (float(rate[1].replace(",", "")) * 3600) * 1e6
    value = (claim.value or 0.0) * (1e6 if claim.metric == "cost_per_token" else 1.0)
    line = (
        f"{price[1]} USD/h × {s.count} / ({rate[1]} tokens/s × 3600) = "
        f"{show(per_million, 4)} USD a million tokens; claimed {show(value, 4)}"
    )
    where = "price over throughput at full utilization"
    if value < per_million * 0.97:
        return inconsistent(line, where, "a lower price, or tokens that were not counted")
    return possible(line if value <= per_million * 1.03 else f"{line}, {per_million / value:.0%} utilization", where)
