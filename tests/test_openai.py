"""OpenAI's dialects on bytes: the public faults of group A, odd servers, any split, and garbage."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_run import MS, Read, answers, reads_of, record, rows, summary_of

from dynamometer.engines.openai import chat, completions
from dynamometer.engines.reply import assemble
from dynamometer.errors import UsageError
from dynamometer.types import Chunk, EventKind, Message, Request, Target

CASES = {
    case["id"]: case
    for case in map(json.loads, (Path(__file__).parent / "cases" / "dialects.jsonl").read_text().splitlines())
}
DONE = b"data: [DONE]\n\n"


def parse(reads: Sequence[Read], end_ms: float = 0, status: int = 200, api: str = "chat") -> list[Chunk]:
    parser = (chat if api == "chat" else completions).parser(status, {})
    found = [chunk for at_ms, data in reads for chunk in parser.feed(data, round(at_ms * MS))]
    return found + parser.close(round(end_ms * MS))


def event(**fields: object) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def delta(finish: str | None = None, **fields: object) -> bytes:
    return event(choices=[{"index": 0, "delta": fields, "finish_reason": finish}])


def one(data: bytes) -> list[tuple[str, int, str, str]]:
    """(kind, n, text, note) of a body that comes in one read."""
    return [(chunk.kind.value, chunk.n, chunk.text, chunk.note) for chunk in parse([(0, data)])]


def of_case(tmp_path: Path, case: str, **swap: str) -> Path:
    reads = CASES[case]["input"]["reads"]
    return record(
        tmp_path / "run", {"": [[at, swap.get(body, body) if isinstance(body, str) else body] for at, body in reads]}
    )


# -- the public faults ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "opening", ['{"role":"assistant","content":""}', '{"role":"assistant","content":null}', '{"role":"assistant"}']
)
def test_a01_the_chunk_that_announces_the_role_is_no_token(tmp_path: Path, opening: str) -> None:
    reads = [list(read) for read in CASES["A01"]["input"]["reads"]]
    reads[0][1] = reads[0][1].replace('{"role":"assistant","content":""}', opening)
    run = record(tmp_path, {"": reads})
    metrics = summary_of(run).metrics
    assert rows(run)[0] == ("frame", 5, 0, 0, "role")
    assert metrics.ttft_ms.mean == 214
    assert (metrics.icl_ms.mean, metrics.icl_ms.n) == (26, 1)
    assert metrics.tpot_ms.mean == 26
    assert (metrics.e2e_ms.mean, metrics.stream_end_ms.mean) == (240, 242)


def test_a02_a_chunk_of_several_tokens_is_not_a_token(tmp_path: Path) -> None:
    run = of_case(tmp_path, "A02")
    (answer,), metrics = answers(run), summary_of(run).metrics
    assert (answer["chunks"], answer["output_tokens"], answer["output_tokens_source"]) == (3, 9, "usage")
    assert metrics.tpot_ms.mean == 25
    assert (metrics.icl_ms.mean, metrics.icl_ms.n) == (100, 2)
    assert metrics.itl_ms.mean == pytest.approx(25)


@pytest.mark.parametrize("choices", ['"choices":[],', '"choices":null,', ""])
def test_a03_a_usage_chunk_without_choices_is_read(tmp_path: Path, choices: str) -> None:
    reads = [[at, body.replace('"choices":[],', choices)] for at, body in CASES["A03"]["input"]["reads"]]
    run = record(tmp_path, {"": reads})
    (answer,), metrics = answers(run), summary_of(run).metrics
    assert (answer["outcome"], answer["prompt_tokens"], answer["output_tokens"]) == ("ok", 11, 2)
    assert (metrics.icl_ms.mean, metrics.icl_ms.n, metrics.tpot_ms.mean) == (20, 1, 20)


def test_a03_without_any_usage_the_count_is_marked_as_an_estimate(tmp_path: Path) -> None:
    reads = [read for read in CASES["A03"]["input"]["reads"] if '"usage":{' not in read[1]]
    (answer,) = answers(record(tmp_path, {"": reads}))
    assert (answer["outcome"], answer["output_tokens"]) == ("ok", 2)
    assert answer["output_tokens_source"] == "chunks (estimated)"


def test_a05_reasoning_is_generated_text_under_every_name(tmp_path: Path) -> None:
    run = of_case(tmp_path, "A05")
    (answer,), metrics = answers(run), summary_of(run).metrics
    assert (metrics.ttft_ms.mean, metrics.ttfa_ms.mean, metrics.tpot_ms.mean) == (100, 140, 20)
    assert (answer["output_tokens"], answer["reasoning_tokens"]) == (3, 2)


def test_a05_an_answer_that_is_reasoning_only_has_no_answer_token(tmp_path: Path) -> None:
    reads = CASES["A05"]["input"]["reads"]
    cut = [*reads[:3], [125, '{"choices":[{"index":0,"delta":{},"finish_reason":"length"}]}'], [126, "[DONE]"]]
    run = record(tmp_path, {"": [*reads[:3], *([at, f"data: {body}\n\n"] for at, body in cut[3:])]})
    metrics = summary_of(run).metrics
    assert (metrics.ttft_ms.mean, metrics.ttfa_ms.mean, metrics.ttfa_ms.n) == (100, None, 0)
    assert metrics.requests_failed == 0


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content", "reasoning_text", "thinking"])
def test_a05_a_thought_that_is_repeated_under_two_names_counts_once(name: str) -> None:
    assert one(delta(**{"reasoning_content": "hm", name: "hm"}) + DONE)[0] == ("chunk", 0, "hm", "reasoning")


def test_a07_a_tool_call_is_output(tmp_path: Path) -> None:
    run = of_case(tmp_path, "A07")
    (answer,), metrics = answers(run), summary_of(run).metrics
    assert (answer["outcome"], answer["finish"], answer["output_tokens"]) == ("ok", "tool_calls", 12)
    assert metrics.ttft_ms.mean == 300
    assert metrics.tpot_ms.mean == pytest.approx(60 / 11)
    reads, _ = reads_of(CASES["A07"]["input"]["reads"])
    assert assemble(parse(reads)).calls == ('get_time{"tz":"UTC"}',)


def test_a07_parallel_calls_are_joined_by_their_index(tmp_path: Path) -> None:
    pieces = [(0, "f", "{"), (1, "g", "["), (0, None, "}"), (1, None, "]")]
    stream = b"".join(
        delta(tool_calls=[{"index": index, "function": {"name": name, "arguments": text}}])
        for index, name, text in pieces
    )
    assert assemble(parse([(0, stream + DONE)])).calls == ("f{}", "g[]")
    run = record(tmp_path, {"": [[1, (stream + DONE).decode()]]})
    assert [row[4] for row in rows(run) if row[0] == "chunk"] == ["tool"] * 4


@pytest.mark.parametrize("extra", ["", 'data: ""\n\n', "data:\n\n", "id: 7\n\n"])
def test_a08_keep_alives_are_no_tokens_and_no_errors(tmp_path: Path, extra: str) -> None:
    reads = CASES["A08"]["input"]["reads"]
    run = record(tmp_path, {"": [[5, extra], *reads]})
    (answer,), metrics = answers(run), summary_of(run).metrics
    assert (answer["outcome"], answer["chunks"]) == ("ok", 2)
    assert (metrics.ttft_ms.mean, metrics.icl_ms.mean, metrics.icl_ms.n) == (3000, 30, 1)


def test_a09_line_ends_and_spaces_differ_between_servers(tmp_path: Path) -> None:
    run = of_case(tmp_path, "A09")
    assert [(at, size) for kind, at, _, size, _ in rows(run) if kind == "chunk"] == [(100, 1), (150, 1), (200, 1)]
    assert answers(run)[0]["outcome"] == "ok"


def test_a10_a_character_that_a_read_cuts_is_whole(tmp_path: Path) -> None:
    run = of_case(tmp_path, "A10")
    assert [row for row in rows(run) if row[0] == "chunk"] == [("chunk", 140, 0, 10, "content")]
    assert assemble(parse(reads_of(CASES["A10"]["input"]["reads"])[0])).text == "中国😀"


def test_a10_halves_of_a_surrogate_pair_in_two_chunks_are_joined() -> None:
    assert assemble(parse([(0, delta(content="\ud83d") + delta(content="\ude00") + DONE)])).text == "😀"
    assert assemble(parse([(0, delta(content="\ud83d") + DONE)])).text == "\ufffd"


def test_a12_reads_are_not_lines(tmp_path: Path) -> None:
    run = of_case(tmp_path, "A12")
    assert [at for kind, at, *_ in rows(run) if kind == "chunk"] == [61, 61, 61, 90]
    assert assemble(parse(reads_of(CASES["A12"]["input"]["reads"])[0])).text == "xyzw"


def test_a13_a_clean_end_in_mid_answer_is_a_failure_and_either_end_signal_is_enough(tmp_path: Path) -> None:
    run = record(tmp_path, CASES["A13"]["input"]["streams"])
    assert [answer["outcome"] for answer in answers(run)] == ["error", "ok", "ok", "ok", "empty"]
    assert rows(run, 0)[-1][4].startswith("truncated: ")
    metrics = summary_of(run).metrics
    assert (metrics.requests_failed, metrics.requests_ok, metrics.requests_empty, metrics.ttft_ms.n) == (1, 3, 1, 3)


def test_a14_an_error_inside_the_stream_is_a_failure_with_the_servers_words(tmp_path: Path) -> None:
    run = record(tmp_path, CASES["A14"]["input"]["streams"])
    assert [row[-1] for row in (rows(run, number)[-1] for number in range(4))] == [
        "InternalServerError: engine stopped",
        "invalid_request_error: prompt too long",
        "overloaded: queue full",
        "error: boom",
    ]
    assert [kind for kind, *_ in rows(run, 0)] == ["chunk", "chunk", "error"]
    metrics = summary_of(run).metrics
    assert (metrics.requests_ok, metrics.requests_failed) == (0, 4)
    assert (metrics.ttft_ms.n, metrics.ttft_ms.mean, metrics.e2e_ms.mean) == (0, None, None)


def test_a15_an_event_of_800_kilobytes_on_one_line_is_read() -> None:
    ids = b"7," * 400_000
    stream = (
        b'data: {"choices":[{"index":0,"text":"k","finish_reason":"stop"}],"prompt_token_ids":[' + ids[:-1] + b"]}\n\n"
    )
    reads = [(number, stream[at : at + 16384]) for number, at in enumerate(range(0, len(stream), 16384))]
    chunks = parse([*reads, (len(reads), DONE)], api="completions")
    assert assemble(chunks).text == "k"
    assert chunks[0].at_ns == (len(reads) - 1) * MS
    assert chunks[-1].kind is EventKind.DONE


def test_a15_an_event_beyond_the_guard_is_a_named_failure() -> None:
    reads = [(0, b"data: "), *[(0, b"x" * 2**20)] * 66]
    assert parse(reads)[-1].note == "too-large: one event is over 64 MiB"


def test_a16_filter_reports_are_no_tokens_and_the_first_finish_reason_stays(tmp_path: Path) -> None:
    run = of_case(tmp_path, "A16")
    (answer,), metrics = answers(run), summary_of(run).metrics
    assert (metrics.ttft_ms.mean, metrics.icl_ms.mean, metrics.icl_ms.n) == (410, 30, 1)
    assert answer["finish"] == "stop"
    assert [row[4] for row in rows(run) if row[0] == "frame"] == ["filter", "role", "filter", "filter"]
    assert assemble(parse(reads_of(CASES["A16"]["input"]["reads"])[0])).text == "Yes."


def test_a17_the_limits_field_is_the_targets_choice_and_the_refusal_keeps_its_message() -> None:
    for field, name in (("auto", "max_tokens"), ("max_completion_tokens", "max_completion_tokens")):
        body = json.loads(chat.request(ask(), Target("http://h", "m", tokens_field=field), {}).body)
        assert [key for key in body if key.startswith("max_")] == [name]
        assert body[name] == 8
    refusal = CASES["A17"]["input"]["response"]
    (error,) = parse([(0, json.dumps(refusal["body"]).encode())], status=refusal["status"])
    assert (error.n, error.note) == (
        400,
        "invalid_request_error: Unsupported parameter: max_tokens; use max_completion_tokens",
    )


def test_a18_short_answers_under_ignore_eos_keep_their_true_length(tmp_path: Path) -> None:
    streams = {}
    for number, result in enumerate(CASES["A18"]["input"]["results"]):
        text = [[9, delta(content="x").decode()]] if result["completion_tokens"] else []
        usage = event(choices=[], usage={"completion_tokens": result["completion_tokens"]})
        streams[str(number)] = [*text, [10, (delta(result["finish_reason"]) + usage + DONE).decode()]]
    run = record(tmp_path, streams)
    assert [answer["output_tokens"] for answer in answers(run)] == [512, 37, 0]
    assert summary_of(run).metrics.output_tokens == 549
    assert [answer["outcome"] for answer in answers(run)] == ["ok", "ok", "empty"]
    assert json.loads(chat.request(ask(ignore_eos=True), Target("http://h", "m"), {}).body)["ignore_eos"] is True
    assert "ignore_eos" not in json.loads(chat.request(ask(), Target("http://h", "m"), {}).body)


def test_a22_llama_cpps_prompt_count_leaves_the_cached_part_out() -> None:
    final = event(**CASES["A22"]["input"]["final_chunk"])
    found = {(kind, note): n for kind, n, _, note in one(delta(content="x") + delta("stop") + final + DONE)}
    assert (found["usage", "prompt"], found["usage", "cached"], found["usage", "output"]) == (1000, 900, 41)
    assert (found["timing", "prompt"], found["timing", "decode"]) == (50_000, 1_000_000)
    # server prefill in tokens/s, of what was processed
    assert (found["usage", "prompt"] - found["usage", "cached"]) / (found["timing", "prompt"] / 1e6) == 2000


# -- what servers add -------------------------------------------------------------------------------------------------


def test_a_running_usage_gives_each_chunk_its_tokens() -> None:
    def counted(total: int, **fields: object) -> bytes:
        return event(choices=[{"index": 0, "delta": fields}], usage={"prompt_tokens": 5, "completion_tokens": total})

    stream = counted(0, role="assistant", content="") + counted(1, content="a") + counted(4, content="bcd")
    held = counted(5, content="")  # a token whose character is not whole yet
    found = one(stream + held + delta("stop") + DONE)
    assert found[:4] == [
        ("frame", 0, "", "role"),
        ("chunk", 1, "a", "content"),
        ("chunk", 3, "bcd", "content"),
        ("chunk", 1, "", "content"),
    ]
    assert ("usage", 5, "", "output") in found


def test_a_total_that_comes_only_with_the_last_text_is_not_that_chunks_count() -> None:
    last = event(
        choices=[{"index": 0, "delta": {"content": "c"}, "finish_reason": "stop"}], usage={"completion_tokens": 3}
    )
    found = one(delta(content="a") + delta(content="b") + last)
    assert [n for kind, n, *_ in found if kind == "chunk"] == [0, 0, 0]
    assert ("usage", 3, "", "output") in found


def test_token_ids_and_log_probabilities_count_a_chunks_tokens() -> None:
    ids = event(choices=[{"index": 0, "delta": {"content": "ab"}, "token_ids": [5, 6]}])
    logs = event(choices=[{"index": 0, "delta": {"content": "c"}, "logprobs": {"content": [{"token": "c"}]}}])
    assert [n for kind, n, *_ in one(ids + logs + DONE) if kind == "chunk"] == [2, 1]
    text = event(choices=[{"index": 0, "text": "ab", "logprobs": {"tokens": ["a", "b"]}}])
    assert parse([(0, text + DONE)], api="completions")[0].n == 2


def test_refusals_function_calls_and_typed_parts_have_their_channels() -> None:
    parts = [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "yes"}]
    stream = delta(refusal="no") + delta(function_call={"name": "f", "arguments": "{}"}) + delta(content=parts) + DONE
    assert one(stream)[:4] == [
        ("chunk", 0, "no", "refusal"),
        ("chunk", 0, "f{}", "tool"),
        ("chunk", 0, "hm", "reasoning"),
        ("chunk", 0, "yes", "content"),
    ]


def test_numbers_as_text_are_read() -> None:
    stream = b'data: {"choices":[{"index":"0","delta":{"content":"a"}}],"usage":{"completion_tokens":"3"}}\n\n'
    assert ("usage", 3, "", "output") in one(stream + DONE)


@pytest.mark.parametrize("nothing", [None, {}, "", False])
def test_an_error_field_that_holds_nothing_is_no_error(nothing: object) -> None:
    stream = event(choices=[{"index": 0, "delta": {"content": "a"}}], error=nothing)
    assert [kind for kind, *_ in one(stream + DONE)] == ["chunk", "done"]


def test_an_answer_that_the_server_aborts_is_a_failure() -> None:
    assert one(delta(content="a") + delta("abort") + DONE)[-1][:1] == ("error",)


def test_text_after_the_end_marker_is_not_read() -> None:
    assert [kind for kind, *_ in one(delta(content="a") + DONE + delta(content="b"))] == ["chunk", "done"]


def test_an_answer_that_is_no_stream_is_one_piece_without_token_times(tmp_path: Path) -> None:
    message = {"role": "assistant", "content": "four", "reasoning_content": "2+2"}
    body = json.dumps(
        {
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 3, "completion_tokens": 5},
        }
    )
    run = record(tmp_path, {"": [[40, body[:10]], [50, body[10:]]]})
    assert [row[0] + row[4] for row in rows(run)][:3] == ["framewhole", "chunkreasoning", "chunkcontent"]
    metrics = summary_of(run).metrics
    assert (metrics.requests_ok, metrics.output_tokens, metrics.e2e_ms.mean) == (1, 5, 50)
    assert (metrics.ttft_ms.mean, metrics.tpot_ms.mean, metrics.itl_ms.mean) == (None, None, None)
    found = parse([(0, b'{"choices":[{"text":"ab"}]}')], api="completions")
    assert [(chunk.kind.value, chunk.text) for chunk in found] == [
        ("frame", ""),
        ("chunk", "ab"),
        ("finish", ""),
        ("done", ""),
    ]


# -- failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "body", "note"),
    [
        (404, b'{"detail":"Not Found"}', "http 404: Not Found"),
        (
            422,
            b'{"detail":[{"loc":["body"],"msg":"field required"}]}',
            'http 422: [{"loc":["body"],"msg":"field required"}]',
        ),
        (
            400,
            b'{"object":"error","message":"too long","type":"BadRequestError","code":400}',
            "BadRequestError: too long",
        ),
        (429, b'{"error":{"message":"slow down","type":null,"code":"rate_limit"}}', "rate_limit: slow down"),
        (400, b'[{"error":{"code":400,"message":"bad","status":"INVALID_ARGUMENT"}}]', "INVALID_ARGUMENT: bad"),
        (
            401,
            b'{"type":"error","error":{"type":"authentication_error","message":"no key"}}',
            "authentication_error: no key",
        ),
        (500, b'{"error":"plain words"}', "http 500: plain words"),
        (502, b"<html><head><title>502 Bad Gateway</title></head><body>x</body></html>", "http 502: 502 Bad Gateway"),
        (503, b"no healthy\n upstream", "http 503: no healthy upstream"),
        (500, b"", "http 500: no message"),
        (500, b"\xff\xfe\x00", "http 500: \ufffd\ufffd\ufffd"),
    ],
)
def test_a_failures_body_is_told_in_one_line(status: int, body: bytes, note: str) -> None:
    (error,) = parse([(0, body)] if body else [], status=status)
    assert (error.kind, error.n, error.note) == (EventKind.ERROR, status, note)


@pytest.mark.parametrize(
    ("body", "note"),
    [
        (b"", "truncated: the body is empty"),
        (b'{"error":{"message":"no","type":"t"}}', "t: no"),
        (b"<html><title>Sign in</title>", "malformed: Sign in"),
        (b'{"choices":[]}', 'no choices: {"choices":[]}'),
        (b"data: what?\n\n", "malformed: an event is no JSON object: what?"),
        (b'data: {"choices":7}\n\n', "malformed: Expected `array | null`, got `int` - at `$.choices`"),
        (b'data: {"choices":[{"delta":{"content":"a"}}]}\n\ndata: {"cho', "truncated: the body ended in mid-answer"),
        (b'{"choices":[{"mess', "malformed: "),
    ],
)
def test_what_is_no_answer_fails_with_a_reason(body: bytes, note: str) -> None:
    error = parse([(0, body)] if body else [])[-1]
    assert error.kind is EventKind.ERROR
    assert error.note.startswith(note)


# -- requests ---------------------------------------------------------------------------------------------------------


def ask(**fields: object) -> Request:
    return Request(**{"index": 3, "messages": (Message("user", "2+2?"),), "output_tokens": 8, **fields})


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("http://h:1", "/v1/chat/completions"),
        ("http://h:1/", "/v1/chat/completions"),
        ("http://h:1/v1/", "/v1/chat/completions"),
        ("https://h/openai/v1", "/openai/v1/chat/completions"),
        ("https://h/chat/completions", "/chat/completions"),
        ("https://h/x?api-version=1", "/x/chat/completions?api-version=1"),
    ],
)
def test_the_path_is_built_on_the_targets_url(url: str, path: str) -> None:
    assert chat.request(ask(), Target(url, "m"), {}).path == path


def test_the_body_says_what_was_asked_and_nothing_else() -> None:
    http = chat.request(ask(stop=("\n",)), Target("http://h", "m", body={"temperature": 0}), {})
    assert json.loads(http.body) == {
        "model": "m",
        "max_tokens": 8,
        "stop": ["\n"],
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [{"role": "user", "content": "2+2?"}],
        "temperature": 0,
    }
    assert http.method == "POST"
    assert ("content-type", "application/json") in http.headers


def test_the_users_fields_win_and_a_null_takes_one_away() -> None:
    target = Target("http://h", "m", body={"max_tokens": 2, "stream_options": None})
    body = json.loads(chat.request(ask(), target, {}).body)
    assert body["max_tokens"] == 2
    assert "stream_options" not in body
    unstreamed = json.loads(chat.request(ask(), Target("http://h", body={"stream": False}), {}).body)
    assert unstreamed["stream"] is False
    assert "stream_options" not in unstreamed


@pytest.mark.parametrize("name", ["n", "best_of"])
def test_several_answers_to_one_request_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="one answer"):
        chat.request(ask(), Target("http://h", body={name: 2}), {})
    chat.request(ask(), Target("http://h", body={name: 1}), {})


def test_the_key_comes_from_the_named_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target("http://h", "m", api_key_env="DYNO_TEST_KEY")
    monkeypatch.setenv("DYNO_TEST_KEY", "s3cret")
    assert ("authorization", "Bearer s3cret") in chat.request(ask(), target, {}).headers
    monkeypatch.delenv("DYNO_TEST_KEY")
    with pytest.raises(UsageError, match="DYNO_TEST_KEY"):
        chat.request(ask(), target, {})


def test_earlier_answers_are_filled_in_from_the_last_backwards() -> None:
    talk = tuple(
        Message(role, text)
        for role, text in [("user", "a"), ("assistant", None), ("user", "b"), ("assistant", None), ("user", "c")]
    )
    request = ask(messages=talk, after=7, session="s")
    body = json.loads(chat.request(request, Target("http://h"), {2: "A", 7: "B", 9: "later"}).body)
    assert [message["content"] for message in body["messages"]] == ["a", "A", "b", "B", "c"]
    with pytest.raises(UsageError, match="request 7"):
        chat.request(request, Target("http://h"), {2: "A"})


def test_a_bare_prompt_is_the_only_message_or_the_labelled_turns() -> None:
    def prompt(*messages: Message) -> str:
        return json.loads(completions.request(ask(messages=messages), Target("http://h"), {}).body)["prompt"]

    assert prompt(Message("user", "2+2?")) == "2+2?"
    assert (
        prompt(Message("system", "be brief"), Message("user", "2+2?")) == "system: be brief\n\nuser: 2+2?\n\nassistant:"
    )


# -- any split, any garbage -------------------------------------------------------------------------------------------

TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
DELTAS = st.one_of(
    TEXTS.map(lambda text: {"content": text}),
    TEXTS.map(lambda text: {"reasoning": text}),
    st.just({"role": "assistant", "content": ""}),
    TEXTS.map(lambda text: {"content": text, "reasoning_content": None, "tool_calls": None}),
)


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    end = draw(st.sampled_from([b"\n", b"\r\n", b"\r"]))
    ascii_only = draw(st.booleans())
    lines = []
    for fields in draw(st.lists(DELTAS, max_size=12)):
        choice = {"index": 0, "delta": fields, "finish_reason": None}
        text = json.dumps({"id": "x", "choices": [choice], "usage": None}, ensure_ascii=ascii_only)
        lines.append(draw(st.sampled_from([b"data: ", b"data:"])) + text.encode() + end + end)
        lines.append(draw(st.sampled_from([b"", b": ping" + end, b"data:" + end + end])))
    return b"".join(lines) + draw(st.sampled_from([b"", b"data: [DONE]" + end + end, b"data: {"]))


def facts(chunks: list[Chunk]) -> list[tuple[object, ...]]:
    return [(chunk.kind, chunk.n, chunk.text, chunk.note) for chunk in chunks]


@settings(max_examples=200, deadline=None)
@given(streams(), st.lists(st.integers(0, 4000), max_size=10))
def test_any_split_gives_the_same_chunks(stream: bytes, cuts: list[int]) -> None:
    places = sorted({min(cut, len(stream)) for cut in cuts} | {0, len(stream)})
    pieces = [(0, stream[a:b]) for a, b in pairwise(places)]
    whole = facts(parse([(0, stream)] if stream else []))
    assert facts(parse(pieces)) == whole
    assert facts(parse([(0, bytes([byte])) for byte in stream])) == whole


@settings(max_examples=300, deadline=None)
@given(st.lists(DELTAS, min_size=2, max_size=20), st.booleans(), st.sampled_from(["chat", "completions"]))
def test_reads_that_repeat_give_what_parsing_gives(deltas: list[dict[str, object]], ascii_only: bool, api: str) -> None:
    """One event a read, where the short way may be taken, against all events in one read, where it may not."""
    events = [
        b"data: "
        + json.dumps(
            {"choices": [{"index": 0, "delta": d} if api == "chat" else {"index": 0, "text": d.get("content") or ""}]},
            ensure_ascii=ascii_only,
            separators=(",", ":"),
        ).encode()
        + b"\n\n"
        for d in deltas
    ]
    one_by_one = parse([(number, data) for number, data in enumerate(events)], api=api)
    assert facts(one_by_one) == facts(parse([(0, b"".join(events))], api=api))


def test_the_short_way_reads_only_the_string_that_changes() -> None:
    def read(text: str, other: str) -> bytes:
        return f'data: {{"choices":[{{"delta":{{"content":"{text}"}},"finish_reason":{other}}}]}}\n\n'.encode()

    reads = [
        read("a", "null"),
        read("b", "null"),
        read('c\\"', "null"),
        read("d", "null"),
        read("e", '"stop"'),
        read("f", "null"),
    ]
    chunks = parse([*enumerate(reads)])
    assert [chunk.text for chunk in chunks if chunk.kind is EventKind.CHUNK] == ["a", "b", 'c"', "d", "e", "f"]
    assert [chunk.at_ns // MS for chunk in chunks if chunk.kind is EventKind.FINISH] == [4]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.binary(max_size=60), max_size=10), st.sampled_from([200, 204, 302, 404, 500]), st.binary(max_size=8))
def test_garbage_never_raises_and_always_ends_in_one_error_or_done(
    reads: list[bytes], status: int, start: bytes
) -> None:
    for opening in (b"", b"data: ", b"{", b'data: {"choices":[' + start):
        chunks = parse([(0, opening + read) for read in reads], status=status)
        ends = [chunk for chunk in chunks if chunk.kind in (EventKind.DONE, EventKind.ERROR)]
        assert len(ends) == 1
        assert chunks[-1] is ends[0]


FIELDS = "choices delta content usage error tool_calls function finish_reason timings text index"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS.split()), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=400, deadline=None)
@given(st.lists(JSON, max_size=4), st.booleans())
def test_json_of_any_shape_never_raises(values: list[object], streaming: bool) -> None:
    if streaming:
        stream = b"".join(b"data: " + json.dumps(value).encode() + b"\n\n" for value in values)
    else:
        stream = json.dumps(values[0] if values else {}).encode()
    assert parse([(0, stream)] if stream else [])[-1].kind in (EventKind.DONE, EventKind.ERROR)
