"""`dyno doctor` tells what is here, and its exit code tells whether to measure."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner

from dynamometer.cli import checks, doctor
from dynamometer.engines import found
from dynamometer.telemetry import process


@contextmanager
def answering(pages: dict[str, object]) -> Iterator[int]:
    """A loopback server with these pages; its port."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = pages.get(self.path)
            body = json.dumps(page).encode()
            self.send_response(404 if page is None else 200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


MODELS = {"data": [{"id": "m1"}, {"id": "m2"}]}


@pytest.mark.parametrize(
    ("pages", "name"),
    [
        ({"/props": {"total_slots": 4}, "/v1/models": MODELS}, "llama.cpp"),
        ({"/version": {"version": "0.32.0"}, "/v1/models": MODELS}, "vLLM"),
        ({"/api/version": {"version": "0.9"}, "/v1/models": MODELS}, "Ollama"),
        ({"/get_model_info": {"model_path": "x"}, "/v1/models": MODELS}, "SGLang"),
        ({"/info": {"max_concurrent_requests": 128}, "/v1/models": MODELS}, "TGI"),
        ({"/v1/models": MODELS}, "OpenAI-compatible"),
    ],
)
def test_a_running_engine_is_recognised_with_its_models(pages: dict[str, object], name: str) -> None:
    with answering(pages) as port:
        engines = found.servers([port])
    assert engines == [found.Engine(name, "server", f"http://127.0.0.1:{port}/v1", ("m1", "m2"))]


@pytest.mark.parametrize("pages", [{}, {"/v1/models": "text"}, {"/v1/models": {"data": "x"}}])
def test_a_web_server_that_is_no_engine_is_not_taken_for_one_and_does_no_harm(pages: dict[str, object]) -> None:
    with answering(pages) as port:
        engines = found.servers([port])
    assert [engine.models for engine in engines] in ([], [()])


def test_a_port_where_nobody_listens_is_passed_over() -> None:
    with answering({}) as port:
        pass
    assert found.servers([port]) == []


def test_a_cache_that_cannot_be_used_is_bad_and_sets_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks.os, "access", lambda path, mode: False)
    (check,) = checks.of_cache()
    assert check.state == "bad"
    monkeypatch.setattr(checks, "all_checks", lambda seconds: [check])
    answer = CliRunner().invoke(doctor.command, [])
    assert answer.exit_code == 1
    assert "DYNO_CACHE" in answer.output
    assert json.loads(CliRunner().invoke(doctor.command, ["--json"]).output)["ok"] is False


def test_a_busy_neighbour_is_named(tmp_path: Path) -> None:
    script, told_pid = tmp_path / "neighbour.sh", tmp_path / "pid"
    script.write_text("while :; do :; done\n")
    # forked away, since a child of ours would count as the client's own work
    subprocess.run(["setsid", "--fork", "sh", "-c", f"echo $$ > {told_pid}; exec sh {script}"], check=True, timeout=5)
    while not told_pid.exists() or not told_pid.read_text().strip():
        threading.Event().wait(0.01)
    try:
        before = process.by_id()
        told = {check.name: check for check in checks.of_timing(0.5)}
        named = checks.busiest(before, 0.5, most=10)
    finally:
        os.kill(int(told_pid.read_text()), signal.SIGKILL)
    assert told["neighbours"].state == "note"
    assert any(f"sh {script}"[:32] in one for one in named)


def test_every_check_that_is_not_ok_says_what_to_do() -> None:
    for check in checks.all_checks(0.2):
        assert check.says
        if check.state in ("note", "bad"):
            assert check.remedy, check


def test_the_json_is_one_object_with_all_groups() -> None:
    answer = CliRunner().invoke(doctor.command, ["--json", "--seconds", "0.2"])
    told = json.loads(answer.output)
    groups = {check["group"] for check in told["checks"]}
    assert {"machine", "limits", "client", "extras", "engines", "gpus", "models", "plugins"} <= groups
    assert answer.exit_code == (0 if told["ok"] else 1)


def test_the_clients_timer_is_never_early() -> None:
    late_ms = checks.lateness_ms(0.2)
    assert len(late_ms) >= 30
    assert late_ms[0] >= 0
