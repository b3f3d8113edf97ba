"""A model's shape and a device in; a log of real steps out, in the format that `dyno simulate --calibrate` reads.

Batches of requests run one after another, the way the simplest engine would: each prompt is a step, then all decode
together until they are done. Weights are random, so the speeds are real and the answers are not. What an engine adds,
its scheduler and its server, is not in it: calibrate on an engine's own log where there is one.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import torch

from dynamometer.errors import UsageError
from dynamometer.kernels.backends import Backend
from dynamometer.kernels.model import Decoder, build, caches, rotary
from dynamometer.kernels.shapes import KNOWN
from dynamometer.kernels.study_quant import plain
from dynamometer.kernels.timing import Now
from dynamometer.record.steplog import REQUESTS, STEPS

_STEP_HEADS = ("i", "t_sched", "sched_us", "t_done", "n_ctx", "tok_ctx", "past_ctx", "n_gen", "tok_gen", "past_gen",
               "n_run", "n_wait", "kv", "n_new", "n_pre")  # fmt: skip
_REQUEST_HEADS = ("phase", "t_sched", "t_send", "t_first", "t_last", "n_in", "n_out", "status")


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    model: str = "llama-3.1-8b"
    batches: tuple[int, ...] = (1, 4, 16, 64)
    prompts: tuple[int, ...] = (128, 512, 1024)
    output: int = 32
    rounds: int = 2


QUICK: Mapping[str, str | int | tuple[int, ...]] = {"model": "tiny", "batches": (1, 2, 4, 8), "prompts": (16, 64)}


def run(options: Options, backend: Backend, now_ns: Now, say: Callable[[str], None], folder: Path) -> int:
    """Writes the two files; returns the number of steps."""
    if options.model not in KNOWN:
        raise UsageError(f"model is {options.model!r}; one of {', '.join(KNOWN)}")
    dtype = torch.float32 if backend.name == "cpu" else torch.bfloat16
    model = build(KNOWN[options.model], backend.device, dtype)
    steps: list[tuple[float, ...]] = []
    requests: list[tuple[str | float, ...]] = []
    with torch.inference_mode():
        _batch(model, 1, max(options.prompts), 4, (backend, now_ns, [], []), "warm")
        for batch in options.batches:
            say(f"closed loop of {batch}")
            for _ in range(options.rounds):
                for prompt in options.prompts:
                    bench = (backend, now_ns, steps, requests)
                    _batch(model, batch, prompt, options.output, bench, f"closed_c{batch}")
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / STEPS, _STEP_HEADS, steps)
    _write(folder / REQUESTS, _REQUEST_HEADS, requests)
    return len(steps)


Bench = tuple[Backend, Now, list[tuple[float, ...]], list[tuple[str | float, ...]]]


def _batch(model: Decoder, batch: int, prompt: int, output: int, bench: Bench, phase: str) -> None:
    """One batch from its first prompt to its last token; a row a step and a row a request."""
    backend, now_ns, steps, requests = bench
    dtype = model.embedding.dtype
    kept = caches(model.sizes, batch, prompt + output, backend.device, dtype)
    rope = rotary(model.sizes, prompt + output, backend.device, dtype)
    tokens = torch.randint(model.sizes.vocab, (batch, prompt), device=backend.device)
    firsts, began_s = [], now_ns() * 1e-9
    for i in range(batch):
        mine = [(k[i : i + 1], v[i : i + 1]) for k, v in kept]
        at_s = now_ns() * 1e-9
        model(tokens[i : i + 1], rope[:, :prompt], plain, mine, 0).argmax(-1)
        backend.synchronize()
        firsts.append(now_ns() * 1e-9)
        steps.append((len(steps), at_s, 0, firsts[-1], 1, prompt, 0, 0, 0, 0, i + 1, batch - i - 1, 0, 1, 0))
    last = tokens[:, -1:]
    for j in range(output - 1):
        at_s = now_ns() * 1e-9
        last = model(last, rope[:, prompt + j : prompt + j + 1], plain, kept, prompt + j).argmax(-1)
        backend.synchronize()
        past = batch * (prompt + j)
        steps.append((len(steps), at_s, 0, now_ns() * 1e-9, 0, 0, 0, batch, batch, past, batch, 0, 0, 0, 0))
    ended_s = now_ns() * 1e-9
    requests += [(phase, began_s, began_s, first, ended_s, prompt, output, "ok") for first in firsts]


def _write(path: Path, heads: tuple[str, ...], rows: list[tuple[float, ...]] | list[tuple[str | float, ...]]) -> None:
    with gzip.open(path, "wt", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(heads)
        lines.writerows(rows)
