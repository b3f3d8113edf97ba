"""A way to drive an endpoint and a folder in; runs at the loads that tell most, one directory each, out.

What to measure next is a pure function of what the folder holds (`models.search`), so a sweep that was stopped goes on
by itself, and a run that was stopped is finished first. It stands beside `measure`: both sides of the rows meet here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from dynamometer.decisions.curve import Point, read_point
from dynamometer.decisions.trial import Tried, read_trial
from dynamometer.errors import MissingPath, RecordError, UsageError
from dynamometer.models.search import Level, Next, RateRules, SweepRules, next_level, next_rate
from dynamometer.record.store import read_run
from dynamometer.types import Experiment, Load, Run, Workload

NAME = "sweep.json"
ENDED = ("complete", "invalid")
FEWEST = 5  # requests of a run that is to say anything of a rate


class Cell(msgspec.Struct, frozen=True):
    """One point of a grid: requests in flight and the prompt's length in tokens."""

    batch: int
    input_tokens: int


class Plan(msgspec.Struct, frozen=True):
    """What a sweep looks for; it is written into its folder. Exactly one of the three is set.

    `requests` and `duration_s` end a run, whichever comes first; `requests` 0: six for each in flight, 20 at least.
    """

    levels: SweepRules | None = None
    rates: RateRules | None = None
    grid: tuple[Cell, ...] = ()
    requests: int = 0
    duration_s: float = 60.0


class Record(msgspec.Struct, frozen=True):
    """`sweep.json`. `experiment` is that of every run but for its load, its length and its end."""

    plan: Plan
    experiment: Experiment


class Step(msgspec.Struct, frozen=True):
    """What is measured now. `left_s`: expected time of this run and those to come; None before the first has ended."""

    number: int
    load: str
    reason: str
    left: int
    left_s: float | None


class Ended(msgspec.Struct, frozen=True):
    """`reason`: why there are no more runs. `stopped`: the user stopped it."""

    reason: str
    stopped: bool = False


class Known(msgspec.Struct, frozen=True):
    """What was read of runs that have ended, so that each is read once."""

    points: dict[Path, Point]
    trials: dict[Path, Tried]


Drive = Callable[[Experiment, Path], Run]  # measures into a new directory, or goes on with the run that is in it
Tell = Callable[[Step], None]


def begin(folder: Path, record: Record) -> None:
    """Notes what the sweep looks for. A folder with another sweep is refused; with the same one it is gone on with."""
    path = folder / NAME
    if path.exists():
        before = read(folder)
        if _same(before) == _same(record):
            return
        raise UsageError(f"{folder} holds another sweep; give another --out, or go on with it: --resume {folder}")
    if any(folder.glob("*/run.json")) or (folder / "run.json").exists():
        raise UsageError(f"{folder} holds runs already; give another --out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n")
    except OSError as wrong:
        raise RecordError(f"{folder} cannot be written: {wrong.strerror}; give another --out") from wrong


def read(folder: Path) -> Record:
    """What the sweep in a folder looks for."""
    try:
        return msgspec.json.decode((folder / NAME).read_bytes(), type=Record)
    except OSError:
        raise MissingPath(f"{folder} is no sweep: it holds no {NAME}; give the folder of a sweep") from None
    except msgspec.DecodeError as wrong:
        raise RecordError(f"{folder / NAME} cannot be read: {wrong}") from wrong


def _same(record: Record) -> Record:
    """Without what may differ between two starts of one sweep: the engine's port, and what was found out of it."""
    target = msgspec.structs.replace(record.experiment.target, url="", model="", api="", tokens_field="")
    work = msgspec.structs.replace(record.experiment.workload, ignore_eos=True)
    return msgspec.structs.replace(
        record, experiment=msgspec.structs.replace(record.experiment, target=target, workload=work)
    )


def run(folder: Path, record: Record, drive: Drive, tell: Tell) -> Ended:
    """Measures until enough is known. Ctrl-C ends it with what it has."""
    known = Known({}, {})
    try:
        for place in _runs(folder):
            if read_run(place).status not in ENDED and not _finish(place, drive):
                return Ended("interrupted", stopped=True)
        while True:
            following = _next(folder, record, known)
            if isinstance(following, Ended):
                return following
            experiment, step = following
            tell(step)
            place = _place(folder, experiment)
            if drive(experiment, place).status == "interrupted":
                return Ended("interrupted", stopped=True)
    except KeyboardInterrupt:
        return Ended("interrupted", stopped=True)


def points(folder: Path) -> list[Point]:
    """A point for each run of the sweep that has ended, in the order of measuring."""
    return [read_point(place) for place in _ended(folder)]


