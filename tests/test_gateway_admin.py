"""The operator's side: who may ask it, what it refuses, and what it shows."""

from __future__ import annotations

import http.client
import json
from pathlib import Path

import pytest
from gateway_run import Up, base, gateway
from loopback import Exchange, answer, serving

from dynamometer.pages.exposition import parse


async def good(exchange: Exchange) -> None:
    await exchange.send(answer("a ", "b ", "c ", "d."))


def ask(up: Up, method: str, path: str, **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(up.admin, timeout=5)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, b"" if method == "POST" else None, named)
        answer_ = connection.getresponse()
        return answer_.status, answer_.read()
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/status", {}, 200),
        ("GET", "/status", {"host": "evil.example"}, 400),
        ("POST", "/rollback", {}, 400),
        ("POST", "/promote", {"x_dyno_admin": "1"}, 400),  # there is no canary
        ("GET", "/promote", {}, 404),
        ("GET", "/events?last=x", {}, 200),
    ],
)
def test_only_an_operator_on_this_machine_is_obeyed(
    tmp_path: Path, method: str, path: str, headers: dict[str, str], status: int
) -> None:
    with serving(good) as engine, gateway(tmp_path, f'[baseline]\nurls = ["{base(engine.url)}"]\n') as up:
        found, body = ask(up, method, path, **headers)
        assert found == status
        json.loads(body)


def test_metrics_are_read_by_prometheus_own_rules(tmp_path: Path) -> None:
    with serving(good) as engine, gateway(tmp_path, f'[baseline]\nurls = ["{base(engine.url)}"]\n') as up:
        for _ in range(3):
            up.ask()
        found = {(one.name, tuple(sorted(one.labels.items()))): one.value for one in parse(up.metrics())}
    assert found["dyno_gateway_requests_total", (("outcome", "ok"), ("side", "baseline"))] == 3
    assert found["dyno_gateway_request_duration_seconds_count", (("side", "baseline"),)] == 3
