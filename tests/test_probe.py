"""Looking at an endpoint before the load, against small real servers on loopback."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from loopback import Exchange, serving, whole

from dynamometer.client.probe import first_answer, look, takes_ignore_eos, token_counter
from dynamometer.errors import TargetError
from dynamometer.types import Target

Route = Callable[[str, bytes], tuple[int, object]]
MODELS = {"object": "list", "data": [{"id": "m1", "object": "model", "max_model_len": 4096}, {"id": "m2"}]}


@contextmanager
def server(answer: Route) -> Iterator[str]:
    """A server that answers each (path, body) with (status, JSON value or bytes)."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._reply(*answer(self.path, b""))

        def do_POST(self) -> None:
            self._reply(*answer(self.path, self.rfile.read(int(self.headers["content-length"]))))

        def _reply(self, status: int, value: object) -> None:
            body = value if isinstance(value, bytes) else json.dumps(value).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.send_header("content-type", "text/event-stream" if body.startswith(b"data:") else "application/json")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        thread = threading.Thread(target=listening.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.server_port}/v1"
        finally:
            listening.shutdown()
            thread.join()


def stream(text: str) -> bytes:
    event = json.dumps({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": "stop"}]})
    return f"data: {event}\n\ndata: [DONE]\n\n".encode()


def test_the_first_served_model_is_taken_and_its_length_kept() -> None:
    with server(lambda path, _: (200, MODELS) if path == "/v1/models" else (404, {})) as url:
        seen = look(Target(url, api="auto"), {})
    assert (seen.target.model, seen.target.api) == ("m1", "openai.chat")
    assert seen.facts["max_model_len"] == 4096


def test_a_model_that_is_not_served_is_named_with_those_that_are() -> None:
    with server(lambda path, _: (200, MODELS)) as url, pytest.raises(TargetError, match=r"serves m1, m2"):
        look(Target(url, model="m3"), {})


def test_a_missing_key_is_said_with_the_option_that_brings_it() -> None:
    refuse = {"error": {"message": "no key", "type": "auth"}}
    with server(lambda path, _: (401, refuse)) as url, pytest.raises(TargetError, match="--api-key-env"):
        look(Target(url), {})


def test_pages_that_are_not_json_do_no_harm() -> None:
    def answer(path: str, _: bytes) -> tuple[int, object]:
        return (200, MODELS) if path == "/v1/models" else (200, b"<html>hello</html>")

    with server(answer) as url:
        assert look(Target(url, api="auto"), {}).target.model == "m1"


def test_an_endpoint_that_wants_the_other_limit_is_asked_again_with_it() -> None:
    asked: list[dict[str, object]] = []

    def answer(path: str, body: bytes) -> tuple[int, object]:
        said = json.loads(body)
        asked.append(said)
        if "max_tokens" in said:
            return 400, {"error": {"message": "Unsupported parameter: use 'max_completion_tokens'", "type": "invalid"}}
        return 200, stream("Paris.")

    with server(answer) as url:
        target, said = first_answer(Target(url, "m1"), "?", 7, {})
    assert target.tokens_field == "max_completion_tokens"
    assert said.text == "Paris."
    assert asked[-1]["max_completion_tokens"] == 7
    assert "max_tokens" not in asked[-1]


def test_an_endpoint_that_takes_no_temperature_is_asked_without() -> None:
    def answer(path: str, body: bytes) -> tuple[int, object]:
        if "temperature" in json.loads(body):
            return 400, {"error": {"message": "temperature is not supported"}}
        return 200, stream("Paris.")

    with server(answer) as url:
        assert first_answer(Target(url, "m1"), "?", 7, {})[1].text == "Paris."


def test_a_refusal_is_given_in_the_servers_words() -> None:
    refuse = {"error": {"message": "model is loading", "type": "unavailable"}}
    with server(lambda *_: (503, refuse)) as url, pytest.raises(TargetError, match=r"HTTP 503.*model is loading"):
        first_answer(Target(url, "m1"), "?", 7, {})


def test_an_answer_cut_short_is_no_answer() -> None:
    cut = stream("Par")[:-20].replace(b'"stop"', b"null")
    with server(lambda *_: (200, cut)) as url, pytest.raises(TargetError, match="failed on a first question"):
        first_answer(Target(url, "m1"), "?", 7, {})


def test_tokens_are_counted_with_the_chat_template() -> None:
    def answer(path: str, body: bytes) -> tuple[int, object]:
        if path == "/v1/models":
            return 200, MODELS
        if path == "/props":
            return 200, {"total_slots": 4, "default_generation_settings": {"n_ctx": 2048}}
        if path == "/apply-template":
            return 200, {"prompt": "<s>" + json.loads(body)["messages"][0]["content"] + "</s>"}
        if path == "/tokenize":
            return 200, {"tokens": list(json.loads(body)["content"])}
        return 404, {}

    with server(answer) as url:
        seen = look(Target(url, api="auto"), {})
        count = token_counter(seen, {})
        assert count is not None
        assert count("abc") == len("<s>abc</s>")
    assert (seen.facts["engine"], seen.facts["slots"], seen.facts["context"]) == ("llama.cpp", 4, 2048)


def test_an_endpoint_without_a_tokenizer_page_has_no_counter() -> None:
    with server(lambda path, _: (200, MODELS) if path == "/v1/models" else (404, {})) as url:
        assert token_counter(look(Target(url, api="auto"), {}), {}) is None


def test_the_metrics_page_is_found_beside_the_endpoint() -> None:
    def answer(path: str, _: bytes) -> tuple[int, object]:
        return (200, b"# TYPE x counter\nx 1\n") if path == "/metrics" else (200, MODELS)

    with server(answer) as url:
        assert look(Target(url, api="auto"), {}).metrics_path == "/metrics"


def test_an_endpoint_that_refuses_a_fixed_length_is_found_before_the_load() -> None:
    def answer(path: str, body: bytes) -> tuple[int, object]:
        if "ignore_eos" in json.loads(body):
            return 400, {"error": {"message": "Unrecognized request argument supplied: ignore_eos"}}
        return 200, stream("one")

    with server(answer) as url:
        assert not takes_ignore_eos(Target(url, "m1"), {})
    with server(lambda *_: (200, stream("one two"))) as url:
        assert takes_ignore_eos(Target(url, "m1"), {})


GARBAGE = bytes(range(1, 32)) + b"\x9b31m not HTTP at all \xff\r\n\r\n"


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (GARBAGE, "does not speak HTTP; it sent"),
        (whole("301 Moved Permanently", b"", "location: https://there/v1"), "redirects to https://there/v1"),
        (whole("200 OK", b"\x1f\x8b", "content-encoding: gzip"), "sends gzip-coded answers"),
        (whole("200 OK", b"short")[:-2], "closed the connection in mid-answer, after 3 bytes"),
        (b"", "Remote end closed connection"),
    ],
)
def test_a_strange_first_answer_is_told_on_one_printable_line(sent: bytes, said: str) -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.send(sent)
        exchange.close()

    with serving(script) as served, pytest.raises(TargetError, match=said) as told:
        first_answer(Target(served.url, "m", api="openai.chat"), "Hello?", 8, {})
    assert str(told.value).isprintable()
