"""Servers are started, watched, explained when they fail, and never left running."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from dynamometer.engines import causes, leash, recipes, sense, serve
from dynamometer.engines.recipes import Recipe, Settings
from dynamometer.errors import TargetError, UsageError
from dynamometer.record.clock import now_ns

# A server of the standard library that answers /health; it stands for any engine's process, children included.
SERVER = """
import http.server, os, signal, subprocess, sys
port, child = int(sys.argv[1]), sys.argv[2]
if child == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if child != "none":
    # detached, as engines' workers may be: another session, and its parent dies at once
    subprocess.Popen([sys.executable, "-c", "import subprocess,sys;"
        "p=subprocess.Popen(['sleep','1000'],start_new_session=True);print('worker',p.pid,flush=True)"]).wait()
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.send_header("content-length", "0"); self.end_headers()
http.server.HTTPServer(("127.0.0.1", port), Answer).serve_forever()
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DYNO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def engine(monkeypatch: pytest.MonkeyPatch, command: Callable[[int], tuple[str, ...]]) -> None:
    def plan(model: str, settings: Settings, port: int, progress: object) -> Recipe:
        return Recipe(command=command(port), model="m", facts={"engine": "test"})

    monkeypatch.setitem(recipes.RECIPES, "test", plan)


def living(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone_soon(pid: int, seconds: float = 5.0) -> bool:
    for _ in range(int(seconds / 0.02)):
        if not living(pid):
            return True
        threading.Event().wait(0.02)
    return False


def worker_of(log: Path) -> int:
    return int(log.read_text().partition("worker ")[2].split()[0])


@pytest.mark.parametrize("child", ["none", "worker", "stubborn"])
def test_a_server_and_all_its_children_end_with_the_block(monkeypatch: pytest.MonkeyPatch, child: str) -> None:
    engine(monkeypatch, lambda port: (sys.executable, "-c", SERVER, str(port), child))
    with serve.serve("test", settings=Settings(grace_s=0.3), now_ns=now_ns) as served:
        assert serve.alive(served)
        assert served.url.startswith("http://127.0.0.1:")
        assert float(served.facts["start_s"]) > 0
        pids = [served.pid] + ([worker_of(served.log)] if child != "none" else [])
        assert all(living(pid) for pid in pids)
    assert not any(living(pid) for pid in pids)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_no_server_outlives_a_killed_parent(tmp_path: Path, number: int) -> None:
    code = (
        "import sys, threading\n"
        "from dynamometer.engines import recipes, serve\n"
        "from dynamometer.record.clock import now_ns\n"
        f"server = {SERVER!r}\n"
        "recipes.RECIPES['test'] = lambda m, s, port, p: recipes.Recipe(\n"
        "    command=(sys.executable, '-c', server, str(port), 'worker'), model='m')\n"
        "with serve.serve('test', now_ns=now_ns) as served:\n"
        "    print(served.pid, served.log, flush=True)\n"
        "    threading.Event().wait(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as parent:
        assert parent.stdout is not None
        pid, log = parent.stdout.readline().decode().split()
        worker = worker_of(Path(log))
        assert living(int(pid))
        assert living(worker)
        parent.send_signal(number)
        parent.wait(10)
    assert gone_soon(int(pid))
    assert gone_soon(worker)


def test_an_engine_dies_with_its_leash(monkeypatch: pytest.MonkeyPatch) -> None:
    engine(monkeypatch, lambda port: (sys.executable, "-c", SERVER, str(port), "none"))
    with serve.serve("test", now_ns=now_ns) as served:
        holder = int(Path(f"/proc/{served.pid}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(holder, signal.SIGKILL)
        assert gone_soon(served.pid)
        assert "ended" in serve.post_mortem(served)


def test_an_engine_that_dies_under_load_leaves_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    script = SERVER.replace("class Answer", "print('terminate: std::bad_alloc', flush=True)\nclass Answer")
    engine(monkeypatch, lambda port: (sys.executable, "-c", script, str(port), "none"))
    with serve.serve("test", now_ns=now_ns) as served:
        assert serve.post_mortem(served) == ""
        os.kill(served.pid, signal.SIGKILL)
        assert gone_soon(served.pid)
        for _ in range(100):
            if serve.post_mortem(served):
                break
            threading.Event().wait(0.02)
        assert "memory does not hold" in serve.post_mortem(served)


def test_a_failing_engine_is_explained_with_the_end_of_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    script = "print('loading'); print('OSError: [Errno 98] Address already in use'); raise SystemExit(3)"
    engine(monkeypatch, lambda port: (sys.executable, "-c", script))
    with (
        pytest.raises(TargetError, match=r"exit code 3: the port is taken by another process(.|\n)*Errno 98"),
        serve.serve("test", now_ns=now_ns),
    ):
        pass


def test_an_engine_that_is_not_installed_is_said_to_be_so(monkeypatch: pytest.MonkeyPatch) -> None:
    engine(monkeypatch, lambda port: ("/no/such/engine", "--port", str(port)))
    with pytest.raises(TargetError, match="not installed, or not on PATH"), serve.serve("test", now_ns=now_ns):
        pass


def test_an_engine_that_never_answers_is_given_up_and_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    engine(monkeypatch, lambda port: ("sh", "-c", "echo $$; exec sleep 1000"))
    said: list[str] = []
    with (
        pytest.raises(TargetError, match=r"did not answer within 0\.3 s") as caught,
        serve.serve(
            "test",
            settings=Settings(start_timeout_s=0.3),
            now_ns=now_ns,
            progress=lambda stage, share: said.append(stage),
        ),
    ):
        pass
    assert not living(int(str(caught.value).split()[-1]))
    assert said
    assert said[-1].startswith("starting test: ")


def test_a_server_that_is_there_already_is_not_taken_for_the_one_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    engine(monkeypatch, lambda port: (sys.executable, "-c", SERVER, str(port), "none"))
    with serve.serve("test", now_ns=now_ns) as first:
        port = int(first.url.split(":")[2].partition("/")[0])
        settings = Settings(port=port)
        with (
            pytest.raises(UsageError, match=f"port {port} is taken"),
            serve.serve("test", settings=settings, now_ns=now_ns),
        ):
            pass
    with serve.serve("test", settings=settings, now_ns=now_ns) as again:  # free as soon as the first has stopped
        assert again.url == first.url


def test_an_unknown_engine_lists_the_known() -> None:
    with pytest.raises(UsageError, match="llamacpp"), serve.serve("gpt5", now_ns=now_ns):
        pass


@pytest.mark.parametrize("settings", [Settings(slots=0), Settings(context=0), Settings(threads=-1)])
def test_settings_that_make_no_sense_are_refused(settings: Settings) -> None:
    with pytest.raises(UsageError, match="1 or more"), serve.serve("llamacpp", settings=settings, now_ns=now_ns):
        pass


def test_a_log_that_cannot_be_written_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    engine(monkeypatch, lambda port: ("true",))
    settings = Settings(log="/no/such/folder/x.log")
    with pytest.raises(UsageError, match="name another file"), serve.serve("test", settings=settings, now_ns=now_ns):
        pass


def test_the_cores_left_for_the_client_are_one() -> None:
    assert recipes.compute_threads(Settings(threads=3)) == 3
    assert recipes.compute_threads(Settings()) == max(1, recipes.cores() - 1)


def test_the_leash_alone_gives_the_childs_exit_code(tmp_path: Path) -> None:
    for script, code in (("exit 7", 7), ("kill -9 $$", 137), ("exit 0", 0)):
        read_fd, write_fd = os.pipe()
        command = [sys.executable, leash.__file__, "1", str(write_fd), "[]", "sh", "-c", script]
        with subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=(write_fd,)) as holder:
            os.close(write_fd)
            with os.fdopen(read_fd) as report:
                assert int(report.readline()) > 0
            assert holder.wait(10) == code


@pytest.mark.parametrize(
    ("log", "code", "told"),
    [
        ("ValueError: No available memory for the cache blocks.", 1, "cache blocks"),
        ("RuntimeError: operator torchvision::nms does not exist", 1, "uninstall torchvision"),
        ("PackageNotFoundError: No package metadata was found for vllm", 1, "vllm.entrypoints.openai.api_server"),
        (
            "error while loading shared libraries: libllama-common.so.0: cannot open shared object file",
            127,
            "--info once",
        ),
        ("ModuleNotFoundError: No module named 'torch'", 1, "package torch is missing"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", 1, "GPU's memory"),
        ("error: unrecognized arguments: --foo 3", 2, "option --foo 3"),
        ("llama_model_load: unknown model architecture: 'zeta'", 1, "does not know the model's architecture"),
        ("", 137, "want of memory"),
        ("", 132, "instructions that this CPU lacks"),
        ("all is well", 1, ""),
        ("", None, ""),
    ],
)
def test_known_causes_are_told_in_plain_words(log: str, code: int | None, told: str) -> None:
    said = causes.explain(log, code)
    assert told in said
    assert bool(said) == bool(told)


def test_every_cause_says_what_to_do() -> None:
    for says, means in causes.known():
        assert says
        assert any(mark in means for mark in (":", ",")), means


def test_colours_and_blank_lines_are_left_out_of_a_log_tail() -> None:
    assert causes.last_lines("\x1b[31mred\x1b[0m\n\n  \nlast\n", 2) == ["red", "last"]
    assert len(causes.last_lines("x" * 10_000)[0]) == 200


@pytest.mark.real
def test_llama_cpp_serves_the_packaged_model_and_makes_sense(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DYNO_CACHE")  # the real cache, so that the model is fetched once a machine
    stages: list[str] = []
    settings = Settings(slots=4, context=512)
    with serve.serve("llamacpp", settings=settings, now_ns=now_ns, progress=lambda s, _: stages.append(s)) as served:
        asked = sense.question()
        body = {
            "messages": [{"role": "user", "content": asked.messages[0].content}],
            "temperature": 0,
            "max_tokens": 48,
        }
        with urllib.request.urlopen(f"{served.url}/chat/completions", json.dumps(body).encode(), timeout=60) as answer:
            text = json.load(answer)["choices"][0]["message"]["content"]
        with urllib.request.urlopen(served.url.removesuffix("/v1") + "/slots", timeout=10) as answer:
            slots = json.load(answer)
    assert sense.doubt(text) is None, text
    assert len(slots) == 4
    assert all(slot["n_ctx"] == 512 for slot in slots)
    assert served.facts["quantization"] == "Q8_0"
    assert len(str(served.facts["model_sha256"])) == 64
    assert served.model == "SmolLM2-135M-Instruct.Q8_0"
    assert not serve.alive(served)
