"""Engines inside the process: the same rows as over a wire, from a scripted engine and from the real ones."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from itertools import count, pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamometer.client import inprocess
from dynamometer.engines import sense
from dynamometer.engines.inprocess import Emission, load
from dynamometer.engines.inprocess.lines import inprocess as dialect
from dynamometer.engines.inprocess.lines import line
from dynamometer.engines.inprocess.text import Words
from dynamometer.engines.recipes import Settings
from dynamometer.errors import DynoError, UsageError
from dynamometer.record.clock import now_ns
from dynamometer.record.decode import decode
from dynamometer.record.log import WireLog, read_frames
from dynamometer.types import Chunk, EventKind, Experiment, Load, Message, Request, Schedule, Target, Workload


class Scripted:
    """An engine that makes one token a request and step, at most `slots` at once; each step takes `step_s`."""

    def __init__(self, slots: int = 2, step_s: float = 0.0, fails: frozenset[int] = frozenset()) -> None:
        self.facts = {"engine": "scripted", "slots": slots}
        self.slots, self.step_s, self.fails = slots, step_s, fails
        self.queue: list[Request] = []
        self.made: dict[int, int] = {}
        self.most_at_once = self.steps = 0
        self.cancelled: list[int] = []
        self.interrupt_at = 0

    def submit(self, request: Request, turns: list[dict[str, str]]) -> None:
        assert turns[-1]["role"] == "user"
        self.queue.append(request)
        self.most_at_once = max(self.most_at_once, len(self.queue))

    def step(self) -> list[Emission]:
        threading.Event().wait(self.step_s)
        self.steps += 1
        if self.steps == self.interrupt_at:
            os.kill(os.getpid(), signal.SIGINT)
        at_ns = now_ns()
        return [one for request in self.queue[: self.slots] for one in [self._token(request, at_ns)]]

    def _token(self, request: Request, at_ns: int) -> Emission:
        n = self.made[request.index] = self.made.get(request.index, 0) + 1
        if request.index in self.fails:
            self.queue.remove(request)
            return Emission(request.index, at_ns, error="engine: broke")
        if n == request.output_tokens:
            self.queue.remove(request)
            return Emission(request.index, at_ns, f"t{n}", 1, "length", 7, n)
        return Emission(request.index, at_ns, f"t{n}", 1)

    def cancel(self, request: int) -> None:
        self.cancelled.append(request)
        self.queue = [one for one in self.queue if one.index != request]

    def close(self) -> None:
        pass


def asked(after: int = -1) -> Iterator[Request]:
    return (Request(i, (Message("user", f"q{i}"),), 4, after=after, ignore_eos=True) for i in count())


def experiment(load: Load, requests: int = 0, duration_s: float = 0.0, warmup: int = 0) -> Experiment:
    target = Target("inprocess://scripted", api="inprocess")
    return Experiment("test", target, Workload(), load, requests, duration_s, warmup)


def rows(log: Path) -> list[tuple[int, str, int, int, str]]:
    """(request, kind, at_ns, n, note) of a log, as any reader gets them."""
    found: list[tuple[int, str, int, int, str]] = []

    def take(events: object) -> None:
        columns = events.columns()  # type: ignore[attr-defined]
        found.extend(zip(*(columns[name].tolist() for name in ("request", "kind", "at_ns", "n", "note")), strict=True))

    decode([log], dialect, take)
    return found


def test_a_closed_loop_keeps_its_streams_full_and_every_request_has_its_rows(tmp_path: Path) -> None:
    engine, log = Scripted(slots=3), WireLog(tmp_path / "wire.log", now_ns())
    told = inprocess.run(
        engine, experiment(Load("closed", 3), requests=8, warmup=2), asked(), None, log, lambda _: None
    )
    log.close()
    assert (told.status, told.asked, told.ended, told.failed) == ("complete", 8, 8, 0)
    assert engine.most_at_once == 3
    by_request: dict[int, list[str]] = {}
    for request, kind, *_ in rows(tmp_path / "wire.log"):
        by_request.setdefault(request, []).append(kind)
    assert set(by_request) == set(range(10))
    for kinds in by_request.values():
        assert kinds[:3] == ["due", "sent", "headers"]
        assert kinds.count("chunk") == 4
        assert kinds[-1] == "done"


def test_tokens_and_counts_are_the_engines_own(tmp_path: Path) -> None:
    log = WireLog(tmp_path / "wire.log", now_ns())
    inprocess.run(Scripted(), experiment(Load("closed", 1), requests=1), asked(), None, log, lambda _: None)
    log.close()
    facts = [(kind, n, note) for _, kind, _, n, note in rows(tmp_path / "wire.log")]
    assert ("usage", 7, "prompt") in facts
    assert ("usage", 4, "output") in facts
    assert ("finish", 0, "length") in facts
    assert [n for kind, n, _ in facts if kind == "chunk"] == [1, 1, 1, 1]


def test_an_open_loop_keeps_its_schedule_whatever_the_engine_does(tmp_path: Path) -> None:
    due_s = np.array([0.0, 0.05, 0.1, 0.15])
    origin_ns = now_ns()
    log = WireLog(tmp_path / "wire.log", origin_ns)
    load = Load("constant", concurrency=0, rate=20)
    engine = Scripted(slots=1, step_s=0.03)  # 4 tokens x 30 ms: slower than the arrivals
    inprocess.run(
        engine, experiment(load, requests=4), asked(), Schedule("constant", 20, 0, due_s), log, lambda _: None
    )
    log.close()
    events = rows(tmp_path / "wire.log")
    due_ns = [at for _, kind, at, *_ in events if kind == "due"]
    np.testing.assert_allclose(np.diff(due_ns) / 1e9, 0.05, atol=1e-6)
    # a request is handed in within the step that runs when it falls due, however many wait
    late_s = [
        (s[2] - d[2]) / 1e9 for d, s in zip(*([e for e in events if e[1] == k] for k in ("due", "sent")), strict=True)
    ]
    assert sorted(late_s)[len(late_s) // 2] < 0.05
    assert engine.most_at_once >= 2


def test_a_duration_ends_the_asking_and_lets_answers_finish(tmp_path: Path) -> None:
    log = WireLog(tmp_path / "wire.log", now_ns())
    engine = Scripted(slots=2, step_s=0.01)
    told = inprocess.run(engine, experiment(Load("closed", 2), duration_s=0.2), asked(), None, log, lambda _: None)
    log.close()
    assert told.asked == told.ended >= 2
    assert told.cancelled == 0
    assert 0.2 <= (told.end_ns - told.start_ns) / 1e9 < 3


def test_an_engines_error_is_a_failure_and_never_an_answer(tmp_path: Path) -> None:
    log = WireLog(tmp_path / "wire.log", now_ns())
    engine = Scripted(fails=frozenset({1}))
    told = inprocess.run(engine, experiment(Load("closed", 2), requests=3), asked(), None, log, lambda _: None)
    log.close()
    assert (told.ended, told.failed) == (3, 1)
    assert [note for request, kind, _, _, note in rows(tmp_path / "wire.log") if kind == "error"] == ["engine: broke"]


def test_ctrl_c_cancels_what_is_in_flight_and_keeps_what_was_done(tmp_path: Path) -> None:
    log = WireLog(tmp_path / "wire.log", now_ns())
    engine = Scripted(slots=2)
    engine.interrupt_at = 22  # both answers, of four tokens each, are half made
    told = inprocess.run(engine, experiment(Load("closed", 2), requests=10_000), asked(), None, log, lambda _: None)
    log.close()
    assert told.status == "interrupted"
    assert told.cancelled == 2
    assert len(engine.cancelled) == 2
    ends = [kind for _, kind, *_ in rows(tmp_path / "wire.log") if kind in ("done", "cancel", "error")]
    assert ends.count("cancel") == 2
    assert ends.count("done") == told.ended > 0
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler  # the handler of before is back


def test_the_display_is_told_and_the_end_is_always_shown(tmp_path: Path) -> None:
    log = WireLog(tmp_path / "wire.log", now_ns())
    shown = []
    inprocess.run(Scripted(), experiment(Load("closed", 2), requests=5), asked(), None, log, shown.append)
    log.close()
    assert (shown[-1].phase, shown[-1].ended, shown[-1].in_flight) == ("load", 5, 0)


def test_a_conversation_is_refused_with_what_to_do(tmp_path: Path) -> None:
    log = WireLog(tmp_path / "wire.log", now_ns())
    with pytest.raises(UsageError, match="measure the engine's server"):
        inprocess.run(Scripted(), experiment(Load("closed", 1), requests=1), asked(after=3), None, log, lambda _: None)
    log.close()


def test_the_first_answer_is_the_whole_text() -> None:
    assert inprocess.first_answer(Scripted(), Request(0, (Message("user", "?"),), 3)) == "t1t2t3"
    with pytest.raises(DynoError, match="broke"):
        inprocess.first_answer(Scripted(fails=frozenset({0})), Request(0, (Message("user", "?"),), 3))


ANSWER = b"".join(
    line(one)
    for one in (
        Emission(3, 1, "Grüße", 2),
        Emission(3, 2, "", 1),
        Emission(3, 3, "\n{}", 1, "stop", 11, 4, 5),
    )
)


@given(st.lists(st.integers(0, len(ANSWER)), max_size=12))
def test_any_split_of_the_lines_gives_the_same_chunks(cuts: list[int]) -> None:
    def read(pieces: list[bytes]) -> list[Chunk]:
        parser = dialect.parser(200, {})
        return [chunk for piece in pieces for chunk in parser.feed(piece, 9)] + parser.close(9)

    edges = sorted({0, len(ANSWER), *cuts})
    pieces = [ANSWER[a:b] for a, b in pairwise(edges)]
    whole = read([ANSWER])
    assert read(pieces) == whole
    assert [c.text for c in whole if c.kind is EventKind.CHUNK] == ["Grüße", "", "\n{}"]
    assert [(c.note, c.n) for c in whole if c.kind is EventKind.USAGE] == [("prompt", 11), ("output", 4), ("cached", 5)]
    assert whole[-1].kind is EventKind.DONE


@pytest.mark.parametrize(
    ("data", "told"),
    [(b"", "truncated"), (b'{"request":1,"at_ns":1,"text":"x"}\n', "truncated"), (b"junk\n", "record")],
)
def test_a_record_cut_short_or_damaged_is_an_error(data: bytes, told: str) -> None:
    parser = dialect.parser(200, {})
    parser.feed(data, 1)
    (end,) = parser.close(2)
    assert end.kind is EventKind.ERROR
    assert told in end.note


@given(st.text(max_size=60), st.integers(1, 3))
def test_words_add_up_to_the_whole_text_also_where_tokens_cut_characters(text: str, size: int) -> None:
    data = text.encode("utf-8", "ignore")
    text = data.decode()
    tokens = [data[i : i + size] for i in range(0, len(data), size)]
    words = Words(lambda ids: b"".join(tokens[i] for i in ids).decode("utf-8", "replace"))
    parts = [words.add(i) for i in range(len(tokens))]
    if "\ufffd" not in text:
        assert "".join(parts) == text
        assert not any("\ufffd" in part for part in parts)


def test_an_unknown_engine_lists_the_known() -> None:
    with pytest.raises(UsageError, match="llamacpp, transformers, vllm, openvino, onnxruntime"):
        load("gpt5", "", Settings(), now_ns)


@pytest.mark.parametrize("name", ["openvino", "onnxruntime", "transformers", "vllm", "llamacpp"])
def test_an_engine_or_a_model_that_is_not_here_is_told_in_one_line(name: str) -> None:
    with pytest.raises(DynoError) as told:
        load(name, "/no/such/model", Settings(), now_ns)
    assert "\n" not in str(told.value)


@pytest.mark.real
def test_llama_cpp_inside_this_process_answers_several_at_once(tmp_path: Path) -> None:
    engine = load("llamacpp", "", Settings(slots=2, context=512), now_ns)
    try:
        text = inprocess.first_answer(engine, sense.question())
        log = WireLog(tmp_path / "wire.log", now_ns())
        told = inprocess.run(engine, experiment(Load("closed", 2), requests=4), asked(), None, log, lambda _: None)
        log.close()
    finally:
        engine.close()
    assert sense.doubt(text) is None, text
    assert (told.ended, told.failed) == (4, 0)
    events = rows(tmp_path / "wire.log")
    assert sum(kind == "chunk" for _, kind, *_ in events) >= 4
    assert [n for _, kind, _, n, note in events if kind == "usage" and note == "output"] == [4, 4, 4, 4]
    assert len(list(read_frames(tmp_path / "wire.log"))) > 20


@pytest.mark.live
def test_onnx_runtime_inside_this_process_answers_to_the_length_that_is_asked(tmp_path: Path) -> None:
    """DYNO_TEST_ONNX_MODEL: a folder that onnxruntime-genai's builder made of a model that answers in English."""
    model = os.environ.get("DYNO_TEST_ONNX_MODEL", "")
    if not model:
        pytest.skip("name a folder of ONNX Runtime GenAI in DYNO_TEST_ONNX_MODEL")
    engine = load("onnxruntime", model, Settings(slots=2), now_ns)
    try:
        text = inprocess.first_answer(engine, sense.question())
        log = WireLog(tmp_path / "wire.log", now_ns())
        told = inprocess.run(engine, experiment(Load("closed", 3), requests=5), asked(), None, log, lambda _: None)
        log.close()
    finally:
        engine.close()
    assert sense.doubt(text) is None, text
    assert (told.ended, told.failed) == (5, 0)
    events = rows(tmp_path / "wire.log")
    assert [n for _, kind, _, n, note in events if kind == "usage" and note == "output"] == [4] * 5
