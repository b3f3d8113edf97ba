"""Stages, shadows and decisions: by the state's fold, and end to end against scripted engines."""

from __future__ import annotations

import json
import random
import signal
import threading
from pathlib import Path

import pytest
from gateway_run import base, gateway
from hypothesis import given
from hypothesis import strategies as some
from loopback import Exchange, answer, serving, whole

from dynamometer.cli import main
from dynamometer.errors import UsageError
from dynamometer.gateway.config import EXAMPLE, Config, load
from dynamometer.gateway.journal import Journal, read
from dynamometer.gateway.rollout import Rollout, serving_side
from dynamometer.gateway.shadow import difference, length_difference, said
from dynamometer.gateway.state import Happened, State, fold
from dynamometer.gateway.trace import trace_of
from dynamometer.policies.routing import place

DAY = 86_400 * 10**9
SIDES = '[baseline]\nurls = ["{}"]\n[canary]\nurls = ["{}"]\n'
QUICK = (
    '[[stage]]\nshare = 0.3\nhold = "200ms"\n[[stage]]\nshare = 1.0\nhold = "200ms"\n'
    "[gates]\nerrors = 0.2\n[test]\nleast = 20\n"
)


def config(tmp_path: Path, text: str = QUICK) -> Config:
    file = tmp_path / "g.toml"
    file.write_text(SIDES.format("http://127.0.0.1:1", "http://127.0.0.1:2") + text)
    return load(file)


def feed(rollout: Rollout, count: int, bad_canary: float) -> None:
    rng = random.Random(2)
    for _ in range(count):
        rollout.tried("canary", 200, "lost" if rng.random() < bad_canary else "")
        rollout.tried("baseline", 200, "")


def test_what_is_rebuilt_from_the_journal_is_what_was_live_at_every_moment(tmp_path: Path) -> None:
    now = DAY
    journal = Journal(tmp_path, now, 7 * 86_400)
    rollout = Rollout(config(tmp_path), journal, lambda: now)
    moments: list[tuple[int, State]] = []
    rng = random.Random(4)
    for _ in range(300):
        now += 10**9
        feed(rollout, rng.randrange(4), 0.0)
        if rng.random() < 0.1:
            rollout.breaker("canary-0", rng.choice(["open", "half-open", "closed"]), "test")
        rollout.tick()
        moments.append((now, journal.state))
    assert journal.state.rollout == "promoted"
    assert fold(read(tmp_path)) == journal.state
    for at_ns, state in moments:
        assert fold(read(tmp_path), at_ns) == state
    journal.close()
    again = Journal(tmp_path, now, 7 * 86_400)
    assert again.state == moments[-1][1]
    again.close()


def test_a_restart_goes_on_with_stage_and_evidence_and_a_changed_file_begins_anew(tmp_path: Path) -> None:
    now = DAY
    at = config(tmp_path)
    journal = Journal(tmp_path, now, 1e6)
    rollout = Rollout(at, journal, lambda: now)
    feed(rollout, 15, 0.0)
    now += 2 * 10**9
    rollout.tick()
    journal.close()
    journal = Journal(tmp_path, now, 1e6)
    rollout = Rollout(at, journal, lambda: now)
    assert rollout.evidence["errors"].canary.n == 15
    rollout.roll_back("I say so")
    journal.close()
    journal = Journal(tmp_path, now, 1e6)
    assert Rollout(at, journal, lambda: now).state.rollout == "rolled back"
    changed = config(tmp_path, QUICK.replace("0.3", "0.4"))
    assert Rollout(changed, journal, lambda: now).state.share == 0.4
    journal.close()


def test_a_torn_last_line_is_cut_and_old_days_go_but_no_state_is_lost(tmp_path: Path) -> None:
    journal = Journal(tmp_path, DAY, 2 * 86_400)
    journal.append(Happened("promoted", DAY, because="x"))
    journal.close()
    (path,) = tmp_path.glob("journal-*.jsonl")
    with path.open("ab") as file:
        file.write(b'{"kind":"rolled-b')
    journal = Journal(tmp_path, DAY, 2 * 86_400)
    assert journal.state.rollout == "promoted"
    for day in range(2, 9):
        journal.append(Happened("started", day * DAY))
    assert len(list(tmp_path.glob("journal-*.jsonl"))) <= 4
    assert fold(read(tmp_path)).rollout == "promoted"
    journal.close()


def test_a_growing_share_keeps_the_tenants_it_had_and_takes_as_many_as_it_says() -> None:
    places = [place(f"tenant-{i}", "salt") for i in range(20_000)]
    for low, high in ((0.01, 0.1), (0.1, 0.5)):
        assert {p for p in places if p < low} <= {p for p in places if p < high}
        assert sum(p < high for p in places) / 20_000 == pytest.approx(high, rel=0.1)
    assert place("a", "1") != place("a", "2")
    running = State("running", share=0.5)
    assert [serving_side(running, p) for p in (0.49, 0.5)] == ["canary", "baseline"]
    assert serving_side(State("promoted"), 0.99) == "canary"
    assert serving_side(State("rolled back", share=0.5), 0.0) == "baseline"


