"""A running engine's URL (and log, and process) in, what it says of its own memory out. Nothing is inferred: what it
does not say is listed as silent."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import urlopen

import msgspec

from dynamometer.errors import MissingPath, TargetError, UsageError
from dynamometer.units import GIB, MIB

_TIMEOUT_S: Final = 5.0
_LOG_BYTES: Final = 32 * 2**20


class Reported(msgspec.Struct, frozen=True):
    """0 or "" where the engine is silent; `silent` names what was looked for in vain."""

    url: str
    engine: str = ""
    model: str = ""
    model_path: str = ""
    parameters: int = 0
    weights_bytes: int = 0
    context: int = 0  # tokens of one sequence
    slots: int = 0
    blocks: int = 0
    block: int = 0
    kv_tokens: int = 0
    kv_bytes: int = 0
    kv_format: str = ""
    compute_bytes: int = 0
    utilization: float = 0.0
    resident_bytes: int = 0  # of the process, host memory
    witnesses: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()


def ask(url: str, log: Path | None = None, pid: int | None = None) -> Reported:
    """Asks the endpoints that tell of memory; `log` and `pid` add what only they know."""
    base = _base(url)
    props, models, metrics = _json(base + "/props"), _json(base + "/v1/models"), _text(base + "/metrics")
    server = _json(base + "/get_server_info")
    if props is None and models is None and metrics is None and server is None:
        raise TargetError(
            f"{base} answers neither /props, /v1/models, /metrics nor /get_server_info; is the engine up?"
        )
    found: dict[str, object] = {"url": base}
    _from_models(models, found)
    _from_props(props, found)
    _from_metrics(metrics or "", found)
    _from_server_info(server, found)
    if log is not None:
        _from_log(log, found)
    if pid is None:
        pid = _listener(base)
    resident = _resident(pid)
    if resident:
        found["resident_bytes"] = resident
    wanted = {"parameters": "parameter count", "weights_bytes": "size of the weights", "kv_bytes": "size of the cache"}
    wanted |= {"blocks": "cache blocks", "compute_bytes": "compute buffer", "resident_bytes": "memory of the process"}
    silent = tuple(text for key, text in wanted.items() if not found.get(key))
    return msgspec.convert({**found, "silent": silent}, Reported)


def _base(url: str) -> str:
    text = url if "://" in url else f"http://{url}"
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise UsageError(f"{url!r} is no URL of an engine; give one such as http://127.0.0.1:8000")
    return f"{parts.scheme}://{parts.netloc}{parts.path.removesuffix('/').removesuffix('/v1')}"


def _text(url: str) -> str | None:
    try:
        with urlopen(url, timeout=_TIMEOUT_S) as answer:
            body: bytes = answer.read(_LOG_BYTES)
            return body.decode(errors="replace")
    except HTTPError:
        return None
    except (URLError, TimeoutError, OSError, ValueError):
        return None


def _json(url: str) -> Mapping[str, object] | None:
    text = _text(url)
    try:
        table = msgspec.json.decode(text or "")
    except msgspec.DecodeError:
        return None
    return table if isinstance(table, dict) else None


def _from_models(table: Mapping[str, object] | None, found: dict[str, object]) -> None:
    """/v1/models: llama.cpp's `meta`, vLLM's `root` and `max_model_len`."""
    rows = (table or {}).get("data")
    first = rows[0] if isinstance(rows, list) and rows and isinstance(rows[0], dict) else {}
    found["model"] = str(first.get("id") or "")
    if first.get("root"):
        found["model_path"] = str(first["root"])
    if isinstance(first.get("max_model_len"), int):
        found["context"] = first["max_model_len"]
    if first.get("owned_by") in ("vllm", "sglang"):
        found["engine"] = first["owned_by"]
    meta = first.get("meta")
    if isinstance(meta, dict):
        found["engine"] = "llama.cpp"
        found["parameters"] = int(meta.get("n_params") or 0)
        found["weights_bytes"] = int(meta.get("size") or 0)


def _from_props(table: Mapping[str, object] | None, found: dict[str, object]) -> None:
    """llama.cpp's /props."""
    if not table or "total_slots" not in table:
        return
    found["engine"] = "llama.cpp"
    found["slots"] = table["total_slots"]
    found["model_path"] = str(table.get("model_path") or "")
    settings = table.get("default_generation_settings")
    if isinstance(settings, dict) and isinstance(settings.get("n_ctx"), int):
        found["context"] = settings["n_ctx"]
    found["kv_format"] = "fp16"  # its default; the log corrects it


