"""The dialects that llama.cpp's own server speaks, against that server; and what is found out about it."""

from __future__ import annotations

from collections.abc import Iterator
from http.client import HTTPConnection
from urllib.parse import urlsplit

import pytest

from dynamometer import plugins
from dynamometer.engines.detect import QUESTIONS, detect
from dynamometer.engines.dialect import Dialect
from dynamometer.engines.recipes import Settings
from dynamometer.engines.reply import assemble
from dynamometer.engines.serve import Served, serve
from dynamometer.record.clock import now_ns
from dynamometer.types import Chunk, EventKind, Message, Request, Target

pytestmark = pytest.mark.real

TOKENS = 12
NAMES = ["openai.chat", "openai.completions", "openai.responses", "llamacpp", "anthropic"]


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with serve("llamacpp", settings=Settings(slots=2, context=512), now_ns=now_ns) as served:
        yield served


def ask(server: Served, name: str, stream: bool) -> list[Chunk]:
    """One exchange over a plain connection, read as the bytes come."""
    dialect: Dialect = plugins.load("engine", name)  # type: ignore[assignment]
    target = Target(server.url, server.model, name, body={"temperature": 0} if stream else {"stream": False})
    request = Request(0, (Message("user", "What is the capital of France?"),), TOKENS, ignore_eos=True)
    http = dialect.request(request, target, {})
    connection = HTTPConnection(urlsplit(server.url).netloc, timeout=60)
    connection.request(http.method, http.path, http.body, dict(http.headers))
    answer = connection.getresponse()
    parser = dialect.parser(answer.status, {})
    chunks: list[Chunk] = []
    while data := answer.read1(65536):
        chunks += parser.feed(data, now_ns())
    connection.close()
    return chunks + parser.close(now_ns())


@pytest.mark.parametrize("name", NAMES)
def test_a_real_stream_is_read_to_its_end_with_its_counts(server: Served, name: str) -> None:
    chunks = ask(server, name, stream=True)
    assert chunks[-1].kind is EventKind.DONE
    texts = [chunk for chunk in chunks if chunk.kind is EventKind.CHUNK]
    assert len(texts) > 3
    assert len({chunk.at_ns for chunk in texts}) > 3
    counts = {chunk.note: chunk.n for chunk in chunks if chunk.kind is EventKind.USAGE}
    assert counts["prompt"] > 5
    if name == "anthropic":  # it has no switch to go on after the end token
        assert 1 <= counts["output"] <= TOKENS
    else:
        assert counts["output"] == TOKENS
        assert {chunk.note for chunk in chunks if chunk.kind is EventKind.TIMING} >= {"prompt", "decode"}
    if name == "llamacpp":
        assert sum(chunk.n for chunk in texts) == TOKENS


@pytest.mark.parametrize("name", NAMES)
def test_a_real_document_is_read(server: Served, name: str) -> None:
    chunks = ask(server, name, stream=False)
    assert (chunks[0].kind, chunks[0].note) == (EventKind.FRAME, "whole")
    assert chunks[-1].kind is EventKind.DONE
    assert assemble(chunks).text


def test_a_real_server_is_recognised(server: Served) -> None:
    given = []
    for path in QUESTIONS:
        connection = HTTPConnection(urlsplit(server.url).netloc, timeout=60)
        connection.request("GET", path)
        answer = connection.getresponse()
        given.append((path, answer.status, answer.read()))
        connection.close()
    found = detect(server.url, given)
    assert (found.api, found.engine) == ("openai.chat", "llama.cpp")
