"""The dependency rule of docs/design.md, held by reading the imports."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "src" / "dynamometer"

GROUND = {"types", "units", "errors", "plugins", "options"}
PURE = {"hardware", "workload", "schedule", "policies", "pages"}
OUTSIDE = ["engines", "telemetry", "record"]  # a chain: only to the left
DRIVERS = {"client", "sim"}
ROWS = ["metrics", "models", "decisions", "report"]  # a chain: only to the left
LEAVES = {"quality", "kernels", "compliance"}  # nobody imports them but the command line and the studies
TOP = {"gateway", "studies", "cli"}

MAY_IMPORT: dict[str, set[str]] = {
    **{room: GROUND | {room} for room in PURE},
    **{room: GROUND | PURE | set(OUTSIDE[: i + 1]) for i, room in enumerate(OUTSIDE)},
    **{room: GROUND | PURE | set(OUTSIDE) | {room} for room in DRIVERS},
    # right of the rows: the record is read, nothing that drives is known
    **{room: GROUND | PURE | {"record"} | set(ROWS[: i + 1]) for i, room in enumerate(ROWS)},
    **{room: GROUND | PURE | set(OUTSIDE) | set(ROWS) | {room} for room in LEAVES},
}


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and room of each import of ours in the file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module] if node.module != "dynamometer" else [f"dynamometer.{a.name}" for a in node.names]
        for name in names:
            if name.startswith("dynamometer."):
                yield node.lineno, name.split(".")[1]


def files(room: str) -> list[Path]:
    folder = PACKAGE / room
    return sorted(folder.rglob("*.py")) if folder.is_dir() else [PACKAGE / f"{room}.py"]


@pytest.mark.parametrize("room", sorted(MAY_IMPORT))
def test_a_room_imports_only_what_stands_before_it(room: str) -> None:
    wrong = [
        f"{path.relative_to(PACKAGE)}:{line} imports {other}"
        for path in files(room)
        for line, other in imports(path)
        if other not in MAY_IMPORT[room] and not other.startswith("__")
    ]
    assert not wrong, "\n".join(wrong)


def test_the_nouns_import_nothing_of_ours_but_each_other() -> None:
    for name in GROUND:
        for line, other in imports(PACKAGE / f"{name}.py"):
            assert other in GROUND, f"{name}.py:{line} imports {other}"


def test_every_room_is_under_the_rule() -> None:
    rooms = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert rooms == set(MAY_IMPORT) | TOP


def test_only_the_clock_reads_the_time() -> None:
    allowed = {PACKAGE / "record" / "clock.py"}
    wrong = [
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if path not in allowed
        and any(
            (isinstance(node, ast.Import) and any(alias.name == "time" for alias in node.names))
            or (isinstance(node, ast.ImportFrom) and node.module == "time")
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        )
    ]
    assert not wrong, f"these import time: {wrong}; take the clock as an argument or use record.clock"


def test_a_module_stays_within_four_hundred_lines() -> None:
    long = {
        str(path.relative_to(PACKAGE)): count
        for path in PACKAGE.rglob("*.py")
        if (count := len(path.read_text(encoding="utf-8").splitlines())) > 400
    }
    assert not long, f"a file is one noun; is each of these two? {long}"


def test_a_function_stays_within_sixty_lines() -> None:
    long = [
        f"{path.relative_to(PACKAGE)}:{node.lineno} {node.name} {length}"
        for path in PACKAGE.rglob("*.py")
        if path.parent != PACKAGE / "kernels" / "device"  # a GPU kernel is one program
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or node.lineno) - node.lineno + 1) > 60
    ]
    assert not long, "\n".join(long)


def test_no_file_has_a_name_that_says_nothing() -> None:
    empty = {"manager", "handler", "helper", "helpers", "util", "utils", "common", "factory", "mixin", "service"}
    wrong = [str(path) for path in PACKAGE.rglob("*.py") if set(path.stem.split("_")) & empty]
    assert not wrong
