"""What a user may call a model: paths, built-ins, hub names; and each mistake's own message."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from dynamometer.errors import MissingPath, UsageError
from dynamometer.hardware import source
from dynamometer.hardware.model import kv_bytes_per_token, parameters_total

CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "vocab_size": 100,
}


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("DeepSeek-R1", "deepseek-r1"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("google/gemma-3-27b-it", "gemma-3-27b"),
        ("openai/gpt-oss-20b", "gpt-oss-20b"),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b"),
        ("deepseek_coder_33b", "deepseek-coder-33b"),
        ("Coder-33B", "deepseek-coder-33b"),
        ("Llama3.1 8B Instruct", "llama-3.1-8b"),
        ("qwen-2.5-7b", "qwen2.5-7b"),
        ("math-7b", "deepseek-math-7b"),
    ],
)
def test_a_built_in_answers_to_its_usual_names(said: str, name: str) -> None:
    assert source.resolve(said, online=False).name == name


def test_a_path_wins_over_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deepseek-r1").mkdir()
    (tmp_path / "deepseek-r1" / "config.json").write_text(json.dumps(CONFIG))
    assert parameters_total(source.resolve("deepseek-r1")) != source.built_ins()["deepseek-r1"].published


def test_infinity_and_a_byte_order_mark_do_not_stop_a_config(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text("\ufeff" + json.dumps(CONFIG)[:-1] + ', "time_step_limit": [0.0, Infinity]}', encoding="utf-8")
    assert kv_bytes_per_token(source.resolve(str(path))) == 2 * 2 * 32 * 2


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", "\x00\x01"])
def test_what_is_no_config_is_one_clear_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(UsageError):
        source.resolve(str(path))


def test_an_unknown_name_hints_at_near_ones_and_a_missing_path_is_a_path() -> None:
    with pytest.raises(UsageError, match="deepseek-v3"):
        source.resolve("deepsek-v3")
    with pytest.raises(MissingPath):
        source.resolve("./nowhere/config.json")
    with pytest.raises(UsageError, match="no name"):
        source.resolve(" ")
    with pytest.raises(MissingPath, match=r"neither config\.json nor a GGUF"):
        source.resolve(".git" if Path(".git").is_dir() else "tests")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """A hub on loopback that knows one model."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.path == "/owner/known/resolve/main/config.json"
            body = json.dumps(CONFIG).encode() if known else b"{}"
            self.send_response(200 if known else 404)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_address[1]}")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    yield "owner/known"
    server.shutdown()
    server.server_close()


def test_a_hub_name_is_looked_up_online(hub: str) -> None:
    assert kv_bytes_per_token(source.resolve(hub)) == 2 * 2 * 32 * 2
    with pytest.raises(UsageError, match="no such model"):
        source.resolve("owner/unknown")
    with pytest.raises(UsageError, match="online look-up is off"):
        source.resolve(hub, online=False)


def test_the_local_cache_comes_before_the_network(hub: str, tmp_path: Path) -> None:
    snapshot = tmp_path / "hub" / "models--owner--cached" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps(CONFIG))
    assert source.resolve("owner/cached").name == "owner/cached"
