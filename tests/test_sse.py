"""Event streams by the rules of the HTML standard, in any split."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamometer.engines import sse
from dynamometer.engines.sse import Splitter


def split(*reads: bytes) -> list[tuple[str, bytes]]:
    splitter = Splitter()
    return [event for read in reads for event in splitter.feed(read)] + splitter.close()


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_every_line_end_ends_a_line(end: bytes) -> None:
    assert split(b"data: a" + end + b"data:b" + end + end + b"data: c" + end + end) == [("", b"a\nb"), ("", b"c")]


def test_only_one_space_after_the_colon_is_removed() -> None:
    assert split(b"data:  two\n\ndata:none\n\n") == [("", b" two"), ("", b"none")]


def test_an_event_is_told_by_the_read_that_completes_it() -> None:
    splitter = Splitter()
    assert splitter.feed(b"data: a\r\n\r") == [("", b"a")]
    assert splitter.feed(b"\n") == []
    assert splitter.feed(b"data: b\r\r") == [("", b"b")]
    assert splitter.feed(b"data: c\n") == []
    assert splitter.feed(b"\n") == [("", b"c")]


def test_comments_and_named_events_without_data_are_frames() -> None:
    assert split(b": hello\n:\nevent: ping\n\ndata\n\n") == [(":", b"hello"), (":", b""), ("ping", b""), ("", b"")]


def test_ids_and_retry_times_make_no_event() -> None:
    assert split(b"id: 7\nretry: 10\n\nunknown: x\nno colon\n\n") == []


def test_an_events_name_does_not_outlive_it() -> None:
    assert split(b"event: error\ndata: x\n\ndata: y\n\n") == [("error", b"x"), ("", b"y")]


@pytest.mark.parametrize("reads", [[b"\xef\xbb\xbfdata: a\n\n"], [b"\xef", b"\xbb", b"\xbfdata: a\n\n"]])
def test_a_byte_order_mark_is_no_data(reads: list[bytes]) -> None:
    assert split(*reads) == [("", b"a")]


def test_what_looks_like_a_byte_order_mark_and_is_none_is_kept() -> None:
    assert split(b"\xef", b"\xbb") == []  # a line without a field name that anybody knows
    assert split(b"\xef", b"data: a\n\ndata: b\n\n") == [("", b"b")]


def test_the_last_event_counts_without_its_blank_line() -> None:
    assert split(b"data: a\n\ndata: [DONE]") == [("", b"a"), ("", b"[DONE]")]


def test_a_long_line_in_small_reads_is_one_event() -> None:
    text = b"x" * 900_000
    stream = b"data: " + text + b"\n\n"
    assert split(*(stream[at : at + 16384] for at in range(0, len(stream), 16384))) == [("", text)]


@pytest.mark.parametrize("line", [b"data: ", b"data: x\ndata: "])
def test_an_event_beyond_the_limit_overflows_and_frees_its_memory(line: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 1000)
    splitter = Splitter()
    splitter.feed(line)
    for _ in range(100):
        splitter.feed(b"y" * 100)
        assert len(splitter._tail) <= 1100
    assert splitter.overflow


def test_many_small_lines_of_one_event_overflow_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 1000)
    splitter = Splitter()
    for _ in range(200):
        splitter.feed(b"data: 12345\n")
    assert splitter.overflow


LINES = st.sampled_from([b"data: a", b"data:b", b"data", b":c", b"event: e", b"id: 1", b"", b"x", b"data: \xc3\xa9"])
ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])


@given(st.lists(st.tuples(LINES, ENDS), max_size=30), st.lists(st.integers(0, 300), max_size=12))
def test_any_split_gives_the_same_events(lines: list[tuple[bytes, bytes]], cuts: list[int]) -> None:
    stream = b"".join(line + end for line, end in lines)
    places = sorted({min(cut, len(stream)) for cut in cuts} | {0, len(stream)})
    pieces = [stream[a:b] for a, b in pairwise(places)]
    assert split(*pieces) == split(stream)
    assert split(*(bytes([byte]) for byte in stream)) == split(stream)


@given(st.lists(st.tuples(LINES, ENDS), max_size=30))
def test_the_fast_way_and_the_rules_line_by_line_agree(lines: list[tuple[bytes, bytes]]) -> None:
    """The rules of the standard, written down plainly, over text that is complete."""
    stream = b"".join(line + end for line, end in lines)
    found: list[tuple[str, bytes]] = []
    data: list[bytes] = []
    name, seen = "", False
    for line in stream.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")[:-1]:
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if not line:
            if seen or name:
                found.append((name, b"\n".join(data)))
            data, name, seen = [], "", False
        elif not field:
            found.append((":", value))
        elif field == b"data":
            data.append(value)
            seen = True
        elif field == b"event":
            name = value.decode()
    if seen or name:
        found.append((name, b"\n".join(data)))
    assert split(stream) == found


@given(st.lists(st.binary(max_size=40), max_size=20))
def test_garbage_never_raises(reads: list[bytes]) -> None:
    split(*reads)
