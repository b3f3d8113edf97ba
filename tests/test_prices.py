"""The price catalogue: every line has a source and a date, every device is known, conflicting figures stay a range."""

from __future__ import annotations

import re
import tomllib
from importlib.resources import files

import pytest

from dynamometer.errors import UsageError
from dynamometer.hardware import gpu, prices

RAW = tomllib.loads(files("dynamometer.hardware").joinpath("prices.toml").read_text(encoding="utf-8"))
TABLES = ("hour", "power", "purchase", "api", "electricity", "carbon")


@pytest.mark.parametrize("table", TABLES)
def test_every_line_has_a_known_source_and_a_date(table: str) -> None:
    for line in RAW[table]:
        assert line["by"] in RAW["sources"], line
        assert re.fullmatch(r"20\d\d(-\d\d){0,2}", line["date"]), line


@pytest.mark.parametrize("table", ["hour", "power", "purchase"])
def test_every_device_of_the_catalogue_is_a_device(table: str) -> None:
    known = {device.name for device in gpu.devices()}
    assert {line["device"] for line in RAW[table]} <= known


def test_every_assumption_ascends_and_is_dated() -> None:
    for name, line in RAW["assume"].items():
        low, base, high = line["is"]
        assert low <= base <= high, name
        assert line["by"] in RAW["sources"]
        assert re.fullmatch(r"20\d\d(-\d\d)?", line["date"])


def test_no_list_price_is_beyond_what_anything_costs() -> None:
    for line in RAW["api"]:
        for value in (*line["input"], *line["output"], *line.get("cached", ())):
            assert 0 < value < 1000


def test_cached_input_is_never_dearer_than_fresh() -> None:
    for model in prices.api_models():
        found = prices.api(model)
        assert found.cached is None or found.cached.high <= found.input.high


def test_the_kinds_of_a_price_are_not_mixed() -> None:
    rent, own = prices.hourly("h200"), prices.hourly("h200", "own-neocloud")
    assert rent is not None
    assert own is not None
    assert (rent.low, rent.high) == (1.6, 5.75)
    assert (own.low, own.high) == (1.66, 1.74)
    with pytest.raises(UsageError, match="one of rental"):
        prices.hourly("h200", "spot")


def test_a_place_that_is_not_listed_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match="france"):
        prices.carbon("atlantis")
    assert prices.electricity("us-new-england").base == 0.1729


def test_the_listing_shows_every_line() -> None:
    lines = prices.listing()
    assert len(lines) >= sum(len(RAW[table]) for table in TABLES) + len(RAW["assume"])
    assert all(line.source and line.value for line in lines)


def test_case_d06_a_card_of_80_gb_holds_gibibytes() -> None:
    """81,920 MiB = 85.90e9 bytes = 80.00 GiB. 83e9 bytes = 77.30 GiB fit the raw capacity of both cards; taken as 80e9
    bytes they would not."""
    a100, h100 = gpu.get("A100 80GB"), gpu.get("H100 80GB")
    assert a100.memory_bytes.low == 81_920 * 2**20
    assert a100.memory_bytes.low / 1e9 == pytest.approx(85.90, abs=0.005)
    assert h100.memory_bytes.low >= 81_559 * 2**20
    assert pytest.approx(79.65, abs=0.005) == 81_559 * 2**20 / 2**30
    assert pytest.approx(77.30, abs=0.005) == 83e9 / 2**30
    assert h100.usable_bytes.low > 83e9
    assert a100.memory_bytes.low > 83e9
    assert 83e9 > 80e9
