"""A load, an engine and an autoscaler in, the fleet's course and its account out; and which setting to change first.

The counterpart of simulate.py for fleets that change their size: the same schedule, workload and engine, with a scaler
and cold starts beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np

from dynamometer import options as opt
from dynamometer.decisions.scaling import Answers, Frame, Scaled, account
from dynamometer.errors import UsageError
from dynamometer.hardware.coldstart import ColdStart
from dynamometer.policies.autoscale import Change, Course, Moment
from dynamometer.policies.scalers import Named, ray, scaler
from dynamometer.record.store import open_run
from dynamometer.sim.asks import sequences
from dynamometer.sim.fleet import Fleet, Plan, Probe
from dynamometer.sim.ledger import Tally
from dynamometer.sim.replica import Replica
from dynamometer.sim.rules import Sink
from dynamometer.sim.sequence import Sequence
from dynamometer.sim.setup import Setup, memory
from dynamometer.types import Experiment, Float64

PROBE = ("scrape", "window", "delay")
_LONGEST_S = 4 * 3600.0
_MOST = 2_000_000  # some minutes


class Traffic(msgspec.Struct, frozen=True):
    """When what comes: equal arrays. `surge_s`: when the rate begins to rise; `end_s`: when the load ends."""

    due_s: Float64
    prompt: Float64
    output: Float64
    surge_s: float
    end_s: float


class Case(msgspec.Struct, frozen=True):
    """Everything about the fleet but its engine. `probe`: options scrape, window and delay of the metric."""

    named: Named
    start: ColdStart
    metric: str = "in-flight"
    probe: opt.Options = {}
    initial: int = 1
    routing: str = "least-loaded"
    late_s: float = 5.0
    usd_per_hour: float | None = None


def traffic(experiment: Experiment, due_s: Float64, surge_s: float) -> Traffic:
    """An experiment's requests at these times."""
    if len(due_s) > _MOST:
        raise UsageError(
            f"the load has {len(due_s):,} requests; a replay takes at most {_MOST:,}: lower rate or length"
        )
    asked = list(sequences(experiment, due_s))
    end_s = experiment.duration_s or (float(due_s[-1]) if len(due_s) else 0.0)
    if not asked:
        raise UsageError("the load has no request; give a longer one or a higher rate")
    if end_s > _LONGEST_S:
        raise UsageError(f"the load lasts {end_s / 3600:.1f} h; a replay takes at most {_LONGEST_S / 3600:.0f} h")
    columns = np.array([(s.at_s, s.prompt, s.output) for s in asked], dtype=np.float64)
    return Traffic(columns[:, 0], columns[:, 1], columns[:, 2], surge_s, end_s)


_RECORDED = """
select min(e.at_ns) filter (kind = 'due') / 1e9 as due,
  coalesce(max(n) filter (kind = 'usage' and note = 'prompt'), any_value(r.input_tokens)) as prompt,
  coalesce(max(n) filter (kind = 'usage' and note = 'output'), any_value(r.output_tokens)) as output
from events e join requests r using (request) where r.phase = 'load'
group by request having due is not null order by due
"""


def recorded(directory: Path, surge_s: float = 0.0) -> Traffic:
    """The traffic of a recorded run, at its own times and with its own lengths, whatever became of it there."""
    with closing(open_run(directory)) as connection:
        found = connection.execute(_RECORDED).fetchnumpy()
    due, prompt, output = (np.ma.filled(np.ma.asarray(c, dtype=np.float64), 0.0) for c in found.values())
    if not len(due):
        raise UsageError(f"{directory} has no request of a load; give another run")
    due = due - due[0]
    return Traffic(due, np.maximum(prompt, 1), np.maximum(output, 1), surge_s, float(due[-1]))


def replay(load: Traffic, setup: Setup, case: Case, seed: int = 0) -> tuple[Scaled, Course]:
    """One replay of the fleet under the load. Simulated, and labelled so."""
    rules = msgspec.structs.replace(setup.rules, keep_tokens=False)

    def make(sink: Sink, place: int) -> Replica:
        return Replica(setup.cost, rules, memory(setup.cache), sink, seed * 1_000_003 + place)

    plan = Plan(scaler(case.named), case.start, probe(case), case.initial, case.routing, load.end_s)
    ledger = Tally()
    fleet = Fleet(make, plan, ledger, seed)
    course = fleet.run(_asked(load))
    table = ledger.table()
    answers = Answers(table[:, 1], table[:, 3], table[:, 4], ledger.failed, course.open)
    frame = Frame(load.surge_s, load.end_s, case.late_s, case.initial, case.usd_per_hour)
    return account(answers, course, frame), course


