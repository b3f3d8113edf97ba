"""Which dialect an endpoint speaks, from what it answers."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamometer import plugins
from dynamometer.engines.detect import QUESTIONS, detect
from dynamometer.errors import TargetError

Answers = dict[str, object]


def models(owner: str) -> Answers:
    return {"/v1/models": {"object": "list", "data": [{"id": "m", "object": "model", "owned_by": owner}]}}


def routes(*paths: str) -> Answers:
    return {"/openapi.json": {"openapi": "3.1.0", "paths": {path: {} for path in paths}}}


@pytest.mark.parametrize(
    ("answers", "api", "engine"),
    [
        (models("vllm"), "openai.chat", "vLLM"),
        ({**models("sglang"), "/get_model_info": {"model_path": "m"}}, "openai.chat", "SGLang"),
        ({**models("llamacpp"), "/props": {"default_generation_settings": {}}}, "openai.chat", "llama.cpp"),
        ({**models("library"), "/api/version": {"version": "0.12"}}, "openai.chat", "Ollama"),
        (models("openai"), "openai.chat", ""),
        ({"/info": {"model_id": "m", "version": "1.0"}}, "tgi", "TGI"),
        ({"/info": {"model_id": "m"}, **routes("/v1/chat/completions", "/generate")}, "openai.chat", "TGI"),
        ({**models("x"), **routes("/v1/completions")}, "openai.completions", ""),
        ({"/v2": {"name": "triton", "version": "2.50", "extensions": ["classification"]}}, "triton", "Triton"),
        ({"/token_load": {"current_load": [0.1]}}, "lightllm", "LightLLM"),
        ({"/api/version": {"version": "0.1"}}, "ollama.chat", "Ollama"),
        ({"/props": {"default_generation_settings": {}}}, "llamacpp", "llama.cpp"),
        ({"/get_model_info": {"model_path": "m"}}, "sglang", "SGLang"),
    ],
)
def test_a_server_is_known_by_its_answers(answers: Answers, api: str, engine: str) -> None:
    given = [(path, 200 if path in answers else 404, json.dumps(answers.get(path)).encode()) for path in QUESTIONS]
    found = detect("http://127.0.0.1:8000", given)
    assert (found.api, found.engine) == (api, engine)
    assert found.because
    assert found.api in plugins.names("engine")


@pytest.mark.parametrize(
    ("url", "api"),
    [
        ("https://r.openai.azure.com", "azure"),
        ("https://r.openai.azure.com/openai/v1", "openai.chat"),
        ("https://api.anthropic.com", "anthropic"),
        ("http://h/v1/chat/completions", "openai.chat"),
        ("http://h/v1/completions/", "openai.completions"),
        ("http://h/completion", "llamacpp"),
        ("http://h/v1/responses", "openai.responses"),
        ("http://h/api/generate", "ollama.generate"),
        ("http://h/v2/models/m/generate_stream", "triton"),
    ],
)
def test_some_urls_say_it_themselves(url: str, api: str) -> None:
    assert detect(url, []).api == api


def test_an_endpoint_that_wants_a_key_exists() -> None:
    assert detect("http://h", [("/v1/models", 401, b"{}")]).api == "openai.chat"


def test_an_unknown_server_is_an_error_that_tells_what_was_seen() -> None:
    with pytest.raises(TargetError, match=r"/v1/models 404.*--api"):
        detect("http://h", [("/v1/models", 404, b"<html>"), ("/info", 200, b"hello")])


@given(st.lists(st.tuples(st.sampled_from(QUESTIONS), st.sampled_from([200, 401, 404]), st.binary(max_size=40))))
def test_any_answers_give_a_dialect_or_a_plain_error(answers: list[tuple[str, int, bytes]]) -> None:
    try:
        api = detect("http://h", answers).api
    except TargetError:
        return
    assert api in plugins.names("engine")
