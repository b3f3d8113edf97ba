"""The append-only log: what was finished can be read, whatever happened to the process, the file or the disk."""

from __future__ import annotations

import errno
import os
import signal
import struct
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamometer.errors import MissingPath, RecordError
from dynamometer.record.log import (
    BODY,
    CANCEL,
    DUE,
    END,
    ERROR,
    HEAD,
    PLAN,
    SENT,
    Frame,
    SampleLog,
    WireLog,
    reached,
    read_frames,
    read_samples,
    shards,
)
from dynamometer.types import Sample

FRAMES: list[Frame] = [
    (PLAN, 0, 10, b"{}"),
    (DUE, 0, 10, b""),
    (SENT, 0, 11, b'{"attempt":1}'),
    (BODY, 0, 20, b"x" * 700),
    (END, 0, 21, b""),
]


def write(path: Path, frames: list[Frame], origin_ns: int = 0) -> None:
    log = WireLog(path, origin_ns)
    for kind, request, at_ns, payload in frames:
        log.append(kind, request, at_ns + origin_ns, payload)
    log.close()


def test_frames_come_back_as_written_counted_from_the_origin(tmp_path: Path) -> None:
    write(tmp_path / "wire.log", FRAMES, origin_ns=1_000_000)
    assert list(read_frames(tmp_path / "wire.log")) == FRAMES


def test_a_frame_is_laid_out_as_the_record_says(tmp_path: Path) -> None:
    write(tmp_path / "wire.log", [(BODY, 7, 9, b"ab")])
    assert (tmp_path / "wire.log").read_bytes() == struct.pack("<BIqI", 5, 7, 9, 2) + b"ab"


@given(cut=st.integers(0, 5 * HEAD.size + 715))
def test_a_log_torn_at_any_byte_gives_all_whole_frames_and_no_other(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    path = tmp_path_factory.mktemp("torn") / "wire.log"
    write(path, FRAMES)
    data = path.read_bytes()
    path.write_bytes(data[:cut])
    read = list(read_frames(path))
    assert read == FRAMES[: len(read)]
    whole = sum(HEAD.size + len(frame[3]) for frame in read)
    following = HEAD.size + len(FRAMES[len(read)][3]) if len(read) < len(FRAMES) else 1
    assert whole <= cut < whole + following or cut >= len(data)


def test_a_resumed_log_loses_its_torn_tail_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "wire.log"
    write(path, FRAMES)
    with path.open("ab") as file:
        file.write(HEAD.pack(BODY, 1, 30, 100) + b"only a few")
    write(path, [(END, 1, 40, b"")])
    assert list(read_frames(path)) == [*FRAMES, (END, 1, 40, b"")]


def test_zeros_after_a_power_cut_are_a_torn_tail(tmp_path: Path) -> None:
    path = tmp_path / "wire.log"
    write(path, FRAMES)
    with path.open("ab") as file:
        file.write(bytes(200_000))
    assert list(read_frames(path)) == FRAMES


def test_damage_in_the_middle_is_said_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "wire.log"
    write(path, FRAMES)
    data = bytearray(path.read_bytes())
    data[HEAD.size + 2] = 99  # the kind of the second frame
    path.write_bytes(data)
    with pytest.raises(RecordError, match=r"wire\.log is damaged at byte 19: frame kind 99"):
        list(read_frames(path))


def test_an_empty_log_has_no_frames_and_a_missing_one_is_said(tmp_path: Path) -> None:
    (tmp_path / "wire.log").touch()
    assert list(read_frames(tmp_path / "wire.log")) == []
    with pytest.raises(MissingPath, match="there is no log"):
        list(read_frames(tmp_path / "nothing.log"))


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    log = WireLog(tmp_path / "wire.log", 0)
    with pytest.raises(RecordError, match="being written by another process"):
        WireLog(tmp_path / "wire.log", 0)
    log.close()


def test_a_folder_that_cannot_be_written_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="cannot be written: No such file or directory; give another --out"):
        WireLog(tmp_path / "no" / "wire.log", 0)


def test_a_finished_request_reaches_the_kernel_at_once_and_an_unfinished_one_when_told(tmp_path: Path) -> None:
    path = tmp_path / "wire.log"
    log = WireLog(path, 0)
    for kind, request, at_ns, payload in FRAMES[:-1]:
        log.append(kind, request, at_ns, payload)
    assert list(read_frames(path)) == []
    log.append(*FRAMES[-1])
    assert list(read_frames(path)) == FRAMES
    log.append(PLAN, 1, 50, b"{}")
    log.flush()
    assert len(list(read_frames(path))) == len(FRAMES) + 1
    log.append(BODY, 1, 60, b"y" * 300_000)
    assert len(list(read_frames(path))) == len(FRAMES) + 2
    log.close()