def trials(folder: Path) -> list[Tried]:
    return [read_trial(place) for place in _ended(folder)]


def _finish(place: Path, drive: Drive) -> bool:
    try:
        return drive(read_run(place).experiment, place).status != "interrupted"
    except UsageError:
        return True  # it was stopped when nothing was left to ask: its figures stand


def _runs(folder: Path) -> Iterator[Path]:
    yield from sorted((path.parent for path in folder.glob("*/run.json")), key=lambda p: read_run(p).origin_wall_ns)


def _ended(folder: Path) -> list[Path]:
    return [place for place in _runs(folder) if read_run(place).status in ENDED]


def _next(folder: Path, record: Record, known: Known) -> tuple[Experiment, Step] | Ended:
    plan, done = record.plan, _ended(folder)
    if plan.grid:
        return _next_cell(record, done)
    if plan.levels is not None:
        for place in done:
            if place not in known.points:
                known.points[place] = read_point(place)
        coming = next_level([_level(known.points[place]) for place in done], plan.levels)
    else:
        assert plan.rates is not None
        for place in done:
            if place not in known.trials:
                known.trials[place] = read_trial(place)
        tried = [known.trials[place] for place in done]
        if tried and tried[-1].spoilt:
            return Ended(f"the client, not the engine, ends the search: {tried[-1].spoilt}")
        coming = next_rate([one.trial for one in tried], plan.rates)
        if coming.at is not None and coming.at * plan.duration_s < FEWEST:
            return Ended(
                f"at {coming.at:.3g} requests/s a run of {plan.duration_s:g} s holds fewer than {FEWEST} requests; "
                "give a longer --duration to look there"
            )
    if coming.at is None:
        return Ended(coming.reason)
    closed = plan.levels is not None
    load = Load("closed", round(coming.at)) if closed else Load("poisson", concurrency=0, rate=coming.at)
    return _experiment(record, load, done), _step(coming, load, done)


def _next_cell(record: Record, done: Sequence[Path]) -> tuple[Experiment, Step] | Ended:
    """Cells in an order in which neither factor goes only up, so that a machine that warms does not look like one."""
    have = [_cell(read_run(place).experiment) for place in done]
    left = [cell for cell in record.plan.grid if cell not in have]
    if not left:
        return Ended("the grid is measured")
    cell = left[0]
    load = Load("closed", cell.batch)
    work = msgspec.structs.replace(record.experiment.workload, input_tokens=str(cell.input_tokens))
    step = _step(Next(cell.batch, f"prompts of {cell.input_tokens} tokens", len(left) - 1), load, done)
    return _experiment(record, load, done, work), step


def _cell(experiment: Experiment) -> Cell:
    return Cell(experiment.load.concurrency, int(experiment.workload.input_tokens or 0))


def _level(point: Point) -> Level:
    rate = point.tokens_per_s
    return Level(round(point.asked), rate.value or 0.0, not point.unusable, rate.low, rate.high)


def _experiment(record: Record, load: Load, done: Sequence[Path], work: Workload | None = None) -> Experiment:
    """The run of one load. A repeat has a seed of its own, so that it draws other prompts."""
    base, plan = record.experiment, record.plan
    again = sum(read_run(place).experiment.load == load for place in done) if work is None else 0
    closed = load.law == "closed"
    requests = plan.requests or (max(20, 6 * load.concurrency) if closed else 0)
    return msgspec.structs.replace(
        base,
        name=_name(load, work) + (f"-{again + 1}" if again else ""),
        load=load,
        workload=work or base.workload,
        requests=requests,
        duration_s=plan.duration_s,
        warmup_requests=max(2, min(load.concurrency, 16)),
        seed=base.seed + again,
    )


def _name(load: Load, work: Workload | None) -> str:
    if load.law != "closed":
        return f"rate-{load.rate:.6g}"
    return f"c{load.concurrency:04}" + (f"-i{work.input_tokens}" if work else "")


def _place(folder: Path, experiment: Experiment) -> Path:
    """The run's directory; one that is taken by something else than a run of ours gets a neighbour."""
    place = folder / experiment.name
    return place if not place.exists() else folder / f"{experiment.name}-{experiment.seed + 1}"


def _step(coming: Next, load: Load, done: Sequence[Path]) -> Step:
    spent_s = [read_run(place).end_ns / 1e9 for place in done]
    left_s = (coming.left + 1) * sum(spent_s) / len(spent_s) if spent_s else None
    shown = f"{load.concurrency} in flight" if load.law == "closed" else f"{load.rate:.3g} requests/s"
    return Step(len(done) + 1, shown, coming.reason, coming.left, left_s)
