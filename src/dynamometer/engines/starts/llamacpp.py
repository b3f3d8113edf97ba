"""llama.cpp: from the `xllamacpp` package, or the `llama-server` binary of this machine."""

from __future__ import annotations

import re
import shutil
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from dynamometer.engines import embedded
from dynamometer.engines.quantizations import quantization_of
from dynamometer.engines.recipes import Recipe, Settings, compute_threads
from dynamometer.errors import MissingExtra, UsageError


def packaged(model: str, settings: Settings, port: int, progress: embedded.Progress) -> Recipe:
    """llama.cpp's server through the xllamacpp package."""
    try:
        engine_version = version("xllamacpp")
    except PackageNotFoundError as missing:
        raise MissingExtra("xllamacpp", "llamacpp") from missing
    file = embedded.model_file(model or "smollm2", settings.quantization, progress)
    threads = compute_threads(settings)
    name = served_name(file)
    command = (
        *(sys.executable, "-m", "dynamometer.engines.llamacpp_server", "--model", str(file), "--alias", name),
        *("--port", str(port), "--slots", str(settings.slots), "--context", str(settings.context)),
        *("--threads", str(threads), *settings.extra),
    )
    facts = file_facts(file, settings, threads)
    return Recipe(
        command=command,
        model=name,
        facts={"engine": "llama.cpp (xllamacpp)", "engine_version": engine_version, **facts},
    )


def native(model: str, settings: Settings, port: int, progress: embedded.Progress) -> Recipe:
    """llama.cpp's own binary, built for this CPU or GPU."""
    binary = shutil.which("llama-server")
    if binary is None:
        raise UsageError(
            "llama-server is not on PATH; build llama.cpp, or take the engine llamacpp, which needs no build"
        )
    file = embedded.model_file(model or "smollm2", settings.quantization, progress)
    threads = compute_threads(settings)
    name = served_name(file)
    command = (
        *(binary, "-m", str(file), "--alias", name, "--host", "127.0.0.1", "--port", str(port)),
        *("-np", str(settings.slots), "-c", str(settings.context * settings.slots), "-t", str(threads)),
        *("--metrics", "--slots", "--cache-ram", "0", *settings.extra),
    )
    facts = file_facts(file, settings, threads)
    return Recipe(
        command=command, model=name, facts={"engine": "llama.cpp (llama-server)", "engine_path": binary, **facts}
    )


def served_name(file: Path) -> str:
    """The file's name; the cache's hash is no part of it."""
    return re.sub(r"\.[0-9a-f]{12}$", "", file.stem)


def file_facts(file: Path, settings: Settings, threads: int) -> dict[str, str | int | float]:
    return {
        "slots": settings.slots,
        "context_tokens_per_slot": settings.context,
        "threads": threads,
        "quantization": quantization_of(file),
        "model_file": file.name,
        "model_bytes": file.stat().st_size,
        "model_sha256": embedded.trusted_sha256(file),
    }
