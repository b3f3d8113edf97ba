"""Settings: the command line wins over the environment, the environment over dyno.toml."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynamometer.cli.settings import defaults, find
from dynamometer.errors import MissingPath, UsageError


def write(folder: Path, text: str) -> None:
    (folder / "dyno.toml").write_text(text, encoding="utf-8")


def test_the_nearest_file_upwards_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "seed = 7")
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    monkeypatch.chdir(deep)
    assert find() == tmp_path / "dyno.toml"
    assert defaults("bench") == {"seed": 7}


def test_a_verbs_own_table_wins_over_the_top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, 'seed = 7\noutput-tokens = "64"\n[bench]\nseed = 9\n[compare]\nlevel = 0.9')
    monkeypatch.chdir(tmp_path)
    assert defaults("bench") == {"seed": 9, "output_tokens": "64"}


def test_a_broken_file_is_named_with_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "seed = \n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"dyno\.toml is not valid TOML.*line 1"):
        defaults("bench")


def test_a_named_file_must_exist(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DYNO_CONFIG", str(tmp_path / "none.toml"))
    with pytest.raises(MissingPath, match="DYNO_CONFIG names"):
        find()


def test_no_file_means_no_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DYNO_CONFIG", raising=False)
    if find() is None:
        assert defaults("bench") == {}
