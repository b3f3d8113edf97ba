"""What an endpoint answered to a few questions in, the dialect to speak with it out. Pure; the client does the asking.

A server that speaks OpenAI's chat is asked in it, since nearly all do and it is what users send; an engine's own
dialect is chosen where that is missing. An explicit `--api` beats all of this.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

import msgspec

from dynamometer.errors import TargetError

# GET each of these, relative to the server's root; answers that are no 200 count too
QUESTIONS: Final = (
    *("/v1/models", "/api/version", "/props", "/info", "/get_model_info", "/v2", "/token_load"),
    *("/version", "/openapi.json"),
)


class Found(msgspec.Struct, frozen=True):
    """`api`: the dialect's name. `engine`: the engine behind it, "" if it does not show itself."""

    api: str
    engine: str
    because: str


def detect(url: str, answers: Iterable[tuple[str, int, bytes]]) -> Found:
    """`answers`: (path, HTTP status, body) for as many of `QUESTIONS` as were asked; none are needed for known hosts.

    Raises TargetError when nothing is recognised.
    """
    host = urlsplit(url).hostname or ""
    known = _by_url(url, host)
    if known is not None:
        return known
    given = list(answers)
    said = {path: _json(body) for path, status, body in given if status == 200}
    refused = next((status for path, status, _ in given if path == "/v1/models" and status in (401, 403)), 0)
    engine, native = _engine(said)
    routes = _routes(said.get("/openapi.json"))
    if _is_model_list(said.get("/v1/models")) or "/v1/chat/completions" in routes:
        only_text = bool(routes) and "/v1/chat/completions" not in routes and "/v1/completions" in routes
        api = "openai.completions" if only_text else "openai.chat"
        return Found(api, engine, "it lists its models as OpenAI does")
    if refused:
        return Found("openai.chat", engine, f"/v1/models exists and wants a key (HTTP {refused})")
    if native:
        return Found(native, engine, f"it answers as {engine} and has no OpenAI route")
    seen = ", ".join(f"{path} {status}" for path, status, _ in given) or "nothing"
    raise TargetError(f"{url} speaks no known dialect (it answered: {seen}); name one with --api, see dyno doctor")


def _by_url(url: str, host: str) -> Found | None:
    if host.endswith((".openai.azure.com", ".cognitiveservices.azure.com")):
        api = "openai.chat" if "/openai/v1" in url else "azure"
        return Found(api, "Azure OpenAI", "the host is Azure's")
    if host == "api.anthropic.com":
        return Found("anthropic", "Anthropic", "the host is Anthropic's")
    tails = {
        "/chat/completions": "openai.chat",
        "/completions": "openai.completions",
        "/responses": "openai.responses",
        "/messages": "anthropic",
        "/api/chat": "ollama.chat",
        "/api/generate": "ollama.generate",
        "/completion": "llamacpp",
    }
    path = urlsplit(url).path.rstrip("/")
    if path.endswith("/generate_stream") and "/v2/models/" in path:
        return Found("triton", "Triton", "the URL is a Triton model's")
    tail = next((tail for tail in tails if path.endswith(tail)), "")
    return Found(tails[tail], "", f"the URL ends in {tail}") if tail else None


def _engine(said: dict[str, object]) -> tuple[str, str]:
    """(engine, its own dialect) from what only this engine answers."""
    owners = {str(model.get("owned_by", "")).lower() for model in _models(said.get("/v1/models"))}
    marks = (
        (_has(said, "/get_model_info", "model_path") or "sglang" in owners, "SGLang", "sglang"),
        (_has(said, "/props", "default_generation_settings") or "llamacpp" in owners, "llama.cpp", "llamacpp"),
        (_has(said, "/info", "model_id"), "TGI", "tgi"),
        (_has(said, "/v2", "extensions"), "Triton", "triton"),
        (_has(said, "/token_load", "current_load"), "LightLLM", "lightllm"),
        (_has(said, "/api/version", "version"), "Ollama", "ollama.chat"),
        ("vllm" in owners or _has(said, "/version", "version"), "vLLM", ""),
    )
    return next(((engine, api) for mark, engine, api in marks if mark), ("", ""))


def _has(said: dict[str, object], path: str, key: str) -> bool:
    value = said.get(path)
    return isinstance(value, dict) and key in value


def _models(value: object) -> list[dict[str, object]]:
    data = value.get("data") if isinstance(value, dict) else None
    return [model for model in data if isinstance(model, dict)] if isinstance(data, list) else []


def _is_model_list(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("data"), list)


def _routes(value: object) -> frozenset[str]:
    paths = value.get("paths") if isinstance(value, dict) else None
    return frozenset(map(str, paths)) if isinstance(paths, dict) else frozenset()


def _json(body: bytes) -> object:
    try:
        return msgspec.json.decode(body)
    except (ValueError, RecursionError):
        return None
