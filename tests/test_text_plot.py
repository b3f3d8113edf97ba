"""Pictures of characters: where the marks stand."""

from __future__ import annotations

from dynamometer.report.text_plot import text_plot


def test_points_stand_where_their_values_put_them() -> None:
    rows = text_plot([], [(1, 0.0), (10, 50.0), (100, 100.0)], size=(21, 11)).splitlines()
    field = [row.partition("│")[2] for row in rows[:11]]
    assert [(i, row.index("●")) for i, row in enumerate(field) if "●" in row] == [(0, 20), (5, 10), (10, 0)]
    assert rows[0].startswith("100 ")
    assert rows[12].split() == ["1", "10", "100"]


def test_the_rule_stands_at_its_value_with_its_word_below() -> None:
    rows = text_plot([(1, 1), (100, 1)], [], (10, "knee"), size=(21, 5)).splitlines()
    assert rows[2].partition("│")[2][10] == "│"
    assert rows[-1].strip() == "knee"


def test_labels_that_would_touch_are_left_out() -> None:
    ticks = text_plot([], [(x, 1) for x in range(100, 130)], size=(30, 3)).splitlines()[-1]
    assert ticks.split()[0] == "100"
    assert all(len(word) == 3 for word in ticks.split())


def test_plain_is_ascii() -> None:
    assert text_plot([(1, 1), (2, 2)], [(1, 1)], (1.5, "k"), plain=True).isascii()


def test_one_point_zero_values_and_nothing_at_all_are_no_trouble() -> None:
    assert "●" in text_plot([], [(5, 0)])
    assert text_plot([], []) == ""
