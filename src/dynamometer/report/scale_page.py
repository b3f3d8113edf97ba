"""Replays of a fleet in; tables for the terminal, and the page with replicas, queue and P99 in one picture, out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from dynamometer.decisions.scale_lint import Finding
from dynamometer.decisions.scaling import Scaled
from dynamometer.report.figure import Figure, Heading, Row, Rule, data, numbers, rule_layers, series_colour, spec_of
from dynamometer.report.page import Key, Page, Recipe, Section
from dynamometer.report.table import Table
from dynamometer.report.vega import alt
from dynamometer.types import Estimate
from dynamometer.units import significant

_BAND = 0.84  # of a panel's height that its curve may use


class Line(msgspec.Struct, frozen=True):
    """One replay with another value of a setting, as the table shows it."""

    name: str
    value: str
    late_share: float | None
    p99_ms: float | None
    scale_out_s: float | None
    replica_hours: float


class Told(msgspec.Struct, frozen=True):
    """What the page shows. `scaled`: by name, e.g. the policy."""

    scaled: Mapping[str, Scaled]
    findings: tuple[Finding, ...] = ()
    effects: tuple[Line, ...] = ()
    quoted: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()


def tables(told: Told) -> tuple[Table, ...]:
    """Account, lint and sensitivity, in the order in which they are read."""
    made = [accounts(told)]
    if "measured" in told.scaled and len(told.scaled) > 1:
        made.append(differences(told))
    if told.findings:
        made.append(findings(told.findings))
    if told.effects:
        made.append(effects(told.effects))
    return tuple(made)


def accounts(told: Told) -> Table:
    """Side by side: one column a replay."""
    columns = tuple(told.scaled.values())
    asked = (
        ("asked for more (s after)", [_after(s.first_scale_s, s) for s in columns]),
        ("first one ready (s after)", [_after(s.first_ready_s, s) for s in columns]),
        ("all ready (s after)", [_number(s.scale_out_s) for s in columns]),
        ("replicas at the end", [f"{s.steady_replicas}" for s in columns]),
        ("P99 answer (ms)", [_number(s.p99_ms) for s in columns]),
        ("P99 first token (ms)", [_number(s.ttft_p99_ms) for s in columns]),
        ("P99 before (ms)", [_number(s.p99_before_ms) for s in columns]),
        ("P99 at the worst (ms)", [_number(s.p99_peak_ms) for s in columns]),
        ("P99 at the end (ms)", [_number(s.p99_end_ms) for s in columns]),
        ("late first tokens", [f"{s.late:,} ({_share(s.late, s.requests)})" for s in columns]),
        ("dropped", [f"{s.dropped:,}" for s in columns]),
        ("never answered", [f"{s.unanswered:,}" for s in columns]),
        ("requests", [f"{s.requests:,}" for s in columns]),
        ("most waiting at once", [f"{s.most_waiting:,}" for s in columns]),
        ("flaps", [f"{s.flaps}" for s in columns]),
        ("replica-hours", [f"{s.replica_hours:.3f}" for s in columns]),
        ("cost (USD)", [_number(s.usd) for s in columns]),
    )
    rows = tuple((name, *cells) for name, cells in asked)
    kinds = sorted({s.provenance for s in columns})
    notes = (
        "times in seconds after the surge began; P99 over bins of 5 s for before, worst and end",
        *told.notes,
        *dict.fromkeys(note for s in columns for note in s.notes),
    )
    quoted = tuple(f"quoted: {name}: {value}" for name, value in told.quoted)
    return Table(f"The surge ({' and '.join(kinds)})", ("", *told.scaled), rows, (*notes, *quoted))


def differences(told: Told) -> Table:
    """Replay against what was measured, figure by figure; a replay that says more than was seen has a +."""
    real = told.scaled["measured"]
    others = {name: s for name, s in told.scaled.items() if name != "measured"}
    asked = (
        ("first asked for more (s)", [s.first_scale_s for s in (real, *others.values())]),
        ("first new replica ready (s)", [s.first_ready_s for s in (real, *others.values())]),
        ("all of them ready (s)", [s.scale_out_s for s in (real, *others.values())]),
        ("replicas at the end", [float(s.steady_replicas) for s in (real, *others.values())]),
        ("P99 of the answer (ms)", [s.p99_ms for s in (real, *others.values())]),
        ("P99 of the first token (ms)", [s.ttft_p99_ms for s in (real, *others.values())]),
        ("replica-hours", [s.replica_hours for s in (real, *others.values())]),
    )
    rows = tuple((name, _number(values[0]), *(_difference(v, values[0]) for v in values[1:])) for name, values in asked)
    return Table("Replay against the real fleet", ("", "measured", *others), rows)


def _difference(value: float | None, real: float | None) -> str:
    if value is None or real is None:
        return _number(value)
    share = f" ({(value - real) / real:+.0%})" if real else ""
    return f"{significant(value)}{share}"


def findings(found: Sequence[Finding]) -> Table:
    rows = tuple((one.level, one.code, one.says, one.remedy) for one in found)
    return Table("Lint", ("", "code", "what is wrong", "remedy"), rows, numbers=False)


def effects(lines: Sequence[Line]) -> Table:
    """Which setting to change first."""
    rows = tuple(
        (
            line.name,
            line.value,
            "n/a" if line.late_share is None else f"{line.late_share:.1%}",
            _number(line.p99_ms),
            _number(line.scale_out_s),
            f"{line.replica_hours:.3f}",
        )
        for line in lines
    )
    columns = ("setting", "from → to", "late or lost", "P99 (ms)", "scale-out (s)", "replica-hours")
    note = "one setting at a time, all others as they are; the setting that saves most late requests first"
    return Table("What to change first", columns, rows, (note,))


def _after(at_s: float | None, s: Scaled) -> str:
    return "never" if at_s is None else significant(at_s - s.surge_at_s)


def _number(value: float | None) -> str:
    return "n/a" if value is None else significant(value)


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "n/a"


def scale_page(told: Told, command: str) -> Page:
    """The page: one section a replay, the lint and what to change first before them."""
    sections = [_section(name, s) for name, s in told.scaled.items()]
    best = min(told.scaled.values(), key=lambda s: (s.late + s.dropped, s.replica_hours))
    name = next(key for key, s in told.scaled.items() if s is best)
    verdict = best.decision.answer if len(told.scaled) == 1 else f"{name} loses least. {best.decision.answer}"
    first = Section(
        "surge",
        "The surge",
        verdict,
        badge=best.provenance,
        tone="warn" if told.findings else "plain",
        because=tuple(f"{one.says}; {one.remedy}" for one in told.findings if one.level != "risk"),
        tables=tables(told),
        recipes=(Recipe("Command", command),),
    )
    return Page("When the crowd comes", (first, *sections))


def _section(name: str, s: Scaled) -> Section:
    hours = Estimate(s.replica_hours, None, None, s.requests, "replica-hours")
    key = (
        Key("P99 answer", s.estimates["p99_ms"]),
        Key("P99 first token", s.estimates["ttft_p99_ms"]),
        Key("late or lost", s.late_share),
        Key("cost", hours),
    )
    anchor = "".join(char if char.isalnum() else "-" for char in name)
    return Section(
        anchor, name, s.decision.answer, s.provenance, because=s.decision.because, key=key, figures=(picture(name, s),)
    )


def picture(name: str, s: Scaled) -> Figure:
    """Replicas, queue and P99 over one time axis, one above the other, each with its own scale."""
    replicas = [(p.at_s, float(p.ready), "ready") for p in s.replicas]
    asked = [(p.at_s, float(p.asked), "asked for") for p in s.replicas]
    end_s = s.replicas[-1].at_s if s.replicas else 0.0
    panels = (
        ("replicas", [*_held(asked, end_s), *_held(replicas, end_s)]),
        ("requests waiting", [(at_s, float(n), "waiting") for at_s, n in s.waiting if at_s <= end_s]),
        ("P99 of the answer (s)", [(tail.at_s, tail.p99_ms / 1e3, "P99") for tail in s.tails]),
    )
    drawn: list[Row] = []
    ticks: list[tuple[float, str]] = []
    titles: list[Row] = []
    for floor, (title, points) in enumerate(panels):
        top = max((y for _, y, _ in points), default=0.0) or 1.0
        ticks += [(floor + share * _BAND, significant(share * top)) for share in (0.0, 0.5, 1.0)]
        titles.append({"at_s": 0.0, "y": floor + 0.97, "text": title})
        drawn += [
            {"at_s": at_s, "y": floor + _BAND * y / top, "value": y, "series": series, "panel": title}
            for at_s, y, series in points
        ]
    caption = (
        f"{name}: replicas below, requests waiting in the middle, P99 above, each with its own scale; the load rises "
        f"from {s.surge_at_s:.0f} s. The distance between asked for and ready is the cold start."
    )
    columns = [("panel", ""), ("series", "series"), ("at_s", "time (s)"), ("value", "value")]
    every = max(1, len(drawn) // 40)
    table = numbers(columns, drawn[::every], most=48)
    spec = spec_of(_layers(drawn, titles, ticks, s.surge_at_s), 420)
    return Figure(Heading(f"course-{name}", "Replicas, queue and P99", caption), spec, table, wide=True)


def _held(points: Sequence[tuple[float, float, str]], end_s: float) -> list[tuple[float, float, str]]:
    """A value holds until the next."""
    made: list[tuple[float, float, str]] = []
    for at_s, y, series in points:
        if at_s > end_s:
            break
        if made and made[-1][1] != y:
            made.append((at_s, made[-1][1], series))
        made.append((at_s, y, series))
    return made


def _layers(
    drawn: Sequence[Row], titles: Sequence[Row], ticks: Sequence[tuple[float, str]], surge_s: float
) -> list[alt.Chart]:
    """Lines, panel titles and the surge's rule over one axis whose ticks are named by hand."""
    words = "".join(f"abs(datum.value-{at:.4f})<0.001?'{text}':" for at, text in ticks) + "''"
    axis = alt.Axis(values=[at for at, _ in ticks], labelExpr=words, title=None, grid=True)
    up = alt.Y("y:Q", scale=alt.Scale(domain=[0, 3], nice=False), axis=axis)
    across = alt.X("at_s:Q", title="time (s)", scale=alt.Scale(nice=False), axis=alt.Axis(grid=False))
    order = ["asked for", "ready", "waiting", "P99"]
    shown = [
        alt.Tooltip("series:N", title=" "),
        alt.Tooltip("at_s:Q", title="s"),
        alt.Tooltip("value:Q", format=".4~r"),
    ]
    lines = (
        alt.Chart(data(drawn))
        .mark_line(strokeWidth=2)
        .encode(x=across, y=up, color=series_colour(order), tooltip=shown, detail="panel:N")
    )
    named = (
        alt.Chart(data(titles))
        .mark_text(align="left", baseline="top", dx=4, fontWeight="bold")
        .encode(x=across, y=up, text="text:N")
    )
    rules = rule_layers([Rule(surge_s, "surge")]) if surge_s > 0 else []
    return [lines, named, *rules]
