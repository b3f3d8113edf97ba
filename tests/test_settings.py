"""Settings: the command line wins over the environment, the environment over dyno.toml."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynamometer.cli.settings import check_environment, defaults, find
from dynamometer.errors import MissingPath, UsageError

OPTIONS = {name: name for name in ("seed", "output_tokens", "concurrency", "headers")} | {"header": "headers"}


def write(folder: Path, text: str) -> None:
    (folder / "dyno.toml").write_text(text, encoding="utf-8")


def test_the_nearest_file_upwards_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "seed = 7")
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    monkeypatch.chdir(deep)
    assert find() == tmp_path / "dyno.toml"
    assert defaults("bench", OPTIONS) == {"seed": 7}


def test_a_verbs_own_table_wins_over_the_top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, 'seed = 7\noutput-tokens = "64"\n[bench]\nseed = 9\n[compare]\nlevel = 0.9')
    monkeypatch.chdir(tmp_path)
    assert defaults("bench", OPTIONS) == {"seed": 9, "output_tokens": "64"}


def test_a_broken_file_is_named_with_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "seed = \n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"dyno\.toml is not valid TOML.*line 1"):
        defaults("bench", OPTIONS)


def test_a_misspelt_option_in_the_file_is_not_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "[bench]\nconcurency = 8")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="no option 'concurency'; did you mean 'concurrency'"):
        defaults("bench", OPTIONS)


def test_an_option_may_be_written_as_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, '[bench]\nheader = ["a=b"]\noutput-tokens = "8"')
    monkeypatch.chdir(tmp_path)
    assert defaults("bench", OPTIONS) == {"headers": ["a=b"], "output_tokens": "8"}


def test_a_file_that_is_no_text_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dyno.toml").write_bytes(b"\xff\xfe\x00seed")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="is not valid TOML"):
        defaults("bench", OPTIONS)


@pytest.mark.parametrize(
    ("name", "said"), [("CONCURENCY", "DYNO_BENCH_CONCURRENCY"), ("HEADER", "DYNO_BENCH_HEADERS"), ("XYZZY", "--help")]
)
def test_a_misspelt_variable_is_not_ignored(name: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        check_environment("bench", OPTIONS, {f"DYNO_BENCH_{name}": "5"})
    check_environment("bench", OPTIONS, {"DYNO_BENCH_SEED": "5", "DYNO_CONFIG": "x", "DYNO_SWEEP_NAME": "y"})


def test_a_named_file_must_exist(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DYNO_CONFIG", str(tmp_path / "none.toml"))
    with pytest.raises(MissingPath, match="DYNO_CONFIG names"):
        find()


def test_no_file_means_no_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DYNO_CONFIG", raising=False)
    if find() is None:
        assert defaults("bench", OPTIONS) == {}


def test_the_command_line_wins_over_the_environment_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from click.testing import CliRunner

    from dynamometer.cli import dyno

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DYNO_BENCH_RATE", "nonsense")
    said = CliRunner().invoke(dyno, ["bench"])
    assert said.exit_code == 2
    assert "nonsense" in said.output
    said = CliRunner().invoke(dyno, ["bench", "--rate", "2", "--concurrency", "3"])
    assert "exclude each other" in str(said.exception)
    monkeypatch.delenv("DYNO_BENCH_RATE")
    write(tmp_path, '[bench]\nrate = 7.0\nurl = "nowhere"')
    said = CliRunner().invoke(dyno, ["bench", "--concurrency", "3", "--url", "http://127.0.0.1:9/v1"])
    assert "127.0.0.1:9 did not answer" in str(said.exception), "the load and the address of the line win"
    said = CliRunner().invoke(dyno, ["bench"])
    assert "'nowhere'" in str(said.exception)


def test_the_shell_completes_verbs_and_options() -> None:
    import os
    import subprocess
    import sys

    def complete(words: str, at: int) -> str:
        environment = {**os.environ, "COMP_WORDS": words, "COMP_CWORD": str(at), "_DYNO_COMPLETE": "bash_complete"}
        code = "from dynamometer.cli import main; main()"
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        return done.stdout

    assert "plain,bench" in complete("dyno ben", 1)
    assert "plain,--concurrency" in complete("dyno bench --conc", 2)
