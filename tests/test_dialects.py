"""Every dialect but OpenAI's own two on transcripts: what is asked, what is read, any split, garbage, whole documents.

The transcripts were written for these tests after each project's public documentation.
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_run import MS, record, rows, summary_of

from dynamometer import plugins
from dynamometer.client.endpoint import endpoint, serialize
from dynamometer.engines.dialect import Dialect
from dynamometer.engines.reply import assemble
from dynamometer.errors import UsageError
from dynamometer.types import Chunk, EventKind, Message, Request, Target

CASES = {
    case["id"]: case
    for case in map(json.loads, (Path(__file__).parent / "cases" / "dialects.jsonl").read_text().splitlines())
}


def dialect(name: str) -> Dialect:
    found = plugins.load("engine", name)
    assert hasattr(found, "parser")
    return found  # type: ignore[return-value]


def parse(name: str, reads: list[bytes], status: int = 200) -> list[Chunk]:
    parser = dialect(name).parser(status, {})
    found = [chunk for at, data in enumerate(reads) for chunk in parser.feed(data, at * MS)]
    return found + parser.close(len(reads) * MS)


def facts(chunks: list[Chunk]) -> list[tuple[str, int, str, str]]:
    return [(chunk.kind.value, chunk.n, chunk.text, chunk.note) for chunk in chunks]


def sse(*values: object, space: str = " ", name: bool = False) -> bytes:
    lines = []
    for value in values:
        event = f"event: {value['type']}\n" if name and isinstance(value, dict) else ""
        lines.append(f"{event}data:{space}{value if isinstance(value, str) else json.dumps(value)}\n\n")
    return "".join(lines).encode()


def ndjson(*values: object) -> bytes:
    return b"".join(json.dumps(value).encode() + b"\n" for value in values)


def tgi_token(text: str, special: bool = False, **end: object) -> dict[str, object]:
    return {
        "index": 1,
        "token": {"id": 5, "text": text, "logprob": -0.1, "special": special},
        "generated_text": None,
        "details": None,
        **end,
    }


def light_token(text: str, count: int, finish: str | None = None) -> dict[str, object]:
    token = {"id": 5, "text": text, "logprob": -0.1, "special": False, "count_output_tokens": count, "prompt_tokens": 7}
    return {
        "token": token,
        "generated_text": None,
        "finished": finish is not None,
        "finish_reason": finish,
        "details": None,
    }


def sglang_event(text: str, ids: list[int], total: int, finish: object = None) -> dict[str, object]:
    meta = {"id": "r", "prompt_tokens": 7, "completion_tokens": total, "cached_tokens": 3, "finish_reason": finish}
    return {"text": text, "output_ids": ids, "meta_info": meta}


MESSAGE: Final = {"type": "message", "id": "m"}
RESPONSE_USAGE: Final = {
    "input_tokens": 7,
    "input_tokens_details": {"cached_tokens": 3},
    "output_tokens": 3,
    "output_tokens_details": {"reasoning_tokens": 1},
}

# dialect, transcript, what it means; chunks as (n, text, channel)
STREAMS: Final = {
    "tgi": (
        sse(
            tgi_token("Hi"),
            tgi_token(" there"),
            tgi_token(
                "</s>",
                special=True,
                generated_text="Hi there",
                details={"finish_reason": "eos_token", "generated_tokens": 3, "input_length": 7},
            ),
            space="",
        ),
        [(1, "Hi", "content"), (1, " there", "content"), (1, "", "content")],
        {"prompt": 7, "output": 3},
        "stop",
    ),
    "lightllm": (
        sse(light_token("Hi", 1), light_token(" there", 3), light_token("!", 4, "length"), space=""),
        [(1, "Hi", "content"), (2, " there", "content"), (1, "!", "content")],
        {"prompt": 7, "output": 4},
        "length",
    ),
    "ollama.chat": (
        ndjson(
            {"model": "m", "message": {"role": "assistant", "content": "", "thinking": "hm"}, "done": False},
            {"model": "m", "message": {"role": "assistant", "content": "Hi"}, "done": False},
            {"model": "m", "message": {"role": "assistant", "content": ""}, "done": False},
            {
                "model": "m",
                "message": {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}],
                },
                "done": False,
            },
            {
                "model": "m",
                "message": {"role": "assistant", "content": ""},
                "done": True,
                "done_reason": "stop",
                "total_duration": 9_000_000,
                "prompt_eval_count": 7,
                "prompt_eval_duration": 2_000_000,
                "eval_count": 5,
                "eval_duration": 4_000_000,
            },
        ),
        [(0, "hm", "reasoning"), (0, "Hi", "content"), (0, 'f{"a":1}', "tool")],
        {"prompt": 7, "output": 5},
        "stop",
    ),
    "ollama.generate": (
        ndjson(
            {"model": "m", "response": "", "thinking": "hm", "done": False},
            {"model": "m", "response": "Hi", "done": False},
            {"model": "m", "response": "", "done": True, "done_reason": "length", "eval_count": 2},
        ),
        [(0, "hm", "reasoning"), (0, "Hi", "content")],
        {"output": 2},
        "length",
    ),
    "llamacpp": (
        sse(
            {"index": 0, "content": "Hi", "stop": False, "tokens_predicted": 1, "tokens_evaluated": 7},
            {"index": 0, "content": " there", "stop": False, "tokens_predicted": 3, "tokens_evaluated": 7},
            {
                "content": "",
                "stop": True,
                "stop_type": "limit",
                "tokens_predicted": 3,
                "tokens_evaluated": 7,
                "timings": {
                    "cache_n": 5,
                    "prompt_n": 2,
                    "prompt_ms": 1.5,
                    "predicted_n": 3,
                    "predicted_ms": 9.0,
                },
            },
        ),
        [(1, "Hi", "content"), (2, " there", "content")],
        {"prompt": 7, "output": 3, "cached": 5},
        "length",
    ),
    "sglang": (
        sse(
            sglang_event("Hi", [1], 1),
            sglang_event("Hi there", [1, 2, 3], 3),
            sglang_event("Hi there", [1, 2, 3], 3, {"type": "length", "length": 3}),
            "[DONE]",
        ),
        [(1, "Hi", "content"), (2, " there", "content")],
        {"prompt": 7, "output": 3, "cached": 3},
        "length",
    ),
    "triton": (
        sse(
            {
                "model_name": "m",
                "text_output": "Hi",
                "finish_reason": "None",
                "num_input_tokens": 7,
                "num_output_tokens": 1,
            },
            {"model_name": "m", "text_output": " there", "finish_reason": "None", "num_output_tokens": 2},
            {"model_name": "m", "text_output": "", "finish_reason": "stop", "num_output_tokens": 1},
        ),
        [(1, "Hi", "content"), (2, " there", "content"), (1, "", "content")],
        {"prompt": 7, "output": 4},
        "stop",
    ),
    "azure": (
        sse(
            {"choices": [], "prompt_filter_results": [{"prompt_index": 0}]},
            {"choices": [{"index": 0, "delta": {"content": "Hi"}}]},
            {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
            {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 1}},
            "[DONE]",
        ),
        [(0, "Hi", "content")],
        {"prompt": 7, "output": 1},
        "stop",
    ),
    "anthropic": (
        sse(
            {
                "type": "message_start",
                "message": {**MESSAGE, "usage": {"input_tokens": 4, "cache_read_input_tokens": 3, "output_tokens": 1}},
            },
            {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "hm"}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "x"}},
            {"type": "content_block_stop", "index": 0},
            {"type": "ping"},
            {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
            {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "Hi"}},
            {
                "type": "content_block_start",
                "index": 2,
                "content_block": {"type": "tool_use", "id": "t", "name": "f", "input": {}},
            },
            {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": "{}"}},
            {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}, "usage": {"output_tokens": 9}},
            {"type": "message_stop"},
            name=True,
        ),
        [(0, "hm", "reasoning"), (0, "Hi", "content"), (0, "f", "tool 2"), (0, "{}", "tool 2")],
        {"prompt": 7, "output": 9, "cached": 3},
        "length",
    ),
    "openai.responses": (
        sse(
            {"type": "response.created", "response": {"id": "r", "status": "in_progress", "output": []}},
            {"type": "response.output_item.added", "output_index": 0, "item": {"type": "reasoning", "summary": []}},
            {"type": "response.reasoning_summary_text.delta", "output_index": 0, "delta": "hm"},
            {"type": "response.output_text.delta", "output_index": 1, "content_index": 0, "delta": "Hi"},
            {
                "type": "response.output_item.added",
                "output_index": 2,
                "item": {"type": "function_call", "name": "f", "arguments": ""},
            },
            {"type": "response.function_call_arguments.delta", "output_index": 2, "delta": "{}"},
            {
                "type": "response.incomplete",
                "response": {
                    "status": "incomplete",
                    "incomplete_details": {"reason": "max_output_tokens"},
                    "usage": RESPONSE_USAGE,
                },
            },
            name=True,
        ),
        [(0, "hm", "reasoning"), (0, "Hi", "content"), (0, "f", "tool 2"), (0, "{}", "tool 2")],
        {"prompt": 7, "output": 3, "cached": 3, "reasoning": 1},
        "length",
    ),
}
NAMES: Final = sorted(STREAMS)


@pytest.mark.parametrize("name", NAMES)
def test_a_transcript_is_read_as_what_it_means(name: str) -> None:
    stream, texts, usage, finish = STREAMS[name]
    chunks = parse(name, [stream])
    assert [(c.n, c.text, c.note) for c in chunks if c.kind is EventKind.CHUNK] == texts
    assert {c.note: c.n for c in chunks if c.kind is EventKind.USAGE} == usage
    assert [c.note for c in chunks if c.kind is EventKind.FINISH] == [finish]
    assert chunks[-1].kind is EventKind.DONE


@pytest.mark.parametrize("name", NAMES)
def test_a_transcript_becomes_rows_and_figures(name: str, tmp_path: Path) -> None:
    """Through the log and the store, each event in a read of its own."""
    end = b"\n" if name.startswith("ollama") else b"\n\n"
    events = [part + end for part in STREAMS[name][0].split(end) if part]
    run = record(tmp_path, {"": [[10 * at, event.decode()] for at, event in enumerate(events, 1)]}, name)
    channels = {row[4] for row in rows(run) if row[0] == "chunk"}
    assert channels <= {"content", "reasoning", "tool"}
    metrics = summary_of(run).metrics
    assert (metrics.requests_ok, metrics.requests_failed) == (1, 0)
    assert metrics.output_tokens == STREAMS[name][2]["output"]
    assert metrics.ttft_ms.n == 1


@settings(max_examples=30, deadline=None)
@pytest.mark.parametrize("name", NAMES)
@given(cuts=st.lists(st.integers(0, 2500), max_size=10))
def test_any_split_gives_the_same_chunks(name: str, cuts: list[int]) -> None:
    stream = STREAMS[name][0]
    places = sorted({min(cut, len(stream)) for cut in cuts} | {0, len(stream)})

    # times differ by the split, and with them the one judgement that rests on time
    def told(reads: list[bytes]) -> list[tuple[str, int, str, str]]:
        return [fact for fact in facts(parse(name, reads)) if fact[0] != "timing"]

    whole = told([stream])
    assert told([stream[a:b] for a, b in pairwise(places)]) == whole
    assert told([bytes([byte]) for byte in stream]) == whole


@settings(max_examples=60, deadline=None)
@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_garbage_never_raises(name: str, data: st.DataObject) -> None:
    stream = bytearray(STREAMS[name][0])
    for _ in range(data.draw(st.integers(0, 6))):
        at = data.draw(st.integers(0, len(stream) - 1))
        stream[at : at + data.draw(st.integers(0, 40))] = data.draw(st.binary(max_size=12))
        stream = stream or bytearray(b"x")
    for status in (200, 500):
        chunks = parse(name, [bytes(stream)], status)
        ends = [chunk for chunk in chunks if chunk.kind in (EventKind.DONE, EventKind.ERROR)]
        assert [chunks[-1]] == ends


@pytest.mark.parametrize("name", NAMES)
def test_an_answer_cut_in_the_middle_is_a_failure(name: str) -> None:
    stream = STREAMS[name][0]
    half = stream[: stream.index(b"Hi") + 4]
    last = parse(name, [half])[-1]
    if name == "triton":
        half = half[: half.index(b"Hi")]  # the body's end is its only end: only an answer without text is known as cut
        last = parse(name, [half])[-1]
    assert last.kind is EventKind.ERROR
    assert last.note.startswith("truncated: ")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("status", "body", "note"),
    [
        (429, b'{"error":"Model is overloaded","error_type":"overloaded"}', "overloaded: Model is overloaded"),
        (503, b"<html><title>down</title></html>", "http 503: down"),
        (200, b"<html><title>log in</title></html>", "malformed: "),
        (200, b"", "truncated: the body is empty"),
    ],
)
def test_failures_have_a_class_and_a_message(name: str, status: int, body: bytes, note: str) -> None:
    (error,) = parse(name, [body] if body else [], status)
    assert (error.kind, error.n) == (EventKind.ERROR, status)
    assert error.note.startswith(note)


FAILURES: Final = {
    "tgi": (
        sse(tgi_token("Hi"), {"error": "queue full", "error_type": "overloaded"}, space=""),
        "overloaded: queue full",
    ),
    "ollama.chat": (ndjson({"message": {"content": "Hi"}}, {"error": "an error occurred"}), "error: an error occurred"),
    "llamacpp": (
        sse({"content": "Hi", "stop": False}) + b'error: {"code":500,"message":"slot lost","type":"server_error"}\n\n',
        "server_error: slot lost",
    ),
    "sglang": (
        sse(
            sglang_event("Hi", [1], 1),
            sglang_event("Hi", [1], 1, {"type": "abort", "message": "too long", "err_type": "BadRequestError"}),
            "[DONE]",
        ),
        "BadRequestError: too long",
    ),
    "triton": (sse({"text_output": "Hi"}, {"error": "in ensemble: failed"}), "error: in ensemble: failed"),
    "anthropic": (
        sse(
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi"}},
            {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
            name=True,
        ),
        "overloaded_error: Overloaded",
    ),
    "openai.responses": (
        sse(
            {"type": "response.output_text.delta", "delta": "Hi"},
            {
                "type": "response.failed",
                "response": {"status": "failed", "error": {"code": "server_error", "message": "no"}},
            },
            name=True,
        ),
        "server_error: no",
    ),
}


@pytest.mark.parametrize("name", sorted(FAILURES))
def test_a_failure_after_the_first_text_is_a_failure(name: str) -> None:
    stream, note = FAILURES[name]
    chunks = parse(name, [stream])
    assert chunks[0].text == "Hi"
    assert (chunks[-1].kind, chunks[-1].note) == (EventKind.ERROR, note)


DOCUMENTS: Final = {
    "tgi": {"generated_text": "Hi", "details": {"finish_reason": "length", "generated_tokens": 2}},
    "lightllm": {"generated_text": ["Hi"], "count_output_tokens": 2, "finish_reason": "length", "prompt_tokens": 7},
    "ollama.chat": {
        "message": {"role": "assistant", "content": "Hi"},
        "done": True,
        "done_reason": "length",
        "eval_count": 2,
    },
    "llamacpp": {"content": "Hi", "stop": True, "stop_type": "limit", "tokens_predicted": 2, "tokens_evaluated": 7},
    "sglang": sglang_event("Hi", [1, 2], 2, {"type": "length", "length": 2}),
    "anthropic": {
        **MESSAGE,
        "content": [{"type": "text", "text": "Hi"}],
        "stop_reason": "max_tokens",
        "usage": {"input_tokens": 7, "output_tokens": 2},
    },
    "openai.responses": {
        "status": "incomplete",
        "incomplete_details": {"reason": "max_output_tokens"},
        "output": [{"type": "message", "content": [{"type": "output_text", "text": "Hi"}]}],
        "usage": {"output_tokens": 2},
    },
}


@pytest.mark.parametrize("name", sorted(DOCUMENTS))
def test_an_answer_that_is_one_document_has_no_token_times(name: str) -> None:
    body = json.dumps(DOCUMENTS[name]).encode()
    chunks = parse(name, [body[:9], body[9:]])
    assert (chunks[0].kind, chunks[0].note, chunks[0].at_ns) == (EventKind.FRAME, "whole", MS)
    reply = assemble(chunks)
    assert (reply.text, reply.finish) == ("Hi", "length")
    assert [chunk.n for chunk in chunks if chunk.kind is EventKind.USAGE and chunk.note == "output"] == [2]
    assert chunks[-1].kind is EventKind.DONE


# -- single dialects --------------------------------------------------------------------------------------------------


def test_a21_ollamas_thinking_counts_and_an_absent_prompt_count_is_unknown(tmp_path: Path) -> None:
    run = record(tmp_path, {"": CASES["A21"]["input"]["reads"]}, "ollama.chat")
    found = rows(run)
    assert [row for row in found if row[0] == "usage"] == [("usage", 1950, 42, 0, "output")]
    (decode_us,) = [row[2] for row in found if row[0] == "timing" and row[4] == "decode"]
    assert 42 / (decode_us / 1e6) == 28.0
    metrics = summary_of(run).metrics
    assert (metrics.ttft_ms.mean, metrics.output_tokens, metrics.input_tokens) == (400, 42, None)


def test_a21_a_clones_milliseconds_are_suspect() -> None:
    last = {"model": "m", "done": True, "done_reason": "stop", **CASES["A21"]["input"]["clone_variant"]}
    stream = [read[1].encode() for read in CASES["A21"]["input"]["reads"][:2]]
    names = {chunk.note for chunk in parse("ollama.chat", [*stream, ndjson(last)]) if chunk.kind is EventKind.TIMING}
    assert names == {"suspect decode"}


def test_a21_an_error_line_fails_the_answer() -> None:
    stream = [read[1].encode() for read in CASES["A21"]["input"]["reads"][:2]]
    assert parse("ollama.chat", [*stream, b'{"error":"an error occurred"}\n'])[-1].note == "error: an error occurred"


def test_sglang_told_to_stream_increments_gives_the_same_text() -> None:
    stream = sse(
        sglang_event("a", [1], 1),
        sglang_event("ab", [2], 2),  # new text that happens to begin like the old
        sglang_event("c", [3, 4], 4),
        sglang_event("", [], 4, {"type": "stop", "matched": 2}),
        "[DONE]",
    )
    chunks = parse("sglang", [stream])
    assert assemble(chunks).text == "aabc"
    assert [chunk.n for chunk in chunks if chunk.kind is EventKind.CHUNK] == [1, 1, 2]


def test_sglang_without_ids_is_told_by_the_texts() -> None:
    events = [{"text": text, "meta_info": {"completion_tokens": n}} for n, text in enumerate(("a", "ab", "abc"), 1)]
    assert assemble(parse("sglang", [sse(*events, "[DONE]")])).text == "abc"


def test_llama_cpps_old_end_flags_are_read() -> None:
    for flag, finish in (("stopped_limit", "length"), ("stopped_word", "stop"), ("stopped_eos", "stop")):
        stream = sse({"content": "Hi", "stop": False}, {"content": "", "stop": True, flag: True})
        assert assemble(parse("llamacpp", [stream])).finish == finish


def test_tensorrt_llm_behind_triton_says_no_counts_and_ends_with_the_body() -> None:
    stream = sse({"text_output": "Hi", "sequence_id": 0}, {"text_output": " you", "sequence_id": 0})
    chunks = parse("triton", [stream])
    assert facts(chunks) == [("chunk", 0, "Hi", "content"), ("chunk", 0, " you", "content"), ("done", 0, "", "")]


# -- what is asked ----------------------------------------------------------------------------------------------------

ASK: Final = Request(0, (Message("system", "brief"), Message("user", "2+2?")), 8, ignore_eos=True, stop=("\n",))
PROMPT: Final = "system: brief\n\nuser: 2+2?\n\nassistant:"
TURNS: Final = [{"role": "system", "content": "brief"}, {"role": "user", "content": "2+2?"}]


def asked(
    name: str, url: str, model: str = "m", request: Request = ASK, **fields: object
) -> tuple[str, dict[str, object]]:
    http = dialect(name).request(request, Target(url, model, name, **fields), {})  # type: ignore[arg-type]
    return http.path, json.loads(http.body)


@pytest.mark.parametrize(
    ("name", "url", "path", "body"),
    [
        (
            "tgi",
            "http://h:80",
            "/generate_stream",
            {"inputs": PROMPT, "parameters": {"details": True, "max_new_tokens": 8, "stop": ["\n"]}},
        ),
        (
            "lightllm",
            "http://h:80/v1",
            "/generate_stream",
            {"inputs": PROMPT, "parameters": {"max_new_tokens": 8, "ignore_eos": True, "stop_sequences": ["\n"]}},
        ),
        (
            "ollama.chat",
            "http://h:11434/v1",
            "/api/chat",
            {"model": "m", "stream": True, "options": {"num_predict": 8, "stop": ["\n"]}, "messages": TURNS},
        ),
        (
            "ollama.generate",
            "http://h:11434",
            "/api/generate",
            {"model": "m", "stream": True, "options": {"num_predict": 8, "stop": ["\n"]}, "prompt": PROMPT},
        ),
        (
            "llamacpp",
            "http://h/x",
            "/x/completion",
            {"prompt": PROMPT, "n_predict": 8, "ignore_eos": True, "stop": ["\n"], "stream": True},
        ),
        (
            "sglang",
            "http://h/generate",
            "/generate",
            {
                "text": PROMPT,
                "sampling_params": {"max_new_tokens": 8, "ignore_eos": True, "stop": ["\n"]},
                "stream": True,
            },
        ),
        (
            "triton",
            "http://h:8000",
            "/v2/models/m/generate_stream",
            {
                "text_input": PROMPT,
                "stream": True,
                "exclude_input_in_output": True,
                "sampling_parameters": '{"max_tokens":8,"ignore_eos":true,"stop":["\\n"]}',
                "return_num_input_tokens": True,
                "return_num_output_tokens": True,
                "return_finish_reason": True,
                "max_tokens": 8,
                "stop_words": ["\n"],
            },
        ),
        (
            "anthropic",
            "https://api.anthropic.com",
            "/v1/messages",
            {
                "model": "m",
                "max_tokens": 8,
                "system": "brief",
                "messages": TURNS[1:],
                "stop_sequences": ["\n"],
                "stream": True,
            },
        ),
        (
            "openai.responses",
            "http://h",
            "/v1/responses",
            {"model": "m", "input": TURNS, "max_output_tokens": 8, "ignore_eos": True, "stream": True},
        ),
    ],
)
def test_what_is_asked(name: str, url: str, path: str, body: dict[str, object]) -> None:
    assert asked(name, url) == (path, body)


@pytest.mark.parametrize(
    ("url", "model", "path"),
    [
        (
            "https://r.openai.azure.com",
            "my gpt",
            "/openai/deployments/my%20gpt/chat/completions?api-version=2024-10-21",
        ),
        ("https://r.openai.azure.com/openai", "d", "/openai/deployments/d/chat/completions?api-version=2024-10-21"),
        (
            "https://gate/x/openai/deployments/d?api-version=2025-01-01",
            "",
            "/x/openai/deployments/d/chat/completions?api-version=2025-01-01",
        ),
        (
            "https://r.openai.azure.com/?a=1",
            "d",
            "/openai/deployments/d/chat/completions?a=1&api-version=2024-10-21",
        ),
    ],
)
def test_azures_path_holds_the_deployment_and_a_version(url: str, model: str, path: str) -> None:
    found, body = asked("azure", url, model)
    assert found == path
    assert not body.keys() & {"model", "ignore_eos"}
    assert body["max_tokens"] == 8


@pytest.mark.parametrize(
    ("name", "header", "value"),
    [
        ("azure", "api-key", "s3cret"),
        ("anthropic", "x-api-key", "s3cret"),
        ("tgi", "authorization", "Bearer s3cret"),
        ("openai.responses", "authorization", "Bearer s3cret"),
    ],
)
def test_each_api_gets_its_key_under_its_own_header(
    name: str, header: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYNO_TEST_KEY", "s3cret")
    headers = dict(dialect(name).request(ASK, Target("http://h", "m", api_key_env="DYNO_TEST_KEY"), {}).headers)
    assert {name: text for name, text in headers.items() if "s3cret" in text} == {header: value}
    if name == "anthropic":
        assert headers["anthropic-version"] == "2023-06-01"
    target = Target("http://h", "m", api_key_env="DYNO_TEST_KEY")
    sent = serialize(dialect(name).request(ASK, target, {}), endpoint(target, {"DYNO_TEST_KEY": "s3cret"})).decode()
    assert [line for line in sent.split("\r\n") if "s3cret" in line] == [f"{header}: {value}"]


def test_a_users_options_do_not_lose_the_limit() -> None:
    _, body = asked("ollama.chat", "http://h", body={"options": {"seed": 1, "stop": None}})
    assert body["options"] == {"num_predict": 8, "seed": 1}


def test_what_an_api_demands_is_asked_of_the_user() -> None:
    with pytest.raises(UsageError, match="--model"):
        asked("triton", "http://h", model="")
    with pytest.raises(UsageError, match="deployment"):
        asked("azure", "https://r.openai.azure.com", model="")
    with pytest.raises(UsageError, match="--output-tokens"):
        asked("anthropic", "http://h", request=Request(0, (Message("user", "x"),), 0))
    assert asked("triton", "http://h/v2/models/a/versions/2/generate_stream", model="")[0].endswith(
        "versions/2/generate_stream"
    )
