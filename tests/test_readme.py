"""The README's commands, run against a real server here, with long runs cut short; nothing else is changed."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dynamometer.engines.recipes import Settings
from dynamometer.engines.serve import serve
from dynamometer.record.clock import now_ns

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
SHORTER = {"--requests 500": "--requests 6", "--duration 5m": "--duration 4s", "--concurrency 16": "--concurrency 2"}


def commands() -> list[str]:
    """Lines of the README's bash blocks."""
    blocks = re.findall(r"```bash\n(.*?)```", README, re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line and not line.startswith("#")]


def dyno_lines() -> list[str]:
    return [line for line in commands() if line.startswith("dyno ")]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with serve("llamacpp", settings=Settings(slots=2), now_ns=now_ns) as engine:
        yield engine.url


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("readme")


def run(line: str, where: Path) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "dynamometer", *shlex.split(line)[1:]]
    return subprocess.run(words, cwd=where, capture_output=True, text=True, timeout=240)


def test_the_setup_line_names_what_is_there() -> None:
    (first,) = [line for line in commands() if ".venv/bin/dyno bench" in line]
    assert "-c constraints.txt '.[llamacpp]'" in first
    assert (ROOT / "constraints.txt").exists()


def test_the_test_command_is_what_ci_runs() -> None:
    assert "scripts/test" in commands()
    assert "scripts/test" in (ROOT / ".ci" / "run").read_text()


@pytest.mark.real
@pytest.mark.parametrize("line", [line for line in dyno_lines() if "--url" in line])
def test_a_command_against_an_endpoint_runs(line: str, server: str, folder: Path) -> None:
    for long, short in SHORTER.items():
        line = line.replace(long, short)
    done = run(line.replace("http://127.0.0.1:8000/v1", server), folder)
    judged = "--slo" in line  # this machine need not meet it, and a short run can't show a P99
    assert done.returncode in ((0, 1) if judged else (0,)), done.stderr
    assert "output tokens/s" in done.stdout


@pytest.mark.real
def test_the_comparison_runs(server: str, folder: Path) -> None:
    (line,) = [line for line in dyno_lines() if line.startswith("dyno compare")]
    for name in ("before", "after"):
        short = f"dyno bench --url {server} -n 6 -c 2 --output-tokens 16 -o runs/{name}"
        assert run(short, folder).returncode == 0
    done = run(line, folder)
    assert done.returncode in (0, 1), done.stderr  # a gate on P99 that six requests can't judge fails, and says so
    assert "ttft" in done.stdout.lower()


def test_every_verb_of_the_readme_exists() -> None:
    from dynamometer.cli import VERBS

    named = set(re.findall(r"dyno ([a-z]+)", README)) | set(re.findall(r"`([a-z]+)`,? ", README)) & set(VERBS)
    assert named <= set(VERBS) | {"bench"}


def test_links_in_the_readme_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target


@pytest.mark.real
def test_the_library_example_runs(tmp_path: Path) -> None:
    example = ROOT / "examples" / "library.py"
    lines = [
        line for line in example.read_text().splitlines() if line and not line.startswith(('"""', "from", "import"))
    ]
    assert len(lines) <= 15
    done = subprocess.run([sys.executable, str(example)], cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "output tokens/s" in done.stdout
