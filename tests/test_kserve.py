"""KServe v2 gRPC: messages as bytes in any split; one call over a real channel to a server of Triton's protocol."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_run import MS, answers, manifest

from dynamometer.engines.kserve import exchange, framed, trtllm, vllm
from dynamometer.errors import TargetError, UsageError
from dynamometer.record import log
from dynamometer.record.clock import now_ns
from dynamometer.types import Chunk, EventKind, Message, Request, Target

grpc = pytest.importorskip("grpc")
pb2 = pytest.importorskip("tritonclient.grpc.service_pb2")
services = pytest.importorskip("tritonclient.grpc.service_pb2_grpc")

ASK = Request(3, (Message("user", "2+2?"),), 8, ignore_eos=True, stop=("\n",))


def blob(text: str) -> bytes:
    return struct.pack("<I", len(text.encode())) + text.encode()


def response(
    text: str = "", tokens: int = 0, finish: str = "", final: bool = False, prompt: int = 0, error: str = ""
) -> bytes:
    """One message as Triton's vLLM backend sends it."""
    tensors = [("text_output", "BYTES", blob(text)), ("num_output_tokens", "UINT32", struct.pack("<I", tokens))]
    if finish:
        tensors.append(("finish_reason", "BYTES", blob(finish)))
    if prompt:
        tensors.append(("num_input_tokens", "UINT32", struct.pack("<I", prompt)))
    if final:
        tensors = []
    inner = pb2.ModelInferResponse(
        model_name="m",
        outputs=[{"name": name, "datatype": kind, "shape": [1]} for name, kind, _ in tensors],
        raw_output_contents=[raw for *_, raw in tensors],
        parameters={"triton_final_response": {"bool_param": final}},
    )
    return pb2.ModelStreamInferResponse(error_message=error, infer_response=inner).SerializeToString()


GOOD = [
    response("Hi", 1, "None", prompt=7),
    response(" 中", 2, "None"),
    response("", 1, "length"),
    response(final=True),
]


def parse(reads: list[bytes]) -> list[Chunk]:
    parser = vllm.parser(200, {})
    return [chunk for read in reads for chunk in parser.feed(read, MS)] + parser.close(2 * MS)


def facts(chunks: list[Chunk]) -> list[tuple[str, int, str, str]]:
    return [(chunk.kind.value, chunk.n, chunk.text, chunk.note) for chunk in chunks]


def test_messages_are_read_as_what_they_mean() -> None:
    assert facts(parse([framed(message) for message in GOOD])) == [
        ("chunk", 1, "Hi", "content"),
        ("chunk", 2, " 中", "content"),
        ("chunk", 1, "", "content"),
        ("finish", 0, "", "length"),
        ("frame", 0, "", "empty"),
        ("usage", 7, "", "prompt"),
        ("usage", 4, "", "output"),
        ("done", 0, "", ""),
    ]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 600), max_size=12))
def test_any_split_gives_the_same_chunks(cuts: list[int]) -> None:
    stream = b"".join(map(framed, GOOD))
    places = sorted({min(cut, len(stream)) for cut in cuts} | {0, len(stream)})
    whole = facts(parse([stream]))
    assert facts(parse([stream[a:b] for a, b in pairwise(places)])) == whole
    assert facts(parse([bytes([byte]) for byte in stream])) == whole


@settings(max_examples=100, deadline=None)
@given(st.lists(st.binary(max_size=60), max_size=5), st.booleans())
def test_garbage_never_raises(messages: list[bytes], whole: bool) -> None:
    chunks = parse([framed(message) if whole else message for message in messages])
    assert chunks[-1].kind in (EventKind.DONE, EventKind.ERROR)


@pytest.mark.parametrize(
    ("stream", "note"),
    [
        (framed(GOOD[0]) + framed(response(error="slot lost")), "error: slot lost"),
        (framed(GOOD[0]), "truncated: the body ended in mid-answer"),
        (framed(GOOD[0]) + framed(GOOD[1])[:-1], "truncated: "),
        (b"\x01\x00\x00\x00\x01x", "malformed: a message is compressed"),
        (b"\x00\xff\xff\xff\xff", "too-large: "),
    ],
)
def test_failures_are_named(stream: bytes, note: str) -> None:
    last = parse([stream])[-1]
    assert last.kind is EventKind.ERROR
    assert last.note.startswith(note)


