"""llama.cpp inside this process, through xllamacpp: its server's queue and slots without its HTTP."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from importlib.metadata import version
from types import ModuleType
from typing import Protocol, cast

from dynamometer.engines import embedded
from dynamometer.engines.inprocess import Emission, Facts, Now
from dynamometer.engines.recipes import Settings, compute_threads
from dynamometer.engines.starts.llamacpp import file_facts
from dynamometer.errors import TargetError
from dynamometer.plugins import optional
from dynamometer.types import Request


def load(model: str, settings: Settings, now_ns: Now) -> LlamaCpp:
    """`model`: a GGUF file, or "" for the packaged one."""
    xllamacpp = cast(ModuleType, optional("xllamacpp", "llamacpp"))
    file = embedded.model_file(model or "smollm2", settings.quantization)
    threads = compute_threads(settings)
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(file)
    parameters.hostnames, parameters.port = ["127.0.0.1"], 0  # it opens its port all the same; nobody is told
    parameters.n_parallel, parameters.n_ctx = settings.slots, settings.slots * settings.context
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = threads
    parameters.cache_ram_mib = 0
    try:
        server = xllamacpp.Server(parameters)
    except RuntimeError as wrong:
        raise TargetError(f"llama.cpp cannot load {file}: {wrong}; see what it wrote above") from wrong
    facts = {"engine": "llama.cpp (in process)", "engine_version": version("xllamacpp")}
    return LlamaCpp(server, {**facts, **file_facts(file, settings, threads)}, now_ns)


class Server(Protocol):
    """What of xllamacpp's server is called."""

    def handle_chat_completions(self, body: object, take: Callable[[dict[str, object]], bool]) -> object: ...


class LlamaCpp:
    """An Engine. Each request has a thread that waits in llama.cpp, outside the interpreter's lock."""

    def __init__(self, server: Server, facts: Facts, now_ns: Now) -> None:
        self.facts, self._server, self._now_ns = facts, server, now_ns
        self._made: queue.SimpleQueue[Emission] = queue.SimpleQueue()
        self._cancelled: set[int] = set()

    def submit(self, request: Request, turns: list[dict[str, str]]) -> None:
        threading.Thread(target=self._ask, args=(request, turns), daemon=True).start()

    def step(self) -> list[Emission]:
        made = [self._made.get()]
        while not self._made.empty():
            made.append(self._made.get())
        return [emission for emission in made if emission.request not in self._cancelled]

    def cancel(self, request: int) -> None:
        self._cancelled.add(request)

    def close(self) -> None:
        del self._server

    def _ask(self, request: Request, turns: list[dict[str, str]]) -> None:
        answer = _Answer(request.index, self._now_ns, self._made, self._cancelled)
        body = {
            "messages": turns,
            "max_tokens": request.output_tokens,
            "ignore_eos": request.ignore_eos,
            "stop": list(request.stop),
            "temperature": 0.0,  # as the other engines of this room: no chance in what is computed
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        try:
            self._server.handle_chat_completions(body, answer.take)
        except Exception as wrong:  # whatever a foreign library raises is this answer's error, not the run's end
            answer.error = f"engine: {wrong}"
        answer.end()


class _Answer:
    """Turns llama.cpp's chunks of one answer into emissions. The last waits for the counts, which come after it."""

    def __init__(self, request: int, now_ns: Now, made: queue.SimpleQueue[Emission], cancelled: set[int]) -> None:
        self._request, self._now_ns, self._made, self._cancelled = request, now_ns, made, cancelled
        self._finish, self._at_ns = "", 0
        self._counts = (0, 0, 0)  # tokens of the prompt, of the output, from the cache
        self.error = ""

    def take(self, chunk: dict[str, object]) -> bool:
        """Called for each chunk, in the thread that asked. True stops the answer."""
        at_ns = self._now_ns()
        if "error" in chunk:
            self.error = f"engine: {chunk['error']}"
        for choice in cast(list[dict[str, object]], chunk.get("choices") or []):
            delta = cast(dict[str, str], choice.get("delta") or {})
            text = delta.get("content") or delta.get("reasoning_content") or ""
            if text:
                self._made.put(Emission(self._request, at_ns, text))
            if choice.get("finish_reason"):
                self._finish, self._at_ns = str(choice["finish_reason"]), at_ns
        usage = cast(dict[str, int], chunk.get("usage") or {})
        if usage:
            details = cast(dict[str, int], usage.get("prompt_tokens_details") or {})
            self._counts = usage["prompt_tokens"], usage["completion_tokens"], details.get("cached_tokens", 0)
        return self._request in self._cancelled

    def end(self) -> None:
        at_ns = self._at_ns or self._now_ns()
        if not self._finish:
            self._made.put(Emission(self._request, at_ns, error=self.error or "truncated: the engine gave no end"))
        else:
            self._made.put(Emission(self._request, at_ns, "", 0, self._finish, *self._counts))
