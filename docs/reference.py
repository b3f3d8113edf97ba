"""The code in, the reference pages out: verbs with options, plugin points, errors, the library's public functions."""

from __future__ import annotations

import inspect
import pkgutil
from importlib import import_module
from pathlib import Path
from types import ModuleType

import click
import msgspec

import dynamometer
from dynamometer import errors, plugins, types
from dynamometer.cli import VERBS

# what a person who writes Python against this package meets; the other rooms are reached through these
ROOMS = ("workload", "schedule", "record", "metrics", "models", "decisions", "report", "hardware", "sim", "policies")


def write(folder: Path) -> None:
    """Writes the pages as Markdown, only where the text has changed."""
    folder.mkdir(exist_ok=True)
    pages = {"verbs.md": verbs(), "plugins.md": plugin_points(), "errors.md": error_tree(), "library.md": library()}
    for name, text in pages.items():
        path = folder / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def verbs() -> str:
    """Each verb's own help and a table of its options."""
    parts = ["# Verbs\n", "Written from the command line itself. `dyno VERB --help` says the same.\n"]
    for name, (module, line) in VERBS.items():
        command = import_module(f"dynamometer.cli.{module}").command
        parts.append(_verb(f"dyno {name}", command, line, 2))
    return "\n".join(parts)


def _verb(name: str, command: click.Command, line: str, depth: int) -> str:
    context = click.Context(command, info_name=name)
    options = [option for option in command.params if isinstance(option, click.Option) and not option.hidden]
    rows = [f"| {_code(', '.join([*o.opts, *o.secondary_opts]))} | {_cell(_meaning(o, context))} |" for o in options]
    table = ["| option | meaning |", "|---|---|", *rows] if rows else []
    help_text = inspect.cleandoc(command.help or line).replace("\b", "")
    usage = f"{name} {' '.join(command.collect_usage_pieces(context))}"
    text = [f"{'#' * depth} {name}", "", line, "", "```text", usage, "", help_text, "```", "", *table, ""]
    if isinstance(command, click.Group):
        text += [_verb(f"{name} {sub}", c, c.get_short_help_str(120), depth + 1) for sub, c in command.commands.items()]
    return "\n".join(text)


def _meaning(option: click.Option, context: click.Context) -> str:
    default = option.get_default(context)
    unset = default is None or default is False or default in ("", ()) or "UNSET" in str(default).upper()
    says = "" if unset or callable(default) or "[default" in (option.help or "") else f" Default: {default}."
    choices = f" One of {', '.join(map(str, option.type.choices))}." if isinstance(option.type, click.Choice) else ""
    return f"{(option.help or '').strip()}{choices}{says}".strip()


def plugin_points() -> str:
    """Every kind with its built-in names."""
    parts = ["# Plugin points\n", "[Add something of your own](../extend.md) says how. Built in are:\n"]
    for kind in plugins.KINDS:
        known = plugins.BUILT_IN[kind]
        rows = [f"| `{name}` | `{where}` |" for name, where in sorted(known.items())]
        table = ["| name | where |", "|---|---|", *rows] if rows else ["None is built in under a name."]
        parts += [f"## {kind}\n", f"Entry-point group `dynamometer.{kind}`.\n", *table, ""]
    return "\n".join(parts)


def error_tree() -> str:
    """The tree as errors.py draws it, and each class with its exit code."""
    found = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, errors.DynoError)]
    rows = [f"| `{c.__name__}` | {c.exit_code} | {_first_line(c)} |" for c in found]
    tree = ["```text", inspect.cleandoc(errors.__doc__ or ""), "```", ""]
    return "\n".join(["# Errors\n", *tree, "| class | exit code | |", "|---|---|---|", *rows, ""])


def library() -> str:
    """The nouns, then each room: its files, their first lines, their public functions with signature and first line."""
    parts = ["# Library\n", "## The nouns\n", *(_noun(noun) for noun in _nouns(types))]
    for room in ROOMS:
        package = import_module(f"dynamometer.{room}")
        parts.append(f"## {room}\n\n{_cell(_first_line(package))}\n")
        for info in sorted(pkgutil.iter_modules(package.__path__), key=lambda info: info.name):
            module = import_module(f"{package.__name__}.{info.name}")
            parts.append(_module(module))
    return "\n".join(parts)


def _nouns(module: ModuleType) -> list[type[msgspec.Struct]]:
    return [
        value
        for value in vars(module).values()
        if inspect.isclass(value) and issubclass(value, msgspec.Struct) and value.__module__ == module.__name__
    ]


def _noun(noun: type[msgspec.Struct]) -> str:
    fields = ", ".join(f"`{field.name}`" for field in msgspec.structs.fields(noun))
    return f"`{noun.__name__}`\n: {_cell(inspect.getdoc(noun) or '')} Fields: {fields}.\n"


def _module(module: ModuleType) -> str:
    public = [
        value
        for name, value in vars(module).items()
        if not name.startswith("_") and inspect.isfunction(value) and value.__module__ == module.__name__
    ]
    lines = [f"- `{value.__name__}{_signature(value)}`: {_cell(_first_line(value))}" for value in public]
    return "\n".join([f"### {module.__name__}\n", _cell(_first_line(module)), "", *lines, ""])


def _signature(function: object) -> str:
    assert callable(function)
    return str(inspect.signature(function)).replace("'", "").replace("dynamometer.types.", "")


def _first_line(thing: object) -> str:
    """The first paragraph of the docstring as one line."""
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())


def _cell(text: str) -> str:
    """Prose from a docstring as Markdown that keeps its characters, safe in a table too."""
    quoted = text.split("`")
    plain = [part if at % 2 else _escape(part) for at, part in enumerate(quoted)]
    return "`".join(plain).replace("\n", " ").replace("|", "\\|")


def _escape(text: str) -> str:
    return "".join(f"\\{char}" if char in "*_<>[]{}#$\\~" else char for char in text)


def _code(text: str) -> str:
    return f"`{text}`"


if __name__ == "__main__":
    write(Path(__file__).parent / "reference")
    print(f"reference of dynamometer {dynamometer.__version__} written")
