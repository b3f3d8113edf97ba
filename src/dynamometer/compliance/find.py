"""What a user calls a model in, its card out: a folder, a card, a GGUF file, JSON, a known name, or a hub name."""

from __future__ import annotations

import os
import re
import tomllib
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Final

import msgspec

from dynamometer.compliance import card as cards
from dynamometer.compliance.card import Card
from dynamometer.compliance.names import Named
from dynamometer.compliance.text import identify
from dynamometer.errors import MissingPath, UsageError
from dynamometer.hardware import gguf, source

_HUB: Final = "https://huggingface.co"
_WAIT_S: Final = 5.0
_FILES: Final = ("README.md", "LICENSE", "LICENSE-MODEL", "LICENSE-CODE", "LICENSE.txt", "LICENSE.md")


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    match: tuple[str, ...]
    weights: str
    source: str
    code: str = ""
    base: tuple[str, ...] = ()


class Hint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    words: tuple[str, ...]
    weights: str
    not_words: tuple[str, ...] = ()


class Known(msgspec.Struct, frozen=True):
    seen: str
    rule: tuple[Rule, ...]
    hint: tuple[Hint, ...]


@cache
def known() -> Known:
    """The built-in list of makers' models."""
    text = files("dynamometer.compliance").joinpath("known.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), Known)


def rule(name: str) -> Rule | None:
    """The list's rule for owner/name."""
    low = name.lower()
    return next((one for one in known().rule if any(fnmatchcase(low, shape) for shape in one.match)), None)


def hint(name: str) -> tuple[str, ...]:
    """What a name suggests that it was made from, never more than a suggestion: ids of licences."""
    low = name.lower().split("/")[-1]
    for one in known().rule:
        titles = [shape.split("/")[1] for shape in one.match if "*" not in shape]
        if any(len(title) > 10 and title in low for title in titles):
            inherited = [listed.weights for listed in map(rule, one.base) if listed]
            return tuple(dict.fromkeys([one.weights, *inherited]))
    for word in known().hint:
        if any(part in low for part in word.words) and not any(part in low for part in word.not_words):
            return (word.weights,)
    return ()


def resolve(name: str, online: bool = True) -> tuple[Card, ...]:
    """The card that `name` stands for (a JSON file may hold several). Of a hub name that leads nowhere the
    card says that nothing is known; any other is an error."""
    text = name.strip()
    if not text:
        raise UsageError("the model has no name; give a folder, a README.md, a GGUF file or owner/name")
    path = Path(text).expanduser()
    if path.exists():
        return from_path(path)
    found = look_up(text, online)
    if found:
        return (found,)
    if text.startswith(("/", "./", "../", "~")) or path.suffix in (".md", ".json", ".gguf", ".safetensors"):
        raise MissingPath(f"{text} is not there; give a model's folder, its README.md, a GGUF file or owner/name")
    if text.count("/") == 1:
        asked = "and no hub answered" if online and not _offline() else "and the hub was not asked"
        why = f"nothing is known of {text}: not in the built-in list, not in the local cache, {asked}"
        return (Card(text, "its name alone", Named("", (), why)),)
    raise UsageError(
        f"{text!r} is neither a path, a built-in nor a hub name (owner/name); give its README.md or folder"
    )


def from_path(path: Path) -> tuple[Card, ...]:
    """The cards of a file or folder."""
    if path.suffix.lower() == ".json" and path.name != "config.json":
        return tuple(cards.from_json(path))
    return (_from_path(path),)


def _from_path(path: Path) -> Card:
    if path.is_dir():
        return _from_folder(path)
    suffix = path.suffix.lower()
    if suffix == ".gguf":
        return _with_neighbours(cards.from_gguf(gguf.read_header(path).keys, path.stem), path.parent)
    if suffix in (".md", ".markdown", ".txt", ".yaml", ".yml") or not suffix:
        text = path.read_bytes()[: 4 * 2**20].decode("utf-8", errors="replace")
        if cards.front_matter(text) is None and re.search(r"licen[cs]e", path.name, re.I):
            read = identify(text)
            return Card(path.name, path.name, files=(cards.LicenceFile(path.name, cards.part_of(path.name), read),))
        if path.name.lower() != "readme.md":  # a card by itself: what lies beside it may be of something else
            return cards.from_readme(text, path.stem, path.name)
        return _with_neighbours(cards.from_readme(text, path.resolve().parent.name, path.name), path.parent)
    return _from_folder(path.parent)


def _from_folder(folder: Path) -> Card:
    """A folder's card; where there is none but one GGUF file, its header's."""
    card = cards.from_folder(folder, _cache_name(folder))
    ggufs = sorted(folder.glob("*.gguf"))
    if card.tag is None and ggufs:
        header = cards.from_gguf(gguf.read_header(ggufs[0]).keys, ggufs[0].stem)
        return msgspec.structs.replace(header, files=card.files)
    return card


def _with_neighbours(card: Card, folder: Path) -> Card:
    """The licence files beside a card or a weight file are of the same model."""
    return msgspec.structs.replace(card, files=cards.licence_files(folder))


def _cache_name(folder: Path) -> str:
    """owner/name of a snapshot in the hub's local cache; "" elsewhere."""
    match = re.search(r"models--([\w.-]+?)--([\w.-]+)/snapshots/", folder.resolve().as_posix() + "/")
    return f"{match[1]}/{match[2]}" if match else ""


def look_up(name: str, online: bool) -> Card | None:
    """owner/name, or a built-in architecture's name: the local cache, then the built-in list, then the hub."""
    repo = _repo(name)
    if repo.count("/") == 1:
        cached = _cached(repo)
        if cached:
            return cached
    listed = rule(repo)
    if listed:
        tag = Named(listed.weights, ((listed.weights,),))
        code = Named(listed.code, ((listed.code,),)) if listed.code else None
        note = (
            f"from the built-in list (gone through {known().seen}, {listed.source}); the card of your copy counts more"
        )
        return Card(repo, "the built-in list", tag, bases=listed.base, code=code, notes=(note,))
    return _online(repo) if online and repo.count("/") == 1 and not _offline() else None


def _repo(name: str) -> str:
    """owner/name for an architecture's short name such as deepseek-v3."""
    if "/" in name:
        return name.strip("/")
    key = source.names().get(name.lower().replace("_", "-").replace(" ", "-"))
    return source.built_ins()[key].of.split(" ")[0] if key else name


def _offline() -> bool:
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "ON", "YES")


