"""Triton over KServe v2 gRPC, for its vLLM and TensorRT-LLM backends: a request in, one call's bytes out, and back.

Source: KServe's grpc_predict_v2 protocol and Triton's decoupled responses; tritonclient brings the messages. The body
is gRPC's own: five bytes (flag, length) before each message. So a call is logged and read like any answer, in any
split. What differs is the carrier, HTTP/2: `client.streams`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from typing import Final, Protocol, cast

import msgspec
import numpy as np

from dynamometer.engines import channel
from dynamometer.engines.dialect import HttpRequest
from dynamometer.engines.fault import line
from dynamometer.engines.ledger import CONTENT, MALFORMED, Ledger
from dynamometer.engines.post import api_key
from dynamometer.engines.prompt import plain
from dynamometer.engines.reading import EventDialect
from dynamometer.engines.sse import MAX_EVENT_BYTES, Event
from dynamometer.engines.triton import sampling
from dynamometer.errors import UsageError
from dynamometer.plugins import optional
from dynamometer.types import Request, Target

Call = Callable[[str, bytes], bytes]

_SERVICE: Final = "/inference.GRPCInferenceService/"
METHOD: Final = _SERVICE + "ModelStreamInfer"
_HEAD: Final = struct.Struct(">BI")  # compressed or not, length
FRAME_BYTES: Final = _HEAD.size


class Splitter:
    """Splits one body into messages. `overflow` turns True, for good, when one is larger than MAX_EVENT_BYTES."""

    __slots__ = ("_tail", "idle", "overflow")

    def __init__(self) -> None:
        self._tail = bytearray()
        self.idle = True
        self.overflow = False

    def feed(self, data: bytes) -> list[Event]:
        self._tail += data
        found: list[Event] = []
        at = 0
        while len(self._tail) - at >= _HEAD.size:
            compressed, length = _HEAD.unpack_from(self._tail, at)
            if length > MAX_EVENT_BYTES:
                self.overflow = True
                self._tail.clear()
                return found
            end = at + _HEAD.size + length
            if end > len(self._tail):
                break
            found.append(("compressed" if compressed else "", bytes(self._tail[at + _HEAD.size : end])))
            at = end
        del self._tail[:at]
        self.idle = not self._tail
        return found

    def close(self) -> list[Event]:
        return []  # half a message is none


def framed(message: bytes) -> bytes:
    return _HEAD.pack(0, len(message)) + message


class _Value(Protocol):
    bool_param: bool


class _Tensor(Protocol):
    name: str
    datatype: str


class _Response(Protocol):
    outputs: Iterable[_Tensor]
    raw_output_contents: Iterable[bytes]
    parameters: Mapping[str, _Value]


class _StreamResponse(Protocol):
    error_message: str
    infer_response: _Response


class _Message(Protocol):
    def SerializeToString(self) -> bytes: ...  # noqa: N802  protobuf's name


class _Named(Protocol):
    name: str
    version: str
    state: str


class _Listing(Protocol):
    """Answers of the questions before the load, taken together."""

    name: str
    version: str
    models: Iterable[_Named]
    inputs: Iterable[_Tensor]


class _Answer(Protocol):
    def FromString(self, data: bytes) -> _Listing: ...  # noqa: N802  protobuf's name


class _Messages(Protocol):
    """The part of tritonclient.grpc.service_pb2 that is used here."""

    ModelInferRequest: Callable[..., _Message]
    RepositoryIndexRequest: Callable[..., _Message]
    ModelMetadataRequest: Callable[..., _Message]
    RepositoryIndexResponse: _Answer
    ServerMetadataResponse: _Answer
    ModelMetadataResponse: _Answer

    class ModelStreamInferResponse(Protocol):
        @staticmethod
        def FromString(data: bytes) -> _StreamResponse: ...  # noqa: N802  protobuf's name


@cache
def _messages() -> _Messages:
    channel.present()
    optional("tritonclient", "kserve")
    return cast("_Messages", optional("tritonclient.grpc.service_pb2", "kserve"))


def _read(ledger: Ledger, events: list[Event], at_ns: int) -> None:
    for name, data in events:
        if ledger.ended:
            return
        try:
            if name:
                raise ValueError("a message is compressed")
            response = _messages().ModelStreamInferResponse.FromString(data)
            outputs = _outputs(response.infer_response)
        except Exception as wrong:
            # protobuf's DecodeError is no ValueError, and its class lives in a package that may be absent
            if type(wrong).__name__ != "DecodeError" and not isinstance(wrong, ValueError | struct.error):
                raise
            ledger.fail(at_ns, MALFORMED, line(str(wrong)))
            return
        if response.error_message:
            ledger.fail(at_ns, "error", line(response.error_message))
            return
        _one(ledger, outputs, at_ns)
        final = response.infer_response.parameters
        if "triton_final_response" in final and final["triton_final_response"].bool_param:
            ledger.ended = True


def _one(ledger: Ledger, outputs: Mapping[str, str | int], at_ns: int) -> None:
    text, tokens = str(outputs.get("text_output", "")), int(outputs.get("num_output_tokens", 0))
    finish = str(outputs.get("finish_reason", ""))
    if text or tokens:
        ledger.text(at_ns, CONTENT, text, tokens)
        ledger.output_seen += tokens
    elif not outputs:
        ledger.frame(at_ns, "empty")
    if "num_input_tokens" in outputs:
        ledger.usage(at_ns, "prompt", int(outputs["num_input_tokens"]))
    ledger.usage(at_ns, "output", ledger.output_seen or None)
    if finish and finish != "None":
        ledger.finish(at_ns, finish)


def _outputs(response: _Response) -> dict[str, str | int]:
    """First element of each tensor that is read here: texts and counts."""
    found: dict[str, str | int] = {}
    for tensor, raw in zip(response.outputs, response.raw_output_contents, strict=False):
        if tensor.datatype == "BYTES":
            if raw:
                (length,) = struct.unpack_from("<I", raw)
                found[tensor.name] = raw[4 : 4 + length].decode("utf-8", "replace")
        elif tensor.datatype in _NUMPY and raw:
            found[tensor.name] = int(np.frombuffer(raw, _NUMPY[tensor.datatype], 1)[0])
    return found


_NUMPY: Final = {"UINT32": "<u4", "INT32": "<i4", "UINT64": "<u8", "INT64": "<i8"}


def _ask(request: Request, target: Target, answers: Mapping[int, str], *, batched: bool) -> HttpRequest:
    """`batched`: tensors have a batch dimension and the limit is a tensor, as TensorRT-LLM's ensemble has it."""
    if not target.model:
        raise UsageError(f"Triton at {target.url} needs the model's name; give --model, e.g. ensemble")
    prompt = plain(request, answers)
    tensors = _trtllm(request, prompt) if batched else _vllm(request, prompt, target)
    message = _messages().ModelInferRequest(
        model_name=target.model,
        id=str(request.index),
        inputs=[{"name": name, "datatype": kind, "shape": [1, 1] if batched else [1]} for name, kind, _ in tensors],
        raw_input_contents=[raw for _, _, raw in tensors],
        parameters={"triton_enable_empty_final_response": {"bool_param": True}},
    )
    key = api_key(target)
    headers = {"content-type": "application/grpc", "te": "trailers"}
    if key:
        headers["authorization"] = f"Bearer {key}"
    return HttpRequest("POST", METHOD, tuple(headers.items()), framed(message.SerializeToString()))