def _asked(load: Traffic) -> Iterator[Sequence]:
    columns = (load.due_s.tolist(), load.prompt.tolist(), load.output.tolist())
    for index, (due_s, prompt, output) in enumerate(zip(*columns, strict=True)):
        yield Sequence(index, due_s, int(prompt), int(output))


def probe(case: Case) -> Probe:
    """How the metric reaches the scaler. Ray Serve's own way is part of its settings."""
    where = "the metric's probe"
    opt.known(case.probe, PROBE, where)
    if case.named.policy == "ray":
        rule = ray(case.named)
        return Probe("in-flight", rule.look_back_s / 5, rule.look_back_s, rule.metrics_s)
    return Probe(
        case.metric,
        opt.duration(case.probe, "scrape", 15.0, where),
        opt.duration(case.probe, "window", 0.0, where),
        0.0,
        opt.duration(case.probe, "delay", 0.0, where),
    )


_ANSWERED = """
select min(at_ns) filter (kind = 'due') / 1e9 as due, min(at_ns) filter (kind = 'chunk') / 1e9 as first,
  max(at_ns) filter (kind = 'chunk') / 1e9 as last, bool_or(kind = 'error') as failed, bool_or(kind = 'done') as done
from events e join requests r using (request) where r.phase = 'load'
group by request having due is not null order by due
"""
_SEEN = """
select name, at_ns / 1e9 as at_s, sum(value)::integer as n from samples
where name in ('replicas_asked', 'replicas_ready') group by name, at_ns order by at_ns
"""


def measured(directory: Path, surge_s: float, late_s: float, usd_per_hour: float | None = None) -> Scaled:
    """The same account of a real fleet: a run's own answers, and its replicas where a sensor saw them.

    Where no sensor saw them the endpoint is taken as one replica, and a note says so. Times count from the first
    request that was due.
    """
    with closing(open_run(directory)) as connection:
        rows = connection.execute(_ANSWERED).fetchall()
        seen = connection.execute(_SEEN).fetchall()
    if not rows:
        raise UsageError(f"{directory} has no request of a load; give another run")
    zero_s = float(rows[0][0])
    good = [row for row in rows if row[4] and row[1] is not None]
    due, first, last = (np.array([float(row[column]) - zero_s for row in good]) for column in range(3))
    end_s = float(rows[-1][0]) - zero_s
    failed = sum(bool(row[3]) for row in rows)
    answers = Answers(due, first, last, failed, len(rows) - len(good) - failed)
    samples = [(str(name), float(at_s) - zero_s, int(n)) for name, at_s, n in seen]
    course = _seen(samples or _unseen(end_s), answers, end_s)
    initial = _first(course)
    found = account(answers, course, Frame(surge_s, end_s, late_s, initial, usd_per_hour, "measured"))
    return found if seen else msgspec.structs.replace(found, notes=(*found.notes, _BLIND))


_BLIND = (
    "no sensor saw how many replicas there were, so the endpoint is taken as one; give --metrics-url, such as "
    "http://HOST:8265/api/serve/applications/ beside Ray Serve"
)


def _unseen(end_s: float) -> list[tuple[str, float, int]]:
    """One replica throughout, looked at once a second."""
    return [(name, float(at_s), 1) for at_s in range(int(end_s) + 1) for name in ("replicas_asked", "replicas_ready")]


def _first(course: Course) -> int:
    return next((n for at_s, n in reversed(course.ready_s) if at_s <= 0), course.ready_s[0][1] if course.ready_s else 0)


def _seen(samples: list[tuple[str, float, int]], answers: Answers, end_s: float) -> Course:
    """Samples of a second as the course of a fleet: a change is dated to the sample that first shows it."""
    asked = [(at_s, n) for name, at_s, n in samples if name == "replicas_asked"]
    ready = [(at_s, n) for name, at_s, n in samples if name == "replicas_ready"]
    changes = tuple(Change(at_s, a, b, b, "") for (_, a), (at_s, b) in pairwise(asked) if a != b)
    held = [(at_s, n) for (at_s, n), (_, before) in zip(ready[1:], ready, strict=False) if n != before]
    both = dict(asked)
    moments = tuple(_moment(at_s, both.get(at_s, n), n, answers) for at_s, n in ready if at_s <= end_s)
    inside = [(max(0.0, at_s), max(n, both.get(at_s, n))) for at_s, n in ready if at_s <= end_s]
    ends = [*(at_s for at_s, _ in inside[1:]), end_s]
    replica_s = sum(max(0.0, until_s - at_s) * n for (at_s, n), until_s in zip(inside, ends, strict=True))
    return Course(changes, moments, (), replica_s, answers.open, end_s, (*ready[:1], *held))


