"""Events in, the gateway's state at any moment out: a fold, so what is rebuilt from the journal is what was live."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from dynamometer.decisions.canary import Pair

RUNNING, PROMOTED, ROLLED_BACK, PLAIN = "running", "promoted", "rolled back", "no canary"


class State(msgspec.Struct, frozen=True):
    """All that a restart must know. `stage` counts from 0; `stage_since_ns` is wall time."""

    rollout: str = PLAIN
    stage: int = 0
    share: float = 0.0
    stage_since_ns: int = 0
    because: str = ""
    breakers: Mapping[str, str] = {}  # replica -> open | half-open; a closed one is not in it
    evidence: Mapping[str, Pair] = {}  # of this stage, by metric
    config: str = ""  # digest of what the rollout was begun with


class Happened(msgspec.Struct, frozen=True):
    """One line of the journal. Which of the fields mean something depends on `kind`."""

    kind: str  # begun | stage | breaker | evidence | promoted | rolled-back | started | stopped | snapshot | undone
    at_ns: int  # wall time
    replica: str = ""
    to: str = ""
    stage: int = 0
    share: float = 0.0
    because: str = ""
    by: str = ""  # test | person | configuration
    evidence: Mapping[str, Pair] = {}
    config: str = ""
    state: State | None = None


def apply(state: State, event: Happened) -> State:
    """The state after the event. Unknown kinds change nothing: they may be from a later version."""
    change = msgspec.structs.replace
    match event.kind:
        case "snapshot":
            return event.state or state
        case "begun":
            since = event.at_ns
            return State(RUNNING, event.stage, event.share, since, event.because, state.breakers, {}, event.config)
        case "plain":
            return State(PLAIN, because=event.because, breakers=state.breakers, config=event.config)
        case "stage":
            return change(
                state,
                stage=event.stage,
                share=event.share,
                stage_since_ns=event.at_ns,
                because=event.because,
                evidence=event.evidence,
            )
        case "promoted":
            return change(
                state, rollout=PROMOTED, share=1.0, stage_since_ns=event.at_ns, because=event.because, stage=event.stage
            )
        case "rolled-back":
            return change(state, rollout=ROLLED_BACK, share=0.0, stage_since_ns=event.at_ns, because=event.because)
        case "breaker":
            others = {name: to for name, to in state.breakers.items() if name != event.replica}
            return change(state, breakers=others if event.to == "closed" else {**others, event.replica: event.to})
        case "evidence":
            return change(state, evidence={**state.evidence, **event.evidence})
        case _:
            return state


def fold(events: Iterable[Happened], until_ns: int | None = None, start: State | None = None) -> State:
    """The state at wall time `until_ns`, or after the last event."""
    state = start or State()
    for event in events:
        if until_ns is not None and event.at_ns > until_ns:
            break
        state = apply(state, event)
    return state