def _vllm(request: Request, prompt: str, target: Target) -> list[tuple[str, str, bytes]]:
    parameters = msgspec.json.encode({**sampling(request), **target.body})
    flags = ("stream", "exclude_input_in_output", "return_finish_reason")
    counts = ("return_num_input_tokens", "return_num_output_tokens")
    return [
        ("text_input", "BYTES", _bytes(prompt.encode())),
        ("sampling_parameters", "BYTES", _bytes(parameters)),
        *((name, "BOOL", b"\x01") for name in (*flags, *counts)),
    ]


def _trtllm(request: Request, prompt: str) -> list[tuple[str, str, bytes]]:
    if not request.output_tokens:
        raise UsageError(f"request {request.index} has no output limit; TensorRT-LLM demands one: give --output-tokens")
    return [
        ("text_input", "BYTES", _bytes(prompt.encode())),
        ("max_tokens", "INT32", struct.pack("<i", request.output_tokens)),
        ("stream", "BOOL", b"\x01"),
    ]


def _bytes(text: bytes) -> bytes:
    return struct.pack("<I", len(text)) + text


def served(call: Call) -> list[str]:
    """Names of the models that are ready, in the server's order. `call`: a method and a message in, the answer out."""
    index = _messages().RepositoryIndexResponse.FromString(
        call(_SERVICE + "RepositoryIndex", _messages().RepositoryIndexRequest(ready=True).SerializeToString())
    )
    return [model.name for model in index.models if model.state in ("READY", "")]


def server(call: Call) -> dict[str, str]:
    """The server's name and version."""
    said = _messages().ServerMetadataResponse.FromString(call(_SERVICE + "ServerMetadata", b""))
    return {"engine": said.name, "version": said.version}


def backend(call: Call, model: str) -> str:
    """Which dialect the model takes, by the tensors that it asks for; "" if it is no model of text."""
    asked = _messages().ModelMetadataRequest(name=model).SerializeToString()
    said = _messages().ModelMetadataResponse.FromString(call(_SERVICE + "ModelMetadata", asked))
    names = {tensor.name for tensor in said.inputs}
    if "text_input" not in names:
        return ""
    return trtllm.name if "max_tokens" in names else vllm.name


vllm: Final = EventDialect("kserve.vllm", partial(_ask, batched=False), _read, splitter=Splitter)
trtllm: Final = EventDialect("kserve.trtllm", partial(_ask, batched=True), _read, splitter=Splitter)