WRITER = """
    import sys
    from pathlib import Path
    from dynamometer.record.log import BODY, END, PLAN, WireLog

    log = WireLog(Path(sys.argv[1]), 0)
    request = 0
    while True:
        log.append(PLAN, request, request, b"{}")
        for _ in range(20):
            log.append(BODY, request, request, b"z" * 997)
        log.append(END, request, request)
        print(request, flush=True)
        request += 1
"""


def test_kill_9_at_any_moment_leaves_every_finished_request_readable(tmp_path: Path) -> None:
    path = tmp_path / "wire.log"
    for round_ in range(3):
        command = [sys.executable, "-c", textwrap.dedent(WRITER), str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            for _ in range(200 + 37 * round_):
                last = int(writer.stdout.readline())
            os.kill(writer.pid, signal.SIGKILL)
            writer.wait()
        frames = list(read_frames(path))
        ended = [frame[1] for frame in frames if frame[0] == END]
        assert ended[-1] >= last
        bodies = sum(1 for frame in frames if frame[0] == BODY and frame[1] == last)
        assert bodies % 20 == 0
        assert bodies > 0


FULL = """
    import resource, sys
    from pathlib import Path
    from dynamometer.record.log import BODY, END, WireLog

    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    log = WireLog(Path(sys.argv[1]), 0)
    for request in range(400):
        log.append(BODY, request, request, b"z" * 983)
        log.append(END, request, request)
    log.close()
    print(log.failed)
"""


def test_a_file_that_cannot_grow_keeps_what_it_has_and_says_why(tmp_path: Path) -> None:
    path = tmp_path / "wire.log"
    command = [sys.executable, "-c", textwrap.dedent(FULL), str(path)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said.strip() == f"{path} cannot grow: {os.strerror(errno.EFBIG)}; the record holds what came before"
    ended = [frame[1] for frame in read_frames(path) if frame[0] == END]
    assert ended == list(range(len(ended)))
    assert len(ended) >= 97  # 100,000 bytes hold 98 requests of 1,017


def test_a_full_device_is_no_exception_on_the_hot_path() -> None:
    log = WireLog(Path("/dev/full"), 0)
    log.append(END, 0, 1)
    assert log.failed == "/dev/full cannot grow: No space left on device; the record holds what came before"
    log.append(END, 1, 2)
    log.close()


def test_reached_tells_which_requests_need_not_be_asked_again(tmp_path: Path) -> None:
    write(
        tmp_path / "wire.log",
        [
            (PLAN, 0, 1, b"{}"),
            (END, 0, 5, b""),
            (PLAN, 1, 2, b"{}"),
            (ERROR, 1, 6, b"timeout: x"),
            (PLAN, 2, 3, b"{}"),
            (CANCEL, 2, 7, b"interrupt"),
            (PLAN, 3, 3, b"{}"),
            (CANCEL, 3, 8, b"deadline"),
            (PLAN, 4, 4, b"{}"),
            (BODY, 4, 9, b"torn"),
        ],
    )
    got = reached(shards(tmp_path))
    assert got.finished == {0, 1, 3}
    assert got.last_at_ns == 9


def test_shards_of_workers_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for name in ("wire.10.log", "wire.2.log", "wire.log", "wire.x.log", "other.log"):
        (tmp_path / name).touch()
    assert [path.name for path in shards(tmp_path)] == ["wire.log", "wire.2.log", "wire.10.log"]


def test_samples_come_back_and_a_torn_line_is_left_out_and_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    one = Sample("host", "cpu_foreign_cores", "", 5, 0.25)
    log = SampleLog(path)
    log.append([one])
    log.close()
    with path.open("ab") as file:
        file.write(b'{"source":"ho')
    assert list(read_samples(path)) == [one]
    log = SampleLog(path)
    log.append([one, one])
    log.close()
    assert list(read_samples(path)) == [one] * 3
    assert list(read_samples(tmp_path / "none.jsonl")) == []


def test_a_damaged_sample_is_said_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    path.write_text('{"source":1}\n')
    with pytest.raises(RecordError, match=r"samples\.jsonl:1 is not a sample"):
        list(read_samples(path))