@given(some.text(max_size=40))
def test_an_answer_does_not_differ_from_itself(text: str) -> None:
    for how in ("exact", "normalized", "words"):
        assert difference(how, text, text) == pytest.approx(0.0, abs=1e-9)
    assert length_difference(text, text) == 0.0


def test_measures_see_what_they_are_for() -> None:
    assert difference("exact", "Paris.", "paris") == 1.0
    assert difference("normalized", "Paris.", " paris") == 0.0
    assert difference("words", "the cat sat", "the cat ran") == pytest.approx(1 / 3)
    assert difference("words", "one", "") == 1.0
    assert length_difference("abcd", "ab") == 0.5
    stream = b"".join(
        part + b"\n\n" for part in (b'data: {"choices":[{"index":0,"delta":{"content":"Hi"}}]}', b"data: [DONE]")
    )
    assert said(200, {"content-type": "text/event-stream"}, stream) == "Hi"


def test_a_malformed_trace_begins_a_new_one() -> None:
    good = trace_of("00-" + "a" * 32 + "-" + "b" * 16 + "-01")
    assert (good.id, good.above) == ("a" * 32, "b" * 16)
    for bad in ("", "00-" + "0" * 32 + "-" + "b" * 16 + "-01", "00-XYZ", "00-" + "a" * 32 + "-" + "0" * 16 + "-01"):
        assert trace_of(bad).above == ""
        assert len(trace_of(bad).id) == 32


def rolled(folder: Path, baseline: str, canary: str, text: str, tenants: int = 4000) -> tuple[str, str]:
    """Traffic until the rollout is decided; what became of it and why."""
    with gateway(folder, SIDES.format(base(baseline), base(canary)) + text) as up:
        asked = 0
        while up.status().state.rollout == "running" and asked < tenants:
            for _ in range(10):
                up.ask(headers={"x-tenant": f"t{asked}"})
                asked += 1
        state = up.status().state
        up.stop()
    return state.rollout, state.because


async def good(exchange: Exchange) -> None:
    await exchange.send(answer("The ", "answer."))


def test_a_canary_that_fails_is_rolled_back_and_no_client_sees_it(tmp_path: Path) -> None:
    async def fails(exchange: Exchange) -> None:
        exchange.reset()

    with serving(good) as baseline, serving(fails) as canary:
        text = SIDES.format(base(baseline.url), base(canary.url)) + QUICK + "[breaker]\nfailures = 1000\n"
        with gateway(tmp_path, text) as up:
            statuses = [up.ask(headers={"x-tenant": f"t{i}"})[0] for i in range(150)]
            found = up.until(lambda s: s.state.rollout == "rolled back")
        assert set(statuses) == {200}
        assert found.state.because.startswith("errors: odds of harm")


def test_an_equal_canary_passes_every_stage_and_is_promoted(tmp_path: Path) -> None:
    with serving(good) as baseline, serving(good) as canary:
        assert rolled(tmp_path, baseline.url, canary.url, QUICK)[0] == "promoted"


SHADOWED = """
[[stage]]
share = 0.0
hold = "100ms"
[gates]
text = 0.3
[test]
least = 20
[shadow]
share = 1.0
in_flight = 50
"""


def test_a_canary_that_answers_otherwise_is_found_by_shadows_alone(tmp_path: Path) -> None:
    async def other(exchange: Exchange) -> None:
        await exchange.send(answer("Something ", "else."))

    with serving(good) as baseline, serving(other) as canary:
        rollout, because = rolled(tmp_path, baseline.url, canary.url, SHADOWED)
    assert rollout == "rolled back"
    assert because.startswith("text: odds of harm")


def test_a_baseline_that_never_says_the_same_twice_is_no_reason_to_roll_back(tmp_path: Path) -> None:
    async def varies(exchange: Exchange) -> None:
        await exchange.send(answer(f"{random.random()}", "."))

    with serving(varies) as baseline, serving(varies) as canary:
        assert rolled(tmp_path, baseline.url, canary.url, SHADOWED)[0] == "promoted"


def test_embeddings_compare_where_words_do_not(tmp_path: Path) -> None:
    async def other(exchange: Exchange) -> None:
        await exchange.send(answer("La ", "réponse."))

    async def same_meaning(exchange: Exchange) -> None:
        rows = [{"embedding": [1.0, 2.0]}, {"embedding": [2.0, 4.0]}]
        await exchange.send(whole("200 OK", json.dumps({"data": rows}).encode()))

    with serving(good) as baseline, serving(other) as canary, serving(same_meaning) as model:
        text = SHADOWED + f'compare = "embedding"\nurl = "{base(model.url)}"\n'
        assert rolled(tmp_path, baseline.url, canary.url, text)[0] == "promoted"
        assert len(model.seen) >= 20


