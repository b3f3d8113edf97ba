"""A first answer that makes no sense is found; one that does is let through."""

from __future__ import annotations

import pytest

from dynamometer.engines import sense

LONG = (
    "The capital of France is Paris. It lies on the river Seine in the north of the country and has been the seat of "
    "its government for most of the last thousand years. About two million people live in the city itself."
)


@pytest.mark.parametrize(
    "answer",
    [
        "The capital of France is Paris.",
        "Paris",
        LONG,
        "La capitale de la France est Paris. – Voilà !",
        "法国的首都是巴黎 (Paris)。フランスの首都はパリです。",
        "Paris\n\n| city | country |\n|------|---------|\n| Paris | France |",
        "Paris ..........",
    ],
)
def test_a_sound_answer_raises_no_doubt(answer: str) -> None:
    assert sense.doubt(answer) is None


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("", "empty"),
        ("  \n", "empty"),
        ("upona_m_l_l_l_l_l_l_l_l_l_l_l", "repeats the same few characters"),
        ("Paris " * 40, "repeats"),
        (
            "the city is the city is the city is the city is the city is the city is the city is the city is the city",
            "repeats",
        ),
        ("\ufffd\ufffd Paris \ufffd", "replacement characters"),
        ("Paris\x00\x01\x02\x03 is", "cannot be printed"),
        ("Paris мир سلام שלום ไทย नमस्ते", "mixes 6 scripts"),
        ("The quick brown fox.", "does not name Paris"),
    ],
)
def test_nonsense_is_found_and_its_text_is_shown(answer: str, why: str) -> None:
    doubt = sense.doubt(answer)
    assert doubt is not None
    assert why in doubt.message
    assert repr(answer[:120]) in doubt.message


def test_nonsense_never_stops_a_run() -> None:
    doubt = sense.doubt("blah")
    assert doubt is not None
    assert not doubt.fatal


def test_word_entropy_is_one_for_all_different_and_zero_for_all_equal() -> None:
    assert sense.word_entropy(["a", "b", "c", "d"]) == pytest.approx(1.0)
    assert sense.word_entropy(["a"] * 8) == 0.0
    # two words, four times each, of eight: 1 bit of the 3 possible
    assert sense.word_entropy(["a", "b"] * 4) == pytest.approx(1 / 3)
