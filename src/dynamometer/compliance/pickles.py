"""A folder of weight files in, how each is stored out: safetensors and GGUF hold data only, a pickle can run code.

A pickle is read, never loaded: picklescan lists what it would import. Names do not decide, content does.
"""

from __future__ import annotations

import logging
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Final, cast

import msgspec

from dynamometer.compliance.inventory import files_of
from dynamometer.errors import UsageError
from dynamometer.hardware import gguf, safetensors
from dynamometer.plugins import optional

_WEIGHTS: Final = frozenset(
    (
        *(".safetensors", ".gguf", ".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib", ".dill"),
        *(".npz", ".npy", ".h5", ".keras", ".onnx", ".msgpack", ".model", ".data", ".dat", ".zip"),
    )
)


class Stored(msgspec.Struct, frozen=True):
    """One file. `risk`: none | pickle | suspicious | dangerous | damaged; `imports` of a pickle, worst first."""

    path: str
    format: str
    risk: str
    detail: str = ""
    imports: tuple[str, ...] = ()


def scan(folder: Path) -> tuple[Stored, ...]:
    """Every file that holds weights, or is a pickle whatever its name."""
    places = {folder.name: folder} if folder.is_file() else files_of(folder)
    found = [_one(name, path) for name, path in sorted(places.items())]
    return tuple(one for one in found if one)


def _one(name: str, path: Path) -> Stored | None:
    suffix = path.suffix.lower()
    with path.open("rb") as file:
        head = file.read(16)
    if suffix == ".safetensors":
        return _safetensors(name, path)
    if head.startswith(b"GGUF"):
        return _gguf(name, path)
    if _is_pickle(head, path):
        return _pickle(name, path)
    if head.startswith(b"\x89HDF"):
        return Stored(name, "HDF5", "suspicious", "a Keras file can hold a Lambda layer, which is code; look inside")
    if suffix == ".onnx":
        return Stored(name, "ONNX", "none", "data; custom operators come from elsewhere")
    return Stored(name, "other", "none", "no pickle in it") if suffix in _WEIGHTS else None


def _safetensors(name: str, path: Path) -> Stored:
    try:
        tensors = safetensors.read_header(path)
    except UsageError as wrong:
        return Stored(name, "safetensors", "damaged", str(wrong))
    return Stored(name, "safetensors", "none", f"{len(tensors)} tensors; data only, no code runs when it is loaded")


def _gguf(name: str, path: Path) -> Stored:
    try:
        header = gguf.read_header(path)
    except UsageError as wrong:
        return Stored(name, "GGUF", "damaged", str(wrong))
    template = "tokenizer.chat_template" in header.keys
    more = "; its chat template is a program for the template engine: use a sandboxed one" if template else ""
    return Stored(name, "GGUF", "none", f"{len(header.tensors)} tensors; data only{more}")


def _is_pickle(head: bytes, path: Path) -> bool:
    """A pickle by its opcodes, or an archive that holds one (torch.save)."""
    if head[:1] == b"\x80" and len(head) > 1 and 1 <= head[1] <= 5:
        return True
    if head.startswith(b"PK"):
        try:
            with zipfile.ZipFile(path) as archive:
                return any(item.endswith((".pkl", ".pickle", "data.pkl")) for item in archive.namelist())
        except zipfile.BadZipFile:
            return False
    if head.startswith(b"\x93NUMPY"):
        return True
    return path.suffix.lower() in (".pkl", ".pickle", ".joblib", ".dill", ".pt", ".pth", ".ckpt")


def _pickle(name: str, path: Path) -> Stored:
    scanner = cast(ModuleType, optional("picklescan.scanner", "comply"))
    logging.getLogger("picklescan").setLevel(logging.CRITICAL)  # it tells again what the result holds
    result = scanner.scan_file_path(str(path))
    if result.scan_err:
        return Stored(name, "pickle", "damaged", "cannot be read as a pickle to its end: do not load it")
    rank = {"dangerous": 0, "suspicious": 1, "innocuous": 2}
    ordered = sorted(result.globals, key=lambda one: (rank[one.safety.value], one.module, one.name))
    imports = tuple(f"{one.module}.{one.name} ({one.safety.value})" for one in ordered)
    worst = ordered[0].safety.value if ordered else "innocuous"
    if worst == "innocuous":
        numpy = path.suffix.lower() in (".npy", ".npz") and not ordered
        if numpy:
            return Stored(name, "numpy", "none", "arrays without objects in them")
        return Stored(
            name, "pickle", "pickle", "nothing harmful is imported; safetensors can hold no code at all", imports
        )
    return Stored(name, "pickle", worst, "loading it can run code: do not; ask for safetensors", imports)
