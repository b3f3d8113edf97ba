"""How an engine schedules, and where its finished requests go: the settings of a replica in, checked values out."""

from __future__ import annotations

from typing import Protocol

import msgspec

from dynamometer.errors import UsageError
from dynamometer.policies.admission import Admission
from dynamometer.policies.batching import Batching
from dynamometer.policies.eviction import WAYS
from dynamometer.policies.speculation import Speculation
from dynamometer.sim.sequence import Sequence


class Rules(msgspec.Struct, frozen=True):
    """How the engine schedules. `swap_s`: time to move one token's cache over the host link; `keep_tokens`: keep every
    token's time."""

    batching: Batching = Batching()
    admission: Admission = Admission()
    speculation: Speculation = Speculation()
    preemption: str = "recompute"
    swap_s: float = 0.0
    keep_tokens: bool = True

    def __post_init__(self) -> None:
        if self.preemption not in WAYS:
            raise UsageError(f"preemption is {self.preemption!r}; one of {', '.join(WAYS)}")
        if self.swap_s < 0:
            raise UsageError(f"the time to swap a token is {self.swap_s} s; give 0 or more")


class Sink(Protocol):
    """Where finished and refused sequences go."""

    def finished(self, sequence: Sequence) -> None: ...
    def refused(self, sequence: Sequence, now_s: float) -> None: ...
