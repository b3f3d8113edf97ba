"""The docs are complete and true: what the code has they name, what they tell people to type exists."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import click
import numpy as np
import pytest
from sample_run import write_sample

from dynamometer import errors, plugins
from dynamometer.cli import VERBS
from dynamometer.metrics import views
from dynamometer.record.store import open_run, read_run
from dynamometer.schedule.window import Window

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.glob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"])
TEXT = {page.name: page.read_text(encoding="utf-8") for page in PAGES}
WRITTEN = "\n".join(text for name, text in TEXT.items() if name not in ("log.md", "CONTRIBUTING.md"))

sys.path.insert(0, str(DOCS))
import reference  # noqa: E402 - a script of the docs, not a package

# what must not be in a file that leaves this place: folders of one machine, hosts of package registries
MACHINE = ("/wor" + "k/", "/opt/dy" + "no", "/ro" + "ot/", "../sha" + "red", "/tm" + "p/h")
IN_A_CONTAINER = ":/ro" + "ot/"  # the target of a mount; there it is the image's folder, not this machine's
REGISTRIES = (
    "pypi" + ".org",
    "pythonhosted" + ".org",
    "npmjs" + ".org",
    "conda.anaconda" + ".org",
    "proxy.golang" + ".org",
)


def commands() -> Iterator[tuple[str, list[str]]]:
    """(page, words) of each `dyno …` line and each `dyno …` in backquotes."""
    for name, text in TEXT.items():
        fenced = re.findall(r"^\$? ?(dyno [a-z].*)$", "\n".join(re.findall(r"```[a-z]*\n(.*?)```", text, re.S)), re.M)
        inline = re.findall(r"`(dyno [^`]+)`", re.sub(r"```.*?```", "", text, flags=re.S))
        for line in (*fenced, *inline):
            yield name, shlex.split(line.split("   #")[0])


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_is_explained_by_hand(verb: str) -> None:
    assert re.search(rf"\bdyno {verb}\b", WRITTEN), f"no page of docs/ shows dyno {verb}; docs/tasks.md is the place"


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_says_what_it_does(verb: str) -> None:
    command = import_module(f"dynamometer.cli.{VERBS[verb][0]}").command
    silent = [option.name for option in command.params if isinstance(option, click.Option) and not option.help]
    assert silent == []
    assert command.help


@pytest.mark.parametrize(
    ("page", "words"), list(commands()), ids=lambda value: value if isinstance(value, str) else None
)
def test_what_the_docs_tell_to_type_exists(page: str, words: list[str]) -> None:
    verb = words[1]
    if verb in ("--help", "VERB"):
        return
    assert verb in VERBS, f"{page}: {' '.join(words)}"
    command = import_module(f"dynamometer.cli.{VERBS[verb][0]}").command
    if isinstance(command, click.Group) and len(words) > 2:
        command = command.get_command(click.Context(command), words[2]) or command
    ours = words[2 : words.index("--") if "--" in words else None]  # what follows is another program's
    known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)} | {"--help", "-h"}
    used = {word.split("=")[0] for word in ours if re.match(r"--?[a-z]", word)}
    assert used <= known, f"{page}: {' '.join(words)}"


@pytest.mark.parametrize("kind", plugins.KINDS)
def test_every_plugin_point_and_its_built_ins_are_in_the_reference(kind: str) -> None:
    page = reference.plugin_points()
    assert f"## {kind}\n" in page
    for name, where in plugins.BUILT_IN[kind].items():
        assert f"| `{name}` | `{where}` |" in page
    assert re.search(rf"\b{kind}\b", WRITTEN)


@pytest.mark.parametrize("metric", [metric.name for metric in views.built_ins()])
def test_every_metric_is_in_the_glossary(metric: str) -> None:
    assert re.search(rf"\b{metric}\b", TEXT["glossary.md"])


def code(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT[page], re.S)


def test_the_law_of_the_docs_does_what_it_says() -> None:
    [text] = code("extend.md", "python")
    space: dict[str, Callable[..., np.ndarray]] = {}
    exec(text, space)
    due_s = space["pairs"](5.0, {}, Window(requests=20_000), np.random.default_rng(1))
    assert len(due_s) == 20_000
    assert (due_s[::2] == due_s[1::2]).all()
    assert 20_000 / due_s[-1] == pytest.approx(5.0, rel=0.03)  # the standard error of the mean is 1 %


def test_the_metric_of_the_docs_runs_over_a_record(tmp_path: Path) -> None:
    [text] = code("extend.md", "sql")
    metric = views.read_metric(text, "extend.md")
    directory = write_sample(tmp_path, requests=50, tokens=6)
    with open_run(directory) as connection:
        views.install(connection, read_run(directory))
        rows = connection.execute(metric.query).fetchall()
        ok = connection.execute("select count(*) from kept where outcome = 'ok'").fetchone()
    assert ok == (len(rows),)
    assert all(value > 0 for _, _, value in rows)


def test_every_error_is_drawn_in_the_tree_with_its_exit_code() -> None:
    drawn = errors.__doc__ or ""
    page = reference.error_tree()
    classes = [
        value for value in vars(errors).values() if isinstance(value, type) and value.__module__ == errors.__name__
    ]
    assert len(classes) >= 8
    for one in classes:
        line = next(line for line in drawn.splitlines() if re.search(rf"\b{one.__name__}\b", line))
        assert one is errors.DynoError or line.rstrip().endswith(f"exit {one.exit_code}")
        assert f"| `{one.__name__}` | {one.exit_code} |" in page


def test_every_page_can_be_reached_from_the_first() -> None:
    trees = re.findall(r"```\{toctree\}\n(.*?)```", TEXT["index.md"], re.S)
    listed = {line.strip() for tree in trees for line in tree.splitlines() if line.strip() and not line.startswith(":")}
    there = {page.stem for page in DOCS.glob("*.md")} - {"index"}
    assert there == {name for name in listed if "/" not in name}
    assert {name for name in listed if "/" in name} == {
        f"reference/{n}" for n in ("verbs", "plugins", "errors", "library")
    }


def test_the_library_page_names_every_noun_and_every_public_function_of_the_report() -> None:
    page = reference.library()
    for word in ("`Estimate`", "`Run`", "write_report", "statistics_table", "dynamometer.metrics.summary"):
        assert word in page


def tracked() -> list[Path]:
    """Files under version control; without git (an unpacked source archive) all files of the folders it holds."""
    if (ROOT / ".git").exists():
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
        return [ROOT / name for name in listed.decode().split("\0") if name and (ROOT / name).is_file()]
    return [
        path
        for folder in ("src", "tests", "docs", "benchmarks")
        for path in (ROOT / folder).rglob("*")
        if path.is_file()
    ]


def test_no_file_names_a_folder_of_one_machine_or_a_registry() -> None:
    found = []
    for path in tracked():
        if path.suffix in (".png", ".parquet", ".gz", ".gguf") or path.name.endswith(".min.js"):
            continue
        text = path.read_text(encoding="utf-8", errors="replace").replace(IN_A_CONTAINER, "")
        found += [f"{path.relative_to(ROOT)}: {word}" for word in (*MACHINE, *REGISTRIES) if word in text]
    assert found == []
