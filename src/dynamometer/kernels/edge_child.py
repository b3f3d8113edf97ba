"""A folder of shards in; seconds and resident bytes of decode steps at a batch out. Runs as a process of its own."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import msgspec
import torch

from dynamometer.kernels.child import Answer, serve
from dynamometer.kernels.model import caches, rotary
from dynamometer.kernels.shards import read
from dynamometer.kernels.study_quant import plain
from dynamometer.record.clock import now_ns


class Settings(msgspec.Struct, frozen=True):
    folder: str
    mapped: bool
    context: int
    steps: int
    threads: int


def resident_bytes() -> int:
    """Pages of this process in memory now, mapped files included."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def main(settings: Settings) -> None:
    torch.set_num_threads(settings.threads)
    model, base = read(Path(settings.folder), settings.mapped)
    rope = rotary(model.sizes, settings.context, "cpu", torch.bfloat16, base)[:, -1:]

    def answer(word: str) -> Answer:
        batch = int(word)
        kept = caches(model.sizes, batch, settings.context, "cpu", torch.bfloat16)
        tokens = torch.zeros((batch, 1), dtype=torch.int64)
        began_ns = now_ns()
        with torch.inference_mode():
            for _ in range(settings.steps):
                model(tokens, rope, plain, kept, settings.context - 1)
        took = (now_ns() - began_ns) * 1e-9
        del kept
        gc.collect()
        return {"seconds": took, "resident": resident_bytes()}

    serve(answer)


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=Settings))