def asked(http_body: bytes) -> dict[str, tuple[str, list[int], bytes]]:
    message = pb2.ModelInferRequest.FromString(http_body[5:])
    inputs = zip(message.inputs, message.raw_input_contents, strict=True)
    return {tensor.name: (tensor.datatype, list(tensor.shape), raw) for tensor, raw in inputs}


def test_each_backend_is_asked_in_its_own_tensors() -> None:
    target = Target("grpc://h:8001", "m", body={"temperature": 0})
    found = asked(vllm.request(ASK, target, {}).body)
    assert found["text_input"] == ("BYTES", [1], blob("2+2?"))
    assert msgspec.json.decode(found["sampling_parameters"][2][4:]) == {
        "max_tokens": 8,
        "ignore_eos": True,
        "stop": ["\n"],
        "temperature": 0,
    }
    assert found["stream"] == ("BOOL", [1], b"\x01")
    found = asked(trtllm.request(ASK, target, {}).body)
    assert found == {
        "text_input": ("BYTES", [1, 1], blob("2+2?")),
        "max_tokens": ("INT32", [1, 1], b"\x08\x00\x00\x00"),
        "stream": ("BOOL", [1, 1], b"\x01"),
    }
    with pytest.raises(UsageError, match="--model"):
        vllm.request(ASK, Target("grpc://h"), {})


class Server(services.GRPCInferenceServiceServicer):
    """Answers as the vLLM backend does; the prompt "fail" gets a gRPC error after the first text."""

    def ModelStreamInfer(self, request_iterator: Iterator[object], context: object) -> Iterator[object]:
        for request in request_iterator:
            assert request.parameters["triton_enable_empty_final_response"].bool_param
            for number, message in enumerate(GOOD):
                yield pb2.ModelStreamInferResponse.FromString(message)
                if number == 0 and request.raw_input_contents[0] == blob("fail"):
                    context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "queue full")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(2))
    services.add_GRPCInferenceServiceServicer_to_server(Server(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"grpc://127.0.0.1:{port}"
    server.stop(None).wait()


async def carry(url: str, prompt: str) -> list[tuple[int, bytes]]:
    target = Target(url, "m", "kserve.vllm", timeout_s=20)
    http = vllm.request(Request(0, (Message("user", prompt),), 8), target, {})
    return [part async for part in exchange(target, http, now_ns)]


def test_a_call_over_a_real_channel_becomes_a_record(url: str, tmp_path: Path) -> None:
    parts = asyncio.run(carry(url, "2+2?"))
    assert len(parts) == len(GOOD)
    assert [at_ns for at_ns, _ in parts] == sorted(at_ns for at_ns, _ in parts)
    (tmp_path / "run.json").write_bytes(msgspec.json.encode(manifest("kserve.vllm")))
    wire = log.WireLog(tmp_path / "wire.log", parts[0][0] - MS)
    wire.append(log.PLAN, 0, parts[0][0] - MS, b'{"request":0}')
    wire.append(log.SENT, 0, parts[0][0] - MS, b'{"attempt":1,"bytes":1,"connection":"new"}')
    wire.append(log.HEADERS, 0, parts[0][0] - MS, b'{"status":200,"headers":{}}')
    for at_ns, data in parts:
        wire.append(log.BODY, 0, at_ns, data)
    wire.append(log.END, 0, parts[-1][0])
    wire.close()
    (answer,) = answers(tmp_path)
    assert (answer["outcome"], answer["output_tokens"], answer["prompt_tokens"]) == ("ok", 4, 7)


def test_a_call_that_fails_says_grpcs_status(url: str) -> None:
    with pytest.raises(TargetError, match="resource_exhausted: queue full"):
        asyncio.run(carry(url, "fail"))
    with pytest.raises(UsageError, match="grpc://"):
        asyncio.run(carry("http://127.0.0.1:1", "x"))
