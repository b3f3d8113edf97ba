"""Replicas behind a router: a feed, a routing rule and engines in, the finished requests of all of them out.

With `prefill` engines the cluster is disaggregated: they compute prompts, the cache travels over a link of so many
seconds plus so many per token, and the decode engines go on from there.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from typing import Protocol

import msgspec

from dynamometer.errors import UsageError
from dynamometer.policies.routing import BLIND, RULES
from dynamometer.sim.feed import ClosedFeed, OpenFeed, Streams
from dynamometer.sim.kernel import NEVER, Timeline
from dynamometer.sim.replica import Replica
from dynamometer.sim.rules import Sink
from dynamometer.sim.sequence import NOT_YET, Sequence

MakeReplica = Callable[[Sink, int], Replica]


class Ledger(Protocol):
    """What becomes of finished and refused requests; times are the client's."""

    def finished(self, sequence: Sequence) -> None: ...
    def refused(self, sequence: Sequence, now_s: float) -> None: ...


class Link(msgspec.Struct, frozen=True):
    """A way for a computed cache between engines."""

    latency_s: float = 0.0
    per_token_s: float = 0.0


NO_LINK = Link()
LAST_S = 1e300  # any time at all, but not NEVER


class Outcome(msgspec.Struct, frozen=True):
    """What the engines did, besides the rows."""

    end_s: float
    replicas: int
    busy_share: tuple[float, ...]  # device time over all time, per engine
    preemptions: int
    peak_blocks_share: float
    decode_steps: int
    prefill_steps: int
    peak_context: float  # tokens that one decode step read
    peak_tokens: int  # tokens of one step


class _Courier:
    """Brings things to their receivers at their time."""

    def __init__(self) -> None:
        self.wake_s = NEVER
        self._load: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = 0

    def send(self, at_s: float, deliver: Callable[[float], None]) -> None:
        self._order += 1
        heappush(self._load, (at_s, self._order, deliver))

    def next_s(self) -> float:
        return self._load[0][0] if self._load else NEVER

    def act(self, now_s: float) -> None:
        while self._load and self._load[0][0] <= now_s:
            at_s, _, deliver = heappop(self._load)
            deliver(at_s)
        self.wake_s = self.next_s()


