"""A model's card, licence files and headers in, what they say of licence, base and data out; nothing is judged here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Final, cast

import msgspec

from dynamometer.compliance import names
from dynamometer.compliance.names import Named
from dynamometer.compliance.text import Read, identify
from dynamometer.errors import MissingPath, UsageError
from dynamometer.plugins import optional

_MOST_BYTES: Final = 4 * 2**20  # of a card or licence file
_LICENCE_FILE: Final = re.compile(r"(licen[cs]e|copying|copyright)", re.I)
_NOT_TEXT: Final = (".py", ".json", ".toml", ".yaml", ".yml", ".png", ".jpg", ".pdf", ".safetensors", ".bin")


class LicenceFile(msgspec.Struct, frozen=True):
    """A licence file. `part`: weights | code | data, or any where its name does not say."""

    name: str
    part: str
    read: Read


class Card(msgspec.Struct, frozen=True):
    """What a model says of itself. `tag` None: there is no card. `bases` as the card names them."""

    name: str
    origin: str
    tag: Named | None = None
    files: tuple[LicenceFile, ...] = ()
    bases: tuple[str, ...] = ()
    relation: str = ""  # finetune | quantized | adapter | merge, as the card says
    datasets: tuple[str, ...] = ()
    library: str = ""
    code: Named | None = None
    notes: tuple[str, ...] = ()


def from_folder(folder: Path, name: str = "") -> Card:
    """A downloaded model: README.md, LICENSE files, adapter_config.json, config.json."""
    readme = next((path for path in sorted(folder.iterdir()) if path.name.lower() == "readme.md"), None)
    title = name or folder.resolve().name
    card = from_readme(_text(readme), title, f"README.md of {title}") if readme else Card(title, f"files of {title}")
    files = licence_files(folder)
    bases, notes = card.bases, card.notes
    adapter = _json(folder / "adapter_config.json").get("base_model_name_or_path")
    if isinstance(adapter, str) and adapter and adapter not in bases:
        bases = (*bases, adapter)
    made_from = _json(folder / "config.json").get("_name_or_path")
    if isinstance(made_from, str) and re.fullmatch(r"[\w.-]+/[\w.-]+", made_from) and made_from not in (*bases, title):
        notes = (*notes, f"config.json was saved from {made_from}")
    return msgspec.structs.replace(card, files=files, bases=bases, notes=notes)


def licence_files(folder: Path) -> tuple[LicenceFile, ...]:
    """LICENSE, LICENSE-MODEL, LICENSE-CODE and the like of a folder, each identified by its text."""
    found = [
        path
        for path in sorted(folder.iterdir())
        if path.is_file() and _LICENCE_FILE.search(path.name) and path.suffix.lower() not in _NOT_TEXT
    ]
    return tuple(LicenceFile(path.name, part_of(path.name), identify(_text(path))) for path in found)


def part_of(name: str) -> str:
    """LICENSE-MODEL is of the weights, LICENSE-CODE of the code; LICENSE alone does not say."""
    words = set(re.split(r"[^a-z]+", name.lower()))
    for part, marks in (("code", {"code"}), ("weights", {"model", "weights", "models"}), ("data", {"data", "dataset"})):
        if words & marks:
            return part
    return "any"


def from_readme(text: str, name: str, origin: str) -> Card:
    """A card's Markdown. The front matter may be absent, empty or broken: then there is no tag, and a note says why."""
    block = front_matter(text)
    if block is None:
        return Card(name, origin, names.read(None), notes=("the card has no front matter",))
    yaml = cast(ModuleType, optional("yaml", "comply"))
    try:
        table = yaml.safe_load(block)
    except (yaml.YAMLError, ValueError) as wrong:
        reason = str(wrong).splitlines()[0]
        return Card(name, origin, names.read(None), notes=(f"the card's front matter is not YAML ({reason})",))
    if not isinstance(table, dict):
        return Card(name, origin, names.read(None), notes=("the card's front matter has no fields",))
    if len(re.findall(r"^licen[cs]e[ \t]*:", block, re.M)) > 1:  # YAML would silently take the last
        return Card(
            name, origin, names.Named("", (), "the card has two lines license:"), bases=_words(table.get("base_model"))
        )
    return from_fields(table, name, origin)


