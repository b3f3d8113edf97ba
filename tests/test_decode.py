"""Wire logs to facts: crashes, retries, resumed runs, failures of the wire, and speed that does not hang on memory."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from wire_run import MS, body, start

from dynamometer.engines.openai import chat
from dynamometer.errors import RecordError
from dynamometer.record import decode as decoding
from dynamometer.record import log
from dynamometer.record.decode import decode, replay, replies
from dynamometer.record.rows import Events, Plan
from dynamometer.types import Chunk, EventKind

HI = b'data: {"choices":[{"index":0,"delta":{"content":"hi"}}]}\n\n'
END = b"data: [DONE]\n\n"


@pytest.fixture
def wire(tmp_path: Path) -> log.WireLog:
    return log.WireLog(tmp_path / "wire.log", 0)


def told(path: Path) -> dict[int, list[tuple[str, int, int, str]]]:
    """(kind, ms, n, note) by request."""
    return {
        one.request: [(fact.kind.value, fact.at_ns // MS, fact.n, fact.note) for fact in one.facts]
        for one in replay([path], chat)
    }


def test_every_request_ends_in_exactly_one_of_done_error_and_cancel(wire: log.WireLog) -> None:
    start(wire, 0)
    body(wire, [(5, HI), (6, END)], 7)
    start(wire, 1)
    wire.append(log.BODY, 1, 8 * MS, HI)
    wire.append(log.ERROR, 1, 9 * MS, b"connection-lost: reset by peer")
    start(wire, 2)
    wire.append(log.CANCEL, 2, 10 * MS, b"deadline")
    wire.append(log.PLAN, 3, 10 * MS, b'{"request":3}')
    wire.append(log.DUE, 3, 10 * MS)
    wire.append(log.ERROR, 3, 11 * MS, b"connect: refused")
    wire.close()
    ends = {request: facts[-1] for request, facts in told(wire.path).items()}
    assert ends == {
        0: ("done", 7, 0, ""),
        1: ("error", 9, 200, "connection-lost: reset by peer"),
        2: ("cancel", 10, 0, "deadline"),
        3: ("error", 11, 0, "connect: refused"),
    }
    assert [fact[0] for fact in told(wire.path)[0]] == ["due", "sent", "headers", "chunk", "done"]


def test_done_holds_the_size_of_the_body(wire: log.WireLog) -> None:
    start(wire)
    body(wire, [(5, HI), (6, END)], 7)
    wire.close()
    batches: list[Events] = []
    decode([wire.path], chat, batches.append)
    assert batches[0].bytes[-1] == len(HI) + len(END)
    assert batches[0].bytes.tolist()[:-1] == [0, 100, 0, 2]


@pytest.mark.parametrize("frame", [(log.ERROR, b"connection-lost: reset"), (log.CANCEL, b"deadline")])
def test_an_answer_whose_end_marker_was_read_is_complete_whatever_the_connection_did(
    wire: log.WireLog, frame: tuple[int, bytes]
) -> None:
    start(wire)
    wire.append(log.BODY, 0, 5 * MS, HI + END)
    wire.append(frame[0], 0, 9 * MS, frame[1])
    wire.close()
    assert told(wire.path)[0][-1][0] == "done"


def test_a_lost_connection_keeps_the_counts_that_came(wire: log.WireLog) -> None:
    start(wire)
    wire.append(log.BODY, 0, 5 * MS, HI + b'data: {"choices":[],"usage":{"prompt_tokens":4}}\n\n')
    wire.append(log.ERROR, 0, 9 * MS, b"connection-lost: reset")
    wire.close()
    assert told(wire.path)[0][-2:] == [("usage", 5, 4, "prompt"), ("error", 9, 200, "connection-lost: reset")]


def test_a_retry_starts_the_answer_anew(wire: log.WireLog) -> None:
    start(wire, status=429)
    wire.append(log.BODY, 0, 1 * MS, b'{"error":"busy"}')
    wire.append(log.RETRY, 0, 2 * MS, b"429 retry-after 1")
    wire.append(log.SENT, 0, 1000 * MS, b'{"attempt":2,"bytes":100,"connection":"reused"}')
    wire.append(log.HEADERS, 0, 1001 * MS, b'{"status":200,"headers":{}}')
    body(wire, [(1002, HI + END)], 1003)
    wire.close()
    assert [(kind, n) for kind, _, n, _ in told(wire.path)[0]] == [
        ("due", 0),
        ("sent", 1),
        ("headers", 429),
        ("retry", 1),
        ("sent", 2),
        ("headers", 200),
        ("chunk", 0),
        ("done", 0),
    ]


def test_what_a_crash_left_open_counts_as_interrupted_at_the_logs_last_moment(wire: log.WireLog) -> None:
    start(wire, 0)
    wire.append(log.BODY, 0, 5 * MS, HI)
    start(wire, 1, 8)
    wire.append(log.PLAN, 2, 9 * MS, b'{"request":2}')  # planned and never due: no rows
    wire.flush()
    wire.close()
    with wire.path.open("ab") as file:
        file.write(b"\x05torn")
    found = told(wire.path)
    assert sorted(found) == [0, 1]
    assert found[0][-2:] == [("chunk", 5, 0, "content"), ("cancel", 9, 0, "interrupt")]
    assert found[1][-1] == ("cancel", 9, 0, "interrupt")


def test_a_request_that_was_interrupted_and_asked_again_counts_once(wire: log.WireLog) -> None:
    start(wire, 0)
    wire.append(log.CANCEL, 0, 5 * MS, b"interrupt")
    start(wire, 1)
    wire.append(log.CANCEL, 1, 5 * MS, b"interrupt")
    start(wire, 0, 100)
    body(wire, [(1, HI + END)], 2, at_ms=100)
    wire.close()
    found = list(replay([wire.path], chat))
    assert [(one.request, one.facts[0].at_ns // MS, one.facts[-1].kind.value) for one in found] == [
        (0, 100, "done"),
        (1, 0, "cancel"),
    ]


def test_counts_that_come_early_stand_at_their_time(wire: log.WireLog) -> None:
    start(wire)
    body(wire, [(1, b'data: {"choices":[],"usage":{"prompt_tokens":4}}\n\n'), (5, HI), (6, END)], 7)
    wire.close()
    batches: list[Events] = []
    decode([wire.path], chat, batches.append)
    columns = batches[0].columns()
    assert list(columns["kind"]) == ["due", "sent", "headers", "usage", "chunk", "done"]
    assert (columns["at_ns"][1:] >= columns["at_ns"][:-1]).all()


def test_batches_hold_whole_requests_and_all_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wires = [log.WireLog(tmp_path / f"wire.{shard}.log", 0) for shard in range(2)]
    for request in range(20):
        start(wires[request % 2], request, request)
        body(wires[request % 2], [(1, HI), (2, END)], 3, request, request)
    for wire in wires:
        wire.close()
    monkeypatch.setattr(decoding, "BATCH_ROWS", 12)
    batches: list[Events] = []
    plans = decode(log.shards(tmp_path), chat, batches.append)
    assert sorted(plan.request for plan in plans) == list(range(20))
    assert len(batches) > 5
    seen = [set(batch.request.tolist()) for batch in batches]
    assert sum(map(len, seen)) == len(set().union(*seen)) == 20
    assert sum(map(len, batches)) == 20 * 5


def test_frames_without_a_plan_still_make_a_request(wire: log.WireLog) -> None:
    wire.append(log.DUE, 4, MS)
    wire.append(log.BODY, 4, 2 * MS, HI)  # without headers: nothing can be made of it
    wire.append(log.END, 4, 3 * MS)
    wire.close()
    plans: dict[int, Plan] = {}
    (one,) = replay([wire.path], chat, plans)
    assert plans == {4: Plan(4)}
    assert (one.facts[-1].kind, one.facts[-1].note) == (
        EventKind.ERROR,
        "malformed: the exchange ended before any answer",
    )


def test_a_damaged_payload_is_named(wire: log.WireLog) -> None:
    wire.append(log.PLAN, 4, MS, b"{")
    wire.close()
    with pytest.raises(RecordError, match="request 4 is damaged"):
        list(replay([wire.path], chat, {}))


def test_replies_hold_every_channel(wire: log.WireLog) -> None:
    start(wire)
    thought = b'data: {"choices":[{"delta":{"reasoning":"hm"}}]}\n\n'
    body(wire, [(1, thought + HI + b'data: {"choices":[{"delta":{},"finish_reason":"length"}]}\n\n')], 2)
    wire.close()
    ((request, reply),) = replies([wire.path], chat)
    assert (request, reply.text, reply.reasoning, reply.finish, reply.error) == (0, "hi", "hm", "length", "")


def test_an_empty_log_has_no_rows(wire: log.WireLog) -> None:
    wire.close()
    batches: list[Events] = []
    assert decode([wire.path], chat, batches.append) == []
    assert [len(batch) for batch in batches] == [0]


def test_reads_parsed_many_at_once_give_what_they_give_one_by_one(wire: log.WireLog) -> None:
    texts = ["a", "b", 'q"uote', "c", "ü", "é", "d", "e\\n", "f", "g"]
    events = [b'data: {"choices":[{"index":0,"delta":{"content":%s}}]}\n\n' % msgspec.json.encode(t) for t in texts]
    torn = [events[2][:30], events[2][30:]]
    reads = [*events[:2], *torn, *events[3:7], events[7] + events[8], events[9], END]
    start(wire)
    body(wire, [(5 + at, read) for at, read in enumerate(reads)], 40)
    wire.close()
    parser = chat.parser(200, {})
    one_by_one = [chunk for at, read in enumerate(reads) for chunk in parser.feed(read, (5 + at) * MS)]
    [whole] = list(replay([wire.path], chat))
    assert [fact for fact in whole.facts if isinstance(fact, Chunk)] == one_by_one
    rows: list[Events] = []
    decode([wire.path], chat, rows.append)
    columns = rows[0].columns()
    chunk = columns["kind"] == "chunk"
    assert columns["at_ns"][chunk].tolist() == [fact.at_ns for fact in one_by_one]
    assert columns["bytes"][chunk].tolist() == [len(fact.text.encode()) for fact in one_by_one]
    assert replies([wire.path], chat).__next__()[1].text == "".join(json.loads(msgspec.json.encode(t)) for t in texts)
