"""How many replicas there should be: what a scaler sees in, a number and its memory out. Pure: time is an argument.

What hpa.py, keda.py and rayserve.py share: the pods as a control plane knows them, the reading of a metric, one call
for all three. Each scaler keeps its memory in a value that goes in and comes out, so a replay is a fold.
"""

from __future__ import annotations

from typing import Protocol

import msgspec


class Pod(msgspec.Struct, frozen=True):
    """One replica as the control plane knows it. `milli`: its metric in thousandths; None: no sample of it yet."""

    milli: int | None
    ready: bool = True
    phase: str = "running"  # running | pending | failed
    deleting: bool = False
    started_s: float | None = 0.0  # when it started; None: it has not
    changed_s: float | None = 0.0  # when `ready` last changed; None: it has no such condition yet
    sampled_s: float = 1e18  # time stamp of the metric
    window_s: float = 0.0  # span over which the metric was taken
    request_milli: int = 1000  # the resource it asks for; only for utilization


class Seen(msgspec.Struct, frozen=True):
    """What a scaler is shown. `replicas`: the number now asked for; `total_milli`: the metric summed over the fleet."""

    now_s: float
    replicas: int
    pods: tuple[Pod, ...]
    total_milli: int = 0

    @property
    def ready(self) -> int:
        return sum(pod.phase == "running" and pod.ready for pod in self.pods)


class Choice(msgspec.Struct, frozen=True):
    """`wanted`: what the metric asks for; `replicas`: what is set after all limits; `because`: the limit that bound."""

    replicas: int
    wanted: int
    because: str = ""


class Scaler(Protocol):
    """A policy with its memory. `loops`: (name, period in seconds) of each of its control loops."""

    @property
    def loops(self) -> tuple[tuple[str, float], ...]: ...

    @property
    def least(self) -> int: ...

    @property
    def most(self) -> int: ...

    def step(self, loop: str, seen: Seen) -> tuple[Choice, Scaler]: ...


class Change(msgspec.Struct, frozen=True):
    """The scaler set another number."""

    at_s: float
    before: int
    after: int
    wanted: int
    because: str


class Moment(msgspec.Struct, frozen=True):
    """The fleet at one moment: replicas asked for, ready, and held (they cost); requests waiting and in flight."""

    at_s: float
    asked: int
    ready: int
    held: int
    waiting: int
    in_flight: int


class Course(msgspec.Struct, frozen=True):
    """What the fleet did, besides its requests."""

    changes: tuple[Change, ...]
    moments: tuple[Moment, ...]  # every second
    starts_s: tuple[tuple[float, float], ...]  # (asked, ready) of each replica that was started and became ready
    replica_s: float
    open: int  # requests that nobody had answered when the watch ended
    end_s: float
    ready_s: tuple[tuple[float, int], ...] = ()  # (time, replicas ready) at each change of it
