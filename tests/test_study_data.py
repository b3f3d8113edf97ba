"""`dyno study surface`, `effects` and `power` on data whose truth is known."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from dynamometer.cli.study import command
from dynamometer.decisions.grid import snapped
from dynamometer.errors import DynoError, MissingPath, Refused, UsageError
from dynamometer.hardware.stepcost import StepCost
from dynamometer.policies.batching import Batching
from dynamometer.sim.rules import Rules
from dynamometer.sim.setup import Cache, Setup
from dynamometer.simulate import Wanted, simulate
from dynamometer.types import Experiment, Load, Target, Workload

W, C, K, H = 0.004, 2e-5, 1e-8, 1e-5


def study(*args: object) -> str:
    result = CliRunner().invoke(command, list(map(str, args)), catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def failing(*args: object) -> DynoError:
    result = CliRunner().invoke(command, list(map(str, args)))
    assert isinstance(result.exception, DynoError), result.output
    return result.exception


@pytest.fixture
def points(tmp_path: Path) -> Path:
    lines = ["batch,context,tokens_per_s"]
    chance = np.random.default_rng(3)
    for b in (1, 4, 16, 64, 128, 256, 512):
        for s in (128, 512, 2048):
            step = (W**4 + (C * b) ** 4) ** 0.25 + K * b * s + H * b
            lines.append(f"{b},{s},{b / step * np.exp(0.005 * chance.standard_normal())}")
    path = tmp_path / "points.csv"
    path.write_text("\n".join(lines))
    return path


def test_the_surface_gives_back_the_regime_change_and_contradicts_the_printed_form(
    points: Path, tmp_path: Path
) -> None:
    found = json.loads(study("surface", points, "--json"))
    assert found["change"]["low"] < W / C < found["change"]["high"]
    assert found["fit"]["held_out"] < 0.01
    assert found["printed_form"]["miss"] > 0.9
    text = study("surface", points, "--out", tmp_path / "s.html")
    assert "contradicts its own table: at batch 32 and length 128 it gives 216 tokens/s, its table says 8,853" in text
    page = (tmp_path / "s.html").read_text()
    assert "Residuals" in page
    assert ">given<" in page


def test_a_surface_is_fitted_to_runs(tmp_path: Path) -> None:
    cost = StepCost((1, 1001), (0.01 + 0.0005, 0.01 + 1001 * 0.0005), context_s=1e-6)
    setup = Setup(cost, Cache(1_000_000), Rules(Batching("continuous", 256, 8192)))
    for b in (1, 4, 16):
        for s in (100, 400, 1600):
            work = Workload("synthetic", input_tokens=str(s), output_tokens="200")
            load = Load("closed", b)
            asked = Experiment("g", Target("simulated://", "m", api="simulated"), work, load, requests=6 * b + 6)
            simulate(asked, setup, tmp_path / f"b{b}-s{s}", Wanted())
    found = json.loads(study("surface", tmp_path, "--json"))
    assert found["driver"] == "simulated"
    assert sorted({cell["context"] for cell in found["cells"]}) == [200, 500, 1700]
    assert found["fit"]["misfit"] < 0.05


def test_contexts_a_few_tokens_apart_are_one_level() -> None:
    assert snapped(np.array([100.0, 102.0, 500.0, 98.0])).tolist() == [100, 100, 500, 100]


def test_the_worked_example_needs_no_file() -> None:
    text = study("effects")
    assert "+17.1 %" in text
    assert "+1.0 % against the product" in text
    assert "cannot be said: repeat the runs" in text


def test_effects_of_a_table_with_repeats_have_intervals(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    rows = [f"{a},{b},{100 * (1.2 if a == 'on' else 1) * (1.5 if b == 'on' else 1) * e}"
            for a in ("off", "on") for b in ("off", "on") for e in (0.99, 1.0, 1.01)]  # fmt: skip
    path.write_text("\n".join(["flash,chunked,rate", *rows]))
    found = json.loads(study("effects", path, "--json"))
    assert found["ratio"]["flash"]["value"] == pytest.approx(1.2, rel=1e-3)
    assert found["ablation"]["interaction"]["low"] < 1 < found["ablation"]["interaction"]["high"]
    assert "no interaction was seen" in study("effects", path, "--out", tmp_path / "e.html")
    assert (tmp_path / "e.html").is_file()


def test_a_fraction_says_what_it_cannot_tell_apart(tmp_path: Path) -> None:
    path = tmp_path / "f.csv"
    rows = [f"{a},{b},{a * b},{10 + a + b}" for a in (-1, 1) for b in (-1, 1)]
    path.write_text("\n".join(["a,b,c,rate", *rows]))
    assert "a cannot be told from b:c" in study("effects", path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b,rate\non,on,5\noff,off,3\non,off,4\n", "on in 2 of the 3"),
        ("a,rate\nmaybe,5\non,4\n", "give on or off"),
        ("a,rate\non,x\noff,4\n", "give a number"),
        ("rate\n5\n6\n", "no column of a factor"),
        ("a,rate\non,-5\noff,4\n", "give values above 0"),
        ("", "0 lines"),
        ("a,rate\non,5,6\noff,4\n", "3 cells"),
    ],
)
def test_a_table_that_is_no_design_is_refused_in_one_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    wrong = failing("effects", path)
    assert isinstance(wrong, UsageError)
    assert said in str(wrong)


def test_the_energy_law_and_the_front_of_a_table(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    lines = ["name,batch,tokens_per_s,power_w,idle_w"]
    for b in (1, 2, 4, 8, 16):
        rate = 100 * b / (1 + b / 40)
        lines.append(f"b{b},{b},{rate},{(0.3 + 8 / b) * rate},50")
    lines.append("slow,8,10,900,50")
    path.write_text("\n".join(lines))
    found = json.loads(study("power", path, "--json", "--reference", "b1"))["powers"]
    choices = {one["point"]["name"]: one for one in found["choices"]}
    assert choices["b1"]["score"] == pytest.approx(1.0)
    assert not choices["slow"]["best"]
    assert choices["b16"]["best"]
    assert choices["b1"]["energy"]["net_j"] < choices["b1"]["energy"]["gross_j"] == pytest.approx(8.3)
    study("power", path, "--out", tmp_path / "p.html")
    assert "Energy a token against batch" in (tmp_path / "p.html").read_text()
    path.write_text(
        "\n".join(["tokens_per_s,power_w,batch", *(f"{100 * b},{100 * b * (0.3 + 8 / b)},{b}" for b in (1, 2, 4, 8))])
    )
    law = json.loads(study("power", path, "--json"))["powers"]["law"]["parameters"]
    assert law["e0"]["value"] == pytest.approx(0.3)
    assert law["e1"]["value"] == pytest.approx(8)


def test_meters_are_never_mixed_and_runs_without_a_sensor_say_so(tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    path.write_text("tokens_per_s,power_w,meter\n100,300,gpu\n120,500,wall\n")
    assert "different meters" in str(failing("power", path))
    assert isinstance(failing("power", tmp_path / "none.csv"), MissingPath)
    from load_runs import write_closed

    write_closed(tmp_path / "r", 2)
    assert isinstance(failing("power", tmp_path / "r"), Refused)


def test_simulated_studies_keep_their_names_and_options() -> None:
    listed = study("--list")
    assert study("list") == listed
    for name in ("batching", "surface", "effects", "power"):
        assert name in listed
    assert "there is no study" in str(failing("nonsense"))
    assert "--batches" in study("surface", "--help")
    assert "1,x" in str(failing("surface", "--batches", "1,x"))
    assert "do not show a surface" in str(failing("surface", "--batches", "1,2", "--lengths", "64,128"))
