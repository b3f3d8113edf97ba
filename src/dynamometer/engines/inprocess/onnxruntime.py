"""ONNX Runtime GenAI inside this process: each sequence by itself, in turns, from a folder that its builder made.

Source: onnxruntime-genai's Generator (append_tokens, generate_next_token). Its own batching wants sequences that start
together, which a load does not give.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Protocol, cast

from dynamometer.engines.fault import line
from dynamometer.engines.inprocess import Emission, Facts, Now
from dynamometer.engines.inprocess.text import Words
from dynamometer.engines.recipes import Settings
from dynamometer.errors import TargetError, UsageError
from dynamometer.plugins import optional
from dynamometer.types import Request

_MAKE = "python -m onnxruntime_genai.models.builder -i HUGGING-FACE-FOLDER -o FOLDER -p int4 -e cpu"


def load(model: str, settings: Settings, now_ns: Now) -> OnnxRuntime:
    """`model`: a folder with a genai_config.json. Threads are those that this file says."""
    genai = cast(ModuleType, optional("onnxruntime_genai", "onnxruntime"))
    folder = Path(model)
    if not model or not (folder / "genai_config.json").is_file():
        raise UsageError(f"--model is {model!r}, no folder of ONNX Runtime GenAI; make one: {_MAKE}")
    try:
        loaded = genai.Model(str(folder))
    except RuntimeError as wrong:
        raise TargetError(f"ONNX Runtime GenAI cannot load {folder}: {line(str(wrong))}") from wrong
    facts: dict[str, str | int | float] = {
        "engine": "ONNX Runtime GenAI (in process)",
        "engine_version": version("onnxruntime-genai"),
        "batching": "none: sequences take turns",
        "model_file": str(folder),
        "slots": settings.slots,
    }
    return OnnxRuntime(genai, loaded, facts, now_ns)


class Generator(Protocol):
    """What of a generator is called."""

    def append_tokens(self, tokens: object) -> None: ...
    def generate_next_token(self) -> None: ...
    def get_next_tokens(self) -> Sequence[int]: ...
    def is_done(self) -> bool: ...


class _Answer:
    def __init__(self, request: Request, prompt: Sequence[int], words: Words) -> None:
        self.request, self.prompt, self.words = request, prompt, words
        self.generator: Generator | None = None
        self.text = ""
        self.made = 0


class OnnxRuntime:
    """An Engine."""

    def __init__(self, genai: ModuleType, model: object, facts: Facts, now_ns: Now) -> None:
        self.facts = facts
        self._genai, self._model, self._now_ns = genai, model, now_ns
        self._tokenizer = genai.Tokenizer(model)
        self._waiting: deque[_Answer] = deque()
        self._active: list[_Answer] = []

    def submit(self, request: Request, turns: list[dict[str, str]]) -> None:
        text = self._tokenizer.apply_chat_template(json.dumps(turns), add_generation_prompt=True)
        words = Words(lambda tokens: str(self._tokenizer.decode(list(tokens))))
        self._waiting.append(_Answer(request, self._tokenizer.encode(text), words))

    def step(self) -> list[Emission]:
        """One token of each sequence, the prompt of a new one before it."""
        while self._waiting and len(self._active) < int(self.facts["slots"]):
            self._active.append(self._waiting.popleft())
        made = []
        for answer in list(self._active):
            try:
                emission = self._advance(answer)
            except RuntimeError as wrong:
                emission = Emission(answer.request.index, self._now_ns(), error=line(str(wrong)))
            if emission.finish or emission.error:
                self._active.remove(answer)
            made.append(emission)
        return made

    def cancel(self, request: int) -> None:
        self._active = [one for one in self._active if one.request.index != request]
        self._waiting = deque(one for one in self._waiting if one.request.index != request)

    def close(self) -> None:
        self._active.clear()
        self._waiting.clear()
        del self._model

    def _advance(self, answer: _Answer) -> Emission:
        if answer.generator is None:
            answer.generator = self._begun(answer)
        answer.generator.generate_next_token()
        (token,) = answer.generator.get_next_tokens()
        at_ns = self._now_ns()
        answer.made += 1
        text = answer.words.add(int(token))
        answer.text += text
        finish = "length" if answer.made >= (answer.request.output_tokens or answer.made + 1) else ""
        if not finish and (answer.generator.is_done() or any(stop in answer.text for stop in answer.request.stop)):
            finish = "stop"
        counts = (len(answer.prompt), answer.made) if finish else (0, 0)
        return Emission(answer.request.index, at_ns, text, 1, finish, *counts)

    def _begun(self, answer: _Answer) -> Generator:
        wanted, most = self._genai.GeneratorParams(self._model), answer.request.output_tokens
        length = len(answer.prompt) + most
        limits = {"max_length": length} if most else {}
        if most and answer.request.ignore_eos:
            limits["min_length"] = length
        wanted.set_search_options(do_sample=False, **limits)
        generator = cast(Generator, self._genai.Generator(self._model, wanted))
        generator.append_tokens(answer.prompt)
        return generator
