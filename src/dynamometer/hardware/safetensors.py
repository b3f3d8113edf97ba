"""A safetensors file or a folder of shards in, its tensors out: names, types, shapes, bytes. Reads headers only.

Layout: u64 length, then so many bytes of JSON: {name: {"dtype", "shape", "data_offsets"}}.
"""

from __future__ import annotations

import struct
from pathlib import Path

import msgspec

from dynamometer.errors import MissingPath, UsageError

_LIMIT = 512 * 2**20  # a longer header is a damaged file


class Tensor(msgspec.Struct, frozen=True):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]

    @property
    def elements(self) -> int:
        total = 1
        for extent in self.shape:
            total *= extent
        return total

    @property
    def bytes(self) -> int:
        return self.data_offsets[1] - self.data_offsets[0]


def read_header(path: Path) -> dict[str, Tensor]:
    """Tensors of one file by name."""
    try:
        with path.open("rb") as file:
            start = file.read(8)
            if len(start) < 8:
                raise UsageError(f"{path} is too short for a safetensors file; download it again")
            (length,) = struct.unpack("<Q", start)
            if not 2 <= length <= min(_LIMIT, path.stat().st_size):
                raise UsageError(f"{path} does not begin with a safetensors header; give a .safetensors file")
            raw = msgspec.json.decode(file.read(length), type=dict[str, msgspec.Raw])
        raw.pop("__metadata__", None)
        return {name: msgspec.json.decode(value, type=Tensor) for name, value in raw.items()}
    except FileNotFoundError as absent:
        raise MissingPath(f"{path} is not there; give a safetensors file") from absent
    except msgspec.MsgspecError as wrong:
        raise UsageError(f"{path} has a damaged safetensors header ({wrong}); download it again") from wrong


def read_folder(folder: Path) -> dict[str, Tensor]:
    """Tensors of every shard in a folder; an incomplete download is an error, not a smaller model."""
    shards = sorted(folder.glob("*.safetensors"))
    tensors: dict[str, Tensor] = {}
    for shard in shards:
        tensors.update(read_header(shard))
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        wanted = msgspec.json.decode(index.read_bytes(), type=dict[str, object]).get("weight_map")
        absent = {name for name in wanted if name not in tensors} if isinstance(wanted, dict) and shards else set()
        if absent:
            raise UsageError(
                f"{folder} lacks {len(absent)} tensors that its index names, e.g. {min(absent)}; finish the download"
            )
    return tensors


def counted(tensors: dict[str, Tensor]) -> int | None:
    """Elements of all weights, or None when codes are packed in integers and elements are not weights."""
    if any(t.dtype in ("I32", "U8", "I8", "I16", "U32") for t in tensors.values()):
        return None
    return sum(
        t.elements for name, t in tensors.items() if not name.endswith(("_scale", "_scale_inv", "rotary_emb.inv_freq"))
    )
