"""A model and a format in; seconds of a prefill and of decode steps out, on request. Runs as a process of its own."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import msgspec
import torch

from dynamometer.kernels.child import Answer, serve
from dynamometer.kernels.model import build, caches, rotary
from dynamometer.kernels.onednn import through_onednn
from dynamometer.kernels.shapes import KNOWN
from dynamometer.kernels.study_quant import plain
from dynamometer.record.clock import now_ns


class Settings(msgspec.Struct, frozen=True):
    """`model`: a known shape with random weights, or a GGUF file."""

    model: str
    format: str
    prompt: int
    context: int
    steps: int
    threads: int


def main(settings: Settings) -> None:
    torch.set_num_threads(settings.threads)
    base = 500000.0
    if settings.model in KNOWN:
        model = build(KNOWN[settings.model], "cpu", torch.float32)
    else:
        from dynamometer.kernels.weights import load

        loaded = load(Path(settings.model))
        model, base = loaded.model, loaded.rope_base
    model = through_onednn(model, settings.format)
    sizes = model.sizes
    kept = caches(sizes, 1, settings.context, "cpu", torch.float32)
    rope = rotary(sizes, max(settings.context, settings.prompt), "cpu", torch.float32, base)
    torch.manual_seed(0)
    tokens = torch.randint(sizes.vocab, (1, settings.prompt))
    at = settings.context - 1
    prefill = partial(model.__call__, tokens, rope[:, : settings.prompt], plain, None, 0)
    decode = partial(model.__call__, tokens[:, :1], rope[:, at : at + 1], plain, kept, at)

    def answer(word: str) -> Answer:
        began_ns = now_ns()
        with torch.inference_mode():
            if word == "prefill":
                prefill()
            elif word == "decode":
                for _ in range(settings.steps):
                    decode()
            elif word == "logits":
                return {"logits": prefill()[0, -1, :64].tolist()}
        return {"seconds": (now_ns() - began_ns) * 1e-9}

    serve(answer)


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=Settings))
