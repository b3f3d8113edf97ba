"""Engines inside this process: requests in, tokens with the moment each was made out. The same rows, without HTTP.

An engine of this room works in steps, as engines do inside: requests are handed in, and each step gives what it made.
There is no client beside it and no wire, so its times hold neither; a run with a server of the same engine holds
both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Final, Protocol, cast

import msgspec

from dynamometer.engines.recipes import Settings
from dynamometer.errors import UsageError
from dynamometer.types import Request

Facts = Mapping[str, str | int | float]


class Emission(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one step made for one request. The last one of a request has `finish` or `error`."""

    request: int
    at_ns: int  # CLOCK_MONOTONIC, when the token was there
    text: str = ""
    tokens: int = 0
    finish: str = ""  # stop | length
    prompt_tokens: int = 0  # with `finish`: the engine's own counts
    output_tokens: int = 0
    cached_tokens: int = 0
    error: str = ""


class Engine(Protocol):
    """A loaded model."""

    @property
    def facts(self) -> Facts: ...

    def submit(self, request: Request, turns: list[dict[str, str]]) -> None:
        """Takes a request; `turns` are its messages. It waits in the engine's own queue."""
        ...

    def step(self) -> list[Emission]:
        """Works once, or waits until something was made. Called only while a request is in flight."""
        ...

    def cancel(self, request: int) -> None:
        """Forgets a request; nothing more comes for it."""
        ...

    def close(self) -> None: ...


Now = Callable[[], int]
ENGINES: Final = ("llamacpp", "transformers", "vllm", "openvino", "onnxruntime")


def load(name: str, model: str, settings: Settings, now_ns: Now) -> Engine:
    """Loads the model into this process. `now_ns`: CLOCK_MONOTONIC."""
    if name not in ENGINES:
        raise UsageError(f"in-process engine is {name!r}; one of {', '.join(ENGINES)}")
    module = import_module(f"dynamometer.engines.inprocess.{name}")
    return cast(Engine, module.load(model, settings, now_ns))
