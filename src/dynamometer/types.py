"""The nouns. Frozen values that every room shares; nothing of ours is imported here.

Units are in the names: `_s` seconds, `_ns` nanoseconds on the run's monotonic clock with 0 at the run's origin,
`_bytes` bytes, `_w` watts, `_usd` US dollars. Token counts are integers.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec
import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]


class Message(msgspec.Struct, frozen=True):
    """One chat turn. `content` None stands for the engine's own answer to the request named by `Request.after`."""

    role: str
    content: str | None


class Request(msgspec.Struct, frozen=True):
    """What to ask. `index` counts from 0 within a run and is the key of every event."""

    index: int
    messages: tuple[Message, ...]
    output_tokens: int  # the most tokens asked for; with ignore_eos, exactly as many
    input_tokens: int = 0  # planned prompt length in the engine's tokens; 0 = not planned
    ignore_eos: bool = False
    family: str = ""  # workload family, e.g. "python-completion"
    session: str = ""
    turn: int = 0
    after: int = -1  # index of the request whose answer must be complete before this one may be sent
    think_s: float = 0.0  # pause between that answer and this request
    stop: tuple[str, ...] = ()
    reference: str = ""  # expected answer where the data set has one


class Schedule(msgspec.Struct, frozen=True):
    """When each request is due. `due_s`: seconds from the start of the load, ascending, one per request."""

    law: str
    rate: float  # requests per second on average over the schedule
    seed: int
    due_s: Float64


class EventKind(StrEnum):
    """Facts of a request's life. See docs/record.md for the meaning of `n`, `bytes` and `note` for each kind."""

    DUE = "due"  # when the schedule wanted it sent (closed loop: when its turn came)
    SENT = "sent"  # first byte handed to the kernel; n = attempt, from 1
    HEADERS = "headers"  # status line and headers complete; n = HTTP status
    FRAME = "frame"  # a protocol event without tokens: note = role | ping | empty | filter
    CHUNK = "chunk"  # text arrived; n = tokens if the server said so else 0, bytes = UTF-8 text bytes, note = channel
    USAGE = "usage"  # a count by the server; note = prompt | output | cached | reasoning, n = tokens
    TIMING = "timing"  # a duration by the server; note = its name, n = microseconds
    FINISH = "finish"  # note = finish reason
    DONE = "done"  # the answer ended as the protocol says; bytes = body bytes
    ERROR = "error"  # the answer failed; n = HTTP status or 0, note = "class: message"
    RETRY = "retry"  # sent again; n = attempt, note = reason
    CANCEL = "cancel"  # we stopped it (deadline, Ctrl-C): censored, neither success nor failure
    ADMIT = "admit"  # simulator and gateway: the scheduler took it
    PREEMPT = "preempt"
    EVICT = "evict"
    PREFILL = "prefill"  # prefill complete


class Event(msgspec.Struct, frozen=True, gc=False):
    """One row of the log."""

    request: int
    kind: EventKind
    at_ns: int
    n: int = 0
    bytes: int = 0
    note: str = ""


class Sample(msgspec.Struct, frozen=True):
    """One reading of a sensor beside the load. A sensor that is missing gives no row, never a 0."""

    source: str  # host | nvml | prometheus | …
    name: str  # with unit, e.g. "cpu_foreign_cores", "power_w"
    device: str
    at_ns: int
    value: float


class Chunk(msgspec.Struct, frozen=True, gc=False):
    """What a dialect makes of the bytes: an event without its request, with the text that the log keeps as bytes."""

    kind: EventKind
    at_ns: int
    n: int = 0
    text: str = ""
    note: str = ""


class Texts(msgspec.Struct, frozen=True, gc=False):
    """Several content chunks in a row that hold text and nothing else, as columns: one object for a whole answer."""

    at_ns: list[int]
    texts: list[bytes]  # UTF-8, none empty

    def chunks(self) -> list[Chunk]:
        kind = EventKind.CHUNK
        return [Chunk(kind, at, 0, text.decode(), "content") for at, text in zip(self.at_ns, self.texts, strict=True)]


class Objective(msgspec.Struct, frozen=True):
    """One limit of a service level objective, e.g. `ttft_p99 < 500 ms`."""

    metric: str  # ttft | tpot | itl | e2e | output_tokens_per_s | requests_per_s | goodput | error_rate
    statistic: str  # mean | p50 | p90 | p95 | p99 | p999 | "" for rates
    op: str  # < | <= | > | >=
    value: float
    unit: str  # ms | s | "" …


