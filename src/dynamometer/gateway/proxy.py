"""Requests in, routed, admitted and answered: the gateway's rules put together; `run.py` gives sockets and a clock."""

from __future__ import annotations

import asyncio
import hmac
import random
from collections import deque
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Final

import msgspec

from dynamometer.errors import RecordError, UsageError
from dynamometer.gateway import batch
from dynamometer.gateway.back import Headers, Replica
from dynamometer.gateway.breaker import Breakers
from dynamometer.gateway.config import Config
from dynamometer.gateway.exchange import Exchange, Outcome
from dynamometer.gateway.front import Asked, Front, Serving
from dynamometer.gateway.gauges import Gauges
from dynamometer.gateway.journal import Journal
from dynamometer.gateway.rollout import Rollout, serving_side
from dynamometer.gateway.segment import Segments, Wanted
from dynamometer.gateway.state import PROMOTED, RUNNING
from dynamometer.gateway.trace import Spans, trace_of
from dynamometer.gateway.twice import Twice
from dynamometer.policies.admission import Admission, accepts
from dynamometer.policies.routing import RULES, place
from dynamometer.record.clock import Now

RECORDED: Final = frozenset(("/v1/chat/completions", "/v1/completions"))
_wanted: Final = msgspec.json.Decoder(Wanted)


