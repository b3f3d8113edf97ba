"""The live view: what it shows, how seldom it draws, and that it stays silent when asked."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from dynamometer.report.live import Progress, line, remaining_s, share, sparkline, view, watch

FULL = Progress(
    "load",
    elapsed_s=30.0,
    done=90,
    failed=10,
    in_flight=8,
    planned=200,
    first_ms=(50.0, 100.0, 200.0),
    late_ms=(0.1, 0.4),
    last_error="http-500: \x1b[31mboom\nsecond line",
)


def console(terminal: bool, width: int = 100) -> tuple[Console, io.StringIO]:
    stream = io.StringIO()
    return Console(
        file=stream, force_terminal=terminal, width=width, color_system="standard" if terminal else None
    ), stream


def run(show_for_s: float, every_s: float, terminal: bool) -> str:
    target, stream = console(terminal)
    with watch("title", target) as show:
        for at in range(round(show_for_s / every_s)):
            show(Progress("load", at * every_s, done=at, in_flight=1, planned=10_000))
    return stream.getvalue()


def test_a_terminal_is_redrawn_twice_a_second_at_most() -> None:
    drawn = run(10, 0.01, terminal=True).count("in flight")
    assert 19 <= drawn <= 22  # 20 and the last one, drawn again when the view ends


def test_a_log_gets_a_line_every_ten_seconds_without_escape_codes() -> None:
    text = run(100, 0.1, terminal=False)
    assert len(text.splitlines()) == 10
    assert "\x1b" not in text


def test_a_new_phase_is_shown_at_once() -> None:
    target, stream = console(terminal=False)
    with watch("title", target) as show:
        for phase in ("warm-up", "load", "waiting for the last answers"):
            show(Progress(phase, 0.1))
    assert [row.split(" 0:")[0] for row in stream.getvalue().splitlines()] == [
        "warm-up",
        "load",
        "waiting for the last answers",
    ]


def test_a_clock_that_starts_anew_for_the_load_is_not_waited_for() -> None:
    target, stream = console(terminal=False)
    with watch("title", target) as show:
        show(Progress("load", 500.0))
        show(Progress("load", 1.0))
    assert len(stream.getvalue().splitlines()) == 2


def test_quiet_writes_nothing() -> None:
    target, stream = console(terminal=True)
    with watch("title", target, quiet=True) as show:
        show(FULL)
    assert stream.getvalue() == ""


def test_a_line_says_what_happened_and_nothing_that_did_not() -> None:
    assert line(FULL) == (
        "load 0:30, 90/200 answered, 10 failed, 8 in flight, 3 answers/s, first bytes 100 ms, late 0.4 ms, "
        "http-500: \N{REPLACEMENT CHARACTER}[31mboom\nsecond line"
    ).replace("\n", " ")
    assert line(Progress("load", 0.0)) == "load 0:00, 0 answered, 0 failed, 0 in flight"


def test_the_view_fits_its_terminal_and_no_error_can_move_the_cursor() -> None:
    for width in (40, 80, 200):
        target, stream = console(terminal=False, width=width)
        target.print(view("bench", FULL, target))
        text = stream.getvalue()
        assert "\x1b" not in text
        assert max(map(len, text.splitlines())) <= width
        assert "100/200" in text
        assert 6 <= len(text.splitlines()) <= 7  # the pace takes a second line where there is no room


@pytest.mark.parametrize(
    ("now", "part", "left_s"),
    [
        (Progress("load", 30.0, done=50, planned=200), 0.25, 90.0),
        (Progress("load", 30.0, expected_s=120.0), 0.25, 90.0),
        (Progress("load", 30.0, done=50, planned=200, expected_s=40.0), 0.75, 10.0),
        (Progress("load", 30.0, done=300, planned=200), 1.0, 0.0),
        (Progress("load", 0.0, planned=200), 0.0, None),
        (Progress("load", 30.0), None, None),
    ],
)
def test_of_two_ends_the_nearer_one_counts(now: Progress, part: float | None, left_s: float | None) -> None:
    assert share(now) == part
    assert remaining_s(now) == (None if left_s is None else pytest.approx(left_s))


def test_a_sparkline_goes_from_zero_to_the_largest() -> None:
    assert sparkline([0, 1, 2, 4, 8], 10) == "▁▂▃▅█"
    assert sparkline([0, 8], 10, blocks=False) == "_#"
    assert sparkline(range(100), 3) == "███"
    assert sparkline([0.0, 0.0], 5) == "▁▁"
    assert sparkline([], 5) == ""
    assert sparkline([-1.0, 2.0], 5) == "▁█"


def test_a_long_run_shows_hours() -> None:
    assert line(Progress("load", 3661.0)).startswith("load 1:01:01,")