class Target(msgspec.Struct, frozen=True):
    """The endpoint under test. `url` is the base, e.g. http://127.0.0.1:8000/v1; secrets are named, not held."""

    url: str
    model: str = ""
    api: str = "openai.chat"  # a dialect's name, or "auto"
    api_key_env: str = ""  # name of the environment variable that holds the key
    headers: Mapping[str, str] = {}
    body: Mapping[str, object] = {}  # extra fields of the request body, e.g. {"temperature": 0}
    tokens_field: str = "auto"  # max_tokens | max_completion_tokens | auto (probed once before timing)
    insecure: bool = False  # True: do not verify TLS; only when asked
    timeout_s: float = 600.0  # the whole answer
    idle_timeout_s: float = 120.0  # no byte for so long
    connect_timeout_s: float = 10.0
    retries: int = 0  # how often a 429 or 503 with Retry-After is obeyed and the request sent again; 0: it is a failure


class Workload(msgspec.Struct, frozen=True):
    """What to ask, by name and parameters; `workload.build` turns it into requests."""

    name: str = "code"  # a plugin name: code, python, sql, javascript, synthetic, prefix, session, sharegpt, jsonl, …
    path: str = ""  # file of a data set or trace
    input_tokens: str = ""  # "" as it comes; "512"; "uniform:128:512"; "normal:512:64"; "lognormal:…"; "histogram:FILE"
    output_tokens: str = "128"  # same language
    ignore_eos: bool = True
    fresh: bool = True  # salt each prompt so that a prefix cache is not measured by accident
    options: Mapping[str, str] = {}


class Load(msgspec.Struct, frozen=True):
    """How hard to push. `law` "closed" keeps `concurrency` requests in flight; every other law is open, at `rate`."""

    law: str = "closed"  # closed | poisson | constant | gamma | trace | ramp | step | burst
    concurrency: int = 1
    rate: float = 0.0  # requests per second
    options: Mapping[str, str] = {}  # law parameters, e.g. {"burstiness": "0.5"}, {"to": "50"}, {"share": "0.2"}


class Experiment(msgspec.Struct, frozen=True):
    """All that is needed to repeat a run, but the machine."""

    name: str
    target: Target
    workload: Workload
    load: Load
    requests: int = 0  # stop after so many; 0 = by time
    duration_s: float = 0.0  # stop sending after so long; 0 = by count
    warmup_requests: int = 0  # sent first, logged with phase "warmup", never in a figure
    repeats: int = 1
    seed: int = 0
    slo: tuple[Objective, ...] = ()
    grace_s: float = 30.0  # after duration_s, requests in flight get so long to end; then they are cancelled (censored)


class Estimate(msgspec.Struct, frozen=True):
    """A number that may leave the product. `low`/`high` bound it at confidence `level`; None: the sample cannot say."""

    value: float | None
    low: float | None
    high: float | None
    n: int
    unit: str
    level: float = 0.95
    method: str = ""  # how the interval was made; or why there is none


class Doubt(msgspec.Struct, frozen=True):
    """A reason not to believe a run, with its remedy. `fatal`: the run is invalid, not only doubtful."""

    kind: str  # late-client | noisy-machine | short-answers | little-law | …
    message: str
    remedy: str
    fatal: bool = False


class Fit(msgspec.Struct, frozen=True):
    """A fitted law. `predict` lives with the model's code and refuses outside `domain`."""

    model: str
    parameters: Mapping[str, Estimate]
    domain: tuple[float, float]
    misfit: float  # median absolute relative error, in the domain
    held_out: float | None = None  # the same on points left out
    notes: tuple[str, ...] = ()


class Decision(msgspec.Struct, frozen=True):
    """An answer that a person can act on."""

    question: str
    answer: str
    because: tuple[str, ...]
    flips: tuple[str, ...] = ()  # what would turn the answer
    evidence: tuple[str, ...] = ()  # run ids or sources, each "measured: …" | "simulated: …" | "quoted: …"


class Provenance(StrEnum):
    MEASURED = "measured"
    SIMULATED = "simulated"
    QUOTED = "quoted"


class Run(msgspec.Struct, frozen=True):
    """The manifest, `run.json`: how the rows beside it came about."""

    id: str
    format: int  # record schema version
    status: str  # running | complete | interrupted | invalid
    driver: Provenance  # measured by the client, or simulated
    experiment: Experiment
    versions: Mapping[str, str]
    machine: Mapping[str, str | int | float]
    engine: Mapping[str, str | int | float]  # what the endpoint says of itself
    origin_wall_ns: int  # wall clock at at_ns = 0; labels only
    origin_monotonic_ns: int  # CLOCK_MONOTONIC at at_ns = 0
    end_ns: int = 0  # when the load ended, on the run's clock
    client: Mapping[str, float] = {}  # the error budget: lateness and loop lag quantiles, CPU share
    doubts: tuple[Doubt, ...] = ()
    notes: tuple[str, ...] = ()  # what a reader should know that is no reason for doubt
    command: str = ""
    breaks: tuple[tuple[int, int], ...] = ()  # of a resumed run: (rows are whole until, it goes on at), ns of its clock
