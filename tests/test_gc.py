"""Retention: what a rule gives up, what it never touches, and that nothing goes without being asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from sample_run import write_sample

from dynamometer.cli import dyno
from dynamometer.record.gc import Rule, doomed
from dynamometer.record.log import WireLog
from dynamometer.types import Provenance

DAY_NS = 86_400 * 10**9


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for day in range(5):
        write_sample(tmp_path / f"run-{day}", requests=5, id=f"run-{day}", origin_wall_ns=day * DAY_NS)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text("{")
    return tmp_path


def names(folder: Path, rule: Rule, day: float = 5) -> list[str]:
    return [one.run for one in doomed(folder, rule, int(day * DAY_NS))]


def test_a_run_must_fall_under_every_part_of_the_rule(runs: Path) -> None:
    assert names(runs, Rule(keep=2)) == ["run-0", "run-1", "run-2"]
    assert names(runs, Rule(older_than_s=3.5 * 86_400)) == ["run-0", "run-1"]
    assert names(runs, Rule(keep=4, older_than_s=3.5 * 86_400)) == ["run-0"]
    assert names(runs, Rule(keep=9)) == []


def test_a_run_that_is_being_written_stays(runs: Path) -> None:
    log = WireLog(runs / "run-0" / "wire.log", 0)
    assert names(runs, Rule(keep=3)) == ["run-1"]
    log.close()
    assert names(runs, Rule(keep=3)) == ["run-0", "run-1"]


def test_a_folder_that_holds_a_kept_run_stays(runs: Path) -> None:
    write_sample(runs / "run-0" / "inner", requests=5, id="inner", origin_wall_ns=9 * DAY_NS)
    assert names(runs, Rule(keep=5)) == []


def test_only_what_a_log_makes_again_is_derived(runs: Path) -> None:
    assert names(runs, Rule(derived=True)) == []  # simulations: their rows are all there is
    again = write_sample(runs / "real", requests=5, id="real", driver=Provenance.MEASURED)
    WireLog(again / "wire.log", 0).close()
    (found,) = doomed(runs, Rule(derived=True), 5 * DAY_NS)
    assert found.files == ("requests.parquet", "events.parquet")


def test_nothing_goes_without_delete_and_no_rule_is_refused(runs: Path) -> None:
    told = CliRunner().invoke(dyno, ["gc", str(runs), "--keep", "3", "--json"])
    assert [one["run"] for one in json.loads(told.output)["runs"]] == ["run-0", "run-1"]
    assert (runs / "run-0").exists()
    told = CliRunner().invoke(dyno, ["gc", str(runs), "--keep", "3", "--delete"])
    assert told.exit_code == 0
    assert "2 runs" in told.output
    assert sorted(path.name for path in runs.iterdir()) == ["broken", "run-2", "run-3", "run-4"]
    assert "no rule" in str(CliRunner().invoke(dyno, ["gc", str(runs)]).exception)
