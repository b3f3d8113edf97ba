"""Virtual time: order, stale wake-ups, and the arithmetic of a stretch of steps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamometer.sim.door import Door
from dynamometer.sim.kernel import NEVER, Timeline
from dynamometer.sim.sequence import Sequence
from dynamometer.sim.stretch import Stretch


class Bell:
    """Rings at given times and writes them down."""

    def __init__(self, name: str, times: list[float], log: list[tuple[float, str]]) -> None:
        self.wake_s, self._times, self._name, self._log = NEVER, times, name, log

    def act(self, now_s: float) -> None:
        self._log.append((now_s, self._name))
        if self._times:
            self.wake_s = self._times.pop(0)


def test_actors_act_in_order_of_time_and_equal_times_in_order_of_planning() -> None:
    log: list[tuple[float, str]] = []
    timeline = Timeline()
    timeline.wake(Bell("b", [3.0], log), 1.0)
    timeline.wake(Bell("a", [2.0, 3.0], log), 1.0)
    assert timeline.run() == 3.0
    assert log == [(1.0, "b"), (1.0, "a"), (2.0, "a"), (3.0, "b"), (3.0, "a")]


def test_an_actor_that_is_woken_earlier_does_not_act_at_its_old_time_too() -> None:
    log: list[tuple[float, str]] = []
    timeline, bell = Timeline(), Bell("x", [], log)
    timeline.wake(bell, 5.0)
    timeline.wake(bell, 2.0)
    timeline.run()
    assert log == [(2.0, "x")]


def test_a_run_stops_before_what_is_planned_after_its_end() -> None:
    log: list[tuple[float, str]] = []
    timeline = Timeline()
    timeline.wake(Bell("x", [1.5], log), 1.0)
    timeline.run(1.2)
    assert [at_s for at_s, _ in log] == [1.0]
    timeline.run()
    assert [at_s for at_s, _ in log] == [1.0, 1.5]


@given(st.floats(0, 10), st.floats(1e-4, 1), st.floats(0, 1e-3), st.integers(1, 400), st.floats(0, 30))
def test_the_step_at_a_time_is_the_first_that_ends_then_or_later(
    first: float, period: float, slope: float, steps: int, at_s: float
) -> None:
    run = Stretch(first, period, slope, steps)
    step = run.step_at(at_s)
    assert run.end_s(step) >= at_s or run.end_s(step) == pytest.approx(at_s, abs=1e-9)
    if step > 1:
        assert run.end_s(step - 1) < at_s
    ends = run.ends_s()
    assert ends == pytest.approx([first + sum(period + slope * j for j in range(i)) for i in range(steps)])


def test_requests_share_the_front_end_so_a_burst_leaves_late_and_close_together() -> None:
    door = Door(work_s=0.002, latency_s=0.0)
    burst = [Sequence(i, 0.0, 1, 1) for i in range(4)]
    for sequence in burst:
        door.enter(sequence, 0.0)
    assert door.next_s() == pytest.approx(0.008)  # four at a quarter of the speed
    assert door.leave(0.0079) == []
    assert door.leave(0.0081) == burst
    assert len(door) == 0


def test_a_newcomer_slows_down_who_is_inside() -> None:
    door = Door(0.002, 0.001)
    first, second = Sequence(0, 0.0, 1, 1), Sequence(1, 0.0, 1, 1)
    door.enter(first, 0.0)
    door.enter(second, 0.001)  # the first has half of its work left; together both run at half speed
    door.leave(1.0)
    assert first.visible_s == pytest.approx(0.001 + 2 * 0.001 + 0.001)
    assert second.visible_s == pytest.approx(0.003 + 0.001 + 0.001)


def test_a_front_end_without_work_only_delays() -> None:
    door = Door(0.0, 0.5)
    sequence = Sequence(0, 0.0, 1, 1)
    door.enter(sequence, 2.0)
    assert door.next_s() == 2.5
    assert door.leave(2.5) == [sequence]
