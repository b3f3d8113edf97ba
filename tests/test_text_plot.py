"""Pictures of characters: where the marks stand."""

from __future__ import annotations

from dynamometer.report.text_plot import text_bars, text_map, text_plot


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


def test_a_map_is_darkest_where_most_is_and_empty_where_nothing_was_measured() -> None:
    rows = text_map({(1, 64): 10, (1, 512): 5, (8, 64): 80}, ("batch", "context")).splitlines()
    assert rows[0].split() == ["batch", "│", "64", "512", "context"]
    assert rows[2].split() == ["1", "│", "░░", "10", "░░", "5"] or rows[2].split() == ["1", "│", "▒▒", "10", "░░", "5"]
    assert rows[3].split() == ["8", "│", "██", "80"]
    assert text_map({(1, 64): 10}, ("a", "b"), plain=True).isascii()


def test_bars_go_from_none_to_their_value_and_show_the_interval() -> None:
    up, down = text_bars([("flash", 1.2, 1.1, 1.3), ("b", 0.8, None, None)], 1.0, width=51).splitlines()
    assert up.startswith("flash ")
    assert down.startswith("    b ")
    field = up[6:57]
    assert (field.index("│"), field.index("●")) == (20, 40)
    assert field[41:51] == "·" * 10
    assert "▓" in field[30:40]
    assert down[6:57].index("●") == 0
    assert text_bars([], 1.0) == ""
    assert text_bars([("a", 1.0, None, None)], 1.0, plain=True).isascii()
