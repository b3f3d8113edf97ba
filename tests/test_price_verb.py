"""`dyno price` and `dyno plan` from the command line: keys, exit codes, pages, and one line for what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dynamometer.cli import dyno
from dynamometer.errors import DynoError


def run(*words: str) -> Result:
    return CliRunner().invoke(dyno, list(words))


def priced(*words: str) -> dict[str, object]:
    done = run("price", "--sobol", "0", "--samples", "500", "--json", *words)
    assert done.exit_code == 0, done.exception
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


KEYS = {
    *("usd_per_million_input_tokens", "usd_per_million_output_tokens", "terms", "interval", "sensitivity"),
    "provenance",
}


def test_json_carries_the_promised_keys() -> None:
    found = priced("--gpu", "8xH100", "--prefill-rate", "40000", "--decode-rate", "12000", "--utilization", "0.5")
    assert found.keys() >= KEYS
    provenance = found["provenance"]
    assert isinstance(provenance, dict)
    assert set(provenance.values()) == {"quoted"}


def test_the_published_day_from_the_command_line() -> None:
    found = priced(
        *("--gpu", "8xH800", "--price", "2", "--prefill-rate", "73700", "--decode-rate", "14800"),
        *("--utilization", "1", "--tokens-per-day", "608e9,168e9"),
    )
    fleet = found["fleet"]
    assert isinstance(fleet, dict)
    assert fleet["usd_per_day"] == pytest.approx(87_072, rel=1e-3)


def test_the_example_is_that_day(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYNO_CONFIG", str(Path(__file__).parent.parent / "examples" / "deepseek_day.toml"))
    fleet = priced()["fleet"]
    assert isinstance(fleet, dict)
    assert fleet["usd_per_day"] == pytest.approx(87_072, rel=1e-3)
    assert fleet["replicas"] == pytest.approx(226.75, rel=1e-3)


def test_own_hardware_has_every_term_and_a_comparison_says_who_is_cheaper() -> None:
    found = priced(
        *("--gpu", "8xH100", "--own", "--prefill-rate", "40000", "--decode-rate", "12000"),
        *("--input-tokens", "2000", "--output-tokens", "300", "--load-shape", "office", "--against", "deepseek-chat"),
    )
    terms = found["terms"]
    assert isinstance(terms, list)
    assert {term["name"] for term in terms} == {
        *("depreciation", "cost of capital", "spares", "electricity", "operations"),
    }
    against = found["against"]
    assert isinstance(against, dict)
    assert 0 < against["chance_own_cheaper"] < 1
    assert 0 < against["break_even_utilization"] < 1


def test_a_simulated_run_is_priced_as_simulated(tmp_path: Path) -> None:
    done = run(
        *("simulate", "--gpu", "H200", "--model", "llama-3.1-8b", "--rate", "20", "-i", "512", "--output-tokens", "64"),
        *("-d", "20s", "-q", "--no-band", "-o", str(tmp_path / "run")),
    )
    assert done.exit_code in (0, None), done.output
    found = priced(str(tmp_path / "run"), "--price", "2")
    provenance = found["provenance"]
    assert isinstance(provenance, dict)
    assert provenance["decode_tokens_per_s"] == "simulated"
    assert provenance["usd_per_gpu_hour"] == "quoted"
    price = found["usd_per_million_output_tokens"]
    assert isinstance(price, float)
    assert 0.01 < price < 100


def test_the_page_is_written_and_needs_nothing(tmp_path: Path) -> None:
    page = tmp_path / "price.html"
    done = run(
        *("price", "--price", "1:3", "--decode-rate", "1000", "--prefill-rate", "9000", "--sobol", "64"),
        *("--samples", "500", "-o", str(page)),
    )
    assert done.exit_code == 0, done.exception
    text = page.read_text()
    assert "matters most" in text
    assert "http-equiv" in text
    assert "tornado" in text


def test_the_catalogue_is_listed_with_dates() -> None:
    done = run("price", "--list")
    assert done.exit_code == 0
    assert "inferencex".lower() in done.stdout.lower()
    assert len(json.loads(run("price", "--list", "--json").stdout)) > 60


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--decode-rate", "5"),
        ("--decode-rate", "5", "--price", "x"),
        ("--decode-rate", "5", "--price", "2", "--set", "nonsense=1"),
        ("--decode-rate", "5", "--price", "2", "--set", "usd_per_gpu_hour=1"),
        ("--decode-rate", "5", "--price", "2", "--against", "nobody"),
        ("--decode-rate", "5", "--price", "2", "--tokens-per-day", "many"),
        ("--decode-rate", "5", "--price", "2", "--load-shape", "lunar"),
        ("--decode-rate", "5", "--price", "2", "--load-shape", "flat", "--utilization", "0.5"),
        ("--decode-rate", "5", "--price", "2", "--sobol", "1000"),
        ("--decode-rate", "5", "--price", "2", "--carbon", "atlantis"),
        ("--decode-rate", "5", "--gpu", "8xH100", "--count", "4"),
        ("--decode-rate", "5", "--gpu", "NoSuchGPU"),
        ("no/such/run",),
    ],
)
def test_what_is_wrong_is_one_line_and_exit_2(words: tuple[str, ...]) -> None:
    done = run("price", *words)
    assert isinstance(done.exception, DynoError), done.output
    assert done.exception.exit_code in (2, 4)
    assert "\n" not in str(done.exception)


# ── plan ──

SIMULATED = ("--model", "llama-3.1-8b", "--traffic", "30", "--slo", "ttft_p95<1s,tpot_p95<50ms")


def planned(*words: str) -> dict[str, object]:
    done = run("plan", *words, "--json")
    assert done.exit_code == 0, (done.output, done.exception)
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def test_a_plan_names_fleet_runner_up_and_where_its_capacity_comes_from() -> None:
    found = planned(*SIMULATED, "--gpu", "H100", "--weights", "bf16,fp8", "--lose", "none")
    fleet, options = found["fleet"], found["options"]
    assert isinstance(fleet, dict)
    assert isinstance(options, list)
    assert found["replicas"] == sum(fleet["counts"].values())
    assert set(found["provenance"].values()) == {"simulated"}  # type: ignore[attr-defined]
    assert len(options) == 2
    assert fleet["capacity_per_s"] >= 30 * 1.2
    assert found["runner_up"] is not None


def test_runs_are_preferred_to_a_simulation_of_the_same_and_say_so(tmp_path: Path) -> None:
    for rate in (5, 10):
        run(
            *("simulate", "--gpu", "H200", "--model", "llama-3.1-8b", "--rate", str(rate), "-i", "256"),
            *("--output-tokens", "32", "-n", "400", "-q", "--no-band", "-o", str(tmp_path / f"r{rate}")),
        )
    found = planned(
        *("--measured", f"seen=1.5@{tmp_path}/r*", "--traffic", "30", "--slo", "e2e_p50<5s", "--lose", "none"),
    )
    fleet, options = found["fleet"], found["options"]
    assert isinstance(fleet, dict)
    assert isinstance(options, list)
    assert fleet["counts"] == {"seen": 4}  # 30 × 1.2 at some 10 a replica
    assert "no higher load was tried" in options[0]["why"]
    both = planned(
        *("--measured", f"h200=1.5@{tmp_path}/r*", "--traffic", "30", "--slo", "e2e_p50<5s", "--lose", "none"),
        *("--model", "llama-3.1-8b", "--gpu", "H200"),
    )
    assert both["excluded"] == [
        {"name": "h200, simulated", "why": "it has runs of its own, which are preferred"},
    ]


def test_no_fleet_is_exit_1_and_the_table_says_why() -> None:
    done = run("plan", "--model", "llama-3.1-8b", "--gpu", "L4", "--traffic", "5", "--slo", "ttft_p99<1ms")
    assert isinstance(done.exception, DynoError)
    assert done.exception.exit_code == 1
    assert "ttft_p99<1ms fails with" in done.stdout


@pytest.mark.parametrize(
    "words",
    [
        ("--traffic", "5", "--slo", "ttft_p99<1s"),
        ("--traffic", "0", "--slo", "ttft_p99<1s", "--model", "llama-3.1-8b", "--gpu", "H100"),
        ("--traffic", "5", "--slo", "goodput>1", "--model", "llama-3.1-8b", "--gpu", "H100"),
        ("--traffic", "5", "--slo", "ttft_p99<1s", "--model", "no-such-model", "--gpu", "H100"),
        ("--traffic", "5", "--slo", "ttft_p99<1s", "--model", "llama-3.1-8b", "--gpu", "H100", "--tp", "two"),
        ("--traffic", "5", "--slo", "ttft_p99<1s", "--model", "llama-3.1-8b", "--gpu", "A10"),
        ("--traffic", "5", "--slo", "ttft_p99<1s", "--model", "llama-3.1-8b"),
        ("--traffic", "5", "--slo", "ttft_p99<1s", "--measured", "a=1"),
        ("--traffic", "5", "--slo", "ttft_p99<1s", "--measured", "a=1@no/such/*"),
    ],
)
def test_a_plan_that_can_not_be_made_is_one_line_and_exit_2(words: tuple[str, ...]) -> None:
    done = run("plan", *words)
    assert isinstance(done.exception, DynoError), done.output
    assert done.exception.exit_code == 2
    assert "\n" not in str(done.exception)


def test_the_plan_s_page_is_written(tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    done = run("plan", *SIMULATED, "--gpu", "H100,H200", "-o", str(page))
    assert done.exit_code == 0, done.exception
    assert "Runner-up" in page.read_text()