class Gateway:
    """A `House` of the clients' connections and the `Ways` of their requests."""

    def __init__(
        self, config: Config, keys: tuple[str, ...], environ: Mapping[str, str], clocks: tuple[Now, Now]
    ) -> None:
        """`clocks`: monotonic and wall."""
        self.config, self.limits = config, config.limits
        self._keys = tuple(sha256(key.encode()).digest() for key in keys)
        self.now, self.wall = clocks
        self.fronts: set[Front] = set()
        self.draining = False
        self.active: set[Exchange] = set()
        self.queue: deque[Exchange] = deque()
        self._batches: dict[bytes, batch.Waiting] = {}
        self._turn = 0
        self.fatal = ""
        self.sides = {name: _replicas(name, config, environ, self.now) for name in ("baseline", "canary")}
        self.journal = Journal(Path(config.folder), self.wall(), config.record.keep_s)
        self.rollout = Rollout(config, self.journal, self.wall)
        self.segments = Segments(config, self.now, self.wall)
        everyone = [replica for side in self.sides.values() for replica in side]
        self.breakers = Breakers(config.breaker, everyone, self.rollout, self.now)
        self.gauges = Gauges()
        self.spans = Spans(config.otlp)
        self.twice = Twice(self)
        self.rollout.note("started", "")

    # --- a House ---

    def serve(self, front: Front, asked: Asked) -> Serving | None:
        path = asked.path.partition("?")[0]
        if path == "/health" and asked.method == "GET":
            front.whole(200, b'{"status":"ok"}')
            return None
        if self._keys and not self._known(asked.headers):
            self.gauges.refused["key"] += 1
            front.say(401, "no valid key; send it as Authorization: Bearer KEY", "authentication_error")
            return None
        if not path.startswith("/v1/"):
            front.say(404, f"{path} is not served; paths begin with /v1/", "invalid_request_error")
            return None
        if asked.method not in ("GET", "POST"):
            front.say(405, f"{asked.method} is not served", "invalid_request_error")
            return None
        try:
            wanted = _wanted.decode(asked.body) if asked.method == "POST" else Wanted()
        except (msgspec.DecodeError, UnicodeDecodeError) as wrong:
            self.gauges.refused["json"] += 1
            front.say(400, f"the body is no request: {wrong}", "invalid_request_error")
            return None
        return self._admit(front, asked, path, wanted)

    def _known(self, headers: dict[str, str]) -> bool:
        """Every key is compared, each in constant time, so that time tells nothing."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = token if scheme.lower() == "bearer" else headers.get("x-api-key", headers.get("api-key", ""))
        digest = sha256(given.strip().encode("latin-1", "replace")).digest()
        same = [hmac.compare_digest(digest, key) for key in self._keys]
        return any(same)

    def _admit(self, front: Front, asked: Asked, path: str, wanted: Wanted) -> Exchange | None:
        full = len(self.active) >= self.limits.in_flight
        rule = Admission(queue=self.limits.queue)
        if self.draining or (full and (self.limits.queue == 0 or not accepts(rule, len(self.queue)))):
            self.gauges.refused["load"] += 1
            after = (("retry-after", str(self.limits.retry_after_s)),)
            said = "shutting down" if self.draining else f"{len(self.active)} requests are in flight"
            front.say(503 if self.draining else 429, f"{said}; try again later", "overloaded", after)
            return None
        tenant = self._tenant(asked)
        at = random.random() if self.config.sticky == "request" else place(tenant, self.config.salt)
        side = serving_side(self.rollout.state, at)
        ticket = None
        if path in RECORDED and asked.method == "POST":
            session = sha256(f"{self.config.salt}\0{tenant}".encode()).hexdigest()[:12]
            ticket = self.segments.now.take(asked.at_ns, wanted, side, session)
        exchange = Exchange(self, front, asked, trace_of(asked.headers.get("traceparent", "")), ticket)
        exchange.wanted_side, exchange.limit_bytes = side, self.limits.answer_bytes
        if ticket is not None and side == "baseline" and self.twice.wants():
            exchange.kept = []
        if full:
            self.queue.append(exchange)
        else:
            self._begin(exchange)
        return exchange if exchange.waits or exchange in self.active else None

    def _tenant(self, asked: Asked) -> str:
        """The named header, else the key, else the address. It is hashed before it is written anywhere."""
        headers = asked.headers
        return headers.get(self.config.tenant_header, "") or headers.get("authorization", "") or asked.peer

    # --- sending ---

    def _begin(self, exchange: Exchange) -> None:
        self.active.add(exchange)
        replica = self.pick(exchange.wanted_side)
        if replica is None:
            exchange.fail("no replica takes requests: every circuit is open", self.now(), 503)
        elif self.config.batch.enabled and exchange.asked.path == batch.PATH and self._join(exchange, replica):
            pass
        else:
            exchange.start(replica, self.now())

    def pick(self, side: str, tried: tuple[Replica, ...] = ()) -> Replica | None:
        """By the side's rule among those whose circuit is not open; the other side where that leaves none."""
        for name in (side, *self._other(side)):
            open_ones = [one for one in self.sides[name] if one not in tried and self.breakers.takes(one)]
            if open_ones:
                self._turn += 1
                settings = self.config.canary if name == "canary" else self.config.baseline
                assert settings is not None
                rule: Callable[[int, int, list[int]], int] = RULES[settings.routing]
                chosen = open_ones[rule(self._turn, -1, [one.in_flight for one in open_ones])]
                self.breakers.chosen(chosen)
                return chosen
        return None

    def _other(self, side: str) -> tuple[str, ...]:
        """Where a side's requests may go when it can't take them: never to a canary that was rolled back."""
        if side == "canary":
            return ("baseline",)
        return ("canary",) if self.rollout.state.rollout in (RUNNING, PROMOTED) and self.rollout.state.share > 0 else ()

    def _join(self, exchange: Exchange, replica: Replica) -> bool:
        found = batch.fields_of(exchange.asked.body)
        if found is None:
            return False
        fields, prompt = found
        key = replica.side.encode() + msgspec.json.encode(fields, order="deterministic")
        waiting = self._batches.get(key)
        if waiting is None:
            waiting = self._batches[key] = batch.Waiting(fields, replica, [], [])
            asyncio.get_running_loop().call_later(self.config.batch.wait_s, self._release, key, waiting)
        exchange.join(waiting.replica, self.now())
        waiting.exchanges.append(exchange)
        waiting.prompts.append(prompt)
        if len(waiting.prompts) >= self.config.batch.most:
            self._release(key, waiting)
        return True

    def _release(self, key: bytes, waiting: batch.Waiting) -> None:
        if self._batches.get(key) is not waiting:
            return  # it was full before its time
        del self._batches[key]
        body = batch.joined_body(waiting) if len(waiting.prompts) > 1 else waiting.exchanges[0].asked.body
        headers = {"content-type": "application/json", "accept-encoding": "identity"}
        headers["traceparent"] = waiting.exchanges[0].trace.parent
        self.gauges.batches[len(waiting.prompts)] += 1
        asked = msgspec.structs.replace(waiting.exchanges[0].asked, body=body)
        waiting.replica.send(batch.Answered(waiting), self.message(waiting.replica, asked, headers))

    # --- Ways ---

    def elsewhere(self, tried: tuple[Replica, ...]) -> Replica | None:
        return self.pick(tried[-1].side if tried else "baseline", tried)

    def message(self, replica: Replica, asked: Asked, headers: Headers) -> bytes:
        settings = self.config.canary if replica.side == "canary" else self.config.baseline
        body = asked.body
        if settings is not None and settings.model and body:
            fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
            fields["model"] = msgspec.Raw(msgspec.json.encode(settings.model))
            body = msgspec.json.encode(fields)
        return replica.message(asked.method, asked.path, headers, body)

    def tried(self, replica: Replica, status: int, reason: str) -> None:
        self.breakers.tried(replica, reason)
        self.rollout.tried(replica.side, status, reason)

    def over(self, exchange: Exchange, outcome: Outcome) -> None:
        self.active.discard(exchange)
        self.rollout.timed(outcome)
        self.gauges.count(outcome)
        self._tell(exchange, outcome)
        kept, exchange.kept = exchange.kept, None
        if kept is not None and outcome.status == 200 and not outcome.error and outcome.side == "baseline":
            back = exchange.winner
            self.twice.ask(exchange.asked, back.headers if back is not None else {}, b"".join(kept))
        if exchange.ticket is not None:
            exchange.ticket.close()
        while self.queue and len(self.active) < self.limits.in_flight:
            waiting = self.queue.popleft()
            if waiting.waits:
                self._begin(waiting)

    def _tell(self, exchange: Exchange, outcome: Outcome) -> None:
        """One line of the structured log, and a span. No key, no prompt, no address."""
        passed_ns = outcome.end_ns - outcome.asked_ns
        wall_ns = self.wall()
        ttft_ms = round((outcome.first_ns - outcome.asked_ns) / 1e6, 3) if outcome.first_ns else None
        line: dict[str, object] = {
            "at_ns": wall_ns,
            "trace": exchange.trace.id,
            "span": exchange.trace.span,
            "path": exchange.asked.path.partition("?")[0],
            "replica": outcome.replica,
            "status": outcome.status,
            "error": outcome.error,
            "attempts": outcome.attempts,
            "ttft_ms": ttft_ms,
            "ms": round(passed_ns / 1e6, 3),
            "bytes": outcome.body_bytes,
        }
        if exchange.ticket is not None:
            line["request"] = exchange.ticket.number
            exchange.ticket.segment.last_ns = max(exchange.ticket.segment.last_ns, outcome.end_ns)
            exchange.ticket.segment.say(line)
        facts: dict[str, str | int] = {"gen_ai.operation.name": "chat", "dyno.replica": outcome.replica}
        facts["http.response.status_code"] = outcome.status
        self.spans.add(exchange.trace, (wall_ns - passed_ns, wall_ns), facts, outcome.error)

    # --- time ---

    def tick(self, now_ns: int) -> None:
        """Four times a second: every timeout is as coarse as that."""
        for front in tuple(self.fronts):
            front.tick(now_ns)
        for exchange in tuple(self.active):
            self._watch(exchange, now_ns)
        for exchange in tuple(self.queue):
            if not exchange.waits:
                self.queue.remove(exchange)
            elif (now_ns - exchange.asked.at_ns) * 1e-9 > self.limits.queue_s:
                self.queue.remove(exchange)
                self.gauges.refused["queue"] += 1
                exchange.fail(f"no room for {self.limits.queue_s:g} s; try again later", now_ns, 503)
        self.twice.tick(now_ns)
        self.breakers.tick(now_ns)
        try:
            self.rollout.tick()
            self.segments.tick()
        except (RecordError, OSError) as full:  # without a journal no decision can be kept: stop in good order
            self.fatal = str(full)

    def _watch(self, exchange: Exchange, now_ns: int) -> None:
        limits = self.limits
        silent_s = (now_ns - exchange.last_ns) * 1e-9
        if (now_ns - exchange.begun_ns) * 1e-9 > limits.total_s:
            exchange.time_out(f"timeout: no whole answer after {limits.total_s:g} s", now_ns)
        elif exchange.waits and silent_s > limits.first_byte_s:
            exchange.time_out(f"timeout: no answer after {limits.first_byte_s:g} s", now_ns)
        elif not exchange.waits and silent_s > limits.idle_s and not exchange.front.stalled_ns:
            exchange.time_out(f"timeout: no byte for {limits.idle_s:g} s", now_ns)
        elif exchange.waits and limits.hedge_s and exchange.attempts == 1 and silent_s > limits.hedge_s:
            exchange.hedge(now_ns)

    def close(self) -> None:
        """What is still under way ends with an error; the record and the journal are closed."""
        for exchange in (*self.active, *self.queue):
            exchange.cancel("the gateway stops", self.now())
        for front in tuple(self.fronts):
            front.abort()
        for replica in (one for side in self.sides.values() for one in side):
            replica.close()
        self.twice.close()
        if not self.fatal:
            self.rollout.save(self.wall())
            self.rollout.note("stopped", "")
        self.segments.close()
        self.spans.close()
        self.journal.close()


def _replicas(name: str, config: Config, environ: Mapping[str, str], now: Now) -> list[Replica]:
    side = config.canary if name == "canary" else config.baseline
    if side is None:
        return []
    key = environ.get(side.api_key_env, "").strip() if side.api_key_env else ""
    if side.api_key_env and not key:
        raise UsageError(f"{side.api_key_env} is not set, and {name}.api_key_env names it; export it first")
    wait_s = config.limits.connect_s
    return [Replica(f"{name}-{i}", name, url, key, side.insecure, now, wait_s) for i, url in enumerate(side.urls)]
