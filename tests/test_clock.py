"""The clock: one time axis that nothing can step back."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from dynamometer.record.clock import Origin, RunClock, VirtualClock, continued, now_ns, origin, utc, wall_ns

PACKAGE = Path(__file__).parent.parent / "src" / "dynamometer"


def test_an_origin_reads_both_clocks_at_one_moment() -> None:
    offset_ns = wall_ns() - now_ns()
    at = origin()
    assert abs((at.wall_ns - at.monotonic_ns) - offset_ns) < 5_000_000
    assert 0 <= now_ns() - at.monotonic_ns < 1_000_000_000


def test_the_run_clock_counts_from_its_origin() -> None:
    clock = RunClock(Origin(wall_ns=0, monotonic_ns=now_ns() - 7_000_000_000))
    first = clock.now_ns()
    assert 7_000_000_000 <= first < 8_000_000_000
    assert clock.now_ns() >= first


def test_a_step_of_the_wall_clock_changes_no_duration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case B09: the wall clock goes back 2 s between the first and the last token."""
    import time

    start = origin()
    clock = RunClock(start)
    sent = clock.now_ns()
    monkeypatch.setattr(time, "time_ns", lambda: start.wall_ns - 2_000_000_000)
    assert clock.now_ns() - sent >= 0


def test_a_resumed_run_goes_on_a_second_after_its_last_event() -> None:
    clock = RunClock(continued(last_at_ns=40_000_000_000))
    assert 41_000_000_000 <= clock.now_ns() < 41_500_000_000


def test_virtual_time_moves_only_forward() -> None:
    clock = VirtualClock()
    clock.move_to(5)
    clock.move_to(5)
    assert clock.now_ns() == 5
    with pytest.raises(ValueError, match="cannot go back"):
        clock.move_to(4)


def test_a_wall_reading_is_shown_in_utc() -> None:
    assert utc(0).isoformat() == "1970-01-01T00:00:00+00:00"


def test_no_other_file_reads_a_clock() -> None:
    readers = []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            if "time" in names:
                readers.append(str(path.relative_to(PACKAGE)))
    assert readers == ["record/clock.py"]
