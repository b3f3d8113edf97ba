"""The demonstration on real engines: Q2_K beside Q8_0 of one model is rolled back, Q8_0 beside Q8_0 goes on."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from gateway_run import Up, base, gateway

from dynamometer.decisions.account import account
from dynamometer.engines.recipes import Settings
from dynamometer.engines.serve import serve
from dynamometer.gateway.admin import Status
from dynamometer.record.clock import now_ns

pytestmark = pytest.mark.real

RULES = """
[[stage]]
share = 0.0
hold = "1s"
[gates]
errors = 0.3
text = 0.3
[test]
least = 20
[shadow]
share = 1.0
in_flight = 4
"""
THINGS = ("bread", "rain", "iron", "a cat", "the moon", "silk", "salt", "a river", "glass", "wool", "honey", "a crow")
QUESTIONS = tuple(f"{ask} {thing}?" for thing in THINGS for ask in ("What is", "Where does one find", "Who needs"))


def decided(up: Up) -> Status:
    """Asks until the test has decided, four at a time."""
    questions = itertools.cycle(QUESTIONS)
    with ThreadPoolExecutor(4) as clients:
        for _ in range(60):
            batch = [next(questions) for _ in range(4)]
            for status, _, _ in clients.map(lambda q: up.ask(q, max_tokens=12, temperature=0), batch):
                assert status == 200
            if up.status().state.rollout != "running":
                break
    return up.status()


def test_a_worse_quantization_is_rolled_back_and_an_equal_one_promoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DYNO_CACHE", raising=False)
    with ExitStack() as stack:

        def up(quantization: str) -> str:
            settings = Settings(slots=4, context=256, threads=1, quantization=quantization)
            return base(stack.enter_context(serve("llamacpp", "", settings, now_ns=now_ns)).url)

        eight, again, two = up("Q8_0"), up("Q8_0"), up("Q2_K")
        for name, canary, wanted in (("loss", two, "rolled back"), ("equal", again, "promoted")):
            folder = tmp_path / name
            folder.mkdir()
            text = f'[baseline]\nurls = ["{eight}"]\n[canary]\nurls = ["{canary}"]\n{RULES}'
            with gateway(folder, text) as running:
                found = decided(running)
                assert found.state.rollout == wanted, found
                if wanted == "rolled back":
                    assert found.state.because.startswith("text")
                assert running.stop() == 0
            (run,) = (path.parent for path in folder.glob("state/record/*/run.json"))
            assert account(run)
