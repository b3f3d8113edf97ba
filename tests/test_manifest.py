"""The manifest: whole or not there, free of secrets, and enough to know the machine again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dynamometer.errors import MissingPath, RecordError
from dynamometer.record import manifest
from dynamometer.record.clock import Origin
from dynamometer.types import Doubt, Experiment, Load, Provenance, Run, Target, Workload

ORIGIN = Origin(wall_ns=1_764_600_000 * 10**9, monotonic_ns=5)


def run(**target: object) -> Run:
    at = Experiment("e", Target("http://127.0.0.1:1/v1", **target), Workload(), Load())  # type: ignore[arg-type]
    return manifest.begin(at, ORIGIN, Provenance.MEASURED, {"slots": 4}, "dyno bench --header 'X-Api-Key=abc123'")


def test_a_manifest_comes_back_as_written_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    first = run()
    manifest.write(tmp_path, first)
    assert manifest.read(tmp_path) == first
    doubt = Doubt("late-client", "late", "slow down", fatal=True)
    last = manifest.finish(first, "invalid", 99, {"cpu_s": 1.5}, [doubt, doubt])
    manifest.write(tmp_path, last)
    again = manifest.read(tmp_path)
    assert (again.status, again.end_ns, again.client, again.doubts) == ("invalid", 99, {"cpu_s": 1.5}, (doubt,))
    assert os.listdir(tmp_path) == ["run.json"]


def test_run_ids_sort_by_time_and_differ_within_a_second() -> None:
    ids = [manifest.new_run_id(ORIGIN.wall_ns + second * 10**9) for second in (0, 1, 60, 3600, 86400)]
    assert ids == sorted(ids)
    assert ids[0].startswith("20251201-144000-")
    assert len({manifest.new_run_id(ORIGIN.wall_ns) for _ in range(20)}) > 15


def test_the_values_of_headers_are_not_recorded_whatever_their_names(tmp_path: Path) -> None:
    manifest.write(tmp_path, run(headers={"X-Api-Key": "abc123", "X-Team": "blue"}))
    text = (tmp_path / "run.json").read_text()
    assert "abc123" not in text
    assert "blue" not in text
    assert manifest.read(tmp_path).experiment.target.headers == {"X-Api-Key": manifest.BLOT, "X-Team": manifest.BLOT}


@pytest.mark.parametrize(
    "words", ["--header 'A=Bearer s3cret, x' -n 4", "--header A='s3cret' -n 4", "--header=A=s3cret -n 4"]
)
def test_nor_are_they_in_the_command_that_repeats_the_run(words: str) -> None:
    told = manifest.begin(
        run(headers={"A": "s3cret"}).experiment, ORIGIN, Provenance.MEASURED, {}, f"dyno bench {words}"
    ).command
    assert "s3cret" not in told
    assert "A=(not recorded)" in told
    assert told.endswith("-n 4")


def test_the_machine_is_described_by_facts_and_no_fact_is_made_up() -> None:
    facts = manifest.machine()
    assert facts["cores"] == os.cpu_count()
    assert int(facts["memory_bytes"]) > 2**20
    assert facts["kernel"] == os.uname().release
    assert all(value not in ("", None) for value in facts.values())


def test_versions_name_what_a_run_depends_on_and_no_tool() -> None:
    found = manifest.versions()
    assert {"dynamometer", "python", "numpy", "uvloop", "httptools", "msgspec"} <= set(found)
    assert not {"pytest", "ruff", "mypy", "sphinx"} & set(found)


def test_what_is_no_manifest_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(MissingPath, match="is no run"):
        manifest.read(tmp_path)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(RecordError, match="is not a manifest"):
        manifest.read(tmp_path)
    (tmp_path / "run.json").write_text('{"format": 99}')
    with pytest.raises(RecordError, match="record format 99; this version reads up to 1: upgrade"):
        manifest.read(tmp_path)


def test_a_manifest_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="cannot be written"):
        manifest.write(tmp_path / "missing", run())