def _cached(repo: str) -> Card | None:
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    root = Path(os.environ.get("HF_HUB_CACHE", home / "hub")).expanduser()
    for readme in sorted(root.glob(f"models--{repo.replace('/', '--')}/snapshots/*/README.md")):
        found = cards.from_folder(readme.parent, repo)
        return msgspec.structs.replace(found, origin=f"README.md of {repo} in the local cache")
    return None


def _online(repo: str) -> Card | None:
    """The card and licence files on the hub; None when it cannot be reached or has no such model."""
    texts = {}
    for name in _FILES:
        answer = _download(repo, name)
        if answer is None and name == "README.md":
            return None
        if answer:
            texts[name] = answer
    found = cards.from_readme(texts["README.md"], repo, f"README.md of {repo} online") if "README.md" in texts else None
    if found is None:
        return None
    licence_files = tuple(
        cards.LicenceFile(name, cards.part_of(name), identify(text))
        for name, text in texts.items()
        if name != "README.md"
    )
    return msgspec.structs.replace(found, files=licence_files)


def _download(repo: str, name: str) -> str | None:
    """A file's text; "" when the model has no such file, None when the hub or the model cannot be reached."""
    from urllib.error import HTTPError, URLError
    from urllib.request import Request, urlopen

    url = f"{os.environ.get('HF_ENDPOINT', _HUB).rstrip('/')}/{repo}/resolve/main/{name}"
    token = os.environ.get("HF_TOKEN")
    request = Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urlopen(request, timeout=_WAIT_S) as answer:
            return bytes(answer.read(4 * 2**20)).decode("utf-8", errors="replace")
    except HTTPError as refused:
        return "" if refused.code == 404 and name != "README.md" else None
    except (URLError, TimeoutError, OSError, ValueError):
        return None


def bases_of(card: Card) -> tuple[str, ...]:
    """What the model was made from: as the card says, else as the built-in list says of the maker's own model."""
    listed = rule(card.name)
    told = card.bases or (listed.base if listed else ())
    return tuple(one for one in told if one.lower() != card.name.lower())
