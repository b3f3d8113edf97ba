"""`dyno gateway`: a TOML file in, a running gateway until Ctrl-C out; or an operator's word to one that runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from dynamometer.gateway.admin import Status
    from dynamometer.gateway.config import Config

WORDS = ("status", "events", "promote", "rollback", "example")


@click.command("gateway", short_help="Proxy production traffic: canary, shadow, automatic rollback.")
@click.argument("what", metavar="FILE|WORD")
@click.argument("file", required=False, default="gateway.toml", type=click.Path(path_type=Path))
@click.option("--because", default="", metavar="TEXT", help="Why; kept in the journal (promote, rollback).")
@click.option("--at", default="", metavar="TIME", help="The state at that time, e.g. 2026-12-01T09:30 in UTC (status).")
@click.option("--last", type=click.IntRange(1), default=20, show_default=True, help="So many events.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(what: str, file: Path, because: str, at: str, last: int, as_json: bool) -> None:
    """Serve FILE as a gateway until Ctrl-C or SIGTERM, or say a WORD to the gateway of a file.

    \b
    dyno gateway example > gateway.toml
    dyno gateway gateway.toml
    dyno gateway status                     how far, what the gates say, with which rates of error
    dyno gateway status --at 2026-12-01T09:30
    dyno gateway events --last 50
    dyno gateway rollback --because "answers look wrong"
    dyno gateway promote

    The words take the file as a second argument (default gateway.toml). Exit code: 0 stopped in good order;
    2 bad usage; 3 no gateway answers; 4 the record cannot be written.
    """
    from dynamometer.gateway.config import EXAMPLE, load

    if what == "example":
        click.echo(EXAMPLE, nl=False)
    elif what not in WORDS:
        _serve(Path(what))
    elif what == "events":
        _events(load(file), last, as_json)
    elif what == "status" and at:
        _past(load(file), at, as_json)
    else:
        _say(load(file), what, because, as_json)


def _serve(path: Path) -> None:
    from dynamometer.errors import MissingPath
    from dynamometer.gateway.config import load
    from dynamometer.gateway.run import run

    if not path.exists() and "." not in path.name and "/" not in str(path):
        raise MissingPath(f"{path} is no file, and no word of {', '.join(WORDS)}; dyno gateway example writes a file")
    run(load(path), lambda text: click.echo(text, err=True))


def _say(config: Config, word: str, because: str, as_json: bool) -> None:
    import msgspec

    from dynamometer.cli.output import print_json
    from dynamometer.gateway.admin import Status
    from dynamometer.gateway.call import call

    body = because.encode() if word != "status" else None
    status = msgspec.json.decode(call(config.admin, f"/{word}", body), type=Status)
    if as_json:
        print_json({**msgspec.structs.asdict(status), "simulated": _simulated(status)})
    else:
        _draw(status)


def _simulated(status: Status) -> dict[str, object]:
    """The test's rates at this stage, played out: made here, so that the gateway's own loop is not held up."""
    from dynamometer.decisions.canary import simulate
    from dynamometer.gateway.rollout import level

    return {
        metric: simulate(metric, margin, level(metric, status.evidence.get(metric)), status.design, status.tests, 400)
        for metric, margin in status.gates.items()
        if status.state.rollout == "running"
    }


def _draw(status: Status) -> None:
    from dynamometer.decisions.canary import Simulated
    from dynamometer.report.table import Table, draw, terminal

    state, console = status.state, terminal()
    click.echo(_sentence(status))
    rows = []
    for name, found in status.findings.items():
        harm = found.harm
        shown = f"{harm.value:+.1%}" if harm.value is not None else "n/a"
        interval = f"[{harm.low:+.1%}, {harm.high:+.1%}]" if harm.low is not None and harm.high is not None else ""
        rows.append((name, f"{found.margin:.1%}", shown, interval, f"{harm.n:,}", found.answer, found.because))
    if rows:
        columns = ("gate", "margin", "harm", "95 % of one look", "n", "says", "because")
        draw(Table("Gates of this stage", columns, tuple(rows)), console)
    simulated = [one for one in _simulated(status).values() if isinstance(one, Simulated)]
    if simulated:
        played = tuple(
            (
                one.metric,
                f"{one.false_alarm:.1%}",
                f"{one.miss:.1%}",
                f"{one.samples_to_go:,.0f}",
                f"{one.samples_to_back:,.0f}",
            )
            for one in simulated
        )
        design = status.design
        stated = f"stated: {design.false_alarm:.1%} false alarms a rollout, {design.miss:.1%} misses a stage, at most"
        headings = ("gate", "false alarms", "misses", "samples to go on", "samples to roll back")
        draw(
            Table(
                "Rates of error, simulated",
                headings,
                played,
                (stated, f"{simulated[0].trials} simulated stages a gate"),
            ),
            console,
        )
    circuits = ", ".join(f"{name} {to}" for name, to in status.replicas.items())
    click.echo(
        f"circuits: {circuits}; in flight {status.in_flight}, queued {status.queued}, compared {status.compared}"
    )
    click.echo(f"record: {status.record} (dyno show, report, tail, export)")
    if state.because:
        click.echo(f"last: {state.because}")


def _sentence(status: Status) -> str:
    state = status.state
    if state.rollout == "running":
        wait = f", {status.hold_left_s:.0f} s to hold" if status.hold_left_s else ""
        return (
            f"running: stage {state.stage + 1} of {status.stages}, {state.share:.0%} of the tenants on the canary{wait}"
        )
    return {
        "promoted": "promoted: all traffic goes to the canary",
        "rolled back": "rolled back: all traffic goes to the baseline",
    }.get(state.rollout, "no canary: all traffic goes to the baseline")


def _events(config: Config, last: int, as_json: bool) -> None:
    """From the journal itself, so that it works while no gateway runs."""
    from dynamometer.cli.output import print_json
    from dynamometer.gateway.journal import read
    from dynamometer.record.clock import utc

    found = [event for event in read(Path(config.folder)) if event.kind not in ("evidence", "snapshot")][-last:]
    if as_json:
        print_json(found)
        return
    for event in found:
        place = " ".join(part for part in (event.replica, event.to) if part) or (
            f"{event.share:.0%}" if event.share else ""
        )
        why = f" ({event.by})" if event.by else ""
        click.echo(f"{utc(event.at_ns):%Y-%m-%d %H:%M:%S}  {event.kind:<11} {place}  {event.because}{why}".rstrip())
    if not found:
        click.echo(f"no events in {config.folder}; dyno gateway FILE starts a gateway")


def _past(config: Config, at: str, as_json: bool) -> None:
    from datetime import UTC, datetime

    from dynamometer.cli.output import print_json
    from dynamometer.errors import UsageError
    from dynamometer.gateway.journal import read
    from dynamometer.gateway.state import fold

    try:
        when = datetime.fromisoformat(at)
    except ValueError:
        raise UsageError(f"--at is {at!r}; give a time in UTC such as 2026-12-01T09:30") from None
    when = when if when.tzinfo else when.replace(tzinfo=UTC)
    state = fold(read(Path(config.folder)), round(when.timestamp() * 1e9))
    if as_json:
        print_json(state)
        return
    click.echo(
        f"at {when:%Y-%m-%d %H:%M:%S} UTC: {state.rollout}, stage {state.stage + 1}, {state.share:.0%} on the canary"
    )
    for name, to in state.breakers.items():
        click.echo(f"circuit {name}: {to}")
    if state.because:
        click.echo(f"because: {state.because}")
