"""What a user calls a model in, a `Model` out: a config.json, a folder, a GGUF or safetensors file, a built-in name,
or a hub name."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Final

import msgspec

from dynamometer.errors import MissingPath, UsageError
from dynamometer.hardware import gguf, safetensors
from dynamometer.hardware.config import from_config, renamed
from dynamometer.hardware.model import Model, parameters_total

_HUB: Final = "https://huggingface.co"
_ONLINE_TIMEOUT_S: Final = 10.0


def resolve(name: str, online: bool = True) -> Model:
    """The model that `name` stands for. Paths win over names; a hub name is looked up in the local cache, then
    online."""
    if not name.strip():
        raise UsageError("the model has no name; give a config.json, a folder, a GGUF file, a built-in or a hub name")
    path = Path(name).expanduser()
    if path.exists():
        return from_path(path)
    known = find(name)
    if known:
        return known
    if path.suffix in (".json", ".gguf", ".safetensors") or name.startswith(("/", "./", "../", "~")):
        raise MissingPath(f"{name} is not there; give the path of a config.json, a folder or a GGUF file")
    if name.count("/") == 1:
        return from_hub(name, online)
    near = get_close_matches(name.lower(), list(_names()), n=3, cutoff=0.5)
    hint = f"near names: {', '.join(near)}" if near else "dyno memory --list names the built-ins"
    raise UsageError(f"model {name!r} is neither a file, a built-in nor a hub name (owner/name); {hint}")


def from_path(path: Path) -> Model:
    """A model from a file or a folder on this machine."""
    if path.is_dir():
        return _from_folder(path)
    if path.suffix == ".gguf":
        return gguf.read_model(path)
    if path.suffix == ".safetensors":
        beside = path.parent / "config.json"
        if not beside.is_file():
            raise MissingPath(
                f"{path.parent} has no config.json; weights alone do not tell the cache. Put the model's config beside"
            )
        return _from_folder(path.parent)
    return from_config(
        read_json(path), path.parent.name if path.name == "config.json" else path.stem, f"config {path.name}"
    )


def read_json(path: Path) -> dict[str, object]:
    try:
        table = msgspec.json.decode(_strict(path.read_bytes()))
    except msgspec.DecodeError as wrong:
        raise UsageError(f"{path} is not valid JSON ({wrong}); give a model's config.json") from wrong
    except OSError as wrong:
        raise UsageError(f"{path} cannot be read ({wrong.strerror}); give a model's config.json") from wrong
    if not isinstance(table, dict):
        raise UsageError(f"{path} holds {type(table).__name__}, not an object; give a model's config.json")
    return table


def _strict(raw: bytes) -> bytes:
    """JSON without the byte-order mark and the bare Infinity and NaN that Python writes."""
    text = raw.removeprefix(b"\xef\xbb\xbf")
    if b"Infinity" in text or b"NaN" in text:
        import json

        return json.dumps(_finite(json.loads(text))).encode()
    return text


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and (value != value or abs(value) == float("inf")) else value


def _from_folder(folder: Path) -> Model:
    config = folder / "config.json"
    if not config.is_file():
        ggufs = sorted(folder.glob("*.gguf"))
        if len(ggufs) == 1:
            return gguf.read_model(ggufs[0])
        if ggufs:
            raise UsageError(f"{folder} holds {len(ggufs)} GGUF files; name one, e.g. {ggufs[0]}")
        for other in ("params.json", "text_config.json"):
            if (folder / other).is_file():
                return from_config(read_json(folder / other), folder.name, f"{other} of {folder.name}")
        raise MissingPath(f"{folder} holds neither config.json nor a GGUF file; give a model's folder")
    table = read_json(config)
    beside = folder / "hf_quant_config.json"
    if "quantization_config" not in table and beside.is_file():
        inner = read_json(beside).get("quantization")
        if isinstance(inner, dict):
            table["quantization_config"] = {"quant_method": "modelopt", **inner}
    model = from_config(table, folder.name, f"config.json of {folder.name}")
    tensors = safetensors.read_folder(folder)
    return _checked(model, tensors) if tensors else model


def _checked(model: Model, tensors: dict[str, safetensors.Tensor]) -> Model:
    """Takes the bytes from the real headers, and says when the counted parameters and the header's differ."""
    counted, expected = safetensors.counted(tensors), parameters_total(model)
    notes = model.notes
    if counted is not None and expected is not None and counted != expected:
        notes += (f"the safetensors headers hold {counted:,} elements, the config gives {expected:,}",)
    stored = sum(tensor.bytes for tensor in tensors.values())
    return msgspec.structs.replace(
        model, stored_bytes=stored, notes=notes, source=f"{model.source}, {len(tensors)} tensors in safetensors headers"
    )


