"""What canary and baseline did in, events out: stages pass, the canary is promoted or rolled back, restarts go on."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from math import log, sqrt
from typing import Final

import msgspec

from dynamometer.decisions.canary import RATIOS, Finding, Pair, joined, judge
from dynamometer.errors import UsageError
from dynamometer.gateway.config import Config
from dynamometer.gateway.exchange import Outcome
from dynamometer.gateway.journal import Journal
from dynamometer.gateway.state import PLAIN, PROMOTED, ROLLED_BACK, RUNNING, Happened, State
from dynamometer.record.clock import Now

_EVERY_NS: Final = 1_000_000_000  # between snapshots of the evidence: what a kill -9 may cost


class Rollout:
    """The canary's fate. `wall`: nanoseconds since 1970."""

    def __init__(self, config: Config, journal: Journal, wall: Now) -> None:
        self._config, self._journal, self._wall = config, journal, wall
        self.digest = digest(config)
        self._saved_ns = 0
        state = journal.state
        if not config.stage and state.rollout != PLAIN:
            self._tell("plain", because="the file names no canary", config=self.digest)
        elif config.stage and state.config != self.digest:
            share = config.stage[0].share
            self._tell(
                "begun", share=share, because="a new rollout in the file", by="configuration", config=self.digest
            )
        self._pairs: dict[str, Pair] = dict(journal.state.evidence)
        self._changed = False

    @property
    def state(self) -> State:
        return self._journal.state

    @property
    def evidence(self) -> Mapping[str, Pair]:
        """Newer than the state's by up to a second."""
        return self._pairs

    def tried(self, side: str, status: int, reason: str) -> None:
        """An attempt ended. What is the client's own mistake says nothing of the engine."""
        if reason or status == 429:
            self.add("errors", side, 1.0)
        elif status < 400:
            self.add("errors", side, 0.0)

    def timed(self, outcome: Outcome) -> None:
        """Latencies of a complete answer, live or shadow. Time per token is that between reads of the body."""
        if outcome.error or not outcome.sent_ns < outcome.first_ns or outcome.status >= 400:
            return
        self.add("ttft", outcome.side, log((outcome.first_ns - outcome.sent_ns) * 1e-9))
        if outcome.reads > 2 and outcome.end_ns > outcome.first_ns:
            self.add("tpot", outcome.side, log((outcome.end_ns - outcome.first_ns) * 1e-9 / (outcome.reads - 1)))

    def add(self, metric: str, side: str, value: float) -> None:
        if self.state.rollout != RUNNING:
            return
        pair = self._pairs.get(metric, Pair())
        one = getattr(pair, side).add(value)
        self._pairs[metric] = Pair(one, pair.baseline) if side == "canary" else Pair(pair.canary, one)
        self._changed = True

    def findings(self) -> dict[str, Finding]:
        """Every gate of this stage as it stands."""
        gates = self._config.gates_at(self.state.stage)
        tests = sum(len(self._config.gates_at(at)) for at in range(len(self._config.stage)))
        design = self._config.test
        return {m: judge(m, self._pairs.get(m, Pair()), margin, design, tests) for m, margin in gates.items()}

    def tick(self) -> None:
        """Saves the evidence and decides. A person's word and a decided rollout are final until the file changes."""
        if self.state.rollout != RUNNING:
            return
        now_ns = self._wall()
        if self._changed and now_ns - self._saved_ns >= _EVERY_NS:
            self.save(now_ns)
        answer, because = joined(self.findings())
        if answer == "back":
            self.save(now_ns)
            self._tell("rolled-back", because=because, by="test")
        elif answer == "go" and now_ns - self.state.stage_since_ns >= self._hold_ns():
            self.save(now_ns)
            self._on(because, "test")

    def save(self, now_ns: int) -> None:
        if self._changed:
            self._tell("evidence", evidence=dict(self._pairs))
            self._saved_ns, self._changed = now_ns, False

    def promote(self, because: str) -> None:
        """A person's: all traffic to the canary at once."""
        if self.state.rollout == PLAIN:
            raise UsageError("there is no canary to promote; the file names none")
        self._tell("promoted", stage=len(self._config.stage) - 1, because=because, by="person")

    def roll_back(self, because: str) -> None:
        if self.state.rollout == PLAIN:
            raise UsageError("there is no canary to roll back; the file names none")
        self._tell("rolled-back", because=because, by="person")

    def breaker(self, replica: str, to: str, because: str) -> None:
        self._tell("breaker", replica=replica, to=to, because=because)

    def note(self, kind: str, because: str) -> None:
        self._tell(kind, because=because)

    def _on(self, because: str, by: str) -> None:
        at = self.state.stage + 1
        if at >= len(self._config.stage):
            self._tell("promoted", stage=at - 1, because=because, by=by)
            return
        stage = self._config.stage[at]
        # with all traffic on the canary the baseline is asked no more: it is judged by what it did in the stage before
        kept = {m: Pair(baseline=pair.baseline) for m, pair in self._pairs.items()} if stage.share >= 1 else {}
        self._pairs = dict(kept)
        self._tell("stage", stage=at, share=stage.share, because=because, by=by, evidence=kept)

    def _hold_ns(self) -> int:
        return round(self._config.stage[self.state.stage].hold_s * 1e9)

    def _tell(self, kind: str, **facts: object) -> None:
        self._journal.append(msgspec.convert({"kind": kind, "at_ns": self._wall(), **facts}, Happened))


def digest(config: Config) -> str:
    """Changes when the rollout does: its sides, stages and gates."""
    told = (config.baseline, config.canary, config.stage, config.gates, config.test)
    return sha256(msgspec.json.encode(told)).hexdigest()[:16]


def serving_side(state: State, place: float) -> str:
    """`place`: the tenant's, from 0 to 1."""
    if state.rollout == PROMOTED:
        return "canary"
    if state.rollout in (ROLLED_BACK, PLAIN):
        return "baseline"
    return "canary" if place < state.share else "baseline"


def level(metric: str, pair: Pair | None) -> float:
    """The baseline's share, or the spread of its latency's logarithm, with an assumption where little is known."""
    side = (pair or Pair()).baseline
    if metric in RATIOS:
        if side.n < 30:
            return 0.5
        return max(0.05, sqrt(max(side.squares / side.n - (side.total / side.n) ** 2, 0.0)))
    return (side.total + 0.5) / (side.n + 1) if side.n >= 30 else 0.01
