"""Tables: what is pasted is what was computed, at any width, without colour where none belongs."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console
from sample_run import manifest

from dynamometer.decisions.compare import Change, Comparison
from dynamometer.errors import RecordError
from dynamometer.report.run_tables import compare_table, load_text, runs_table
from dynamometer.report.table import Table, draw, estimates, markdown, plain, statistics_table, terminal
from dynamometer.types import Estimate, Load

ESCAPE = "\x1b"


def latency(n: int = 3000) -> dict[str, Estimate]:
    found = {
        name: Estimate(value, value * 0.9, value * 1.1, n, "ms")
        for name, value in {"mean": 101.2, "p50": 88.0, "p90": 142.4, "p95": 203.0, "p99": 1412.0}.items()
    }
    return {**found, "p999": Estimate(None, None, None, n, "ms", method=f"{n:,} samples; P99.9 needs 3,688")}


ROWS = {"TTFT (ms)": latency(), "E2E (ms)": latency()}


class Screen(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_number_that_the_sample_cannot_carry_is_a_reason_and_never_0() -> None:
    table = statistics_table("run", ROWS)
    column = table.columns.index("p99.9")
    assert [row[column] for row in table.rows] == ["n/a", "n/a"]
    assert table.notes == ("n/a: P99.9 needs 3,688 (TTFT, E2E)",)


def test_rows_with_different_reasons_have_a_note_each() -> None:
    other = {**latency(), "p999": Estimate(None, None, None, 3000, "ms", method="the answers came whole")}
    notes = statistics_table("run", {"TTFT (ms)": latency(), "E2E (ms)": other}).notes
    assert notes == ("n/a: P99.9 needs 3,688 (TTFT)", "n/a: p99.9, the answers came whole (E2E)")


def test_a_cell_holds_the_value_and_its_interval() -> None:
    [first, _] = statistics_table("run", ROWS).rows
    assert first == (
        "TTFT (ms)",
        "101\n[91.1, 111]",
        "88\n[79.2, 96.8]",
        "142\n[128, 157]",
        "203\n[183, 223]",
        "1,412\n[1,271, 1,553]",
        "n/a",
        "3,000",
    )


@pytest.mark.parametrize("width", [40, 60, 80, 100, 160])
def test_no_number_is_lost_or_cut_at_any_width(width: int) -> None:
    text = plain(statistics_table("run", ROWS), width)
    assert max(map(len, text.splitlines())) <= width
    words = set(re.findall(r"[\d,.]+\d", text))
    assert {"101", "91.1", "142", "1,412", "1,271", "1,553", "3,000"} <= words


def test_plain_text_has_no_escape_codes_even_where_colour_is_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert ESCAPE not in plain(statistics_table("run", ROWS))


def test_a_pipe_gets_no_colour_and_a_terminal_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    for stream, coloured in ((io.StringIO(), False), (Screen(), True)):
        draw(statistics_table("run", ROWS), terminal(stream))
        assert (ESCAPE in stream.getvalue()) is coloured


def test_no_color_leaves_no_colour_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    stream = Screen()
    draw(Table("", ("", "x"), (("[red]a", "1\n[0, 2]"),)), terminal(stream))
    assert not re.search(r"\x1b\[(3|4|9|10)\d", stream.getvalue())


def test_markdown_has_as_many_cells_in_each_line_whatever_stands_in_them() -> None:
    hostile = "a|b\nc\\|d <img src=x>"
    table = Table("t|t", ("", "x|y", "z"), ((hostile, "1", hostile), ("b", "2", "")), (hostile,))
    lines = [line for line in markdown(table).splitlines() if line.startswith("|")]
    cells = [re.split(r"(?<!\\)\|", re.sub(r"\\\\", "", line))[1:-1] for line in lines]
    assert [len(row) for row in cells] == [3, 3, 3, 3]
    assert "<img" not in markdown(table)


def test_text_from_a_server_cannot_move_the_cursor() -> None:
    text = plain(Table("", ("", "says"), (("error", f"{ESCAPE}[2J{ESCAPE}]0;title\a\rgone"),)))
    assert not set(text) & {ESCAPE, "\a", "\r"}
    assert "gone" in text


def test_a_table_without_rows_is_only_its_head() -> None:
    assert "p50" in plain(statistics_table("", {}))
    assert markdown(statistics_table("", {})).count("\n") == 2


def test_single_figures_have_their_unit_and_their_reason() -> None:
    table = estimates(
        [
            ("output", Estimate(812.4, 790.0, 833.0, 60, "tokens/s")),
            ("goodput", Estimate(None, None, None, 0, "1/s", method="no objective")),
        ]
    )
    assert table.rows == (
        ("output", "812 tokens/s", "[790, 833]", "60"),
        ("goodput", "n/a", "no objective", "0"),
    )


def test_a_folder_lists_its_newest_run_first_and_names_a_damaged_one(tmp_path: Path) -> None:
    old = manifest(10, origin_wall_ns=1_700_000_000_000_000_000)
    table = runs_table([(tmp_path / "bad", RecordError("run.json is damaged")), (tmp_path / "old", old)])
    assert [Path(row[0]).name for row in table.rows] == ["old", "bad"]
    assert table.rows[0][1] == "2023-11-14 22:13"
    assert table.rows[0][4] == "complete, simulated, 1 doubt"
    assert "damaged" in table.rows[1][4]
    assert runs_table([]).notes == ("No run here yet; dyno bench makes one.",)


@pytest.mark.parametrize(
    ("load", "text"),
    [
        (Load("closed", concurrency=8), "closed, 8 in flight"),
        (Load("poisson", rate=12.5), "poisson, 12.5/s"),
        (Load("gamma", rate=3, options={"burstiness": "0.5"}), "gamma, 3/s, burstiness 0.5"),
        (Load("trace"), "trace"),
    ],
)
def test_a_load_is_said_in_words(load: Load, text: str) -> None:
    assert load_text(load) == text


def test_a_title_with_markup_is_printed_as_it_is() -> None:
    stream = io.StringIO()
    draw(Table("[bold]x[/bold] :smile:", ("", "v"), ()), Console(file=stream, width=80))
    assert "[bold]x[/bold] :smile:" in stream.getvalue()


def test_a_comparison_prints_no_percentile_that_the_sample_cannot_carry() -> None:
    def change(statistic: str, value: float | None, metric: str = "ttft") -> Change:
        told = Estimate(value, value, value, 20, "ms")
        return Change(metric, statistic, 100.0, 110.0, told, told, 5.0, "slower")

    changes = (change("mean", 10.0), change("p99", None), change("mean", 10.0, "ttft_due"))
    table = compare_table(Comparison(("a",), ("b",), 20, changes, ()))
    assert [row[0] for row in table.rows] == ["TTFT (ms) mean"]
    assert "Too few samples to compare p99 of every metric." in table.notes
