"""Outcomes of attempts in, which replicas take requests out: a circuit breaker for each, half-open before closed."""

from __future__ import annotations

from collections.abc import Sequence

from dynamometer.gateway.back import Replica
from dynamometer.gateway.config import Breaker
from dynamometer.gateway.rollout import Rollout
from dynamometer.record.clock import Now


class Breakers:
    """Closed: takes all. Open: takes none for `open_s`. Half-open: one request at a time, real ones, as probes.

    The states are in the journal; counts towards the next state are not, and begin at 0 after a restart.
    """

    def __init__(self, rule: Breaker, replicas: Sequence[Replica], rollout: Rollout, now: Now) -> None:
        self._rule, self._replicas, self._rollout, self._now = rule, replicas, rollout, now
        for replica in replicas:
            replica.opened_ns = now()  # one that was open at the last stop waits its time again

    def state(self, replica: Replica) -> str:
        return self._rollout.state.breakers.get(replica.name, "closed")

    def takes(self, replica: Replica) -> bool:
        state = self.state(replica)
        return state == "closed" or (state == "half-open" and replica.probing == 0)

    def chosen(self, replica: Replica) -> None:
        if self.state(replica) == "half-open":
            replica.probing, replica.opened_ns = 1, self._now()

    def tried(self, replica: Replica, reason: str) -> None:
        """An attempt ended, well if `reason` is empty."""
        state = self.state(replica)
        replica.probing = 0
        if not reason:
            replica.failures = 0
            if state == "half-open":
                replica.good_probes += 1
                if replica.good_probes >= self._rule.probes:
                    self._rollout.breaker(replica.name, "closed", f"{replica.good_probes} probes were answered")
            return
        replica.failures += 1
        if state == "half-open" or (state == "closed" and replica.failures >= self._rule.failures):
            replica.opened_ns = self._now()
            self._rollout.breaker(replica.name, "open", f"{replica.failures} failures in a row, the last: {reason}")

    def tick(self, now_ns: int) -> None:
        for replica in self._replicas:
            waited = now_ns - replica.opened_ns > self._rule.open_s * 1e9
            state = self.state(replica)
            if state == "open" and waited:
                replica.good_probes = replica.probing = 0
                self._rollout.breaker(replica.name, "half-open", f"open for {self._rule.open_s:g} s")
            elif state == "half-open" and replica.probing and waited:
                replica.probing = 0  # its client hung up before the engine answered