def front_matter(text: str) -> str | None:
    """What stands between the two lines of three hyphens at a card's head."""
    match = re.match(r"\s*---[ \t]*\r?\n(.*?)(?:^---[ \t]*\r?$|\Z)", text.removeprefix("\ufeff"), re.S | re.M)
    return match[1] if match else None


def from_fields(fields: Mapping[object, object], name: str, origin: str) -> Card:
    """Card metadata as a mapping: license, license_name, license_link, base_model, datasets, library_name."""
    low = {str(key).lower(): value for key, value in fields.items()}
    tag = names.read(low.get("license", low.get("licence")), low.get("license_name"), low.get("license_link"))
    library = str(low.get("library_name") or "")
    relation = str(low.get("base_model_relation") or ("adapter" if library == "peft" else ""))
    return Card(
        name=str(low.get("repo") or low.get("repo_id") or low.get("id") or low.get("modelid") or name),
        origin=origin,
        tag=tag,
        bases=_words(low.get("base_model")),
        relation=relation,
        datasets=_words(low.get("datasets")),
        library=library,
        code=names.read(low["code_license"]) if low.get("code_license") else None,
    )


def _words(value: object) -> tuple[str, ...]:
    """A name or a list of names. What is no name is kept as it is written, for then nobody knows it."""
    rows = value if isinstance(value, list | tuple) else [value]
    return tuple(dict.fromkeys(text for one in rows if one is not None and (text := str(one).strip())))


def from_json(path: Path) -> list[Card]:
    """One card's fields as JSON, a hub's answer (`cardData`), or a list of cards (`cards`)."""
    try:
        table = msgspec.json.decode(path.read_bytes())
    except msgspec.DecodeError as wrong:
        raise UsageError(
            f'{path} is not valid JSON ({wrong}); give a card\'s fields, e.g. {{"license": "mit"}}'
        ) from wrong
    rows = table.get("cards", [table]) if isinstance(table, dict) else table
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise UsageError(
            f"{path} holds no card; give an object with license, base_model and the like, or a list of them"
        )
    return [_from_row(row, path) for row in rows]


def _from_row(row: dict[object, object], path: Path) -> Card:
    inner = row.get("cardData", row.get("card"))
    fields = {**row, **inner} if isinstance(inner, dict) else row
    card = from_fields(fields, path.stem, path.name)
    outer = fields.get("code_repo_license")
    return msgspec.structs.replace(card, code=names.read(outer)) if outer else card


def from_gguf(keys: Mapping[str, object], name: str) -> Card:
    """The general.* keys of a GGUF header."""
    low = {key.removeprefix("general."): value for key, value in keys.items() if key.startswith("general.")}
    tag = names.read(low.get("license"), low.get("license.name"), low.get("license.link"))
    bases: list[str] = []
    for at in range(8):
        url, owner = low.get(f"base_model.{at}.repo_url"), low.get(f"base_model.{at}.organization")
        title = low.get(f"base_model.{at}.name")
        if isinstance(url, str) and url.count("/") >= 2:
            bases.append("/".join(url.rstrip("/").split("/")[-2:]))
        elif isinstance(title, str):
            bases.append(f"{owner}/{title}".replace(" ", "-") if isinstance(owner, str) else title.replace(" ", "-"))
    own = low.get("repo_url") or low.get("source.url")
    repo = "/".join(own.rstrip("/").split("/")[-2:]) if isinstance(own, str) and own.count("/") >= 4 else ""
    title = str(low.get("name") or name)
    relation = "quantized" if bases else ""
    return Card(repo or title, f"GGUF header of {name}", tag, bases=tuple(bases), relation=relation)


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_MOST_BYTES).decode("utf-8", errors="replace")
    except OSError as wrong:
        raise MissingPath(f"{path} cannot be read ({wrong.strerror}); make it readable or leave it out") from wrong


def _json(path: Path) -> dict[str, object]:
    """A JSON object, or nothing: these files only help."""
    try:
        table = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError):
        return {}
    return table if isinstance(table, dict) else {}
