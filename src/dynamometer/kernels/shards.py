"""A decoder in, one file a tensor on disk; and back, read into memory or mapped, where the kernel may drop pages."""

from __future__ import annotations

from pathlib import Path

import msgspec
import torch

from dynamometer.errors import MissingPath
from dynamometer.kernels.model import Decoder, build
from dynamometer.kernels.shapes import Sizes

_INDEX = "index.json"


class Index(msgspec.Struct, frozen=True):
    """What a folder of shards holds: sizes of the model, and each tensor's shape, in bf16."""

    sizes: Sizes
    rope_base: float
    tensors: dict[str, tuple[int, ...]]


def write(model: Decoder, rope_base: float, folder: Path) -> int:
    """Every tensor as one file of bf16; returns the bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    shapes = {}
    total = 0
    for name, tensor in model.state_dict().items():
        low = tensor.detach().to(torch.bfloat16).contiguous()
        (folder / f"{name}.bf16").write_bytes(low.view(torch.int16).numpy().tobytes())
        shapes[name] = tuple(low.shape)
        total += low.nbytes
    index = Index(model.sizes, rope_base, shapes)
    (folder / _INDEX).write_bytes(msgspec.json.encode(index))
    return total


def read(folder: Path, mapped: bool) -> tuple[Decoder, float]:
    """The decoder and the base of its rotary positions. `mapped`: the weights stay files that the kernel pages in."""
    path = folder / _INDEX
    if not path.is_file():
        raise MissingPath(f"{path} is not there; a folder of shards holds one")
    index = msgspec.json.decode(path.read_bytes(), type=Index)
    with torch.device("meta"):
        model = build(index.sizes, "meta", torch.bfloat16)
    for name, shape in index.tensors.items():
        count = 1
        for size in shape:
            count *= size
        file = str(folder / f"{name}.bf16")
        tensor = torch.from_file(file, shared=True, size=count, dtype=torch.bfloat16).view(shape)
        owner, _, last = name.rpartition(".")
        holder = model.get_submodule(owner)
        setattr(holder, last, torch.nn.Parameter(tensor if mapped else tensor.clone(), False))
    return model, index.rope_base
