"""Engines that are a command of this machine, or else a container: Ollama, TGI, TensorRT-LLM, Triton.

Each is a line of data. In the words of a line, {model} {host} {port} {slots} {context} {prompt} are filled in;
{prompt} is the context less one token. In a container the model's folder is mounted at /model and the engine listens
on its own port.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from dynamometer.engines import embedded, found
from dynamometer.engines.recipes import Recipe, Settings
from dynamometer.errors import UsageError


class Native(msgspec.Struct, frozen=True):
    """How one engine is called."""

    engine: str
    binary: str
    arguments: tuple[str, ...]
    entry: tuple[str, ...] = ()  # what an image needs before the arguments, if its entry point is not the engine
    port: int = 80  # that it listens on in its image
    environment: Mapping[str, str] = {}
    volumes: tuple[str, ...] = ()
    health: str = "/health"
    base: str = "/v1"
    model: str = "a folder in Hugging Face's layout, or a hub's name (owner/name)"  # what it serves


class Place(msgspec.Struct, frozen=True):
    """Where it can be run here: the `command`, or an `image` of `tool`."""

    command: str = ""
    tool: str = ""
    image: str = ""


OLLAMA: Final = Native(
    engine="Ollama",
    binary="ollama",
    arguments=("serve",),
    port=11434,
    environment={
        "OLLAMA_HOST": "{host}:{port}",
        "OLLAMA_NUM_PARALLEL": "{slots}",
        "OLLAMA_CONTEXT_LENGTH": "{context}",
        "OLLAMA_KEEP_ALIVE": "-1",
    },
    volumes=("ollama:/root/.ollama",),
    health="/",
    model="the name of a model in its store (ollama pull NAME)",
)
TGI: Final = Native(
    engine="TGI",
    binary="text-generation-launcher",
    arguments=(
        *("--model-id", "{model}", "--hostname", "{host}", "--port", "{port}", "--max-concurrent-requests", "{slots}"),
        *("--max-total-tokens", "{context}", "--max-input-tokens", "{prompt}"),
    ),
)
TENSORRT_LLM: Final = Native(
    engine="TensorRT-LLM",
    binary="trtllm-serve",
    arguments=(
        *("{model}", "--host", "{host}", "--port", "{port}"),
        *("--max_batch_size", "{slots}", "--max_seq_len", "{context}"),
    ),
    entry=("trtllm-serve",),
    port=8000,
)
TRITON: Final = Native(
    engine="Triton",
    binary="tritonserver",
    arguments=(
        *("--model-repository={model}", "--http-address={host}", "--http-port={port}"),
        *("--allow-grpc=false", "--allow-metrics=false"),
    ),
    entry=("tritonserver",),
    port=8000,
    health="/v2/health/ready",
    base="",
    model="a model repository, a folder of folders",
)


def native(spec: Native, model: str, settings: Settings, port: int, progress: embedded.Progress) -> Recipe:
    """The recipe of a line. Slots and context of Triton stand in its repository's own configuration."""
    if not model or model.lower() in embedded.PACKAGES or model.endswith(".gguf"):
        raise UsageError(f"{spec.engine} needs a model: {spec.model}; {model or 'none'!r} was given")
    place = place_of(spec, settings)
    local = Path(model).is_dir()
    served = Path(model).resolve() if local else model
    if place.image:
        served = "/model" if local else model
    values = {
        "model": str(served),
        "host": "0.0.0.0" if place.image else "127.0.0.1",
        "port": str(spec.port if place.image else port),
        "slots": str(settings.slots),
        "context": str(settings.context),
        "prompt": str(settings.context - 1),
    }
    arguments = (*(word.format(**values) for word in spec.arguments), *settings.extra)
    environment = {name: word.format(**values) for name, word in spec.environment.items()}
    facts: dict[str, str | int | float] = {
        "engine": spec.engine,
        "engine_place": place.command or place.image,
        "slots": settings.slots,
        "context_tokens_per_slot": settings.context,
    }
    if place.image:
        volumes = (*spec.volumes, *((f"{Path(model).resolve()}:/model:ro",) if local else ()))
        command, after = _container(place, (port, spec.port), environment, volumes)
        command = (*command, place.image, *spec.entry, *arguments)
        environment = {}
    else:
        command, after = (place.command, *arguments), ()
    name = _first_folder(Path(model)) if spec is TRITON else str(served)
    return Recipe(command, name, spec.health, spec.base, environment, after, facts)


def place_of(spec: Native, settings: Settings) -> Place:
    """The binary if it is on PATH and no image was asked for; else the image asked for, or one that is here."""
    path = shutil.which(spec.binary)
    if path and not settings.image:
        return Place(command=path)
    tool = shutil.which("docker") or shutil.which("podman")
    if not tool:
        raise UsageError(
            f"{spec.binary} is not on PATH and neither docker nor podman is here; install {spec.engine} or one of them"
        )
    image = settings.image or next((one.where for one in found.images() if one.name == spec.engine), "")
    if not image:
        raise UsageError(
            f"no image of {spec.engine} is here and {spec.binary} is not on PATH; pull one and give --image"
        )
    return Place(tool=tool, image=image)


def _container(
    place: Place, ports: tuple[int, int], environment: Mapping[str, str], volumes: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The command up to the image, and what removes the container should its client be killed."""
    name = f"dyno-{ports[0]}"
    gpus = ("--gpus", "all") if shutil.which("nvidia-smi") else ()
    command = (
        *(place.tool, "run", "--rm", "--init", "--name", name, "--shm-size", "1g", *gpus),
        *("--publish", f"127.0.0.1:{ports[0]}:{ports[1]}"),
        *(word for volume in volumes for word in ("--volume", volume)),
        *(word for pair in environment.items() for word in ("--env", "=".join(pair))),
    )
    return command, (place.tool, "rm", "--force", name)


def _first_folder(repository: Path) -> str:
    return min((path.name for path in repository.iterdir() if path.is_dir()), default="") if repository.is_dir() else ""


ollama = partial(native, OLLAMA)
tgi = partial(native, TGI)
tensorrt_llm = partial(native, TENSORRT_LLM)
triton = partial(native, TRITON)
