"""What a user names as a side of a comparison in (a URL, a GGUF file, a quantization), a side that can be asked out."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from dynamometer.client.ask import base_path, get, post_json, root_path
from dynamometer.client.endpoint import endpoint
from dynamometer.engines.embedded import Progress, model_file
from dynamometer.engines.quantizations import canonical
from dynamometer.engines.recipes import Settings
from dynamometer.engines.serve import Served, serve
from dynamometer.errors import TargetError, UsageError
from dynamometer.quality.logits import CACHE_TYPES
from dynamometer.quality.sides import Call, Json, Side, template_of
from dynamometer.record.clock import now_ns
from dynamometer.types import Target

TIMEOUT_S: Final = 600.0


class Named(msgspec.Struct, frozen=True):
    """One side as named: a URL, or a file with the type of its cache."""

    name: str  # baseline | candidate
    label: str
    url: str = ""
    model: str = ""
    file: Path | None = None
    cache_type: str = "F16"
    api_key_env: str = ""


class Local(msgspec.Struct, frozen=True):
    """How a file is served here."""

    slots: int = 4
    context: int = 1024
    threads: int = 0


def named(name: str, word: str, model: str, key: str, served: str, progress: Progress) -> Named:
    """`word`: URL, GGUF file, or quantization of `model`; `+kv:TYPE` behind a local one sets its cache's type."""
    if word.startswith(("http://", "https://")):
        return Named(name, word.rstrip("/"), word.rstrip("/"), served, None, "", key)
    base, plus, cache = word.partition("+kv:")
    cache = cache.upper() if plus else "F16"
    if cache not in CACHE_TYPES:
        raise UsageError(f"{name} is {word!r}; the cache's type is one of {', '.join(CACHE_TYPES)}")
    if base.lower().endswith(".gguf") or Path(base).is_file():
        return Named(name, word, file=model_file(base, "", progress), cache_type=cache)
    try:
        canonical(base)
    except UsageError as wrong:
        raise UsageError(f"{name} is {word!r}; give a URL, a .gguf file, or a quantization such as Q4_K_M") from wrong
    return Named(name, word, file=model_file(model or "smollm2", base, progress), cache_type=cache)


@contextmanager
def opened(one: Named, local: Local, progress: Progress) -> Iterator[tuple[Side, Served | None]]:
    """A side that answers: at its URL, or by llama.cpp's server, which is up for the length of the block."""
    if one.file is None:
        call = caller(Target(url=one.url, api_key_env=one.api_key_env))
        side = Side(one.name, one.label, one.model or _served_model(call, one.url), call)
        yield msgspec.structs.replace(side, template=template_of(side)), None
        return
    extra = ("--cache-type", one.cache_type) if one.cache_type != "F16" else ()
    how = Settings(slots=local.slots, context=local.context, threads=local.threads, extra=extra)
    with serve("llamacpp", str(one.file), how, now_ns=now_ns, progress=progress) as served:
        side = Side(one.name, one.label, served.model, caller(Target(url=served.url)))
        yield msgspec.structs.replace(side, template=template_of(side)), served


def caller(target: Target) -> Call:
    """A function that asks the endpoint: POST with a body, GET without."""
    at, base, root = endpoint(target, os.environ), base_path(target.url), root_path(target.url)

    def call(path: str, body: object = None, *, root: bool = False, _root: str = root) -> tuple[int, Json]:
        where = (_root if root else base) + path
        reply = get(at, where, TIMEOUT_S) if body is None else post_json(at, where, body, TIMEOUT_S)
        try:
            said = msgspec.json.decode(reply.body)
        except msgspec.DecodeError:
            said = {"error": reply.body[:200].decode(errors="replace")}
        return reply.status, said if isinstance(said, dict) else {"data": said}

    return call


def _served_model(call: Call, url: str) -> str:
    status, said = call("/models")
    listed = said.get("data")
    if status != 200 or not isinstance(listed, list) or not listed or not isinstance(listed[0], dict):
        raise TargetError(f"{url}/models answers HTTP {status} and no list of models; is it the base URL, with /v1?")
    return str(listed[0].get("id", ""))


def facts(one: Named) -> Mapping[str, object]:
    """What identifies a side in the settings of a comparison."""
    from dynamometer.engines.embedded import trusted_sha256

    if one.file is None:
        return {"url": one.url, "model": one.model}
    return {"label": one.label, "sha256": trusted_sha256(one.file), "cache": one.cache_type}
