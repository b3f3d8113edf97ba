"""Production traffic in, run directories out: the record is cut into segments, each a whole run that every verb reads.

A request stays in the segment in which it came. Segments older than the time to keep are removed.
"""

from __future__ import annotations

import re
import shutil
from collections import deque
from hashlib import sha256
from pathlib import Path
from typing import Final

import msgspec

from dynamometer.gateway.config import Config
from dynamometer.record import manifest
from dynamometer.record.clock import Now, Origin, origin
from dynamometer.record.log import DUE, PLAN, WireLog
from dynamometer.record.rows import Plan
from dynamometer.types import Experiment, Load, Provenance, Run, Target, Workload

_encode: Final = msgspec.json.Encoder().encode


class _Message(msgspec.Struct):
    role: str = ""
    content: object = None


class Wanted(msgspec.Struct):
    """What the gateway reads of a request's body; everything else is passed on unread."""

    messages: list[_Message] = []
    prompt: object = None
    model: str = ""
    stream: bool = False
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    user: str | None = None

    @property
    def output_tokens(self) -> int:
        return max(0, min(self.max_completion_tokens or self.max_tokens or 0, 2**31 - 1))

    @property
    def text(self) -> str:
        """The prompt in one string."""
        if self.messages:
            return "\n".join(
                m.content if isinstance(m.content, str) else _encode(m.content).decode() for m in self.messages
            )
        return self.prompt if isinstance(self.prompt, str) else _encode(self.prompt).decode()


class Ticket:
    """A request's place in a segment."""

    __slots__ = ("append", "number", "segment")

    def __init__(self, segment: Segment, number: int) -> None:
        self.segment, self.number, self.append = segment, number, segment.log.append

    def close(self) -> None:
        """The request has ended, and its last frame is written."""
        self.segment.open -= 1
        self.segment.close_if_over()


class Segment:
    """One run directory that is being written."""

    def __init__(self, config: Config, folder: Path, begun: Origin, wall_ns: int) -> None:
        target = Target(f"http://{config.listen}/v1", "", "openai.chat")
        # arrivals are the users' own; what law they follow is not known
        at = Experiment("gateway", target, Workload("production"), Load("trace", rate=0.0))
        self.run = manifest.begin(at, begun, Provenance.MEASURED, {"engine": "gateway"}, "dyno gateway")
        self.directory = folder / self.run.id
        self.directory.mkdir(parents=True, mode=0o700)
        manifest.write(self.directory, self.run)
        self.log = WireLog(self.directory / "wire.log", begun.monotonic_ns)
        self.begun, self.begun_ns, self.open, self.count = begun, wall_ns, 0, 0
        self.over = False  # no request comes in any more
        self._lines: deque[bytes] = deque()
        self._prompts: deque[bytes] = deque()
        self._redact = [re.compile(pattern) for pattern in config.record.redact]
        self._keep_prompts = config.record.prompts
        self.last_ns = begun.monotonic_ns

    def take(self, now_ns: int, wanted: Wanted, family: str, session: str, phase: str = "load") -> Ticket:
        number = self.count
        self.count += 1
        self.open += 1
        self.last_ns = max(self.last_ns, now_ns)
        text = wanted.text
        plan = Plan(
            number,
            phase,
            family,
            session,
            output_tokens=wanted.output_tokens,
            prompt_sha=sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16],
        )
        self.log.append(PLAN, number, now_ns, _encode(plan))
        self.log.append(DUE, number, now_ns)
        if self._keep_prompts and phase == "load":
            for pattern in self._redact:
                text = pattern.sub("(redacted)", text)
            self._prompts.append(_encode({"request": number, "prompt": text}))
        return Ticket(self, number)

    def say(self, line: dict[str, object]) -> None:
        """A line of the structured log."""
        self._lines.append(_encode(line))

    def flush(self) -> None:
        self.log.flush()
        for name, lines in (("access.jsonl", self._lines), ("prompts.jsonl", self._prompts)):
            if lines:
                with (self.directory / name).open("ab") as file:
                    file.write(b"\n".join(lines) + b"\n")
                (self.directory / name).chmod(0o600)
                lines.clear()

    def close_if_over(self) -> None:
        if self.over and self.open == 0 and self.run.status == "running":
            self.finish("complete")

    def finish(self, status: str) -> None:
        self.flush()
        self.log.close()
        end_ns = max(self.last_ns - self.begun.monotonic_ns, 1)
        rate = self.count / (end_ns * 1e-9)
        load = msgspec.structs.replace(self.run.experiment.load, rate=rate)
        at = msgspec.structs.replace(self.run.experiment, load=load, requests=self.count)
        run = msgspec.structs.replace(self.run, experiment=at)
        self.run = manifest.finish(run, status, end_ns, {}, ())
        manifest.write(self.directory, self.run)
        if self.count == 0:  # an hour without traffic leaves no empty run behind
            shutil.rmtree(self.directory, ignore_errors=True)


class Segments:
    """The segment that is open, and the cutting and removing of segments."""

    def __init__(self, config: Config, now: Now, wall: Now) -> None:
        self._config, self._now, self._wall = config, now, wall
        self.folder = Path(config.folder) / "record"
        self.removed = 0
        self._older: list[Segment] = []
        self.now = self._fresh()
        self._close_torn()

    def tick(self) -> None:
        """Writes what is buffered; cuts when it is time; removes what is too old. Twice a second."""
        wall_ns = self._wall()
        if self.now.count and wall_ns - self.now.begun_ns > self._config.record.segment_s * 1e9:
            self.now.over = True
            self._older = [*[one for one in self._older if one.open], self.now]
            self.now.close_if_over()
            self.now = self._fresh()
            self.expire(wall_ns)
        for one in (*self._older, self.now):
            if one.run.status == "running":
                one.flush()

    def expire(self, wall_ns: int) -> None:
        """Removes segments that ended before the time to keep began; only directories that are runs of ours."""
        for directory in self.folder.glob("*-*"):
            path = directory / manifest.NAME
            if directory == self.now.directory or not path.exists():
                continue
            if wall_ns - path.stat().st_mtime_ns > self._config.record.keep_s * 1e9:
                shutil.rmtree(directory, ignore_errors=True)
                self.removed += 1

    def close(self) -> None:
        for one in (*self._older, self.now):
            if one.run.status == "running":
                one.finish("complete" if one.open == 0 else "interrupted")

    def _fresh(self) -> Segment:
        return Segment(self._config, self.folder, origin(), self._wall())

    def _close_torn(self) -> None:
        """Segments that a crash left open are marked as what they are; their finished answers stay whole."""
        for path in self.folder.glob("*/run.json"):
            run: Run = manifest.read(path.parent)
            if run.status == "running" and path.parent != self.now.directory:
                manifest.write(path.parent, manifest.finish(run, "interrupted", run.end_ns, {}, ()))
        self.expire(self._wall())
