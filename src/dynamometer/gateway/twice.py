"""A request that the baseline answered in, its shadows asked and compared, and samples of text and length out."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import msgspec

from dynamometer.gateway.back import Back, Replica
from dynamometer.gateway.exchange import NOT_PASSED
from dynamometer.gateway.front import Asked
from dynamometer.gateway.segment import Wanted
from dynamometer.gateway.shadow import (
    Echo,
    Heard,
    difference,
    length_difference,
    model_answer,
    model_request,
    said,
)
from dynamometer.gateway.state import RUNNING
from dynamometer.gateway.trace import trace_of

if TYPE_CHECKING:
    from dynamometer.gateway.proxy import Gateway


class Twice:
    """The shadow traffic. It never delays a client, and never holds more than `shadow.in_flight` questions."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway, self._shadow = gateway, gateway.config.shadow
        self._tasks: set[asyncio.Task[None]] = set()
        self._echoes: dict[Echo, int] = {}
        self.compared = self.failed = 0
        self._model = _model_replica(gateway) if self._shadow.url else None

    def wants(self) -> bool:
        """Whether the next request is to be asked twice."""
        return (
            self._shadow.share > 0
            and self._gateway.rollout.state.rollout == RUNNING
            and len(self._tasks) < self._shadow.in_flight
            and random.random() < self._shadow.share
        )

    def ask(self, asked: Asked, headers: dict[str, str], body: bytes) -> None:
        if not self._gateway.draining:
            task = asyncio.get_running_loop().create_task(self._compare(asked, headers, body))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def tick(self, now_ns: int) -> None:
        for echo, since_ns in tuple(self._echoes.items()):
            if (now_ns - since_ns) * 1e-9 > self._gateway.limits.total_s:
                echo.give_up(now_ns)

    def close(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()

    async def _compare(self, asked: Asked, headers: dict[str, str], body: bytes) -> None:
        rollout = self._gateway.rollout
        stage = rollout.state.stage
        first = said(200, headers, body)
        # in a random order, so that neither side always finds the prompt's cache as the other left it
        sides = random.sample(("canary", "baseline"), 2)
        heard = dict(zip(sides, await asyncio.gather(*(self._once(asked, side) for side in sides)), strict=True))
        if rollout.state.stage != stage or rollout.state.rollout != RUNNING:
            return  # it was asked under another stage
        for side, one in heard.items():
            if one is None:
                continue
            rollout.tried(side, one.outcome.status, one.outcome.error)
            rollout.timed(one.outcome)
            if one.outcome.error:
                continue
            differs = await self._differs(first, one.text)
            if differs is None:
                self.failed += 1
                continue
            rollout.add("text", side, differs)
            rollout.add("length", side, length_difference(first, one.text))
        self.compared += 1

    async def _once(self, asked: Asked, side: str) -> Heard | None:
        replicas = [one for one in self._gateway.sides[side] if self._gateway.breakers.state(one) == "closed"]
        if not replicas:
            return None
        replica = min(replicas, key=lambda one: one.in_flight)
        now_ns = self._gateway.now()
        wanted = msgspec.json.decode(asked.body, type=Wanted)
        ticket = self._gateway.segments.now.take(now_ns, wanted, f"shadow-{side}", "", "shadow")
        done: asyncio.Future[Heard] = asyncio.get_running_loop().create_future()
        echo = Echo(replica, now_ns, ticket, done)
        headers = {name: value for name, value in asked.headers.items() if name not in NOT_PASSED}
        headers |= {"traceparent": trace_of("").parent, "accept-encoding": "identity"}
        replica.in_flight += 1
        self._echoes[echo] = now_ns
        try:
            replica.send(echo, self._gateway.message(replica, asked, headers))
            return await done
        finally:
            del self._echoes[echo]

    async def _differs(self, one: str, other: str) -> float | None:
        """By the file's measure; equal texts are equal to every measure and need no model."""
        how = self._shadow.compare
        if self._model is None or one == other:
            return difference(how if how in ("exact", "normalized") else "words", one, other)
        path, body = model_request(how, self._shadow.model, (one, other))
        done: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        message = self._model.message("POST", path, {"content-type": "application/json"}, body)
        self._model.send(_Whole(done), message)
        try:
            async with asyncio.timeout(self._gateway.limits.first_byte_s):
                answer = await done
        except TimeoutError:
            return None
        return model_answer(how, answer) if answer is not None else None


class _Whole:
    """A `Sink` for one document."""

    def __init__(self, done: asyncio.Future[bytes | None]) -> None:
        self._done = done
        self._body: list[bytes] = []

    def sent(self, back: Back, at_ns: int) -> None: ...
    def head(self, back: Back, at_ns: int) -> None: ...

    def piece(self, back: Back, body: bytes, at_ns: int) -> None:
        self._body.append(body)

    def ended(self, back: Back, at_ns: int) -> None:
        self._tell(b"".join(self._body) if back.status == 200 else None)

    def lost(self, back: Back | None, reason: str, at_ns: int) -> None:
        self._tell(None)

    def _tell(self, body: bytes | None) -> None:
        if not self._done.done():
            self._done.set_result(body)


def _model_replica(gateway: Gateway) -> Replica:
    config = gateway.config
    return Replica("comparison", "none", config.shadow.url, "", False, gateway.now, config.limits.connect_s)
