"""`dyno fit` on runs whose curve is known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from load_runs import A, B, step_s, write_closed

from dynamometer.cli import dyno
from dynamometer.cli.fit import command
from dynamometer.decisions.curve import curve, find_runs, read_point
from dynamometer.errors import Refused, UsageError
from dynamometer.report.fit_page import page, sentence
from dynamometer.report.html import write_page
from dynamometer.types import Doubt

LEVELS = (1, 2, 4, 8, 16, 32, 64)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("sweep")
    for x in LEVELS:
        write_closed(place / f"c{x:03}", x)
    return place


def values(*arguments: object) -> dict:
    result = CliRunner().invoke(command, [*map(str, arguments), "--json"], catch_exceptions=False)
    assert result.exit_code == 0
    return json.loads(result.output)


def test_the_curve_of_the_runs_is_found_with_its_knee(folder: Path) -> None:
    found = values(folder)
    assert found["families"][0]["model"] == "hyperbola"
    assert found["families"][0]["parameters"]["a"]["value"] == pytest.approx(A, rel=0.03)
    assert found["knee"]["value"] == pytest.approx(B, rel=0.05)
    assert found["by"] == "asked"
    assert found["driver"] == "simulated"
    assert [row["x"] for row in found["residuals"]] == list(LEVELS)
    assert max(abs(row["error"]) for row in found["residuals"]) < 0.03


def test_the_time_of_a_token_is_linear_in_concurrency(folder: Path) -> None:
    (linear, *_) = values(folder)["tpot"]
    assert linear["model"] == "linear"
    assert linear["parameters"]["t"]["value"] == pytest.approx(1e3 * B / A, rel=0.05)
    assert linear["parameters"]["c"]["value"] == pytest.approx(1e3 / A, rel=0.05)


def test_a_prediction_holds_the_truth_and_outside_is_refused_unless_asked(folder: Path) -> None:
    ((inside),) = values(folder, "--predict", 24)["predictions"]
    said = inside["throughput"]
    assert said["low"] < 24 / step_s(24) < said["high"]
    refused = CliRunner().invoke(command, [str(folder), "--predict", "500"])
    assert isinstance(refused.exception, Refused)
    (outside,) = values(folder, "--predict", 500, "--extrapolate")["predictions"]
    said = outside["throughput"]
    assert said["low"] < 500 / step_s(500) < said["high"]


def test_measured_requests_in_flight_can_be_the_load(folder: Path) -> None:
    found = values(folder, "--by", "measured")
    assert found["by"] == "measured"
    assert found["knee"]["value"] == pytest.approx(B, rel=0.1)


def test_the_tables_are_printed_and_the_page_written(folder: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(command, [str(folder), "--out", str(tmp_path / "fit.html")], catch_exceptions=False)
    assert result.exit_code == 0
    for words in ("best told by a hyperbola", "knee ", "Load levels", "Residuals of the chosen curve", "limited by"):
        assert words in result.output
    text = (tmp_path / "fit.html").read_text()
    assert "simulated" in text
    assert "Throughput against load" in text


def test_a_simulation_is_not_called_measured_on_the_page(folder: Path, tmp_path: Path) -> None:
    found = curve([read_point(run) for run in find_runs([folder])])
    made = page(found)
    assert made.sections[0].badge == "simulated"
    series = {row[0] for figure in made.sections[0].figures for row in figure.table.rows}
    assert "measured" not in series
    assert write_page(made, tmp_path / "p.html").is_file()
    assert sentence(found).endswith(".")


def test_every_level_says_what_limits_it_or_what_was_not_measured(folder: Path) -> None:
    for point in values(folder)["points"]:
        assert point["bottleneck"]["name"] == "unknown"
        assert "memory_share" in point["bottleneck"]["missing"]


def test_runs_that_cannot_be_believed_are_left_out_with_the_reason(folder: Path, tmp_path: Path) -> None:
    bad = write_closed(tmp_path / "late", 8, doubts=(Doubt("late-client", "the client was late", "use workers", True),))
    points = [read_point(run) for run in find_runs([folder, bad])]
    found = curve(points)
    assert [point.run for point in found.left_out] == ["late"]
    assert found.left_out[0].unusable == "the client was late"
    with pytest.raises(Refused, match="no run can be used"):
        curve([points[-1]])


def test_runs_of_different_models_are_not_fitted_together(folder: Path, tmp_path: Path) -> None:
    other = write_closed(tmp_path / "other", 3, model="another")
    with pytest.raises(UsageError, match="differ in model"):
        curve([read_point(run) for run in find_runs([folder, other])])


def test_three_levels_are_refused_in_one_line(folder: Path) -> None:
    result = CliRunner().invoke(command, [str(folder / f"c{x:03}") for x in LEVELS[:3]])
    assert isinstance(result.exception, Refused)
    assert "3 load levels are too few" in str(result.exception)


def test_a_folder_without_runs_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no run in"):
        find_runs([tmp_path])


def test_the_verb_is_listed() -> None:
    assert "fit" in CliRunner().invoke(dyno, ["--help"]).output
