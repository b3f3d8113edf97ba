"""An option's evidence and the constraints in, which of them it holds out: each with its figure and how near it is."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dynamometer.decisions import gate
from dynamometer.decisions.evidence import Evidence, Figure
from dynamometer.decisions.wish import Constraints
from dynamometer.types import Estimate, Objective
from dynamometer.units import show, significant


class Permission(msgspec.Struct, frozen=True):
    """What the licence says of an option. `flips`: the facts at which it would say another thing."""

    status: str  # permissive | review | unknown | blocked
    cleared: bool
    answer: str
    flips: tuple[str, ...] = ()
    attribution: tuple[str, ...] = ()


class Held(msgspec.Struct, frozen=True):
    """One constraint on one option. `met` None: it cannot be seen, or a person has to say. `slack`: the limit at
    which the answer turns."""

    constraint: str
    met: bool | None
    sure: bool
    why: str
    slack: str = ""


def hold(
    evidence: Evidence, limits: Constraints, permission: Permission | None, slo: Sequence[Objective]
) -> tuple[Held, ...]:
    """Every constraint that is asked, on one option."""
    held = _objectives(evidence, slo)
    if limits.budget_usd_per_month is not None:
        held.append(_bound("budget", evidence.figure("usd_per_month"), float(limits.budget_usd_per_month), "<="))
    if limits.power_w_max is not None:
        held.append(_bound("power", evidence.figure("power_w"), float(limits.power_w_max), "<="))
    if limits.quality is not None:
        figure = evidence.figure(limits.quality.metric)
        held.append(_bound(f"quality ({limits.quality.metric})", figure, float(limits.quality.floor), ">="))
    if limits.devices:
        held.append(_at_hand(evidence, limits.devices))
    if evidence.fits_why:
        held.append(Held("memory", evidence.fits, evidence.fits is not None, evidence.fits_why))
    if limits.licence is not None:
        held.append(_licence(permission))
    return tuple(held)


def _objectives(evidence: Evidence, slo: Sequence[Objective]) -> list[Held]:
    """Each limit against the runs, all of which must hold it; else against a stated figure of that name."""
    found = []
    for objective in slo:
        judged = [one for account in evidence.accounts for one in account.judged if one.objective == objective]
        if judged:
            worst = min(judged, key=lambda one: (one.met is True, one.sure))
            runs = ", ".join(account.run.id for account in evidence.accounts)
            why = f"{worst.why.partition(': ')[2]} ({evidence.accounts[0].run.driver}, {runs})"
            found.append(Held(gate.text(objective), worst.met, worst.sure, why, _near(worst.observed)))
            continue
        name = f"{objective.metric}_{objective.statistic}_ms" if objective.statistic else objective.metric
        figure = evidence.figure(name)
        limit = gate.limit_of(objective)
        if figure is None or figure.estimate.value is None:
            found.append(Held(gate.text(objective), None, False, f"{name} was neither measured nor stated"))
            continue
        met = gate.holds(figure.estimate.value, objective.op, limit)
        ends = [end for end in (figure.estimate.low, figure.estimate.high) if end is not None]
        sure = bool(ends) and all(gate.holds(end, objective.op, limit) == met for end in ends)
        why = f"{name} is {show(figure.estimate)} ({figure.provenance})"
        found.append(Held(gate.text(objective), met, sure, why, _near(figure.estimate)))
    return found


def _near(observed: Estimate) -> str:
    """The limit at which the answer turns: the figure itself."""
    if observed.value is None:
        return ""
    return f"{significant(observed.value)} {observed.unit}".strip()


def _bound(name: str, figure: Figure | None, limit: float, op: str) -> Held:
    words = f"{name} {'at most' if op == '<=' else 'at least'} {significant(limit)}"
    if figure is None or figure.estimate.value is None:
        return Held(words, None, False, "not known: neither measured nor stated")
    value, e = figure.estimate.value, figure.estimate
    met = gate.holds(value, op, limit)
    ends = [end for end in (e.low, e.high) if end is not None]
    sure = bool(ends) and all(gate.holds(end, op, limit) == met for end in ends)
    why = f"{figure.name} is {show(e)} ({figure.provenance})"
    return Held(words, met, sure, why, _near(e))


def _at_hand(evidence: Evidence, devices: Sequence[str]) -> Held:
    option = evidence.option
    words = f"a device at hand ({', '.join(devices)})"
    if not option.device:
        return Held(words, None, False, "the option names no device")
    wanted = {option.device.lower(), f"{option.count}x{option.device}".lower()}
    met = bool(wanted & {one.lower().strip() for one in devices})
    return Held(words, met, True, f"it needs {option.count} × {option.device}")


def _licence(permission: Permission | None) -> Held:
    if permission is None:
        return Held("licence", None, False, "the option names no model, so no licence was looked at")
    if permission.status in ("blocked", "unknown"):
        return Held("licence", False, permission.status == "blocked", permission.answer)
    met = True if permission.cleared else None
    return Held("licence", met, permission.cleared, permission.answer)
