"""The names of GGUF quantizations: a name in, its one spelling out; a file in, the name of what it holds out."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from dynamometer.errors import UsageError
from dynamometer.hardware.gguf import read_header

# name -> llama.cpp's file type number (general.file_type)
FILE_TYPES: Final = {
    "F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q2_K": 10, "Q3_K": 12, "Q4_K": 15,
    "Q5_K": 17, "Q6_K": 18, "IQ4_NL": 25, "BF16": 32,
}  # fmt: skip
_ALIASES: Final = {"Q3_K_M": "Q3_K", "Q4_K_M": "Q4_K", "Q5_K_M": "Q5_K", "FP16": "F16", "FP32": "F32", "Q8": "Q8_0"}
_VARIANTS: Final = {11: "Q3_K", 13: "Q3_K", 14: "Q4_K", 16: "Q5_K"}  # the small and large mixes of a K-quant


def canonical(name: str) -> str:
    """An unknown name lists the known."""
    upper = name.strip().upper()
    upper = _ALIASES.get(upper, upper)
    if upper not in FILE_TYPES:
        raise UsageError(f"quantization is {name!r}; one of {', '.join(sorted(FILE_TYPES))}")
    return upper


def quantization_of(path: Path) -> str:
    """What the file says it is; else the type that most of its matrix bytes have, e.g. "Q4_1"."""
    header = read_header(path)
    number = header.keys.get("general.file_type")
    if isinstance(number, int):
        names = {**_VARIANTS, **{number: name for name, number in FILE_TYPES.items()}}
        if number in names:
            return names[number]
    sizes: dict[str, int] = {}
    for tensor in header.tensors:
        if len(tensor.shape) > 1:
            sizes[tensor.type] = sizes.get(tensor.type, 0) + tensor.bytes
    return max(sizes, key=lambda name: sizes[name], default="F32").upper()
