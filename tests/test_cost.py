"""What a million tokens cost, against published bills and against arithmetic done by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamometer.decisions import case, cost, price
from dynamometer.decisions.case import Wanted
from dynamometer.decisions.energy import J_PER_KWH
from dynamometer.decisions.price import Priced, Question, Settings
from dynamometer.decisions.sensitivity import at_base
from dynamometer.errors import UsageError
from dynamometer.hardware import gpu

QUICK = Settings(draws=500, sobol=0)


def priced(device: str = "", tokens: tuple[float, float] | None = None, **given: object) -> Priced:
    """A price of exact numbers: no number moves but those with a range of their own."""
    texts = {name: str(value) for name, value in given.items() if name not in ("owned", "basis")}
    wanted = Wanted(texts, gpu.get(device) if device else None, bool(given.get("owned")), spread=0.0)
    return price.price(case.build(wanted), Question(case.carbon(wanted), tokens_per_day=tokens), QUICK)


# ── published bills ──


def test_the_published_day_of_deepseek_is_rebuilt_within_a_tenth_of_a_percent() -> None:
    """608e9 input tokens at 73.7k a node and second take 608e9 / (73.7e3 × 86,400) = 95.48 nodes, 168e9 output tokens
    at 14.8k take 131.38: 226.86 nodes against the published mean of 226.75. × 8 GPUs × 2 USD × 24 h = 87,115 USD
    against 87,072. A million input tokens take 16 USD / (73.7e3 × 3,600) = 0.0603 USD, output ones 0.3003."""
    found = priced(
        gpus=8,
        usd_per_gpu_hour=2,
        prefill_tokens_per_s=73_700,
        decode_tokens_per_s=14_800,
        utilization=1,
        tokens=(608e9, 168e9),
    )
    assert found.usd_per_million_input_tokens == pytest.approx(0.0603, abs=5e-5)
    assert found.usd_per_million_output_tokens == pytest.approx(0.3003, abs=5e-5)
    assert found.fleet is not None
    assert found.fleet.replicas == pytest.approx(226.75, rel=1e-3)
    assert found.fleet.usd_per_day == pytest.approx(87_072, rel=1e-3)
    assert found.fleet.usd_per_day == pytest.approx(608e3 * 16 / 265.32 + 168e3 * 16 / 53.28, rel=1e-9)
    published = 226.75 * 8 * 2 * 24
    assert published == 87_072


def test_lmsys_twenty_cents_a_million_output_tokens() -> None:
    """22.3k output tokens a second and node of eight at 2 USD: 16 / (22.3e3 × 3,600) × 1e6 = 0.1993 against 0.20."""
    found = priced(gpus=8, usd_per_gpu_hour=2, decode_tokens_per_s=22_300, utilization=1)
    assert found.usd_per_million_output_tokens == pytest.approx(0.1993, abs=5e-5)
    assert found.usd_per_million_output_tokens == pytest.approx(0.20, rel=0.01)
    assert found.usd_per_million_input_tokens is None


def test_case_d03_idle_hours_and_every_device_are_paid() -> None:
    at_full = priced(usd_per_gpu_hour=4, decode_tokens_per_s=2500, utilization=1)
    at_third = priced(usd_per_gpu_hour=4, decode_tokens_per_s=2500, utilization=0.3)
    eight = priced(gpus=8, usd_per_gpu_hour=4, decode_tokens_per_s=12_000, utilization=1)
    assert at_full.usd_per_million_output_tokens == pytest.approx(0.4444, abs=5e-5)
    assert at_third.usd_per_million_output_tokens == pytest.approx(1.4815, abs=5e-5)
    assert eight.usd_per_million_output_tokens == pytest.approx(0.7407, abs=5e-5)
    idle = next(use for use in at_third.uses if use.name == "idle")
    assert idle.share == pytest.approx(0.7)


def test_case_d03_no_throughput_has_no_price_and_says_why() -> None:
    found = priced(usd_per_gpu_hour=4, decode_tokens_per_s=0)
    assert found.usd_per_million_output_tokens is None
    assert "decode_tokens_per_s is 0" in found.decision.answer
    assert found.usd_per_duty_hour == 4


def test_case_d03_an_utilization_that_nobody_stated_is_a_printed_assumption() -> None:
    found = priced(usd_per_gpu_hour=4, decode_tokens_per_s=2500)
    assert any("utilization 0.5 [0.2, 0.8] is assumed" in note for note in found.notes)
    assert found.provenance["utilization"] == "quoted"


# ── the published A10, A100 and H100 table, term by term ──

JOULES = {"a10": 1.82, "a100": 0.41, "h100": 0.29}  # a token, as published


@pytest.mark.parametrize(("device", "joules"), JOULES.items())
def test_the_published_energy_is_only_possible_at_a_throughput_that_its_table_leaves_out(
    device: str, joules: float
) -> None:
    """J a token = W / (tokens/s): at the power limit 150 / 1.82 = 82, 400 / 0.41 = 976 and 700 / 0.29 = 2,414 tokens/s
    are the most that the table allows; without batch and power its joules can't be compared."""
    limit = gpu.get(device).tdp_w
    assert limit is not None
    most = limit.high / joules
    assert most == pytest.approx({"a10": 82.4, "a100": 975.6, "h100": 2413.8}[device], abs=0.05)


