"""A length and a number of layers in; a prefill of Llama-3.1-8B's layers with each attention out."""

from __future__ import annotations

from functools import partial

import msgspec
import torch

from dynamometer.errors import UsageError
from dynamometer.kernels import rivals
from dynamometer.kernels.backends import Backend
from dynamometer.kernels.found import Row, in_unit
from dynamometer.kernels.mask import Mask
from dynamometer.kernels.model import Attend, build, rotary
from dynamometer.kernels.rivals import Inputs
from dynamometer.kernels.shapes import LLAMA_8B
from dynamometer.kernels.timing import Now, timed

ATTENTIONS = (
    "sdpa flash", "sdpa cudnn", "FlashAttention-3", "FlexAttention masked", "ours Hopper", "ours Hopper masked",
)  # fmt: skip


def attend(name: str, mask: Mask) -> Attend:
    """A prefill attention by its name, made ready once for each shape that it meets."""
    ready: dict[tuple[int, ...], rivals.Call] = {}

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        at, shape = Inputs(q, k, v), (*q.shape, k.shape[1])
        if shape not in ready:
            ready[shape] = rivals.prefill(name, at, mask)
        return ready[shape](at)

    return call


def layer_stack(length: int, layers: int, mask: Mask, backend: Backend, now_ns: Now) -> list[Row]:
    """Milliseconds for `layers` layers with random weights at batch 1, output layer included once."""
    sizes = msgspec.structs.replace(LLAMA_8B, layers=layers)
    model = build(sizes, backend.device, torch.bfloat16)
    rope = rotary(sizes, length, backend.device, torch.bfloat16)
    tokens = torch.randint(sizes.vocab, (1, length), device=backend.device)
    rows = []
    for name in ATTENTIONS:
        where: dict[str, str | int | float] = {
            "phase": "stack",
            "attention": name,
            "length": length,
            "key heads": sizes.kv_heads,
            "batch": 1,
        }
        try:
            attention = attend(name, mask)
            with torch.inference_mode():
                time = timed(
                    partial(model.__call__, tokens, rope, attention, None, 0), backend, now_ns, 0.5, graph=False
                )
        except (UsageError, torch.OutOfMemoryError) as refused:
            rows.append(Row(where, refused=str(refused).splitlines()[0]))
            continue
        rows.append(Row(where, {"time_ms": in_unit(time, 1e3, "ms")}))
    return rows