class BuiltIn(msgspec.Struct, frozen=True):
    of: str
    published: int
    config: dict[str, object]
    aliases: tuple[str, ...] = ()


@cache
def built_ins() -> Mapping[str, BuiltIn]:
    """Architectures that come with the package, by name."""
    raw = tomllib.loads(files("dynamometer.hardware").joinpath("models.toml").read_text(encoding="utf-8"))
    return msgspec.convert(raw, dict[str, BuiltIn])


@cache
def _names() -> Mapping[str, str]:
    """Every spelling of every built-in, lower case, to its key."""
    found: dict[str, str] = {}
    for key, entry in built_ins().items():
        owner = entry.of.split(" ")[0].lower()
        for spelling in (key, owner, owner.split("/")[-1], *entry.aliases):
            found.setdefault(spelling.lower(), key)
    return found


def names() -> Mapping[str, str]:
    """Every known spelling to the built-in's name."""
    return _names()


def find(name: str) -> Model | None:
    """A built-in by name, alias or hub name, whatever the case; None when there is none."""
    text = name.strip().lower()
    text = text.split("/")[1] if text.count("/") == 1 else text
    bare = re.sub(r"[-_ ](instruct|chat|base|hf|it)$", "", text)
    for spelling in (text, bare):
        key = _names().get(spelling) or _reduced().get(_reduce(spelling))
        if key:
            return load(key)
    ends = [key for key in built_ins() if _reduce(key).endswith(_reduce(bare))] if len(bare) > 3 else []
    return load(ends[0]) if len(ends) == 1 else None


def _reduce(text: str) -> str:
    return re.sub(r"[^a-z0-9.]", "", text.lower())


@cache
def _reduced() -> Mapping[str, str]:
    """Every spelling without dashes and blanks to its key: "Llama3.1 8B" is "llama-3.1-8b"."""
    found: dict[str, str] = {}
    for spelling, key in _names().items():
        found.setdefault(_reduce(spelling), key)
    return found


@cache
def load(key: str) -> Model:
    """A built-in by its key."""
    entry = built_ins()[key]
    return renamed(from_config(entry.config, key), key, f"config.json of {entry.of}")


def from_hub(name: str, online: bool = True) -> Model:
    """A hub name: the local cache first; then, when allowed, the hub's config.json."""
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    root = Path(os.environ.get("HF_HUB_CACHE", home / "hub")).expanduser()
    for config in sorted(root.glob(f"models--{name.replace('/', '--')}/snapshots/*/config.json")):
        return renamed(_from_folder(config.parent), name, f"config.json of {name} in the local cache")
    if not online or os.environ.get("HF_HUB_OFFLINE") in ("1", "true", "ON", "YES"):
        raise UsageError(
            f"{name} is neither a built-in nor in the local cache, and online look-up is off; give its config.json"
        )
    return from_config(_download(name), name, f"config.json of {name} online")


def _download(name: str) -> dict[str, object]:
    from urllib.error import HTTPError, URLError
    from urllib.request import Request, urlopen

    url = f"{os.environ.get('HF_ENDPOINT', _HUB).rstrip('/')}/{name}/resolve/main/config.json"
    token = os.environ.get("HF_TOKEN")
    request = Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urlopen(request, timeout=_ONLINE_TIMEOUT_S) as answer:
            table = msgspec.json.decode(_strict(answer.read(16 * 2**20)))
    except HTTPError as refused:
        reason = {401: "it is gated: set HF_TOKEN", 403: "it is gated: set HF_TOKEN", 404: "there is no such model"}
        raise UsageError(
            f"{url} answered {refused.code}: {reason.get(refused.code, refused.reason)}; or give its config.json"
        ) from refused
    except (URLError, TimeoutError, OSError, msgspec.DecodeError) as wrong:
        raise UsageError(
            f"{name} is no built-in, and {url} could not be read ({wrong}); give its config.json"
        ) from wrong
    if not isinstance(table, dict):
        raise UsageError(f"{url} is not a model's config; give its config.json")
    return table
