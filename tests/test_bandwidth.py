"""The machine's own memory bandwidth: a real measurement, and its arithmetic under a clock that is given."""

from __future__ import annotations

from itertools import count

import pytest

from dynamometer.errors import Refused, UsageError
from dynamometer.hardware import probe
from dynamometer.record.clock import now_ns


def test_bytes_over_the_clocks_time_are_the_bandwidth() -> None:
    ticks = count(0, 1_000_000)
    rows = {row.kernel: row for row in probe.measure(lambda: next(ticks), 8 * 4096, threads=1, repeats=3)}
    assert rows["copy"].estimate.value == pytest.approx(2 * 8 * 4096 / 1e-3)
    assert rows["triad"].estimate.value == pytest.approx(3 * 8 * 4096 / 1e-3)
    assert rows["read"].estimate.n == 2


def test_this_machine_has_a_bandwidth_between_a_toaster_and_the_best_socket_sold() -> None:
    for row in probe.measure(now_ns, 32 * 2**20, repeats=3):
        assert row.estimate.value is not None
        assert row.estimate.low is not None
        assert 0.2e9 < row.estimate.low <= row.estimate.value < 3e12


def test_arrays_that_do_not_fit_are_refused_before_they_are_made() -> None:
    with pytest.raises(Refused, match="do not fit"):
        probe.measure(now_ns, 2**50)
    with pytest.raises(UsageError):
        probe.measure(now_ns, repeats=1)
