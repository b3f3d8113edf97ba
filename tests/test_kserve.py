"""KServe v2 gRPC: messages as bytes in any split; whole loads to a real gRPC server of Triton's protocol."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from socket import socket
from statistics import median
from time import sleep

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_run import MS, answers

from dynamometer.cli import main
from dynamometer.engines.kserve import framed, trtllm, vllm
from dynamometer.errors import UsageError
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
    response("Paris", 1, "None", prompt=7),
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
        ("chunk", 1, "Paris", "content"),
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
    """Answers as Triton with its vLLM backend does: 10 ms to the first token and 5 ms between tokens. A prompt can ask
    for a failure after the first text: of the transport, of the stream itself, or by silence."""

    def ServerMetadata(self, request: object, context: object) -> object:
        return pb2.ServerMetadataResponse(name="triton", version="2.60.0")

    def RepositoryIndex(self, request: object, context: object) -> object:
        names = ("preprocessing", "m")
        return pb2.RepositoryIndexResponse(models=[{"name": name, "version": "1", "state": "READY"} for name in names])

    def ModelMetadata(self, request: object, context: object) -> object:
        if request.name not in ("m", "preprocessing"):
            context.abort(grpc.StatusCode.NOT_FOUND, f"Request for unknown model: '{request.name}' is not found")
        inputs = ("text_input", "stream", "sampling_parameters") if request.name == "m" else ("QUERY",)
        return pb2.ModelMetadataResponse(name=request.name, inputs=[{"name": name} for name in inputs])

    def ModelStreamInfer(self, request_iterator: Iterator[object], context: object) -> Iterator[object]:
        for request in request_iterator:
            assert request.parameters["triton_enable_empty_final_response"].bool_param
            prompt = request.raw_input_contents[0]
            sleep(0.01)
            for number, message in enumerate(GOOD):
                yield pb2.ModelStreamInferResponse.FromString(message)
                if number == 0 and b"QUEUE-FULL" in prompt:
                    context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "queue full")
                if number == 0 and b"SLOT-LOST" in prompt:
                    yield pb2.ModelStreamInferResponse.FromString(response(error="slot lost"))
                    return
                if number == 0 and b"MUTE-NOW" in prompt:
                    sleep(1.5)
                sleep(0.005)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(8))
    services.add_GRPCInferenceServiceServicer_to_server(Server(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"grpc://127.0.0.1:{port}"
    server.stop(None).wait()


def bench(url: str, out: Path, *more: str) -> int:
    load = ("--requests", "24", "--warmup", "2", "--output-tokens", "4", "-q")
    with pytest.raises(SystemExit) as left:
        main(["bench", "--url", url, "--out", str(out), *load, *more])
    return int(str(left.value.code))


@pytest.mark.parametrize(
    "more",
    [
        ("--concurrency", "4"),
        ("--api", "kserve", "--concurrency", "4", "--workers", "2"),
        ("--rate", "50", "--model", "m"),
    ],
)
def test_a_load_over_grpc_is_measured_like_any_other(url: str, tmp_path: Path, more: tuple[str, ...]) -> None:
    assert bench(url, tmp_path / "run", *more) == 0
    run = msgspec.json.decode((tmp_path / "run/run.json").read_bytes())
    target = run["experiment"]["target"]
    assert (target["api"], target["model"]) == ("kserve.vllm", "m")
    assert (run["engine"]["engine"], run["engine"]["version"]) == ("triton", "2.60.0")
    rows = [row for row in answers(tmp_path / "run") if row["phase"] == "load"]
    assert len(rows) == 24
    assert {(row["outcome"], row["output_tokens"], row["prompt_tokens"]) for row in rows} == {("ok", 4, 7)}
    for row in rows:
        assert row["first_ns"] - row["sent_ns"] >= 10 * MS
        assert row["last_ns"] - row["sent_ns"] >= 20 * MS  # three texts, so two pauses
    assert median(row["last_ns"] - row["first_ns"] for row in rows) >= 8 * MS  # a busy machine may see the first late


@pytest.mark.parametrize(
    ("prompt", "reason", "words"),
    [
        ("QUEUE-FULL", "rate-limited", "queue full"),
        ("SLOT-LOST", "error", "slot lost"),
        ("MUTE-NOW", "timeout", "no complete answer within 1 s"),
    ],
)
def test_a_call_that_fails_is_a_failure_of_its_own_kind(
    url: str, tmp_path: Path, prompt: str, reason: str, words: str
) -> None:
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "2+2?"}\n' + f'{{"prompt": "{prompt}"}}\n')
    given = (
        "--workload",
        "jsonl",
        "--data",
        str(tmp_path / "prompts.jsonl"),
        "--timeout",
        "1s",
        "--warmup",
        "0",
        "-c",
        "4",
    )
    bench(url, tmp_path / "run", *given)
    rows = answers(tmp_path / "run")
    assert {row["outcome"] for row in rows} == {"ok", "error"}
    for row in rows:
        if row["outcome"] == "error":
            assert row["reason"] == reason
            assert words in row["error"]
            assert row["first_ns"] is not None  # what came before the failure stays in the record


def test_what_cannot_be_asked_is_told_in_one_line(url: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with socket() as free:
        free.bind(("127.0.0.1", 0))
        for at, more, words in (
            (f"grpc://127.0.0.1:{free.getsockname()[1]}", (), "did not answer ServerMetadata: connection: unavailable"),
            (url, ("--model", "other"), "unknown model: 'other'"),
            (url, ("--model", "preprocessing"), "serves no model that takes text_input"),
            (url, ("--api", "openai.chat"), "kserve goes with grpc://"),
            ("http://127.0.0.1:1", ("--api", "kserve"), "kserve goes with grpc://"),
            (url.replace("grpc", "grpcs"), ("--insecure",), "SSL_CERT_FILE"),
        ):
            assert bench(at, tmp_path / "x", *more) in (2, 3), (at, more)
            (said,) = capfd.readouterr().err.splitlines()
            assert words in said
    assert not (tmp_path / "x").exists()