class Cluster:
    """Engines on one timeline. `replicas` take requests; with `decoders` they only compute the prompts."""

    def __init__(
        self,
        make: MakeReplica,
        count: int,
        route: str,
        ledger: Ledger,
        decoders: tuple[MakeReplica, int] | None = None,
        link: Link = NO_LINK,
    ) -> None:
        if count < 1:
            raise UsageError(f"the number of replicas is {count}; give 1 or more")
        if route not in RULES:
            raise UsageError(f"routing is {route!r}; one of {', '.join(RULES)}")
        self.timeline, self._ledger, self._route, self._link = Timeline(), ledger, RULES[route], link
        self._split = decoders is not None
        self.replicas = [make(_Prefilled(self) if self._split else self, i) for i in range(count)]
        self.decoders = [decoders[0](self, count + i) for i in range(decoders[1])] if decoders else []
        self._asked: dict[int, int] = {}  # disaggregated: the whole answer's length
        self._turn = self._turn_decode = 0
        self._loads, self._decoder_loads = _share_loads(self.replicas), _share_loads(self.decoders)
        self._blind = route in BLIND
        self._alone = False  # nothing links the engines: each runs on its own between its arrivals
        self._courier = _Courier()
        self._feed: OpenFeed | ClosedFeed | None = None
        self._follows = False  # completions matter to the feed

    def run_open(self, sequences: Iterator[Sequence], conversations: bool = False) -> Outcome:
        """Submits at the sequences' due times, which ascend, and runs until every answer is complete."""
        self._follows = conversations
        self._alone = self._blind and not conversations and not self._split
        if self._alone:  # nobody but the ledger wants to hear of an answer
            for replica in self.replicas:
                replica.sink = self._ledger
        return self._run(OpenFeed(sequences, self._submit, self._no_more))

    def run_closed(self, sequences: Iterator[Sequence], streams: Streams) -> Outcome:
        """Keeps every stream busy until the source or the time ends, then drains."""
        self._follows = True
        return self._run(ClosedFeed(sequences, self._submit, streams, self._no_more))

    def _run(self, feed: OpenFeed | ClosedFeed) -> Outcome:
        self._feed = feed
        timeline = self.timeline
        timeline.wake(feed, feed.wake_s)
        collects = gc.isenabled()
        gc.disable()  # the loop makes no cycles, and looking for them takes a tenth of its time
        try:
            end_s = timeline.run()
            self._no_more(end_s)  # a stream that ended by time leaves a partial static batch behind
            end_s = timeline.run()
        finally:
            if collects:
                gc.enable()
        engines = [*self.replicas, *self.decoders]
        if self._alone:
            for engine in engines:
                engine.catch_up(LAST_S)
            end_s = max(engine.now_s for engine in engines)
        for engine in engines:
            engine.close()
        return Outcome(
            end_s,
            len(engines),
            tuple(engine.busy_s / end_s if end_s > 0 else 0.0 for engine in engines),
            sum(engine.preemptions for engine in engines),
            max(engine.peak_blocks / engine.memory.total for engine in engines),
            sum(engine.decode_steps for engine in engines),
            sum(engine.prefill_steps for engine in engines),
            max(engine.batch.peak_context for engine in engines),
            max(engine.peak_tokens for engine in engines),
        )

    def _no_more(self, now_s: float) -> None:
        for replica in [*self.replicas, *self.decoders]:
            if self._alone:
                replica.catch_up(now_s)
            replica.no_more = True
            if replica.waiting and replica.resting:
                at_s = max(now_s, self.timeline.now_s)
                if self._alone:
                    replica.wake_s = min(replica.wake_s, at_s)
                else:
                    self.timeline.wake(replica, at_s)

    def _submit(self, sequence: Sequence, now_s: float) -> None:
        engines = self.replicas
        if self._split:
            self._asked[sequence.index] = sequence.output
            sequence.output = 1
        if len(engines) == 1:
            chosen = engines[0]
        else:
            chosen = engines[self._route(self._turn, sequence.key, self._loads)]
            self._turn += 1
        if self._alone:
            chosen.catch_up(now_s)
            chosen.arrive(sequence, now_s)
        elif chosen.arrive(sequence, now_s):
            self.timeline.wake(chosen, chosen.wake_s)

    def finished(self, sequence: Sequence) -> None:
        """An engine has ended an answer (perhaps a little ahead of virtual time, when its end is already known)."""
        self._ledger.finished(sequence)
        if self._follows:
            self._tell(sequence, sequence.last_s + sequence.last_lag_s)

    def refused(self, sequence: Sequence, now_s: float) -> None:
        if self._split:
            sequence.output = self._asked.pop(sequence.index, sequence.output)
        self._ledger.refused(sequence, now_s)
        if self._follows:
            self._tell(sequence, now_s + self.replicas[0].cost.host.arrive_s + 1e-6)

    def _tell(self, sequence: Sequence, at_s: float) -> None:
        feed = self._feed
        if feed is not None:
            before_s = feed.wake_s
            wake_s = feed.answered(sequence, max(at_s, self.timeline.now_s))
            if wake_s < before_s or before_s == NEVER:
                self.timeline.wake(feed, wake_s)

    def hand_over(self, sequence: Sequence) -> None:
        """A prompt is computed; its cache goes to a decode engine, unless one token was all that was asked."""
        asked = self._asked.pop(sequence.index)
        sequence.output = asked
        if asked <= 1:
            self.finished(sequence)
            return
        tokens = sequence.prompt
        at_s = sequence.last_s + self._link.latency_s + self._link.per_token_s * tokens
        sequence.last_s, sequence.produced, sequence.remaining, sequence.cached = NOT_YET, 1, 0, 0
        self._courier.send(at_s, lambda now_s: self._to_decoder(sequence, now_s))
        if self._courier.next_s() < self._courier.wake_s:
            self.timeline.wake(self._courier, self._courier.next_s())

    def _to_decoder(self, sequence: Sequence, now_s: float) -> None:
        chosen = self.decoders[self._route(self._turn_decode, sequence.key, self._decoder_loads)]
        self._turn_decode += 1
        if chosen.arrive(sequence, now_s):
            self.timeline.wake(chosen, chosen.wake_s)


def _share_loads(engines: list[Replica]) -> list[int]:
    """One list of requests in flight that the engines keep and the router reads."""
    loads = [0] * len(engines)
    for place, engine in enumerate(engines):
        engine.loads, engine.place = loads, place
    return loads


class _Prefilled:
    """The sink of a prefill engine: hands over what it has computed."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def finished(self, sequence: Sequence) -> None:
        self._cluster.hand_over(sequence)

    def refused(self, sequence: Sequence, now_s: float) -> None:
        self._cluster.refused(sequence, now_s)
