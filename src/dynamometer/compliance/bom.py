"""A model's card, clearance and manifest in, a CycloneDX 1.6 bill of materials out, validated by its schema."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from dynamometer import __version__
from dynamometer.compliance.card import Card
from dynamometer.compliance.catalogue import licence, licences
from dynamometer.compliance.inventory import Inventory
from dynamometer.compliance.parts import Part
from dynamometer.errors import MissingExtra, RecordError
from dynamometer.hardware.source import read_json
from dynamometer.record.clock import utc, wall_ns

_WEIGHT_NAMES: Final = (".safetensors", ".gguf", ".bin", ".pt", ".pth", ".ckpt", ".onnx")


def bill(
    card: Card, parts: Sequence[Part], inventory: Inventory | None = None, folder: Path | None = None
) -> dict[str, object]:
    """The document: the model with its card, its files with hashes, what it was made from, the declared data."""
    weights = next(part for part in parts if part.kind == "weights")
    data = [part for part in parts if part.kind == "data"]
    bases = [part for part in parts if part.kind == "base"]
    model = _model(card, weights, data, bases, folder)
    components = [*(_dataset(part) for part in data), *(_files(inventory) if inventory else [])]
    about = f"{card.name}|{inventory.digest if inventory else ''}"
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, about)}",
        "version": 1,
        "metadata": {
            "timestamp": f"{utc(wall_ns()):%Y-%m-%dT%H:%M:%SZ}",
            "tools": {"components": [{"type": "application", "name": "dynamometer", "version": __version__}]},
            "component": model,
        },
        "components": components,
        "dependencies": [
            {"ref": "model", "dependsOn": [str(one["bom-ref"]) for one in components]},
            *({"ref": str(one["bom-ref"])} for one in components),
        ],
    }


def _model(
    card: Card, weights: Part, data: Sequence[Part], bases: Sequence[Part], folder: Path | None
) -> dict[str, object]:
    owner, _, name = card.name.rpartition("/")
    found: dict[str, object] = {
        "type": "machine-learning-model",
        "bom-ref": "model",
        "name": name,
        "licenses": _licences(weights),
        "modelCard": {"bom-ref": "model-card", "modelParameters": _parameters(data, folder)},
        "properties": [
            {"name": "dynamometer:licence-source", "value": weights.source},
            *([{"name": "dynamometer:licence-doubt", "value": weights.doubt}] if weights.doubt else []),
        ],
    }
    if owner:
        found["group"] = owner
        found["purl"] = f"pkg:huggingface/{owner}/{name}"
    if bases:
        found["pedigree"] = {"ancestors": [_ancestor(part) for part in bases]}
    return found


def _parameters(data: Sequence[Part], folder: Path | None) -> dict[str, object]:
    """modelParameters: the task is text generation for all that this tool serves; the architecture is the config's."""
    found: dict[str, object] = {"task": "text-generation"}
    config = folder / "config.json" if folder else None
    if config and config.is_file():
        table = read_json(config)
        family, names = table.get("model_type"), table.get("architectures")
        if isinstance(family, str):
            found["architectureFamily"] = family
        if isinstance(names, list) and names and isinstance(names[0], str):
            found["modelArchitecture"] = names[0]
    if data:
        found["datasets"] = [{"ref": f"data-{part.name}"} for part in data]
    return found


def _licences(part: Part) -> list[dict[str, object]]:
    """As an expression where it is one of SPDX ids; else by name with the address of the text; unknown says so."""
    if not part.choices or part.doubt:
        return [{"license": {"name": "unknown" if not part.choices else f"disputed: {part.expression}"}}]
    ids = [identity for choice in part.choices for identity in choice]
    if len(ids) == 1:
        return [{"license": _licence(ids[0])}]
    if all(not identity.startswith("LicenseRef-") for identity in ids):
        return [{"expression": part.expression}]
    return [{"license": _licence(identity)} for identity in ids]


def _licence(identity: str) -> dict[str, object]:
    entry = licence(identity)
    named: dict[str, object] = {"id": identity} if not identity.startswith("LicenseRef-") else {"name": identity}
    if identity in licences():
        named["url"] = entry.source
    return named


def _ancestor(part: Part) -> dict[str, object]:
    owner, _, name = part.name.rpartition("/")
    found: dict[str, object] = {"type": "machine-learning-model", "name": name, "licenses": _licences(part)}
    if owner:
        found["group"] = owner
    return found


def _dataset(part: Part) -> dict[str, object]:
    content = {"type": "dataset", "name": part.name, "contents": {"url": part.source}} if "://" in part.source else None
    found: dict[str, object] = {
        "type": "data",
        "bom-ref": f"data-{part.name}",
        "name": part.name,
        "licenses": _licences(part),
    }
    if content:
        found["data"] = [content]
    return found


def _files(inventory: Inventory) -> list[dict[str, object]]:
    return [
        {
            "type": "data" if inventory.kind == "data" else "file",
            "bom-ref": f"file-{one.path}",
            "name": one.path,
            "hashes": [{"alg": "SHA-256", "content": one.sha256}],
            "properties": [
                {"name": "dynamometer:bytes", "value": str(one.bytes)},
                {"name": "dynamometer:holds", "value": "weights" if one.path.endswith(_WEIGHT_NAMES) else "other"},
            ],
        }
        for one in inventory.files
    ]


def text_of(document: dict[str, object]) -> str:
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"


def validate(text: str) -> None:
    """Raises RecordError with the schema's words when the text is no CycloneDX 1.6."""
    try:
        from cyclonedx.schema import SchemaVersion
        from cyclonedx.validation.json import JsonStrictValidator
    except ModuleNotFoundError as missing:
        raise MissingExtra("cyclonedx-python-lib", "comply") from missing
    wrong = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if wrong is not None:
        raise RecordError(f"the bill is no valid CycloneDX 1.6: {str(wrong)[:400]}; this is a fault of dyno, report it")
