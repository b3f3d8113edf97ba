"""An address in, gRPC channels, whole answers and the meaning of failures out. The only file that knows grpc."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, Protocol, cast

import msgspec

from dynamometer.engines.fault import line
from dynamometer.engines.sse import MAX_EVENT_BYTES
from dynamometer.errors import TargetError, UsageError
from dynamometer.plugins import optional

Metadata = tuple[tuple[str, str], ...]
_OPTIONS: Final = (("grpc.max_receive_message_length", MAX_EVENT_BYTES), ("grpc.max_send_message_length", -1))

# gRPC's codes as the HTTP statuses that google/rpc/code.proto names beside them; others are failures, no refusals
_REFUSALS: Final = {
    "invalid_argument": 400,
    "out_of_range": 400,
    "unauthenticated": 401,
    "permission_denied": 403,
    "not_found": 404,
    "resource_exhausted": 429,
    "unimplemented": 404,
}
_KINDS: Final = {"unavailable": "connection", "deadline_exceeded": "timeout", "resource_exhausted": "rate-limited"}


class Stream(Protocol):
    """One call under way; its messages by iteration."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...

    def cancel(self) -> bool: ...


class Channel(Protocol):
    """One HTTP/2 connection."""

    def stream_stream(self, method: str) -> Callable[..., Stream]: ...

    async def channel_ready(self) -> None: ...

    async def close(self) -> None: ...


class Failure(msgspec.Struct, frozen=True):
    """How a call failed. `status`: the HTTP status of the same meaning where the server refused, else 0."""

    status: int
    note: str  # class: code: the server's words
    late: bool = False  # the call's own time limit ended it


def channel(address: str, secure: bool) -> Channel:
    """A channel for the running event loop. It connects by its first call, or by `ready`."""
    present()
    import grpc

    if secure:
        return cast(Channel, grpc.aio.secure_channel(address, _credentials(), _OPTIONS))
    return cast(Channel, grpc.aio.insecure_channel(address, _OPTIONS))


async def ready(connection: Channel, address: str, limit_s: float) -> None:
    """Waits until the channel is connected. TargetError after `limit_s`."""
    try:
        async with asyncio.timeout(limit_s):
            await connection.channel_ready()
    except TimeoutError:
        raise TargetError(f"{address} accepted no gRPC connection within {limit_s:g} s; is the server up?") from None


def failure(wrong: Exception) -> Failure | None:
    """What gRPC says of a failed call; None for an error of another kind."""
    import grpc

    if not isinstance(wrong, grpc.RpcError):
        return None
    code = str(wrong.code().name).lower()
    note = f"{_KINDS.get(code, 'grpc')}: {code}: {line(wrong.details() or '')}"
    return Failure(_REFUSALS.get(code, 0), note, late=code == "deadline_exceeded")


def ask(address: str, secure: bool, method: str, message: bytes, metadata: Metadata, timeout_s: float) -> list[bytes]:
    """One call on a channel of its own, for before the load: every message of its answer. TargetError says why not."""
    present()
    import grpc

    opened = (
        grpc.secure_channel(address, _credentials(), _OPTIONS) if secure else grpc.insecure_channel(address, _OPTIONS)
    )
    with opened:
        try:
            stream: Callable[..., Iterator[bytes]] = opened.stream_stream(method)
            given: Iterable[bytes] = iter((message,))
            return list(stream(given, timeout=timeout_s, metadata=metadata))
        except grpc.RpcError as wrong:
            said = failure(wrong)
            note = said.note if said else ""
            raise TargetError(f"{address} did not answer {method.rpartition('/')[2]}: {note}") from wrong


def present() -> None:
    """MissingExtra without the extra. Called before grpc is imported, which would otherwise hold its threads
    still for every process that is started and say so on the terminal; none of ours uses its parent's channels.
    """
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    optional("grpc", "kserve")


def _credentials() -> object:
    """SSL_CERT_FILE names the authorities to trust, as it does for https; otherwise those that grpc brings."""
    import grpc

    named = os.environ.get("SSL_CERT_FILE", "")
    try:
        return grpc.ssl_channel_credentials(Path(named).read_bytes() if named else None)
    except OSError as wrong:
        raise UsageError(f"SSL_CERT_FILE names {named}, which cannot be read: {wrong.strerror}") from wrong
