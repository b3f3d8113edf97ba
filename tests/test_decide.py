"""Decisions: options, evidence and constraints in, a recommendation and what would flip it out. Truth by arithmetic."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from load_runs import write_closed

from dynamometer.cli import dyno
from dynamometer.decisions import wish as wishes
from dynamometer.decisions.constraints import Permission
from dynamometer.decisions.evidence import gather
from dynamometer.decisions.gate import objectives
from dynamometer.decisions.recommend import Recommendation, recommend
from dynamometer.errors import UsageError
from dynamometer.report.decision_page import decision_markdown, decision_page
from dynamometer.report.page import render
from dynamometer.types import Provenance

# 2 USD an hour at 1,000 tokens/s and full use: 2 / 3.6 USD a million; half the speed at 0.8 USD: 0.8 / 1.8
TWO = """
[price]
utilization = "1"

[[option]]
name = "fast"
price = { usd_per_gpu_hour = "2" }
[option.figures]
decode_tokens_per_s = { value = 1000, source = "a table" }
tpot_p95_ms = { value = 20, low = 18, high = 22, source = "a table" }
accuracy = { value = 0.61, low = 0.58, high = 0.64, source = "a test" }

[[option]]
name = "cheap"
price = { usd_per_gpu_hour = "0.8" }
[option.figures]
decode_tokens_per_s = { value = 500, source = "a table" }
tpot_p95_ms = { value = 40, source = "a table" }
accuracy = { value = 0.52, low = 0.49, high = 0.55, source = "a test" }
"""


def file(place: Path, text: str) -> Path:
    path = place / "decision.toml"
    path.write_text(text)
    return path


def decided(place: Path, text: str, permissions: dict[str, Permission] | None = None) -> Recommendation:
    wish = wishes.read(file(place, text))
    slo = objectives(wish.constraints.slo) if wish.constraints.slo else ()
    return recommend(wish, [gather(option, wish, slo) for option in wish.option], permissions or {}, slo)


def value(found: Recommendation, option: str, figure: str) -> float | None:
    row = next(row for row in found.rows if row.name == option)
    one = row.evidence.figure(figure)
    return one.estimate.value if one else None


def standing(found: Recommendation) -> dict[str, str]:
    return {row.name: row.standing for row in found.rows}


def test_the_cheapest_that_holds_is_recommended(tmp_path: Path) -> None:
    found = decided(tmp_path, TWO)
    assert found.chosen == "cheap"
    assert value(found, "cheap", "usd_per_million_output_tokens") == pytest.approx(0.8 / 1.8)
    assert value(found, "fast", "usd_per_million_output_tokens") == pytest.approx(2 / 3.6)


def test_a_limit_turns_the_choice_and_the_answer_says_at_which_limit_it_would_turn_back(tmp_path: Path) -> None:
    found = decided(tmp_path, "[constraints]\nslo = 'tpot_p95<30ms'\n" + TWO)
    assert found.chosen == "fast"
    assert standing(found) == {"fast": "holds", "cheap": "out"}
    assert any("cheap instead, with its limit at 40 ms" in flip for flip in found.decision.flips)
    assert any("fast falls out if tpot_p95<30ms is tightened to 20 ms" in flip for flip in found.decision.flips)


def test_the_flip_of_a_price_is_where_both_cost_the_same(tmp_path: Path) -> None:
    # cheap costs what fast does at 2 / 3.6 × 1.8 = 1 USD an hour, or at 400 tokens/s
    flips = " ".join(decided(tmp_path, TWO).decision.flips)
    assert "fast instead, at price of a GPU hour 1 USD/h instead of 0.8" in flips
    assert "fast instead, at decode rate 400 tokens/s instead of 500" in flips


def test_what_both_share_turns_nothing(tmp_path: Path) -> None:
    found = decided(tmp_path, TWO.replace('utilization = "1"', 'utilization = "0.2:0.5:0.8"'))
    assert not any("utilization" in flip for flip in found.decision.flips)


def test_chances_add_up_and_follow_the_ranges(tmp_path: Path) -> None:
    sure = decided(tmp_path, TWO.replace('"0.8"', '"0.79:0.8:0.81"').replace('"2"', '"1.99:2:2.01"'))
    assert sure.chances == {"cheap": 1.0, "fast": 0.0}
    even = decided(tmp_path, TWO.replace('"0.8"', '"0.5:1:1.5"').replace('"2"', '"1:2:3"'))
    assert sum(even.chances.values()) == pytest.approx(1.0)
    assert even.chances["cheap"] == pytest.approx(0.5, abs=0.05)


def test_a_quality_floor_rules_out_and_an_interval_across_it_is_not_sure(tmp_path: Path) -> None:
    found = decided(tmp_path, "[constraints]\nquality = { metric = 'accuracy', floor = 0.6 }\n" + TWO)
    assert found.chosen == "fast"
    (held,) = found.rows[0].held
    assert (held.met, held.sure) == (True, False)
    assert found.against == "accuracy"
    assert {row.name for row in found.rows if row.on_front} == {"fast", "cheap"}


def test_the_month_is_that_of_whole_replicas(tmp_path: Path) -> None:
    # 86.4 M tokens a day are one replica of 1,000 tokens/s at full use, and two of 500
    traffic = "[traffic]\noutput_tokens_per_day = 86.4e6\n[constraints]\nbudget_usd_per_month = 1300\n"
    found = decided(tmp_path, traffic + TWO)
    assert value(found, "fast", "usd_per_month") == pytest.approx(2 * 24 * 365 / 12)
    assert value(found, "cheap", "usd_per_month") == pytest.approx(2 * 0.8 * 24 * 365 / 12)
    assert standing(found) == {"cheap": "holds", "fast": "out"}


def test_devices_at_hand_memory_and_power_are_constraints(tmp_path: Path) -> None:
    text = """
    [constraints]
    devices = ["8xH200"]
    power_w_max = 6000
    [[option]]
    name = "eight"
    model = "deepseek-r1"
    device = "H200"
    count = 8
    context = 2048
    concurrency = 8
    figures = { decode_tokens_per_s = { value = 1900, source = "x" } }
    [[option]]
    name = "four"
    model = "deepseek-r1"
    device = "H200"
    count = 4
    context = 2048
    concurrency = 8
    figures = { decode_tokens_per_s = { value = 1900, source = "x" } }
    """
    found = decided(tmp_path, text)
    assert found.chosen == "eight"
    four = next(row for row in found.rows if row.name == "four")
    assert {one.constraint.split(" (")[0]: one.met for one in four.held} == {
        "power at most 6,000": True,
        "a device at hand": False,
        "memory": False,  # 671 GB in FP8 on four times 141 GB
    }


def test_a_blocked_licence_rules_out_and_conditions_leave_open(tmp_path: Path) -> None:
    terms = "[constraints.licence]\nuse = ['saas']\n"
    says = {
        "fast": Permission("review", False, "4 to meet", ("above 700 M users",)),
        "cheap": Permission("blocked", False, "no commercial use"),
    }
    found = decided(tmp_path, terms + TWO, says)
    assert standing(found) == {"fast": "open", "cheap": "out"}
    assert found.chosen is None
    assert "No option holds every constraint. fast could" in found.decision.answer
    accepted = decided(tmp_path, terms + TWO, {**says, "fast": Permission("review", True, "4 met", ("above 700 M",))})
    assert accepted.chosen == "fast"
    assert any("above 700 M" in flip for flip in accepted.decision.flips)


def test_what_nobody_measured_leaves_an_option_open_not_good(tmp_path: Path) -> None:
    found = decided(tmp_path, "[constraints]\nslo = 'ttft_p99<1s'\n" + TWO)
    assert set(standing(found).values()) == {"open"}
    assert found.chosen is None


def test_figures_of_a_simulated_run_are_called_simulated(tmp_path: Path) -> None:
    for name, streams in (("a", 4), ("b", 16)):
        write_closed(tmp_path / name, streams)
    options = "".join(f"[[option]]\nname = '{name}'\nruns = ['{name}']\n" for name in "ab")
    found = decided(tmp_path, "[price]\nusd_per_gpu_hour = '1'\n" + options)
    assert found.chosen == "b"  # more streams a step: more tokens for the same hour
    kinds = {one.provenance for row in found.rows for one in row.evidence.figures}
    assert "measured" not in " ".join(kinds)
    assert "simulated and quoted" in kinds


def test_a_figure_of_the_run_wins_over_a_stated_one(tmp_path: Path) -> None:
    write_closed(tmp_path / "a", 8, driver=Provenance.MEASURED)
    text = (
        "[[option]]\nname = 'a'\nruns = ['a']\n[option.figures]\noutput_tokens_per_s = { value = 9e9, source = 'x' }\n"
    )
    found = decided(tmp_path, "minimize = 'tpot_p50_ms'\n" + text)
    assert (value(found, "a", "output_tokens_per_s") or 0) < 1e6
    assert value(found, "a", "tpot_p50_ms") == pytest.approx(14.0, rel=0.1)  # (20 + 8) / 2,000 s a step


def test_more_is_better_where_more_is_better(tmp_path: Path) -> None:
    text = "minimize = 'output_tokens_per_s'\n" + "".join(
        f"[[option]]\nname = '{n}'\n[option.figures]\noutput_tokens_per_s = {{ value = {v}, source = 's' }}\n"
        for n, v in (("slow", 10), ("quick", 20))
    )
    assert decided(tmp_path, text).chosen == "quick"


def test_formats_that_differ_without_a_quality_floor_are_told(tmp_path: Path) -> None:
    text = TWO.replace('name = "cheap"', 'name = "cheap"\nweights = "q4_0"')
    assert any("no quality floor" in note for note in decided(tmp_path, text).notes)


def test_the_page_and_the_markdown_carry_every_number_with_its_source(tmp_path: Path) -> None:
    found = decided(tmp_path, TWO)
    page, text = render(decision_page(found, "dyno decide x.toml")), decision_markdown(found)
    for row in found.rows:
        for one in row.evidence.figures:
            assert one.name in text
            assert one.name in page
    assert "What would flip it" in page
    assert "a table" in text


def run(*args: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(dyno, ["decide", *map(str, args)])
    wrong = result.exception
    code = result.exit_code if wrong is None or isinstance(wrong, SystemExit) else getattr(wrong, "exit_code", -1)
    return code, result.output


def test_the_verb_asks_the_licence_and_writes_all_three_forms(tmp_path: Path) -> None:
    text = TWO.replace('name = "fast"', 'name = "fast"\nlicence_of = "deepseek-ai/DeepSeek-R1"')
    text = text.replace('name = "cheap"', 'name = "cheap"\nlicence_of = "Qwen/Qwen2.5-3B"')
    text = "[constraints.licence]\nuse = ['saas']\n" + text
    path = file(tmp_path, text)
    code, out = run(path, "--offline", "--json")
    table = msgspec.json.decode(out)
    assert (code, table["recommendation"]) == (0, "fast")
    assert {one["name"]: one["standing"] for one in table["options"]} == {"fast": "holds", "cheap": "out"}
    for name in ("d.html", "d.md", "d.json"):
        assert run(path, "--offline", "--out", tmp_path / name)[0] == 0
        assert (tmp_path / name).stat().st_size > 500
    assert run(path, "--offline", "--out", tmp_path / "d.pdf")[0] == 2


def test_no_option_that_holds_is_exit_1(tmp_path: Path) -> None:
    assert run(file(tmp_path, "[constraints]\nslo = 'tpot_p95<1ms'\n" + TWO))[0] == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[[option]]\n",
        "x = ",
        "[[option]]\nname = 'a'\nspeed = 3\n",
        "[[option]]\nname = 'a'\n[[option]]\nname = 'a'\n",
        "[[option]]\nname = 'a'\nruns = ['nowhere']\n",
        "[[option]]\nname = 'a'\n[option.figures]\nx = { value = 1, source = '' }\n",
        "[[option]]\nname = 'a'\n[option.figures]\nx = { value = 1, low = 2, source = 's' }\n",
        "[constraints]\nbudget_usd_per_month = 5\n[[option]]\nname = 'a'\n",
        "[constraints]\nslo = 'quick'\n[[option]]\nname = 'a'\n",
        "[price]\nusd_per_gpu_huor = '1'\n[[option]]\nname = 'a'\n",
        "[constraints.licence]\nuse = ['flying']\n[[option]]\nname = 'a'\nmodel = 'deepseek-v3'\n",
        "[[option]]\nname = 'a'\n",
    ],
)
def test_a_bad_file_is_a_usage_error(tmp_path: Path, text: str) -> None:
    assert run(file(tmp_path, text), "--offline")[0] == 2


def test_a_missing_file_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not there"):
        wishes.read(tmp_path / "absent.toml")


def test_the_example_on_published_measurements_decides(tmp_path: Path) -> None:
    example = Path(__file__).parent.parent / "examples" / "decide" / "deepseek.toml"
    code, out = run(example, "--offline", "--json")
    table = msgspec.json.decode(out)
    assert code == 0
    assert {one["provenance"] for row in table["options"] for one in row["figures"]} == {"quoted"}
    assert {row["name"]: row["standing"] for row in table["options"]}["V3 of 2024 FP8, B200, TRT-LLM"] == "open"


def test_the_file_shown_in_the_docs_is_one_that_is_read() -> None:
    import re
    import tomllib

    text = (Path(__file__).parent.parent / "docs" / "decide.md").read_text(encoding="utf-8")
    block = re.search(r"```toml\n(.*?)```", text, re.S)
    assert block
    assert msgspec.convert(tomllib.loads(block[1]), wishes.Wish).option[0].name == "Q8_0 on an L40S"
