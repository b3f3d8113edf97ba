"""`dyno memory`, `audit`, `devices` and `probe` as a user types them: JSON keys, exit codes, a live engine,
milliseconds."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dynamometer.cli import dyno, main
from dynamometer.hardware import source
from dynamometer.hardware.memory import Deployment, breakdown, judge
from dynamometer.record.clock import now_ns

KEYS = [
    "parameters_total",
    "parameters_active",
    "weights_bytes",
    "kv_bytes_per_token",
    "kv_bytes",
    "state_bytes_per_sequence",
    "buffers_bytes",
    "fits",
]
CLAIMS = Path(__file__).parent.parent / "examples" / "claims.csv"


def run(*words: str) -> Result:
    return CliRunner().invoke(dyno, list(words), catch_exceptions=False)


def table(*words: str) -> dict[str, object]:
    result = run(*words, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert isinstance(found, dict)
    return found


def code(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as left:
        main(list(words))
    return int(str(left.value.code)), capsys.readouterr().err


def test_json_carries_every_key_and_the_sums_agree() -> None:
    found = table("memory", "mixtral-8x7b", "--gpu", "2xH100", "--context", "8k", "--concurrency", "4")
    assert set(KEYS) <= set(found)
    assert found["parameters_total"] == 46702792704
    assert found["parameters_active"] == 12879925248
    assert found["weights_bytes"] == 2 * 46702792704
    assert found["kv_bytes_per_token"] == 131072 / 2
    assert found["kv_bytes"] == 4 * 8192 * 65536
    assert found["fits"] is True
    gpu = found["per_gpu"]
    assert isinstance(gpu, dict)
    parts = ("weights_bytes", "kv_bytes", "state_bytes", "activation_bytes", "graphs_bytes", "runtime_bytes")
    assert gpu["total_bytes"] == sum(gpu[part] for part in parts)
    assert sum(gpu["weights_by_class"].values()) == pytest.approx(gpu["weights_bytes"], abs=10)


def test_eighty_gib_do_not_hold_all_of_mixtrals_experts() -> None:
    """C11, as typed."""
    assert table("memory", "mixtral-8x7b", "--memory", "80GiB")["fits"] is False


@pytest.mark.parametrize(("tp", "size"), [("1", 98304), ("2", 49152), ("4", 24576), ("8", 24576)])
def test_each_gpus_bytes_a_token_under_tensor_parallelism(tmp_path: Path, tp: str, size: int) -> None:
    """C15, as typed."""
    path = tmp_path / "config.json"
    path.write_text(
        json.dumps({"num_hidden_layers": 48, "num_key_value_heads": 4, "head_dim": 128, "num_attention_heads": 32})
    )
    found = table("memory", str(path), "--tp", tp)
    assert found["kv_bytes_per_token"] == size
    assert found["kv_bytes_per_token_all_gpus"] == size * int(tp)
    assert found["parameters_total"] is None


def test_a_state_that_the_config_lacks_can_be_given(tmp_path: Path) -> None:
    """C07, as typed."""
    path = tmp_path / "config.json"
    pattern = "MEMEM*EMEMEM*EMEMEM*"
    path.write_text(
        json.dumps(
            {"num_hidden_layers": 20, "hybrid_override_pattern": pattern, "num_key_value_heads": 2, "head_dim": 128}
        )
    )
    assert table("memory", str(path))["state_bytes_per_sequence"] is None
    assert table("memory", str(path), "--state-per-layer", "1MiB")["state_bytes_per_sequence"] == 9 * 2**20


def test_the_command_of_the_handbook_prints_table_bar_limits_and_flag() -> None:
    words = "memory llama-3.1-8b --gpu H100 --context 32k --concurrency 16 --kv fp8 --weights int4 --engine vllm"
    text = run(*words.split(), "--actual", "8001").output
    for part in (
        "It fits",
        "weights",
        "cache",
        "activation",
        "█",
        "context × concurrency",
        "--gpu-memory-utilization",
        "paged",
    ):
        assert part in text
    flags = {
        name: run("memory", "llama-3.1-8b", "--gpu", "H100", "--engine", name).output for name in ("vllm", "trtllm")
    }
    assert "share of the GPU's total memory" in flags["vllm"]
    assert "share of the memory still free" in flags["trtllm"]


def test_a_picture_is_one_page_that_needs_no_network(tmp_path: Path) -> None:
    page = tmp_path / "m.html"
    assert run("memory", "llama-3.1-8b", "--gpu", "H100", "--figure", str(page)).exit_code == 0
    text = page.read_text(encoding="utf-8")
    assert "Memory of one GPU" in text
    assert "https://cdn" not in text


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("memory", "needs a model"),
        ("memory nonsense-model", "neither a file"),
        ("memory llama-3.1-8b --gpu H1000", "not known"),
        ("memory llama-3.1-8b --weights int5", "format"),
        ("memory llama-3.1-8b --kv int5", "KV cache format"),
        ("memory llama-3.1-8b --tp 7", "7 GPUs"),
        ("memory llama-3.1-8b --tp 0", "tensor parallelism is 0"),
        ("memory llama-3.1-8b --context -5", "context"),
        ("memory llama-3.1-8b --context lots", "--context"),
        ("memory llama-3.1-8b --concurrency 0", "concurrency"),
        ("memory llama-3.1-8b --engine fast", "engine"),
        ("memory llama-3.1-8b --count 6 --tp 4", "multiple"),
        ("memory llama-3.1-8b --check ftp://host --gpu H100", "URL"),
        ("devices toaster", "not known"),
        ("devices --models r1", "needs a device"),
        ("audit", "needs claims"),
        ("audit nowhere.csv", "not there"),
        ("probe batch --bytes-per-sample 0B --bandwidth 1GB", "above 0"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_two(capsys: pytest.CaptureFixture[str], words: str, wanted: str) -> None:
    status, said = code(capsys, *words.split())
    assert status == 2
    assert wanted in said
    assert "Traceback" not in said
    assert len(said.strip().splitlines()) <= 4


def test_audit_json_is_a_list_of_id_verdict_arithmetic_and_source() -> None:
    found = json.loads(run("audit", str(CLAIMS), "--json").stdout)
    assert len(found) == 50
    assert all({"id", "verdict", "arithmetic", "source"} <= set(row) for row in found)
    assert {row["verdict"] for row in found} == {
        "possible",
        "implausible",
        "impossible",
        "inconsistent",
        "not_checkable",
    }


def test_the_gate_fails_on_a_claim_that_cannot_be(capsys: pytest.CaptureFixture[str]) -> None:
    assert code(capsys, "audit", "--gate", "DeepSeek-V3 fits in 24 GB in fp16")[0] == 1
    assert code(capsys, "audit", "--gate", "DeepSeek-R1 FP8 runs on 8x H200")[0] == 0


def test_devices_name_the_source_of_each_figure_and_keep_conflicts() -> None:
    text = run("devices", "ascend-910b").output
    assert "CONFLICT" in text
    assert "256, 313, 320" in text
    rows = json.loads(run("devices", "--json").stdout)
    assert len(rows) > 50
    assert all(figure["sources"] for row in rows for figure in row["figures"].values())


def test_the_edge_batch_is_shown_beside_the_printed_formula() -> None:
    text = run("probe", "batch", "--device", "rk3588", "--bytes-per-sample", "12.4MB", "--latency", "50ms").output
    assert "largest batch 109" in text
    assert "2,181" in text


def test_a_built_in_is_worked_out_in_milliseconds() -> None:
    source.built_ins()
    best = 1e9
    for _ in range(5):
        source.load.cache_clear()
        began_ns = now_ns()
        model = source.load("deepseek-v3")
        d = Deployment(context=32768, concurrency=16, tp=8, memory_bytes=80 * 2**30)
        judge(model, d, breakdown(model, d))
        best = min(best, (now_ns() - began_ns) / 1e6)
    assert best < 100  # about 4 ms on an idle core; the bound is for a busy one


@contextmanager
def engine(answers: dict[str, object]) -> Iterator[str]:
    """A server that answers these paths, JSON or text."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = answers.get(self.path)
            raw = body.encode() if isinstance(body, str) else json.dumps(body).encode()
            self.send_response(404 if body is None else 200)
            self.send_header("content-length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


VLLM = {
    "/v1/models": {"data": [{"id": "m", "owned_by": "vllm", "root": "llama-3.1-8b", "max_model_len": 8192}]},
    "/metrics": 'vllm:cache_config_info{block_size="16",cache_dtype="auto",gpu_memory_utilization="0.9",'
    'num_gpu_blocks="55712"} 1.0\n',
}


def test_vllms_own_block_count_is_compared_with_the_prediction() -> None:
    """55,712 blocks are what vLLM 0.26 reported on an H200 with 16,384 tokens a pass."""
    with engine(dict(VLLM)) as url:
        words = ("memory", "--check", url, "--memory", "139.8GiB", "--batched-tokens", "16384", "--json")
        result = run(*words)
    assert result.exit_code == 0, result.output
    row = next(row for row in json.loads(result.stdout)["rows"] if row["name"] == "cache blocks")
    assert row["reported"] == 55712
    assert abs(row["error"]) < 0.05


def test_a_prediction_that_misses_fails_the_check(capsys: pytest.CaptureFixture[str]) -> None:
    with engine(VLLM | {"/metrics": str(VLLM["/metrics"]).replace("55712", "30000")}) as url:
        status, said = code(capsys, "memory", "--check", url, "--memory", "139.8GiB")
    assert status == 1
    assert "misses by" in said


def test_an_engine_that_is_not_there_is_exit_code_three(capsys: pytest.CaptureFixture[str]) -> None:
    assert code(capsys, "memory", "--check", "http://127.0.0.1:9")[0] == 3


@pytest.mark.real
def test_llama_cpp_allocates_what_was_predicted() -> None:
    from dynamometer.engines.recipes import Settings
    from dynamometer.engines.serve import serve

    with serve("llamacpp", "smollm2", Settings(), now_ns=now_ns) as served:
        base = served.url.removesuffix("/v1")
        result = run("memory", "--check", base, "--engine-log", str(served.log), "--json")
    assert result.exit_code == 0, result.output
    rows = {row["name"]: row for row in json.loads(result.stdout)["rows"]}
    assert rows["parameters"]["predicted"] == rows["parameters"]["reported"] == 134515008
    assert rows["weights"]["error"] == pytest.approx(0, abs=1e-3)
    assert rows["process memory"]["reported"] > rows["weights"]["reported"]
