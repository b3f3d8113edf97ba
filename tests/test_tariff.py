"""Price lists in every unit and currency; case D02."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pytest

from dynamometer.decisions.tariff import Entry, cost, named, read_list, tariff
from dynamometer.errors import MissingPath, UsageError

ENTRIES = [
    {"model": "a", "unit": "per_1m_tokens", "currency": "USD", "prompt": "0.15", "completion": "0.60"},
    {"model": "b", "unit": "per_1k_tokens", "prompt": 0.00015, "completion": 0.0006},
    {"model": "c", "unit": "per_token", "prompt": 1.5e-07, "completion": 6e-07},
    {"model": "d", "prompt": 0.015, "completion": 0.06, "unit": None},
    {"model": "e", "unit": "per_1m_tokens", "currency": "CNY", "prompt": "3.00", "completion": "12.00"},
]


@pytest.fixture
def entries(tmp_path: Path) -> dict[str, Entry]:
    path = tmp_path / "prices.json"
    path.write_text(json.dumps({"entries": ENTRIES}))
    return {entry.model: entry for entry in read_list(path)}


@pytest.mark.parametrize("model", ["a", "b", "c"])
def test_case_d02_three_units_one_cost(entries: dict[str, Entry], model: str) -> None:
    """10,000 × 0.15 / 1e6 + 2,000 × 0.60 / 1e6 = 0.0015 + 0.0012 USD, exactly."""
    assert cost(tariff(entries[model]), 10_000, 2_000) == Decimal("0.0027")


def test_case_d02_a_price_without_a_unit_is_refused(entries: dict[str, Entry]) -> None:
    with pytest.raises(UsageError, match="the price of d has no unit"):
        tariff(entries["d"])


def test_case_d02_a_price_above_what_anything_costs_is_flagged() -> None:
    """Read as per token the entry without a unit would be 270 USD for the usage."""
    found = tariff(Entry("d", 0.015, 0.06, "per_token"))
    assert cost(found, 10_000, 2_000) == 270
    assert "60,000 USD per million tokens is above 1,000" in found.doubt


def test_case_d02_another_currency_stays_another_currency(entries: dict[str, Entry], tmp_path: Path) -> None:
    found = tariff(entries["e"])
    assert (cost(found, 10_000, 2_000), found.currency) == (Decimal("0.054"), "CNY")
    with pytest.raises(UsageError, match="priced in CNY"):
        named(f"{tmp_path / 'prices.json'}:e")


def test_cached_tokens_are_among_the_prompt_tokens() -> None:
    found = tariff(Entry("x", 1.0, 2.0, "per_1m_tokens", cached=0.1))
    assert cost(found, 1_000_000, 0, 500_000) == Decimal("0.55")
    with pytest.raises(UsageError, match="among them"):
        cost(found, 10, 0, 11)


def test_against_takes_a_name_a_list_or_two_numbers(entries: dict[str, Entry], tmp_path: Path) -> None:
    assert named("deepseek-chat").output.base == 1.10
    assert named("0.5, 1.5").input.base == 0.5
    assert named("0.5,1.5,0.05").cached is not None
    assert named(f"{tmp_path / 'prices.json'}:b").input.base == pytest.approx(0.15)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gpt-4o-mni", "gpt-4o-mini"),
        ("1,2,3,4", "INPUT,OUTPUT"),
        ("1,x", "price of 0 or more"),
        ("-1,2", "price of 0 or more"),
    ],
)
def test_an_unknown_provider_gets_a_hint(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        named(text)


def test_a_price_list_that_can_not_be_read_says_so(tmp_path: Path) -> None:
    with pytest.raises(MissingPath):
        named(f"{tmp_path / 'none.json'}")
    bad = tmp_path / "bad.json"
    bad.write_text("{")
    with pytest.raises(UsageError, match="no valid json"):
        named(str(bad))
    bad.write_text('{"entries": [{"prompt": 1}]}')
    with pytest.raises(UsageError, match="no price list"):
        named(str(bad))
    bad.write_text(json.dumps(ENTRIES[:2]))
    with pytest.raises(UsageError, match="name one"):
        named(str(bad))
