"""The measured studies, run small on this machine's processor, and what they are made of."""

from __future__ import annotations

import csv
import io
import os
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import cast

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")

from dynamometer.cli import main  # noqa: E402
from dynamometer.cli.study_measured import MEASURED, commands  # noqa: E402
from dynamometer.errors import TargetError, UsageError  # noqa: E402
from dynamometer.kernels import backends, cage, steps, study_edge, study_graph, timing  # noqa: E402
from dynamometer.kernels.backends import cpu  # noqa: E402
from dynamometer.kernels.child import Child  # noqa: E402
from dynamometer.kernels.edge_child import Settings  # noqa: E402
from dynamometer.kernels.found import Found, Row, as_csv, exactly, scaled, tables  # noqa: E402
from dynamometer.kernels.isa import instruction_sets  # noqa: E402
from dynamometer.kernels.options import parse, shown  # noqa: E402
from dynamometer.kernels.study_fused import gain  # noqa: E402
from dynamometer.record.clock import now_ns  # noqa: E402
from dynamometer.record.steplog import is_step_log, read_steps  # noqa: E402
from dynamometer.types import Estimate  # noqa: E402

HERE = backends.reach("cpu", torch)


def study(name: str, *words: str) -> dict[str, object]:
    command = next(one for one in commands() if one.name == name)
    done = CliRunner().invoke(command, [*words, "--device", "cpu", "--quick", "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return cast(dict[str, object], msgspec.json.decode(done.stdout))


def rows(found: dict[str, object]) -> list[Row]:
    return msgspec.convert(found["rows"], list[Row])


def test_sparse_attention_is_right_in_every_row_that_ran() -> None:
    found = study("sparse-attention", "--set", "lengths=700", "--set", "decode=700")
    errors = {str(row.at["attention"]): row.value("error") for row in rows(found) if row.figures}
    assert {"unfused", "sdpa flash", "dense mask", "sdpa math, 576 keys"} <= set(errors)
    assert max(errors.values()) < 1e-5
    refused = {str(row.at["attention"]): row.refused for row in rows(found) if row.refused}
    assert "needs a GPU" in refused["ours Hopper masked"]
    assert found["driver"] == "measured"


def test_fused_attention_compares_alone_and_end_to_end() -> None:
    found = study("fused-attention")
    ran = [row for row in rows(found) if row.figures]
    assert {row.at["what"] for row in ran} == {"attention", "prefill", "decode"}
    assert all(row.value("error") < 1e-5 for row in ran if row.at["what"] == "attention")


def test_quantizing_counts_the_bytes_of_its_formats() -> None:
    found = study("quantization-gpu", "--set", "models=tiny", "--set", "batches=1")
    weights = {str(r.at["format"]): r for r in rows(found) if r.at["load"] == "weights" and r.figures}
    layers = 2 * (256 * 128 + 128 * 128 + 3 * 128 * 256)  # products of two layers; the rest stays in bf16
    saved = (weights["bf16"].value("weights_gib") - weights["fp8"].value("weights_gib")) * 2**30
    assert saved == pytest.approx(layers, rel=0.001)
    assert weights["fp8"].value("product_error") < 0.06
    assert weights["int8"].value("product_error") < 0.04


def test_an_ablation_has_four_corners_and_an_interaction() -> None:
    found = study("ablation", "--set", "model=tiny")
    named = {(row.at["what"], row.at["of"]): row for row in rows(found)}
    assert {of for what, of in named if what == "corner"} == {"baseline", "fewer heads", "top-k experts", "both"}
    effect = named["effect", "interaction (1: they multiply)"].figures["times"]
    assert effect.low is not None
    assert effect.low < (effect.value or 0) < (effect.high or 0)
    assert any("nothing about quality" in line for line in cast(list[str], found["verdict"]))


def test_only_what_is_static_or_traced_survives_an_export() -> None:
    found = study("graph-support", "--set", "only=torch.export,torch.compile")
    taken = {(str(r.at["compiler"]), str(r.at["routing"])): r for r in rows(found)}
    assert taken["torch.export", "gathered weights"].value("error") < 1e-6
    assert "data-dependent" in taken["torch.export", "sorted and split"].refused
    assert not taken["torch.compile", "sorted and split"].figures
    assert any("topk" in note for note in cast(list[str], found["notes"]))


def test_every_way_of_routing_gives_the_same_answer() -> None:
    options = parse(study_graph.Options, study_graph.QUICK, ())
    x = torch.randn(9, options.hidden)
    answers = []
    for name, kind in study_graph.WAYS.items():
        torch.manual_seed(0)
        if name != "top-k alone":
            answers.append(kind(options)(x))
    assert all(torch.allclose(answers[0], other, atol=1e-5) for other in answers[1:])


def test_a_probe_of_steps_is_a_log_that_calibrates(tmp_path: Path) -> None:
    options = parse(steps.Options, steps.QUICK, ("rounds=2",))
    count = steps.run(options, HERE, now_ns, lambda line: None, tmp_path)
    assert is_step_log(tmp_path)
    log = read_steps(tmp_path)
    assert (
        len(log["i"])
        == count
        == 2 * sum((batch + options.output - 1) * len(options.prompts) for batch in options.batches)
    )
    assert (log["t_done"] > log["t_sched"]).all()
    assert log["tok_ctx"].sum() == 2 * sum(options.batches) * sum(options.prompts)


def test_the_probe_sets_bytes_and_operations_over_times() -> None:
    from dynamometer.cli.probe import command

    words = [
        "device",
        "--device",
        "cpu",
        "--quick",
        "--json",
        "--set",
        "tokens=1",
        "--set",
        "formats=bf16",
        "--set",
        "mib=8",
    ]
    done = CliRunner().invoke(command, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    found = rows(msgspec.json.decode(done.stdout))
    product = next(row for row in found if row.at.get("of") == "query")
    seconds = product.value("time_us") * 1e-6
    assert product.value("useful") == pytest.approx(2e-12 * 3072 * 2048 / seconds)
    assert product.value("rate") == pytest.approx(2e-9 * (3072 * 2048 + 3072 + 2048) / seconds)
    assert {row.at["of"] for row in found if row.at["what"] == "memory"} == {"read", "write", "copy", "add"}


def test_a_product_of_an_isa_child_is_the_models_own() -> None:
    from dynamometer.kernels.isa_child import Settings as IsaSettings
    from dynamometer.kernels.model import build, rotary
    from dynamometer.kernels.shapes import TINY
    from dynamometer.kernels.study_quant import plain

    with Child("isa_child", IsaSettings("tiny", "fp32", 16, 16, 1, 1), {"ONEDNN_MAX_CPU_ISA": "AVX2"}) as child:
        told = child.ask("logits")["logits"]
        assert float(str(child.ask("decode")["seconds"])) > 0
    model = build(TINY, "cpu", torch.float32)
    torch.manual_seed(0)
    tokens = torch.randint(TINY.vocab, (1, 16))
    with torch.inference_mode():
        mine = model(tokens, rotary(TINY, 16, "cpu", torch.float32), plain, None, 0)[0, -1, :64]
    assert torch.allclose(torch.tensor(told), mine, atol=1e-4)


def test_a_child_that_dies_says_so() -> None:
    with (
        Child("edge_child", Settings("nowhere", False, 8, 1, 1), {}) as child,
        pytest.raises(TargetError, match=r"died: .*index\.json is not there"),
    ):
        child.ask("1")


def test_a_process_beyond_its_limit_is_killed_and_counted(tmp_path: Path) -> None:
    from dynamometer.kernels.model import build
    from dynamometer.kernels.shapes import TINY
    from dynamometer.kernels.shards import write

    write(build(TINY, "cpu", torch.float32), 10000.0, tmp_path)
    try:
        with cage.cage(24 * 2**20) as group:  # less than Python with torch takes
            settings = Settings(str(tmp_path), False, 8, 1, 1)
            with Child("edge_child", settings, {}, group.enter()) as child, pytest.raises(TargetError, match="memory"):
                child.ask("1")
            assert group.kills() >= 1
    except UsageError as refused:
        pytest.skip(str(refused))
    assert not group.folder.exists()


def test_the_slope_of_a_leak_is_found_and_noise_is_not() -> None:
    chance = np.random.default_rng(1)
    steady = study_edge.slope(100 + chance.normal(0, 0.1, 50), requests=10)
    leaking = study_edge.slope(100 + 0.05 * np.arange(50) + chance.normal(0, 0.1, 50), requests=10)
    assert steady.low is not None and steady.high is not None and steady.low < 0 < steady.high  # noqa: PT018
    assert leaking.low is not None and leaking.high is not None and leaking.low < 5.0 < leaking.high  # noqa: PT018
    assert study_edge.slope(np.ones(3), 1).value is None


# --- devices that are not here: a stand-in speaks for each


def stand_in(name: str, there: bool = True, **version: str | None) -> ModuleType:
    """A torch that has such a device."""
    module = SimpleNamespace(
        is_available=lambda: there,
        current_device=lambda: 0,
        get_device_name=lambda index: f"a {name}",
        synchronize=lambda: None,
        reset_peak_memory_stats=lambda: None,
        max_memory_allocated=lambda: 123,
    )
    told = {"cuda": None, "hip": None, **version}
    fake = SimpleNamespace(__version__="9.9", version=SimpleNamespace(**told), **{name: module})
    return cast(ModuleType, fake)


@pytest.mark.parametrize(
    ("name", "attribute", "version", "graphs"),
    [("cuda", "cuda", {"cuda": "13.0"}, True), ("rocm", "cuda", {"hip": "7.1"}, True), ("xpu", "xpu", {}, False)],
)
def test_a_device_of_torch_itself_is_reached(name: str, attribute: str, version: dict[str, str], graphs: bool) -> None:
    found = backends.reach(name, stand_in(attribute, **version))
    assert (found.name, found.device, found.graphs, found.peak_bytes()) == (name, f"{attribute}:0", graphs, 123)
    assert found.facts["device"] == f"a {attribute}"


@pytest.mark.parametrize("name", ["npu", "mlu"])
def test_a_device_of_a_plug_in_is_reached(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    with pytest.raises(UsageError, match=f"torch_{name} is not installed"):
        backends.reach(name, stand_in(name))
    plug_in = ModuleType(f"torch_{name}")
    plug_in.__version__ = "2.5"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, f"torch_{name}", plug_in)
    found = backends.reach(name, stand_in(name))
    assert (found.device, found.facts[f"torch_{name}"]) == (f"{name}:0", "2.5")


def test_apples_device_is_reached() -> None:
    fake = SimpleNamespace(
        __version__="9.9",
        backends=SimpleNamespace(mps=SimpleNamespace(is_available=lambda: True)),
        mps=SimpleNamespace(synchronize=lambda: None),
    )
    assert backends.reach("mps", cast(ModuleType, fake)).device == "mps"


def test_a_device_that_is_not_there_says_why() -> None:
    with pytest.raises(UsageError, match="finds no device"):
        backends.reach("xpu", stand_in("xpu", there=False))
    with pytest.raises(UsageError, match="built without ROCm"):
        backends.reach("rocm", stand_in("cuda"))
    with pytest.raises(UsageError, match="one of auto, cuda"):
        backends.reach("tpu", torch)


def test_the_processor_is_a_device_too() -> None:
    assert HERE.name == "cpu"
    assert HERE.peak_bytes() > 2**20
    assert cpu.processor()


def test_instruction_sets_have_the_names_that_people_use(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor: 0\nflags\t\t: fpu avx2 avx512f avx512_vnni amx_bf16\n")
    assert instruction_sets(info) == ("AVX2", "AVX-512", "AVX-512 VNNI", "AMX BF16")
    info.write_text("Features\t: fp asimd asimddp sve\n")
    assert instruction_sets(info) == ("NEON", "NEON dot product", "SVE")
    assert instruction_sets(tmp_path / "none") == ()


# --- options, tables, times


def test_options_are_read_and_shown() -> None:
    found = parse(steps.Options, {}, ("model=tiny", "batches=1, 2", "output=5"))
    assert (found.model, found.batches, found.output) == ("tiny", (1, 2), 5)
    assert parse(steps.Options, {}, tuple(shown(found).splitlines())) == found
    with pytest.raises(UsageError, match="a key of model"):
        parse(steps.Options, {}, ("speed=1",))
    with pytest.raises(UsageError, match="output"):
        parse(steps.Options, {}, ("output=many",))


def test_a_table_a_csv_and_the_reasons_for_gaps() -> None:
    time = Estimate(2.0, 1.0, 4.0, 9, "s", 0.95, "median")
    rate = scaled(time, 8.0, "tokens/s")
    assert (rate.value, rate.low, rate.high) == (4.0, 2.0, 8.0)
    found = Found(
        "made up",
        "?",
        (),
        (
            Row({"kind": "a", "n": 1}, {"rate": rate, "size": exactly(3, "MiB")}),
            Row({"kind": "b", "n": 2}, refused="no"),
        ),
        {"device": "none"},
        ("a note",),
    )
    first, second = tables(found)
    assert first.rows == (("1", "4\n[2, 8]", "3"),)
    assert second.rows == ()
    assert second.notes[0] == "2: no"
    assert second.notes[-1] == "measured on device none"
    lines = [line for line in as_csv(found).splitlines() if not line.startswith("#")]
    read = list(csv.DictReader(io.StringIO("\n".join(lines))))
    assert [(row["figure"], row["value"]) for row in read] == [("rate", "4"), ("size", "3"), ("refused", "")]


def test_a_gain_is_bounded_by_the_ends_of_both() -> None:
    found = gain(Estimate(4.0, 3.0, 5.0, 9, "ms"), Estimate(2.0, 1.0, 2.5, 9, "ms"))
    assert (found.value, found.low, found.high) == (2.0, 3 / 2.5, 5.0)


def test_calls_are_timed_in_turn_and_the_first_round_warms_up() -> None:
    clock = iter(range(0, 10**9, 7))
    order: list[str] = []
    calls = {name: (lambda n=name: order.append(n)) for name in "ab"}
    found = timing.interleaved(calls, HERE, lambda: next(clock), 2)
    assert order == list("ababab")
    assert found == {name: pytest.approx([7e-9, 7e-9]) for name in "ab"}


def test_too_few_runs_give_no_median() -> None:
    assert timing.estimate([1.0, 2.0], "x").value is None


# --- from the command line


def test_what_cannot_be_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for words, said in (
        (["--set", "lengths=few"], "--set"),
        (["--device", "cuda"], "cuda: "),
        (["--device", "tpu"], "one of auto"),
        (["-o", str(tmp_path / "none" / "x.csv")], "give a file in a folder that is there"),
    ):
        with pytest.raises(SystemExit) as left:
            main(["study", "sparse-attention", "--quick", *words])
        assert left.value.code == 2
        told = capsys.readouterr().err
        assert said in told
        assert "Traceback" not in told


def test_all_measured_studies_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["study", "--list"])
    told = capsys.readouterr().out
    assert all(name in told for name in MEASURED)


def test_the_committed_figures_name_their_device_and_date() -> None:
    folder = Path(__file__).parent.parent / "benchmarks" / "results"
    files = sorted(folder.rglob("*.csv"))
    assert files
    for file in files:
        text = file.read_text()
        assert "# device: " in text, file
        assert "# date: 20" in text, file
        assert os.sep + "work" not in text, file