def test_kill_9_loses_no_decision(tmp_path: Path) -> None:
    with serving(good) as baseline, serving(good) as canary:
        text = SIDES.format(base(baseline.url), base(canary.url)) + QUICK.replace("200ms", "1h")
        with gateway(tmp_path, text) as up:
            for i in range(30):
                up.ask(headers={"x-tenant": f"t{i}"})
            before = up.until(lambda s: s.state.stage == 0)
            threading.Event().wait(1.6)
            up.process.send_signal(signal.SIGKILL)
            up.process.wait(5)
        with gateway(tmp_path, text, like=up) as again:
            after = again.status()
            assert after.state.stage_since_ns == before.state.stage_since_ns
            assert after.evidence == before.evidence
            assert after.evidence["errors"].canary.n + after.evidence["errors"].baseline.n == 30


def test_the_words_of_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def word(*args: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as left:
            main(["gateway", *args])
        return int(left.value.code or 0), "".join(capsys.readouterr())

    file = str(tmp_path / "gateway.toml")
    with serving(good) as baseline, serving(good) as canary:
        text = SIDES.format(base(baseline.url), base(canary.url)) + QUICK
        with gateway(tmp_path, text):
            code, said_ = word("status", file)
            assert code == 0
            assert "stage 1 of 2, 30%" in said_
            assert "Rates of error, simulated" in said_
            assert word("rollback", file, "--because", "looks odd")[0] == 0
            assert "rolled back" in word("status", file)[1]
            assert "looks odd (person)" in word("events", file)[1]
            code, told = word("status", file, "--json")
            assert json.loads(told)["state"]["rollout"] == "rolled back"
        assert word("status", file)[0] == 3
        assert "looks odd" in word("events", file)[1]
        assert "rolled back" in word("status", file, "--at", "2100-01-01")[1]
        assert "no canary, stage 1" in word("status", file, "--at", "2001-01-01")[1]
        assert word("status", file, "--at", "noon")[0] == 2


def test_the_example_is_a_file_that_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "gateway.toml").write_text(EXAMPLE)
    assert [stage.share for stage in load(tmp_path / "gateway.toml").stage] == [0.01, 0.1, 1.0]


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ('listen = "0.0.0.0:8080"', "keys_env"),
        ('admin = "0.0.0.0:1"', "loopback"),
        ('listen = "8080"', "HOST:PORT"),
        ("typo = 1", "typo"),
        ("[test]\nmiss = 0.9", "miss"),
        ("[limits]\nin_flight = -1", "in_flight"),
        ("[shadow]\nshare = 2.0", "shadow.share"),
        ('[shadow]\ncompare = "vibes"', "vibes"),
        ("[gates]\nttft = 0", "ttft"),
        ("[gates]\nspeed = 1", "speed"),
        ("[gates]\ntext = 0.1", "shadow"),
        ('[record]\nkeep = "1 fortnight"', "keep"),
        ('[record]\nredact = ["("]', "regular"),
        ("= broken", "toml"),
    ],
)
def test_a_mistake_in_the_file_is_one_line_that_names_it(tmp_path: Path, line: str, part: str) -> None:
    stage = "[[stage]]\nshare = 0.1\n"
    gates = "" if "[gates]" in line else "[gates]\nerrors = 0.1\n"
    body = f"{line}\n{SIDES.format('http://a', 'http://b')}{stage}{gates}" if "[" not in line[:1] else None
    body = body or f"{SIDES.format('http://a', 'http://b')}{stage}{gates}{line}\n"
    file = tmp_path / "gateway.toml"
    file.write_text(body)
    with pytest.raises(UsageError) as wrong:
        load(file)
    assert part in str(wrong.value)
    assert "\n" not in str(wrong.value)


def test_prompts_are_kept_only_when_asked_and_redacted(tmp_path: Path) -> None:
    more = '[record]\nprompts = true\nredact = ["[0-9]{4,}"]\n'
    with serving(good) as engine, gateway(tmp_path, f'[baseline]\nurls = ["{base(engine.url)}"]\n{more}') as up:
        up.ask("my card is 12345678, thanks")
        assert up.stop() == 0
    (kept,) = tmp_path.rglob("prompts.jsonl")
    assert json.loads(kept.read_text())["prompt"] == "my card is (redacted), thanks"
    assert kept.stat().st_mode & 0o077 == 0


def test_spans_reach_a_collector(tmp_path: Path) -> None:
    got: list[dict[str, object]] = []

    async def collect(exchange: Exchange) -> None:
        got.append(json.loads(exchange.body))
        await exchange.send(whole("200 OK", b"{}"))

    with serving(good) as engine, serving(collect) as collector:
        text = f'otlp = "{base(collector.url)}"\n[baseline]\nurls = ["{base(engine.url)}"]\n'
        with gateway(tmp_path, text) as up:
            trace = up.ask()[2]["x-dyno-trace"]
            assert up.stop() == 0
    assert trace in json.dumps(got)