@pytest.mark.parametrize(("device", "joules"), JOULES.items())
def test_electricity_for_the_published_joules_is_cents_a_million_tokens(device: str, joules: float) -> None:
    """1.82 J × 1e6 / 3.6e6 = 0.506 kWh; at 0.1 USD and PUE 1.5 that is 0.0758 USD; 0.0171 for 0.41 J."""
    limit = gpu.get(device).tdp_w
    assert limit is not None
    found = priced(
        device,
        owned=True,
        purchase_usd=10_000,
        decode_tokens_per_s=limit.high / joules,
        power_w=limit.high,
        utilization=1,
        usd_per_kwh=0.1,
        pue=1.5,
    )
    term = next(term for term in found.terms if term.name == "electricity")
    assert term.usd_per_million_output_tokens == pytest.approx(joules * 1e6 / J_PER_KWH * 1.5 * 0.1)
    assert found.energy is not None
    assert found.energy.joules_per_output_token == pytest.approx(joules * 1.5)


def test_a_year_has_the_same_duty_hours_in_every_term() -> None:
    """The table's mistake: one term spreads its dollars over 8 h a day × 365, another counts the tokens (or
    kilowatt-hours) of 24 h. Whatever the figures, mixing the two clocks is wrong by 24 / 8 = 3 in that term. Here a day
    of 8 h triples depreciation, capital, spares and operations a token, and leaves electricity a token as it is."""
    stated: dict[str, object] = {
        "owned": True,
        "purchase_usd": 15_000,
        "decode_tokens_per_s": 976,
        "power_w": 400,
        "utilization": 1,
    }
    whole, office = priced(**stated, duty_hours=24), priced(**stated, duty_hours=8)
    before = {term.name: term.usd_per_million_output_tokens for term in whole.terms}
    after = {term.name: term.usd_per_million_output_tokens for term in office.terms}
    for name, usd in before.items():
        assert usd is not None
        assert after[name] == pytest.approx(usd * (1 if name == "electricity" else 3)), name
    mixed = (before["depreciation"] or 0) + (after["electricity"] or 0)  # 24 h in one term, 8 h in the other
    assert (after["depreciation"] or 0) + (after["electricity"] or 0) > 2.5 * mixed


# ── arithmetic ──


def test_the_annuity_repays_the_price_with_interest() -> None:
    """1,000 at 10 % in two years, nothing left: 1,000 × 0.1 / (1 - 1.1^-2) = 576.19 a year. With 200 left: 165.289 are
    worth it today, so (1,000 - 165.289) × 0.57619 = 480.95."""
    rate, years = np.array([0.1, 0.1, 0.0]), np.array([2.0, 2.0, 2.0])
    paid = cost.annuity(np.full(3, 1000.0), np.array([0.0, 200.0, 200.0]), rate, years)
    assert paid == pytest.approx([576.190, 480.952, 400.0], abs=1e-3)
    balance = 1000 * 1.1 - paid[1]
    assert balance * 1.1 - paid[1] == pytest.approx(200)


def test_interruptions_waste_paid_minutes() -> None:
    """Four a day, 30 minutes each: of 24 + 2 h paid 24 work, so a token costs 26 / 24 as much."""
    calm = priced(usd_per_gpu_hour=1, decode_tokens_per_s=1000, utilization=1)
    spot = priced(usd_per_gpu_hour=1, decode_tokens_per_s=1000, utilization=1, interruptions_per_day=4, lost_minutes=30)
    assert spot.usd_per_million_output_tokens == pytest.approx(calm.usd_per_million_output_tokens * 26 / 24)
    assert next(use.share for use in spot.uses if use.name == "interruptions") == pytest.approx(2 / 26)


