"""Pictures: specs that Vega-Lite takes, without a colour of their own, with rows that add up to what was recorded."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import duckdb
import msgspec
import numpy as np
import pytest
from sample_run import manifest, write_sample

from dynamometer.metrics import views
from dynamometer.record.store import open_run, read_run
from dynamometer.report import series
from dynamometer.report.figure import Axis, Figure, Heading, Rule, curve, decades, numbers
from dynamometer.report.run_figures import run_figures
from dynamometer.report.shapes import (
    boxes,
    heat_map,
    histogram,
    lanes,
    pareto,
    stacked_bars,
    stacked_over_time,
    tornado,
)
from dynamometer.report.theme import THEMES, Theme
from dynamometer.types import Estimate

HEAD = Heading("name", "Title", "What is to be seen.")
X, Y = Axis("x", "x (unit)"), Axis("y", "y (unit)")
BOX = {"group": "sql", "p5": 1.0, "p25": 2.0, "p50": 3.0, "p75": 4.0, "p95": 9.0, "n": 7}

GENERAL = [
    curve(HEAD, [{"x": 1, "y": 2.0, "low": 1.0, "high": 3.0}], X, Y, [Rule(1, "knee"), Rule(2, "limit", "y")]),
    curve(HEAD, [{"x": 1, "y": 2.0, "kind": "line", "series": name} for name in "ab"], X, Y, steps=True),
    curve(HEAD, [], X, Y),
    stacked_bars(HEAD, [{"bar": "a", "part": p, "y": 1.0} for p in "wk"], Y, [Rule(24, "capacity")]),
    histogram(HEAD, [{"x": 1.0, "to": 2.0, "y": 3.0}], Axis("x", "ms", "log"), Y),
    stacked_over_time(HEAD, [{"at_s": 0.0, "to_s": 1.0, "y": 3, "series": "timeout"}], Y),
    boxes(HEAD, [BOX], Axis("p50", "ms")),
    heat_map(
        HEAD, [{"x": b, "y": s, "v": 3.0 if b > 1 else None} for b in (16, 1, 4) for s in "ab"], X, Y, Axis("v", "v")
    ),
    tornado(HEAD, [{"factor": "price", "low": 1.0, "high": 4.0}, {"factor": "f", "low": 2.0, "high": 3.0}], 2.5, Y),
    pareto(
        HEAD,
        [{"x": 1.0, "y": 2.0, "label": "A", "best": True}, {"x": 2.0, "y": 1.0, "label": "B", "best": False}],
        X,
        Y,
    ),
    lanes(HEAD, [{"lane": "1", "from_s": 0.0, "to_s": 1.0, "series": "tokens"}], ["late", "tokens"]),
]


def values(figure: Figure) -> list[dict[str, object]]:
    """All rows that a spec holds."""
    sets = figure.spec["datasets"]
    assert isinstance(sets, dict)
    return [row for rows in sets.values() for row in rows]


@pytest.mark.parametrize("figure", GENERAL)
def test_a_spec_has_no_colour_so_that_the_theme_decides(figure: Figure) -> None:
    text = json.dumps(figure.spec)
    ink_on_viridis = ("#111", "#fff")  # the same in both themes, as the cells are
    assert [c for c in re.findall(r"#[0-9a-f]{3,6}\b", text) if c not in ink_on_viridis] == []
    assert "config" not in figure.spec


@pytest.mark.parametrize("figure", GENERAL)
def test_every_picture_has_words_and_a_table_of_its_numbers(figure: Figure) -> None:
    assert figure.heading.caption
    assert all(len(row) == len(figure.table.columns) for row in figure.table.rows)
    assert figure.spec["width"] == "container"


def test_a_table_of_numbers_takes_rows_evenly_and_says_so() -> None:
    table = numbers([("x", "x")], [{"x": at} for at in range(101)], most=5)
    assert table.rows == (("0",), ("25",), ("50",), ("75",), ("100",))
    assert table.notes == ("5 of 101 rows, evenly taken.",)


def test_the_factor_that_moves_the_result_most_is_on_top() -> None:
    rows = [{"factor": name, "low": 0.0, "high": high} for name, high in (("a", 1.0), ("b", -9.0), ("c", 3.0))]
    assert [row[0] for row in tornado(HEAD, rows, 0.0, Y).table.rows] == ["b", "c", "a"]


def test_ticks_of_a_log_axis_are_1_2_5() -> None:
    assert decades(30, 900) == (20, 50, 100, 200, 500, 1000, 2000)
    assert decades(0.8, 1.2) == (0.5, 1, 2)


# --- colours ---

# Machado, Oliveira and Fernandes, IEEE TVCG 15 (2009), severity 1.0, on linear RGB
SIGHTS = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]]
    ),
}
XYZ = np.array([[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.072175], [0.0193339, 0.119192, 0.9503041]])


def linear(colour: str) -> np.ndarray:
    part = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    return np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    """WCAG 2.2."""
    low, high = sorted(float(linear(colour) @ XYZ[1]) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


def lab(rgb: np.ndarray) -> np.ndarray:
    part = XYZ @ np.clip(rgb, 0, 1) / np.array([0.95047, 1, 1.08883])
    f = np.where(part > 0.008856, np.cbrt(part), 7.787 * part + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("theme", THEMES, ids=lambda theme: theme.name)
def test_colours_have_the_contrast_that_wcag_asks(theme: Theme) -> None:
    for ground in (theme.card, theme.background):
        assert (
            min(
                contrast(ink, ground)
                for ink in (theme.text, theme.muted, theme.link, theme.good, theme.bad, theme.warn)
            )
            >= 4.5
        )
    assert min(contrast(colour, theme.card) for colour in theme.series) >= 3


@pytest.mark.parametrize("sight", SIGHTS)
@pytest.mark.parametrize("theme", THEMES, ids=lambda theme: theme.name)
def test_a_colour_blind_reader_can_tell_the_series_apart(theme: Theme, sight: str) -> None:
    seen = [lab(SIGHTS[sight] @ linear(colour)) for colour in theme.series]
    distances = [np.linalg.norm(a - b) for at, a in enumerate(seen) for b in seen[:at]]
    assert min(distances) >= 15


# --- of a run ---


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[duckdb.DuckDBPyConnection]:
    directory = write_sample(tmp_path_factory.mktemp("runs") / "small", requests=300, tokens=32)
    with open_run(directory) as connection:
        views.install(connection, read_run(directory))
        yield connection


def extent(connection: duckdb.DuckDBPyConnection) -> series.Extent:
    found = series.extent(connection)
    assert found is not None
    return found


def column(rows: Sequence[object], name: str) -> np.ndarray:
    return np.array([row[name] for row in rows], dtype=float)  # type: ignore[index]


def one(connection: duckdb.DuckDBPyConnection, query: str) -> float:
    row = connection.execute(query).fetchone()
    assert row is not None
    return float(row[0])


def test_the_throughput_picture_holds_every_token(small: duckdb.DuckDBPyConnection) -> None:
    span = extent(small)
    drawn = column(series.token_rate(small, span), "value").sum() * span.bin_s
    last_bin_ns = span.zero_ns + int(span.end_s / span.bin_s) * span.bin_s * 1e9
    tokens = one(small, f"select sum(tokens) from gaps join answers using (request) where at_ns < {last_bin_ns}")
    assert drawn == pytest.approx(tokens)
    assert tokens > 8000


def test_requests_in_flight_agree_with_counting_them_one_by_one(small: duckdb.DuckDBPyConnection) -> None:
    span = extent(small)
    rows = series.in_flight(small, span)
    lives = small.execute("select sent_ns, ended_ns from answers where sent_ns is not null").fetchnumpy()
    for row in rows[:: len(rows) // 12]:
        at_ns = span.zero_ns + int(float(row["at_s"] or 0) * 1e9)
        assert row["value"] == np.sum((lives["sent_ns"] <= at_ns) & (at_ns < lives["ended_ns"]))
    moments = np.concatenate([lives["sent_ns"], lives["ended_ns"]])
    steps = np.repeat([1, -1], len(lives["sent_ns"]))[np.argsort(moments, kind="stable")]
    assert max(column(rows, "high")) == np.cumsum(steps).max()


def test_the_percentile_curve_is_the_quantile_of_the_rows(small: duckdb.DuckDBPyConnection) -> None:
    found = views.Samples(np.random.default_rng(1).lognormal(4, 1, 5000))
    estimate = Estimate(90.0, 80.0, 100.0, 5000, "ms")
    rows = series.percentiles(found, "TTFT", {"p90": estimate, "mean": estimate})
    line = [row for row in rows if row["kind"] == "line"]
    expected = np.quantile(found.value, 1 - 1 / column(line, "odds"))
    np.testing.assert_allclose(column(line, "value"), expected, rtol=1e-9)
    assert max(column(line, "odds")) == pytest.approx(5000)  # a tail beyond 1/n is not drawn
    [point] = [row for row in rows if row["kind"] == "point"]
    assert (point["odds"], point["low"], point["high"]) == (pytest.approx(10), 80.0, 100.0)


def test_requests_that_never_ended_leave_the_tail_of_the_curve_open() -> None:
    censored = np.arange(100) >= 90
    found = views.Samples(np.arange(1.0, 101.0), censored=censored)
    rows = series.percentiles(found, "E2E", {})
    assert max(column(rows, "value")) <= 90
    assert max(column(rows, "odds")) < 10.5


def test_the_histogram_of_gaps_holds_every_token_once(small: duckdb.DuckDBPyConnection) -> None:
    rows, joined = series.token_gaps(small)
    assert column(rows, "share").sum() + 100 * joined == pytest.approx(100)
    assert all(row["to"] > row["from_ms"] for row in rows)  # type: ignore[operator]


def test_every_failure_is_in_the_picture_of_failures(small: duckdb.DuckDBPyConnection) -> None:
    rows = series.failures(small, extent(small))
    assert column(rows, "requests").sum() == one(small, "select count(*) from answers where outcome <> 'ok'")
    assert {row["series"] for row in rows} == {"server-error", "empty answer", "stopped: deadline"}


def test_a_life_line_has_no_hole_and_no_overlap(small: duckdb.DuckDBPyConnection) -> None:
    rows = series.life_lines(small, extent(small), 40)
    by_lane: dict[object, list[tuple[float, float]]] = {}
    for row in rows:
        by_lane.setdefault(row["lane"], []).append((float(row["from_s"] or 0), float(row["to_s"] or 0)))
    assert len(by_lane) == 40
    for parts in by_lane.values():
        assert all(start == pytest.approx(stop) for (_, stop), (start, _) in pairwise(parts))


def test_the_warm_up_cut_is_drawn_with_the_requests_before_it(small: duckdb.DuckDBPyConnection) -> None:
    span = extent(small)
    views.set_span(small, views.Span(span.zero_ns + 5_000_000_000, span.zero_ns + int(span.end_s * 1e9)))
    cut = {figure.heading.name: figure for figure in run_figures(small, {})}["e2e-over-time"]
    views.set_span(small, views.Span(span.zero_ns, span.zero_ns + int(span.end_s * 1e9)))
    [rule] = [row for row in values(cut) if "label" in row]
    assert rule["at"] == pytest.approx(5.0)
    assert min(float(row["at_s"]) for row in values(cut) if "at_s" in row) < 1.0  # type: ignore[arg-type]
    assert "5 s" in cut.heading.caption


def test_a_page_does_not_grow_with_the_run(tmp_path: Path) -> None:
    directory = write_sample(tmp_path, requests=6000, tokens=24)
    with open_run(directory) as connection:
        views.install(connection, read_run(directory))
        figures = run_figures(connection, {"ttft_ms": {"mean": Estimate(80.0, 79.0, 81.0, 5700, "ms")}})
    assert len(figures) == 12
    assert sum(len(msgspec.json.encode(figure.spec)) for figure in figures) < 300_000


def test_a_run_in_which_nothing_was_answered_shows_its_failures() -> None:
    connection = duckdb.connect()
    connection.execute(
        "create table requests as select i::int as request, 'load' as phase, 'sql' as family, '' as session, 0 as turn,"
        " -1 as after, 0.0 as level, 0 as input_tokens, 8 as output_tokens, false as ignore_eos, '' as prompt_sha"
        " from range(5) t(i)"
    )
    connection.execute(
        "create table events as select i::int as request, kind, (i * 1000000 + moment)::bigint as at_ns, n,"
        " 0::bigint as bytes, note from range(5) t(i), (values ('due', 0, 0, ''), ('sent', 10, 1, 'new'),"
        " ('error', 900000, 500, 'http-500: no')) as e(kind, moment, n, note)"
    )
    connection.execute("create table samples(source varchar, name varchar, device varchar, at_ns bigint, value double)")
    views.install(connection, manifest(5))
    names = {figure.heading.name: figure for figure in run_figures(connection, {})}
    assert {"errors", "concurrency", "lateness", "timeline"} == set(names)
    assert "5 of 5 requests" in names["errors"].heading.caption


def test_a_run_that_sent_nothing_has_no_picture(small: duckdb.DuckDBPyConnection) -> None:
    connection = duckdb.connect()
    for table in ("requests", "events", "samples"):
        columns = small.execute(f"describe {table}").fetchall()
        connection.execute(f"create table {table}({', '.join(f'{name} {kind}' for name, kind, *_ in columns)})")
    views.install(connection, manifest(0))
    assert run_figures(connection, {}) == ()


def test_the_pictures_load_no_grammar_of_addresses() -> None:
    """It takes seconds to build, on every run of `dyno bench`, where another package's optional part has brought it."""
    script = "import sys, dynamometer.report.figure; print('lark' in sys.modules, 'rfc3987_syntax' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert said.split() == ["False", "False"]
