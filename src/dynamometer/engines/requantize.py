"""A GGUF file and a quantization's name in, the same model in that quantization out, tensor by tensor.

Two quantizers, the first that is there: ggml's own, exported by the library that comes with xllamacpp (all types),
and the `gguf` package's numpy one (no K-quants). ggml's is trusted only after it gave the same bytes as numpy's.
Every matrix gets the type asked for, with three exceptions: embeddings and output keep 8 bits in types below that; a
K-quant is llama.cpp's medium mix (Q4_K is Q4_K_M), in which values and half of the down projections get more bits;
and rows which a type's block does not divide get llama.cpp's fallback. So sizes do not always follow the name.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from dynamometer.engines.quantizations import FILE_TYPES
from dynamometer.errors import MissingExtra, UsageError

try:
    import gguf
except ModuleNotFoundError as missing:
    raise MissingExtra("gguf", "llamacpp") from missing

Bytes = npt.NDArray[np.uint8]
Quantizer = Callable[[npt.NDArray[np.float32], str], Bytes]

_NUMPY: Final = {"F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"}
# K-quants come in blocks of 256; a row of another length gets the nearest type with blocks of 32
_FALLBACK: Final = {"Q2_K": "IQ4_NL", "Q3_K": "IQ4_NL", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
_WIDE: Final = {"F32", "F16", "BF16", "Q8_0"}
_EDGE: Final = ("token_embd.weight", "output.weight")
_LAYER: Final = re.compile(r"blk\.(\d+)\.(attn_v|attn_output|ffn_down)\.weight$")


def write(source: Path, target: Path, quantization: str, progress: Callable[[str, float], None]) -> str:
    """Writes `target`; returns what made it. One tensor is in memory at a time."""
    quantizer, made_by = _quantizer(quantization)
    reader = _open(source)
    writer = gguf.GGUFWriter(str(target), _text(reader, "general.architecture"))
    _copy_metadata(reader, writer, FILE_TYPES[quantization])
    layers = 1 + max((int(m[1]) for m in map(_LAYER.match, (one.name for one in reader.tensors)) if m), default=0)
    plan = [
        (tensor, _type_for(tensor.name, [int(n) for n in tensor.shape], quantization, layers))
        for tensor in reader.tensors
    ]
    for tensor, kind in plan:
        number = gguf.GGMLQuantizationType[kind] if kind else tensor.tensor_type
        per_block, block_bytes = gguf.GGML_QUANT_SIZES[number]
        size = int(tensor.n_elements) // per_block * block_bytes
        shape = [int(n) for n in reversed(tensor.shape)]
        writer.add_tensor_info(tensor.name, shape, np.dtype(np.float32), size, raw_dtype=number)
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for done, (tensor, kind) in enumerate(plan):
            progress(f"quantizing to {quantization}", done / len(plan))
            writer.write_tensor_data(_converted(tensor.data, tensor.tensor_type, kind, quantizer))
    except OSError as wrong:
        raise UsageError(
            f"{target} cannot be written: {wrong}; free some space or set DYNO_CACHE to another disk"
        ) from wrong
    finally:
        writer.close()
    return made_by


def _open(path: Path) -> gguf.GGUFReader:
    try:
        return gguf.GGUFReader(str(path))
    except (ValueError, IndexError, KeyError, UnicodeDecodeError) as wrong:
        raise UsageError(f"{path} cannot be read as GGUF: {wrong}; give a whole .gguf file") from wrong


def _text(reader: gguf.GGUFReader, key: str) -> str:
    field = reader.get_field(key)
    return str(field.contents()) if field is not None else ""


def _copy_metadata(reader: gguf.GGUFReader, writer: gguf.GGUFWriter, file_type: int) -> None:
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in (
            "general.architecture",
            "general.file_type",
            "general.quantization_version",
        ):
            continue
        if name == "general.alignment":
            writer.add_custom_alignment(int(field.contents()))
            continue
        sub_type = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), field.types[0], sub_type)
    writer.add_file_type(file_type)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)


def _type_for(name: str, shape: list[int], wanted: str, layers: int) -> str:
    """The type that a tensor gets; "" leaves it as it is (vectors, norms and routers are small and stay exact)."""
    if len(shape) < 2 or not name.endswith(".weight") or "norm" in name or "ffn_gate_inp" in name:
        return ""
    if name in _EDGE and wanted not in _WIDE:
        return "" if shape[0] % 32 else "Q8_0"
    kind = _mixed(name, wanted, layers)
    while shape[0] % gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][0]:
        kind = _FALLBACK.get(kind, "F16")
    return kind


def _mixed(name: str, wanted: str, layers: int) -> str:
    """The type in llama.cpp's medium mix of a K-quant: the first and last eighth of the layers and every third between
    them are worth more bits, in the matrices that suffer most."""
    found = _LAYER.match(name)
    if not found:
        return wanted
    at, part = int(found[1]), found[2]
    more = at < layers // 8 or at >= 7 * layers // 8 or (at - layers // 8) % 3 == 2
    if wanted in ("Q4_K", "Q5_K"):
        return "Q6_K" if more and part != "attn_output" else wanted
    if wanted == "Q3_K":
        early = at < (2 if part == "attn_v" else layers // 16) and part != "attn_output"
        return "Q5_K" if early else "Q4_K" if more or part != "ffn_down" else "Q3_K"
    return "Q3_K" if wanted == "Q2_K" else wanted


def _converted(data: npt.NDArray[np.generic], now: gguf.GGMLQuantizationType, kind: str, quantizer: Quantizer) -> Bytes:
    if not kind or now == gguf.GGMLQuantizationType[kind]:
        return np.ascontiguousarray(data).view(np.uint8)
    values = np.ascontiguousarray(gguf.dequantize(data, now), dtype=np.float32)
    return quantizer(values, kind)


def _numpy_quantizer(values: npt.NDArray[np.float32], kind: str) -> Bytes:
    return np.ascontiguousarray(gguf.quantize(values, gguf.GGMLQuantizationType[kind])).view(np.uint8)


def _quantizer(quantization: str) -> tuple[Quantizer, str]:
    from importlib.metadata import version

    library = _ggml()
    if library is not None:
        return _ggml_quantizer(library), f"ggml in xllamacpp {version('xllamacpp')}"
    kinds = {quantization, _FALLBACK.get(quantization, quantization)}
    if not kinds <= _NUMPY:
        raise UsageError(
            f"{quantization} needs ggml's quantizer, which comes with xllamacpp: pip install 'dynamometer[llamacpp]'; "
            f"without it one of {', '.join(sorted(_NUMPY))}"
        )
    return _numpy_quantizer, f"gguf {version('gguf')}"


@cache
def _ggml() -> ctypes.CDLL | None:
    """ggml's C library as it ships inside xllamacpp, or None. Only the public functions of ggml.h are called."""
    found = find_spec("xllamacpp")
    folders = list(found.submodule_search_locations or ()) if found else []
    for path in sorted(path for folder in folders for path in Path(folder).glob("xllamacpp*.so")):
        try:
            library = ctypes.CDLL(str(path))
            chunk = library.ggml_quantize_chunk
        except (OSError, AttributeError):
            continue
        wide = ctypes.c_int64
        chunk.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, wide, wide, wide, ctypes.c_void_p]
        chunk.restype = ctypes.c_size_t
        if _agrees(_ggml_quantizer(library)):
            return library
    return None


def _agrees(quantizer: Quantizer) -> bool:
    """A type number or a signature that moved between versions shows here as other bytes."""
    values = np.random.default_rng(0).standard_normal((2, 64), dtype=np.float32)
    return all(
        np.array_equal(quantizer(values, kind), _numpy_quantizer(values, kind)) for kind in ("Q8_0", "BF16", "F16")
    )


def _ggml_quantizer(library: ctypes.CDLL) -> Quantizer:
    def quantize(values: npt.NDArray[np.float32], kind: str) -> Bytes:
        number = gguf.GGMLQuantizationType[kind]
        per_block, block_bytes = gguf.GGML_QUANT_SIZES[number]
        row = values.shape[-1]
        rows = values.size // row
        out = np.empty((rows, row // per_block * block_bytes), dtype=np.uint8)
        written = library.ggml_quantize_chunk(int(number), values.ctypes.data, out.ctypes.data, 0, rows, row, None)
        if written != out.nbytes:
            raise UsageError(
                f"ggml wrote {written} bytes of {kind} where {out.nbytes} were due; give another quantization"
            )
        return out

    return quantize