def _from_metrics(text: str, found: dict[str, object]) -> None:
    """vLLM's cache_config_info and SGLang's gauges."""
    match = re.search(r"^vllm:cache_config_info\{(.*)\}", text, re.MULTILINE)
    if match:
        labels = dict(re.findall(r'(\w+)="([^"]*)"', match[1]))
        found["engine"] = "vllm"
        for key, label in (("blocks", "num_gpu_blocks"), ("block", "block_size")):
            if labels.get(label, "").isdigit():
                found[key] = int(labels[label])
        found["kv_format"] = {"auto": "auto"}.get(labels.get("cache_dtype", "auto"), labels.get("cache_dtype", "auto"))
        share = labels.get("gpu_memory_utilization", "")
        if re.fullmatch(r"[0-9.]+", share):
            found["utilization"] = float(share)
    tokens = re.search(r"^sglang:max_total_num_tokens(?:\{.*?\})? ([0-9.e+]+)", text, re.MULTILINE)
    if tokens:
        found["engine"], found["kv_tokens"] = "sglang", int(float(tokens[1]))


def _from_server_info(table: Mapping[str, object] | None, found: dict[str, object]) -> None:
    """SGLang's /get_server_info."""
    if not table or "mem_fraction_static" not in table:
        return
    found["engine"] = "sglang"
    found["model_path"] = str(table.get("model_path") or "")
    if isinstance(table.get("max_total_num_tokens"), int):
        found["kv_tokens"] = table["max_total_num_tokens"]
    share = table.get("mem_fraction_static")
    if isinstance(share, float):
        found["utilization"] = share


_SIZES: Final = (  # (field, pattern, bytes in its unit); the last line counts: a trial load comes first
    ("kv_bytes", r"KV buffer size\s*=\s*([\d.]+) MiB", MIB),
    ("weights_bytes", r"model buffer size\s*=\s*([\d.]+) MiB", MIB),
    ("compute_bytes", r"compute buffer size\s*=\s*([\d.]+) MiB", MIB),
    ("kv_bytes", r"Available KV cache memory: ([\d.]+) GiB", GIB),
    ("weights_bytes", r"Model loading took ([\d.]+) Gi?B", GIB),
)


def _from_log(path: Path, found: dict[str, object]) -> None:
    """Sizes that llama.cpp and vLLM write while they start."""
    try:
        with path.open("rb") as file:
            text = file.read(_LOG_BYTES).decode(errors="replace")
    except OSError as wrong:
        raise MissingPath(f"{path} cannot be read ({wrong.strerror}); give the engine's log") from wrong
    for field, pattern, scale in _SIZES:
        sizes = [float(size) for size in re.findall(pattern, text)]
        if sizes and sizes[-1] > 0 and not (field == "weights_bytes" and found.get(field)):
            found[field] = round(sizes[-1] * scale)
    tokens = re.findall(r"GPU KV cache size: ([\d,]+) tokens", text)
    if tokens:
        found["kv_tokens"] = int(tokens[-1].replace(",", ""))
    kinds = re.findall(r"K \((\w+)\)", text)
    if kinds:
        found["kv_format"] = kinds[-1].replace("f16", "fp16") if kinds[-1] in ("f16", "bf16") else kinds[-1]


def _listener(base: str) -> int | None:
    """The process that listens on a loopback port of this machine."""
    from dynamometer.telemetry import process

    parts = urlsplit(base)
    if parts.hostname not in ("127.0.0.1", "localhost", "::1") or not parts.port:
        return None
    try:
        return next(iter(process.listeners(parts.port)), None)
    except OSError:
        return None


def _resident(pid: int | None) -> int:
    """Resident bytes of a process; 0 when it cannot be read."""
    if pid is None:
        return 0
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    match = re.search(r"VmRSS:\s+(\d+) kB", status)
    return int(match[1]) * 1024 if match else 0
