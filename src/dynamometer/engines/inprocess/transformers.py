"""transformers inside this process: static batches, greedy, with the clock of the device that computes.

On a GPU each step's end is a `torch.cuda.Event`, so its time is the GPU's and not that of the Python that waits for
it; on a CPU it is the monotonic clock. Requests that come while a batch runs wait for its end: that is what static
batching is.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from types import ModuleType
from typing import Protocol, cast

from dynamometer.engines.inprocess import Emission, Facts, Now
from dynamometer.engines.inprocess.text import Words
from dynamometer.engines.recipes import Settings, compute_threads
from dynamometer.engines.starts.folder import model_folder
from dynamometer.errors import TargetError, UsageError
from dynamometer.plugins import optional
from dynamometer.types import Request

DTYPES = {"": "bfloat16", "BF16": "bfloat16", "F16": "float16", "F32": "float32"}


def load(model: str, settings: Settings, now_ns: Now) -> Transformers:
    """`model`: a folder, a hub's name, a GGUF file, or "" for the packaged one. `settings.extra`: attn=sdpa | eager |
    flash_attention_2; without it flash-attention where it is installed and a GPU is there, else sdpa."""
    torch = cast(ModuleType, optional("torch", "transformers"))
    transformers = cast(ModuleType, optional("transformers", "transformers"))
    if settings.quantization.upper() not in DTYPES:
        raise UsageError(f"transformers computes in BF16, F16 or F32; quantization is {settings.quantization!r}")
    threads = compute_threads(settings)
    torch.set_num_threads(threads)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    folder = model_folder(model, sys.executable, lambda stage, share: None)
    dtype = getattr(torch, DTYPES[settings.quantization.upper()])
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, padding_side="left")
        loaded = transformers.AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            attn_implementation=_attention(settings, device),
            local_files_only=folder.startswith("/"),
        )
    except (OSError, ValueError, ImportError) as wrong:
        raise TargetError(f"transformers cannot load {folder}: {str(wrong).splitlines()[0]}") from wrong
    facts: dict[str, str | int | float] = {
        "engine": "transformers (in process)",
        "engine_version": version("transformers"),
        "torch": version("torch"),
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "attention": str(loaded.config._attn_implementation),
        "batching": "static",
        "clock": "torch.cuda.Event" if device == "cuda" else "monotonic",
        "slots": settings.slots,
        "threads": threads,
        "quantization": DTYPES[settings.quantization.upper()],
    }
    clock = GpuClock(torch, now_ns) if device == "cuda" else CpuClock(now_ns)
    return Transformers(torch, tokenizer, loaded.to(device).eval(), facts, clock)


def _attention(settings: Settings, device: str) -> str:
    from importlib.util import find_spec

    asked = next((word.removeprefix("attn=") for word in settings.extra if word.startswith("attn=")), "")
    flash = device == "cuda" and find_spec("flash_attn") is not None
    return asked or ("flash_attention_2" if flash else "sdpa")


class Clock(Protocol):
    """When the device has done what it was given so far."""

    def mark(self) -> None:
        """Called right after the work was handed over."""
        ...

    def read_ns(self) -> int:
        """The moment of the last mark, on CLOCK_MONOTONIC; called once the results are on the host."""
        ...


class CpuClock:
    def __init__(self, now_ns: Now) -> None:
        self._now_ns = now_ns
        self._at_ns = 0

    def mark(self) -> None:
        self._at_ns = self._now_ns()

    def read_ns(self) -> int:
        return self._at_ns


class GpuClock:
    """CUDA events count from an event whose host time is known, to the microsecond that a synchronization takes."""

    def __init__(self, torch: ModuleType, now_ns: Now) -> None:
        self._torch = torch
        torch.cuda.synchronize()
        self._base = torch.cuda.Event(enable_timing=True)
        self._base.record()
        self._base.synchronize()
        self._base_ns = now_ns()
        self._event = self._base

    def mark(self) -> None:
        self._event = self._torch.cuda.Event(enable_timing=True)
        self._event.record()

    def read_ns(self) -> int:
        self._event.synchronize()
        return self._base_ns + round(float(self._base.elapsed_time(self._event)) * 1e6)


class Tensor(Protocol):
    """What of a tensor is used."""

    def __getitem__(self, place: object) -> Tensor: ...
    def argmax(self, dimension: int) -> Tensor: ...
    def tolist(self) -> list[int]: ...
    def new_ones(self, *shape: int) -> Tensor: ...
    def sum(self, dimension: int, keepdim: bool = False) -> Tensor: ...
    def cumsum(self, dimension: int) -> Tensor: ...
    def clamp(self, min: int) -> Tensor: ...
    def to(self, device: object) -> Tensor: ...
    def __sub__(self, other: int) -> Tensor: ...


class Outcome(Protocol):
    logits: Tensor
    past_key_values: object


class Model(Protocol):
    """What of a causal model is used."""

    device: object
    generation_config: object

    def __call__(self, **inputs: object) -> Outcome: ...


class Tokenizer(Protocol):
    """What of a tokenizer is used."""

    chat_template: object
    pad_token_id: int | None
    eos_token_id: int | None

    def __call__(self, texts: list[str], **options: object) -> Mapping[str, Tensor]: ...
    def decode(self, tokens: Sequence[int], skip_special_tokens: bool) -> str: ...
    def apply_chat_template(self, turns: list[dict[str, str]], **options: bool) -> object: ...


class _Row:
    """One request of the batch."""

    def __init__(self, request: Request, prompt_tokens: int, words: Words) -> None:
        self.request, self.prompt_tokens, self.words = request, prompt_tokens, words
        self.made = 0
        self.over = False


class Transformers:
    """An Engine. torch is not there when types are checked, so its tensors are as little known as its module."""

    def __init__(self, torch: ModuleType, tokenizer: Tokenizer, model: Model, facts: Facts, clock: Clock) -> None:
        self.facts = facts
        self._torch, self._tokenizer, self._model, self._clock = torch, tokenizer, model, clock
        self._waiting: list[tuple[Request, list[dict[str, str]]]] = []
        self._rows: list[_Row] = []
        self._state: dict[str, object] = {}
        self._mask: Tensor | None = None

    def submit(self, request: Request, turns: list[dict[str, str]]) -> None:
        self._waiting.append((request, turns))

    def step(self) -> list[Emission]:
        if all(row.over for row in self._rows):
            self._begin()
        with self._torch.inference_mode():
            out = self._model(**self._state, use_cache=True)
            chosen = out.logits[:, -1].argmax(-1)
        self._clock.mark()
        tokens = chosen.tolist()  # waits for the device
        at_ns = self._clock.read_ns()
        assert self._mask is not None
        grown: Tensor = self._torch.cat([self._mask, self._mask.new_ones(len(tokens), 1)], 1)
        self._mask = grown
        self._state = {
            "input_ids": chosen[:, None],
            "attention_mask": grown,
            "position_ids": grown.sum(1, keepdim=True) - 1,  # padding on the left has no position
            "past_key_values": out.past_key_values,
        }
        return [one for row, token in zip(self._rows, tokens, strict=True) for one in self._emit(row, token, at_ns)]

    def cancel(self, request: int) -> None:
        self._waiting = [one for one in self._waiting if one[0].index != request]
        for row in self._rows:
            row.over = row.over or row.request.index == request

    def close(self) -> None:
        self._state = {}

    def _begin(self) -> None:
        """The next batch: as many as there are slots, padded on the left to the longest prompt."""
        slots = int(self.facts["slots"])
        batch, self._waiting = self._waiting[:slots], self._waiting[slots:]
        tokenizer = self._tokenizer
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token_id = tokenizer.eos_token_id
        texts = [prompt_text(tokenizer, turns) for _, turns in batch]
        ids = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
        lengths = ids["attention_mask"].sum(1).tolist()
        self._rows = [
            _Row(request, length, Words(lambda tokens: str(tokenizer.decode(tokens, skip_special_tokens=True))))
            for (request, _), length in zip(batch, lengths, strict=True)
        ]
        device = self._model.device
        mask = self._mask = ids["attention_mask"].to(device)
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        self._state = {"input_ids": ids["input_ids"].to(device), "attention_mask": mask, "position_ids": positions}

    def _emit(self, row: _Row, token: int, at_ns: int) -> list[Emission]:
        if row.over:
            return []
        row.made += 1
        ends = token in _ends(self._model) and not row.request.ignore_eos
        finish = "stop" if ends else "length" if row.made >= row.request.output_tokens else ""
        row.over = bool(finish)
        text = "" if ends else row.words.add(token)
        if not finish:
            return [Emission(row.request.index, at_ns, text, 1)]
        return [Emission(row.request.index, at_ns, text, 1, finish, row.prompt_tokens, row.made)]


def prompt_text(tokenizer: Tokenizer, turns: list[dict[str, str]]) -> str:
    """Through the model's own chat template; a base model has none and gets the bare text."""
    if tokenizer.chat_template:
        made = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        return str(made)
    return "\n\n".join(turn["content"] for turn in turns)


def _ends(model: Model) -> set[int]:
    """Tokens that end an answer."""
    end = getattr(model.generation_config, "eos_token_id", None)
    return set(end) if isinstance(end, list) else {end} if end is not None else set()
