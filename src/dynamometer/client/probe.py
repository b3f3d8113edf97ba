"""A target in, what the endpoint says of itself out: dialect, model, token limit's name, engine, pages beside it.

Asked before the load, once; nothing here is in a figure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final, cast

import msgspec

from dynamometer import plugins
from dynamometer.client.ask import Reply, ask, base_path, call, get, post_json, root_path
from dynamometer.client.endpoint import Endpoint, endpoint
from dynamometer.engines import kserve
from dynamometer.engines.detect import QUESTIONS, detect
from dynamometer.engines.dialect import Dialect
from dynamometer.engines.fault import explain
from dynamometer.engines.reply import Reply as Answer
from dynamometer.engines.reply import assemble
from dynamometer.errors import TargetError, UsageError
from dynamometer.types import Message, Request, Target

Facts = Mapping[str, str | int | float]
Json = dict[str, object]

_PAGES: Final = ("/version", "/props", "/get_server_info", "/info", "/api/version")


class Seen(msgspec.Struct, frozen=True):
    """What is behind the URL. `target` is the one asked for, with its blanks filled in."""

    target: Target
    facts: Facts
    metrics_path: str = ""  # of a page that looks like Prometheus text; "" = none found
    counter: str = ""  # how the endpoint counts tokens: llamacpp | vllm | ""


def look(target: Target, environ: Mapping[str, str]) -> Seen:
    """Fills in the model and the dialect. TargetError: nobody there, no right to ask, or no model served."""
    at = endpoint(target, environ)
    grpc = at.scheme.startswith("grpc")
    if target.api != "auto" and grpc != target.api.startswith("kserve"):
        raise UsageError(f"--api {target.api} does not go with {target.url}; kserve goes with grpc://HOST:8001")
    if grpc:
        return _look_grpc(at, target)
    models = _models(at, target)
    root = root_path(target.url)
    pages = list(dict.fromkeys((*QUESTIONS, *_PAGES)))
    with ThreadPoolExecutor(len(pages)) as together:  # a server that answers none of them keeps one waiting once
        answers = together.map(lambda page: _try(at, root + page), pages)
    replies = {page: reply for page, reply in zip(pages, answers, strict=True) if reply is not None}
    found = (
        detect(target.url, [(page, r.status, r.body) for page, r in replies.items()]) if target.api == "auto" else None
    )
    if target.model and models and target.model not in models:
        raise TargetError(f"{target.url} does not serve {target.model!r}; it serves {', '.join(sorted(models)[:8])}")
    known = msgspec.structs.replace(
        target, model=target.model or next(iter(models), ""), api=found.api if found else target.api
    )
    facts: dict[str, str | int | float] = {"url": target.url, "model": known.model}
    for page in _PAGES:
        facts |= _facts(page, _json(replies.get(page)))
    if found and found.engine:
        facts["engine"] = found.engine
    facts |= models.get(known.model, {})
    return Seen(known, facts, _metrics(at, root), _counter(at, root, known.model, _json(replies.get("/props"))))


def _look_grpc(at: Endpoint, target: Target) -> Seen:
    """The same of a KServe server: its models, and by the tensors that one takes, the dialect."""

    def said(method: str, message: bytes) -> bytes:
        return b"".join(call(at, method, message))

    facts = kserve.server(said)
    models = [target.model] if target.model else kserve.served(said)
    apis = {model: kserve.backend(said, model) for model in models}
    model = next((model for model in models if apis[model]), "")
    if not model:
        raise TargetError(
            f"{target.url} serves no model that takes text_input; it serves {', '.join(models) or 'none'}"
        )
    api = apis[model] if target.api in ("auto", "kserve") else target.api
    return Seen(msgspec.structs.replace(target, model=model, api=api), {"url": target.url, "model": model, **facts})


def _counter(at: Endpoint, root: str, model: str, props: Json) -> str:
    """Whose tokenizer page this is, if it has one."""
    if "total_slots" in props:
        return "llamacpp"
    asked = _json(_try_post(at, root + "/tokenize", {"model": model, "prompt": "a"}))
    return "vllm" if isinstance(asked.get("count"), int) else ""


def first_answer(target: Target, prompt: str, output_tokens: int, environ: Mapping[str, str]) -> tuple[Target, Answer]:
    """Asks one short question, untimed. The target comes back with the name of the token limit that the endpoint takes.

    An endpoint that refuses `max_tokens` by name is asked again with `max_completion_tokens`; it is never dropped.
    """
    at = endpoint(target, environ)
    dialect = cast(Dialect, plugins.load("engine", target.api))
    request = Request(0, (Message("user", prompt),), output_tokens)
    for field in _fields(target):
        named = msgspec.structs.replace(target, tokens_field=field)
        # at temperature 0 where one may choose: a sampled answer can be odd without anything being wrong
        cold = msgspec.structs.replace(named, body={"temperature": 0, **target.body})
        reply = _asked(at, cold, dialect, request)
        if reply.status == 400 and b"temperature" in reply.body:
            reply = _asked(at, named, dialect, request)
        if reply.status != 400 or b"max_" not in reply.body:
            break
    if 300 <= reply.status < 400:
        to = reply.headers.get("location", "nowhere")
        raise TargetError(f"{target.url} redirects to {to} (HTTP {reply.status}); give the final URL with --url")
    if (coding := reply.headers.get("content-encoding", "identity").lower()) not in ("identity", ""):
        raise TargetError(f"{target.url} sends {coding}-coded answers although identity was asked for; switch that off")
    if reply.status != 200:
        kind, message = explain(reply.body, f"HTTP {reply.status}")
        raise TargetError(f"{target.url} refused a first question: HTTP {reply.status}, {kind}: {message}")
    parser = dialect.parser(reply.status, reply.headers)
    answer = assemble([*parser.feed(reply.body, 0), *parser.close(0)])
    if answer.error:
        raise TargetError(f"{target.url} failed on a first question: {answer.error}")
    return named, answer


def takes_ignore_eos(target: Target, environ: Mapping[str, str]) -> bool:
    """Whether the endpoint lets one ask for answers of a fixed length; hosted ones refuse the unknown field."""
    dialect = cast(Dialect, plugins.load("engine", target.api))
    short = Request(0, (Message("user", "Count to three."),), 2, ignore_eos=True)
    return _asked(endpoint(target, environ), target, dialect, short).status not in (400, 422)


def token_counter(seen: Seen, environ: Mapping[str, str]) -> Callable[[str], int] | None:
    """Counts the prompt tokens of a user message as the engine will, chat template included; None: no way to ask."""
    at, root = endpoint(seen.target, environ), root_path(seen.target.url)
    chat = seen.target.api != "openai.completions"

    def llamacpp(text: str) -> int:
        if chat:
            made = _json(post_json(at, root + "/apply-template", {"messages": [{"role": "user", "content": text}]}))
            text = str(made.get("prompt", text))
        tokens = _json(post_json(at, root + "/tokenize", {"content": text, "add_special": True, "parse_special": True}))
        return len(cast(list[object], tokens["tokens"]))

    def vllm(text: str) -> int:
        asked: Json = {"model": seen.target.model}
        asked |= {"messages": [{"role": "user", "content": text}]} if chat else {"prompt": text}
        return int(cast(int, _json(post_json(at, root + "/tokenize", asked))["count"]))

    return {"llamacpp": llamacpp, "vllm": vllm}.get(seen.counter)


def _models(at: Endpoint, target: Target) -> dict[str, Facts]:
    """Served models with what is said of each. An endpoint without the page serves what it is asked for."""
    reply = get(at, base_path(target.url) + "/models")
    if reply.status in (401, 403):
        kind, message = explain(reply.body, f"HTTP {reply.status}")
        raise TargetError(
            f"{target.url} wants a key (HTTP {reply.status}, {kind}: {message}); name its variable: --api-key-env"
        )
    listed = _json(reply).get("data")
    found: dict[str, Facts] = {}
    for entry in listed if isinstance(listed, list) else []:
        if isinstance(entry, dict) and isinstance(entry.get("id"), str):
            length = entry.get("max_model_len")
            found[entry["id"]] = {"max_model_len": length} if isinstance(length, int) else {}
    return found


def _facts(page: str, said: Json) -> Facts:
    """Of each engine's page the few facts that tell one run from another."""
    settings = said.get("default_generation_settings")
    inner = settings if isinstance(settings, dict) else {}
    picked: dict[str, object] = {
        "/version": {"engine": "vllm" if "version" in said else None, "version": said.get("version")},
        "/props": {
            "engine": "llamacpp" if "total_slots" in said else None,
            "build": said.get("build_info"),
            "slots": said.get("total_slots"),
            "context": inner.get("n_ctx"),
            "chat_template_sha": _sha(said.get("chat_template")),
        },
        "/get_server_info": {"engine": "sglang" if "version" in said else None, "version": said.get("version")},
        "/info": {"engine": "tgi" if "docker_label" in said else None, "version": said.get("version")},
        "/api/version": {"engine": "ollama" if "version" in said else None, "version": said.get("version")},
    }
    return {k: v for k, v in cast(Json, picked[page]).items() if isinstance(v, str | int | float) and v != ""}


def _sha(text: object) -> str | None:
    from hashlib import sha256

    return sha256(text.encode()).hexdigest()[:16] if isinstance(text, str) and text else None


def _metrics(at: Endpoint, root: str) -> str:
    reply = _try(at, root + "/metrics")
    return root + "/metrics" if reply and reply.status == 200 and b"# TYPE" in reply.body else ""


def _asked(at: Endpoint, target: Target, dialect: Dialect, request: Request) -> Reply:
    return ask(at, dialect.request(request, target, {}), min(target.timeout_s, 120.0))


def _fields(target: Target) -> tuple[str, ...]:
    """Names of the token limit to try, in order."""
    return ("auto", "max_completion_tokens") if target.tokens_field == "auto" else (target.tokens_field,)


def _try(at: Endpoint, path: str) -> Reply | None:
    try:
        return get(at, path)
    except TargetError:
        return None


def _try_post(at: Endpoint, path: str, value: Json) -> Reply | None:
    try:
        return post_json(at, path, value, 5.0)
    except TargetError:
        return None


def _json(reply: Reply | None) -> Json:
    if reply is None or reply.status != 200:
        return {}
    try:
        said = msgspec.json.decode(reply.body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}
    return said if isinstance(said, dict) else {}
