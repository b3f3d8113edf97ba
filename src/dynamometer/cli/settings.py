"""Defaults from dyno.toml: the nearest one upwards from the working directory, or the file named by DYNO_CONFIG."""

from __future__ import annotations

import os
import tomllib
from difflib import get_close_matches
from pathlib import Path

from dynamometer.errors import MissingPath, UsageError


def find() -> Path | None:
    """The settings file in force, or None."""
    named = os.environ.get("DYNO_CONFIG")
    if named:
        if not Path(named).is_file():
            raise MissingPath(f"DYNO_CONFIG names {named}, which is not a file; unset it or give a TOML file")
        return Path(named)
    here = Path.cwd()
    return next((folder / "dyno.toml" for folder in (here, *here.parents) if (folder / "dyno.toml").is_file()), None)


def defaults(verb: str, options: set[str]) -> dict[str, object]:
    """Option defaults of one verb: top-level keys, then the verb's own table; dashes and underscores are equal.

    `options`: the names that the verb knows. A top-level key may be meant for other verbs; one in the verb's table not.
    """
    path = find()
    if path is None:
        return {}
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except tomllib.TOMLDecodeError as wrong:
        raise UsageError(f"{path} is not valid TOML: {wrong}") from wrong
    merged = {key: value for key, value in table.items() if not isinstance(value, dict)}
    own = table.get(verb, {})
    if not isinstance(own, dict):
        raise UsageError(f"{path}: {verb} is {own!r}; give a table: [{verb}]")
    for key in own:
        if key.replace("-", "_") not in options:
            near = get_close_matches(key.replace("-", "_"), options, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"dyno {verb} --help lists the options"
            raise UsageError(f"{path}: [{verb}] has no option {key!r}; {hint}")
    merged.update(own)
    return {key.replace("-", "_"): value for key, value in merged.items()}
