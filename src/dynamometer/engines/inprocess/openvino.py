"""OpenVINO GenAI inside this process: continuous batching on a CPU, straight from a GGUF file.

Not every quantization that it loads does it compute right: its Q4_0 was seen to answer nonsense, fast. Ask first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from types import ModuleType
from typing import Protocol, cast

from dynamometer.engines import embedded
from dynamometer.engines.inprocess import Emission, Facts, Now
from dynamometer.engines.inprocess.text import Words
from dynamometer.engines.recipes import Settings, compute_threads
from dynamometer.engines.starts.llamacpp import file_facts
from dynamometer.errors import TargetError
from dynamometer.plugins import optional
from dynamometer.types import Request


def load(model: str, settings: Settings, now_ns: Now) -> OpenVino:
    """`model`: a GGUF file, a folder that OpenVINO exported, or "" for the packaged one."""
    genai = cast(ModuleType, optional("openvino_genai", "openvino"))
    file = embedded.model_file(model or "smollm2", settings.quantization)
    threads = compute_threads(settings)
    schedule = genai.SchedulerConfig()
    schedule.max_num_seqs = settings.slots
    schedule.cache_size = 1  # GiB; it would grow as needed, within the measurement
    try:
        pipeline = genai.ContinuousBatchingPipeline(str(file), schedule, "CPU", {"INFERENCE_NUM_THREADS": threads})
    except RuntimeError as wrong:
        raise TargetError(f"OpenVINO GenAI cannot load {file}: {str(wrong).strip().splitlines()[-1]}") from wrong
    facts = {
        "engine": "OpenVINO GenAI (in process)",
        "engine_version": version("openvino-genai"),
        "batching": "continuous",
    }
    return OpenVino(genai, pipeline, {**facts, **file_facts(file, settings, threads)}, now_ns)


class Output(Protocol):
    """What of OpenVINO's answers is read."""

    generated_ids: Sequence[int]
    finish_reason: object


class Handle(Protocol):
    def can_read(self) -> bool: ...
    def read(self) -> Mapping[int, Output]: ...
    def cancel(self) -> None: ...


class Pipeline(Protocol):
    """What of OpenVINO's pipeline is called."""

    def get_tokenizer(self) -> ModuleType: ...
    def add_request(self, request_id: int, input_ids: object, generation_config: object) -> Handle: ...
    def step(self) -> None: ...


class _Answer:
    def __init__(self, handle: Handle, prompt_tokens: int, words: Words, most: int) -> None:
        self.handle, self.prompt_tokens, self.words, self.most = handle, prompt_tokens, words, most
        self.made = 0


class OpenVino:
    """An Engine."""

    def __init__(self, genai: ModuleType, pipeline: Pipeline, facts: Facts, now_ns: Now) -> None:
        self.facts = facts
        self._genai, self._pipeline, self._now_ns = genai, pipeline, now_ns
        self._tokenizer = pipeline.get_tokenizer()
        self._answers: dict[int, _Answer] = {}

    def submit(self, request: Request, turns: list[dict[str, str]]) -> None:
        wanted = self._genai.GenerationConfig()
        wanted.max_new_tokens = request.output_tokens
        wanted.ignore_eos = request.ignore_eos
        wanted.do_sample = False
        wanted.stop_strings = set(request.stop)
        text = self._tokenizer.apply_chat_template(turns, add_generation_prompt=True)
        ids = self._tokenizer.encode(text, add_special_tokens=False).input_ids
        handle = self._pipeline.add_request(request.index, ids, wanted)
        words = Words(lambda tokens: str(self._tokenizer.decode(list(tokens))))
        self._answers[request.index] = _Answer(handle, int(ids.shape[-1]), words, request.output_tokens)

    def step(self) -> list[Emission]:
        self._pipeline.step()
        at_ns = self._now_ns()
        made = [one for index in list(self._answers) for one in self._read(index, at_ns)]
        for emission in made:
            if emission.finish or emission.error:
                del self._answers[emission.request]
        return made

    def cancel(self, request: int) -> None:
        answer = self._answers.pop(request, None)
        if answer is not None:
            answer.handle.cancel()

    def close(self) -> None:
        self._answers.clear()
        del self._pipeline

    def _read(self, index: int, at_ns: int) -> list[Emission]:
        answer = self._answers[index]
        found: list[Emission] = []
        while answer.handle.can_read():
            for output in answer.handle.read().values():
                tokens = list(output.generated_ids)
                answer.made += len(tokens)
                text = "".join(answer.words.add(token) for token in tokens)
                finish = _finish(str(output.finish_reason))
                if not finish:
                    found.append(Emission(index, at_ns, text, len(tokens)))
                    continue
                counts = (answer.prompt_tokens, answer.made)
                found.append(Emission(index, at_ns, text, len(tokens), finish, *counts))
        return found


def _finish(reason: str) -> str:
    name = reason.rpartition(".")[2].lower()
    return name if name in ("stop", "length") else ""
