"""An operator's requests in, status, metrics, events and decisions out: a `House` on loopback, beside the gateway's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import msgspec

from dynamometer.decisions.canary import Design, Finding, Pair
from dynamometer.errors import DynoError
from dynamometer.gateway.config import Limits, is_loopback
from dynamometer.gateway.front import Asked, Front
from dynamometer.gateway.journal import read
from dynamometer.gateway.proxy import Gateway
from dynamometer.gateway.state import State

_LINE = "x-dyno-admin"  # a browser's form cannot send it, so no web page can press the button


class Status(msgspec.Struct, frozen=True):
    """What `dyno gateway status` prints."""

    state: State
    findings: Mapping[str, Finding]
    evidence: Mapping[str, Pair]
    gates: Mapping[str, float]
    design: Design
    tests: int
    stages: int
    hold_left_s: float
    in_flight: int
    queued: int
    connections: int
    compared: int  # shadow requests
    draining: bool
    record: str
    replicas: Mapping[str, str]


class Admin:
    """Serves one request at a time, like the gateway's own side."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.fronts: set[Front] = set()
        self.limits = msgspec.structs.replace(Limits(), connections=64, body_bytes=65_536)
        self.draining = False

    def serve(self, front: Front, asked: Asked) -> None:
        url = urlsplit(asked.path)
        host = urlsplit(f"//{asked.headers.get('host', '')}").hostname or ""
        if not is_loopback(host):  # a name that an attacker's DNS points here
            front.say(400, "the Host header is not a loopback address", "invalid_request_error")
            return
        match asked.method, url.path:
            case "GET", "/status":
                front.whole(200, msgspec.json.encode(status(self._gateway)))
            case "GET", "/metrics":
                text = metrics(self._gateway).encode()
                front.whole(200, text, (("content-type", "text/plain; version=0.0.4; charset=utf-8"),))
            case "GET", "/events":
                last = parse_qs(url.query).get("last", ["100"])[0]
                events = list(read(Path(self._gateway.config.folder)))
                front.whole(200, msgspec.json.encode(events[-int(last) :] if last.isdigit() else events))
            case "POST", "/promote" | "/rollback":
                self._decide(front, asked, url.path)
            case _:
                front.say(404, f"{asked.method} {url.path} is not served", "invalid_request_error")

    def _decide(self, front: Front, asked: Asked, path: str) -> None:
        if _LINE not in asked.headers:
            front.say(400, f"the header {_LINE} is missing", "invalid_request_error")
            return
        because = asked.body.decode("utf-8", "replace")[:500] or "asked for by a person"
        rollout = self._gateway.rollout
        try:
            (rollout.promote if path == "/promote" else rollout.roll_back)(because)
        except DynoError as wrong:
            front.say(400, str(wrong), "invalid_request_error")
            return
        front.whole(200, msgspec.json.encode(status(self._gateway)))


def status(gateway: Gateway) -> Status:
    config, state = gateway.config, gateway.rollout.state
    at = min(state.stage, len(config.stage) - 1)
    running = state.rollout == "running"
    passed_s = (gateway.wall() - state.stage_since_ns) * 1e-9
    everyone = [one for side in gateway.sides.values() for one in side]
    return Status(
        state=msgspec.structs.replace(state, evidence={}),
        findings=gateway.rollout.findings() if config.stage else {},
        evidence=dict(gateway.rollout.evidence),
        gates=config.gates_at(at) if config.stage else {},
        design=config.test,
        tests=sum(len(config.gates_at(i)) for i in range(len(config.stage))),
        stages=len(config.stage),
        hold_left_s=max(0.0, config.stage[at].hold_s - passed_s) if running else 0.0,
        in_flight=len(gateway.active),
        queued=len(gateway.queue),
        connections=len(gateway.fronts),
        compared=gateway.twice.compared,
        draining=gateway.draining,
        record=str(gateway.segments.now.directory),
        replicas={one.name: gateway.breakers.state(one) for one in everyone},
    )


def metrics(gateway: Gateway) -> str:
    now = {
        "requests_in_flight": float(len(gateway.active)),
        "requests_queued": float(len(gateway.queue)),
        "connections": float(len(gateway.fronts)),
        "spans_dropped": float(gateway.spans.dropped),
        "shadows_compared": float(gateway.twice.compared),
        "open_files": float(len(list(Path("/proc/self/fd").iterdir()))),
    }
    return gateway.gauges.text(gateway.rollout.state, now)