def _moment(at_s: float, asked: int, ready: int, answers: Answers) -> Moment:
    """In flight by the client's own clock; waiting: those of them without a first token."""
    sent = answers.due_s <= at_s
    waits = int((sent & (answers.first_s > at_s)).sum())
    return Moment(at_s, asked, ready, max(asked, ready), waits, int((sent & (answers.last_s > at_s)).sum()))


class Factor(msgspec.Struct, frozen=True):
    """A setting that a person may change: its words, its value now, and two others to try."""

    name: str
    now: str
    tries: tuple[tuple[str, Case], ...]


class Effect(msgspec.Struct, frozen=True):
    """What a setting's other values do to late and lost requests, P99 and cost."""

    name: str
    value: str
    late_share: float | None
    p99_ms: float | None
    scale_out_s: float | None
    replica_hours: float


def effects(
    load: Traffic, setup: Setup, case: Case, seed: int = 0, tell: Callable[[str], None] = lambda _: None
) -> tuple[Effect, ...]:
    """One replay for each other value of each setting; the setting that saves most late requests first."""
    found: list[list[Effect]] = []
    for factor in factors(case):
        lines = []
        for value, changed in factor.tries:
            tell(f"{factor.name} {value}")
            scaled, _ = replay(load, setup, changed, seed)
            lines.append(effect(factor.name, f"{factor.now} → {value}", scaled))
        found.append(lines)
    found.sort(key=lambda lines: min(_rank(line) for line in lines))
    return tuple(line for lines in found for line in lines)


def effect(name: str, value: str, scaled: Scaled) -> Effect:
    share = scaled.late_share.value
    return Effect(name, value, share, scaled.p99_ms, scaled.scale_out_s, scaled.replica_hours)


def _rank(line: Effect) -> tuple[float, float]:
    worst = float("inf")
    return (worst if line.late_share is None else line.late_share, worst if line.p99_ms is None else line.p99_ms)


def factors(case: Case) -> tuple[Factor, ...]:
    """The settings that this policy has, each with two other values."""
    named = case.named

    def with_named(**changes: object) -> Case:
        return msgspec.structs.replace(case, named=msgspec.structs.replace(named, **changes))

    def with_option(name: str, value: str) -> Case:
        return with_named(options={**named.options, name: value})

    floor = max(1, named.least)
    made = [
        Factor(
            "target",
            f"{named.target:g}",
            tuple((f"{named.target * f:g}", with_named(target=named.target * f)) for f in (0.5, 2.0)),
        ),
        Factor(
            "minimum",
            str(named.least),
            tuple(
                (str(n), msgspec.structs.replace(with_named(least=n), initial=max(n, case.initial)))
                for n in sorted({min(named.most, 2 * floor), min(named.most, 4 * floor)} - {named.least})
            ),
        ),
        Factor("maximum", str(named.most), ((str(2 * named.most), with_named(most=2 * named.most)),)),
        Factor(
            "cold start",
            f"{case.start.median_s:g}s",
            tuple(
                (f"{case.start.median_s * f:g}s", msgspec.structs.replace(case, start=case.start.times(f)))
                for f in (0.5, 0.1)
            ),
        ),
    ]
    options = {
        "ray": (
            ("upscale-delay", "30s", ("10s", "0s")),
            ("look-back", "30s", ("10s", "2s")),
            ("push", "10s", ("2s", "1s")),
        )
    }
    usual = (
        ("sync", "15s", ("5s", "1s")),
        ("up-policies", "percent:100:15s,pods:4:15s", ("percent:900:15s", "pods:100:15s")),
    )
    for name, default, others in options.get(named.policy, usual):
        now = named.options.get(name, default)
        made.append(Factor(name, now, tuple((other, with_option(name, other)) for other in others if other != now)))
    if named.policy != "ray":
        now = case.probe.get("scrape", "15s")
        tries = tuple(
            (other, msgspec.structs.replace(case, probe={**case.probe, "scrape": other}))
            for other in ("5s", "1s")
            if other != now
        )
        made.append(Factor("scrape", now, tries))
    return tuple(factor for factor in made if factor.tries)
