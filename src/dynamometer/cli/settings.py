"""Defaults from dyno.toml: the nearest one upwards from the working directory, or the file named by DYNO_CONFIG."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path

import click

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


def spellings(verb: click.Command) -> dict[str, str]:
    """What a setting may be called -> the parameter's name: that name, and each long option without its dashes."""
    found: dict[str, str] = {}
    for parameter in verb.params:
        name = str(parameter.name)
        found |= {option.lstrip("-").replace("-", "_"): name for option in parameter.opts if option.startswith("--")}
        found[name] = name
    return found


def check_environment(verb: str, options: Mapping[str, str], environ: Mapping[str, str]) -> None:
    """UsageError for a DYNO_<VERB>_… that no option reads: a misspelt one must not be passed over."""
    prefix = f"DYNO_{verb.upper().replace('-', '_')}_"
    for variable in environ:
        name = variable.removeprefix(prefix).lower()
        if not variable.startswith(prefix) or options.get(name) == name:
            continue
        near = [options[name]] if name in options else get_close_matches(name, options.values(), n=1)
        hint = f"did you mean {prefix}{near[0].upper()}?" if near else f"dyno {verb} --help lists the options"
        raise UsageError(f"{variable} is set, and no option of dyno {verb} reads it; {hint}")


def defaults(verb: str, options: Mapping[str, str]) -> dict[str, object]:
    """Option defaults of one verb: top-level keys, then the verb's own table; dashes and underscores are equal.

    `options`: spelling -> the name that the verb knows. A top-level key may be meant for other verbs; one in the verb's
    table not.
    """
    path = find()
    if path is None:
        return {}
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as wrong:
        raise UsageError(f"{path} cannot be read: {wrong.strerror}") from wrong
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as wrong:
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
    plain = {key.replace("-", "_"): value for key, value in merged.items()}
    return {options.get(key, key): value for key, value in plain.items()}