def test_cached_input_costs_its_share_of_the_time() -> None:
    """Half cached at a tenth of the time: 1,000 tokens take as long as 550 fresh ones."""
    stated: dict[str, object] = {
        "usd_per_gpu_hour": 3.6,
        "prefill_tokens_per_s": 1000,
        "decode_tokens_per_s": 100,
        "input_tokens": 1000,
        "output_tokens": 10,
        "utilization": 1,
    }
    found = priced(**stated, cached_share=0.5, cached_cost=0.1)
    assert found.usd_per_million_fresh_input_tokens == pytest.approx(1.0)
    assert found.usd_per_million_cached_input_tokens == pytest.approx(0.1)
    assert found.usd_per_million_input_tokens == pytest.approx(0.55)
    assert found.usd_per_million_output_tokens == pytest.approx(10.0)


@given(
    mix=st.tuples(st.integers(1, 100_000), st.integers(1, 10_000)),
    rates=st.tuples(st.floats(1, 1e6), st.floats(1, 1e5)),
    shares=st.tuples(st.floats(0, 0.95), st.floats(0, 1), st.floats(0.01, 1), st.floats(0, 0.5)),
    owned=st.booleans(),
)
def test_tokens_times_prices_are_the_bill_whatever_the_mix(
    mix: tuple[int, int], rates: tuple[float, float], shares: tuple[float, ...], owned: bool
) -> None:
    money = {"purchase_usd": "20000", "power_w": "900"} if owned else {"usd_per_gpu_hour": "2.5"}
    given_texts = {
        **money,
        "input_tokens": str(mix[0]),
        "output_tokens": str(mix[1]),
        "prefill_tokens_per_s": repr(rates[0]),
        "decode_tokens_per_s": repr(rates[1]),
        "cached_share": repr(shares[0]),
        "cached_cost": repr(shares[1]),
        "utilization": repr(shares[2]),
        "failed_share": repr(shares[3]),
        "interruptions_per_day": "2",
    }
    built = case.build(Wanted(given_texts, spread=0.0))
    bill = cost.bill(at_base(built.factors))
    tokens = float(bill.requests[0])
    paid = (
        tokens * mix[0] * float(bill.usd_per_million_input_tokens[0])
        + tokens * mix[1] * float(bill.usd_per_million_output_tokens[0])
    ) / 1e6
    assert paid == pytest.approx(float(bill.usd_per_year[0]))
    assert float(cost.added(bill.uses)[0]) == pytest.approx(float(bill.usd_per_year[0]))


# ── inputs ──


def test_two_published_prices_stay_a_range() -> None:
    found = priced("H100", decode_tokens_per_s=1000, utilization=1)
    rent = next(one for one in found.inputs if one.name == "usd_per_gpu_hour")
    assert (rent.low, rent.high) == (1.3, 4.5)
    assert rent.base == pytest.approx(math.sqrt(1.3 * 4.5))
    assert rent.source.count("2026-08") == 2
    ends = found.interval.usd_per_million_output_tokens
    assert ends is not None
    assert ends[0] < (found.usd_per_million_output_tokens or 0) < ends[1]


@pytest.mark.parametrize(
    ("given_texts", "said"),
    [
        ({"usd_per_gpu_hour": "2"}, "no rate"),
        ({"decode_tokens_per_s": "5"}, "no rental price"),
        ({"decode_tokens_per_s": "5", "usd_per_gpu_hour": "two"}, "give a number"),
        ({"decode_tokens_per_s": "5", "usd_per_gpu_hour": "-2"}, "above 0"),
        ({"decode_tokens_per_s": "5", "usd_per_gpu_hour": "nan"}, "give a number"),
        ({"decode_tokens_per_s": "5", "usd_per_gpu_hour": "3:2"}, "must not descend"),
        ({"decode_tokens_per_s": "5", "usd_per_gpu_hour": "2", "utilization": "0"}, "above 0"),
        ({"decode_tokens_per_s": "5", "usd_per_gpu_hour": "2", "utilization": "1.2"}, "at most"),
        ({"decode_tokens_per_s": "5", "usd_per_gpu_hour": "2", "duty_hours": "25"}, "at most"),
        ({"decode_tokens_per_s": "5", "usd_per_gpu_hour": "2", "pue": "0.9", "power_w": "1"}, "1 or more"),
        ({"decode_tokens_per_s": "5", "usd_per_gpu_hour": "2", "purchase_usd": "9"}, "paid twice"),
        ({"decode_tokens_per_s": "5", "usd_per_gpu_hour": "2", "price": "9"}, "no variable"),
    ],
)
def test_what_can_not_be_is_refused_in_one_line(given_texts: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said) as wrong:
        case.build(Wanted(given_texts))
    assert "\n" not in str(wrong.value)
