"""`dyno compare`: two runs in, differences with intervals and a noise floor out; a gate sets the exit code."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from dynamometer.decisions.compare import Measured


@click.command("compare", short_help="Compare two runs, with intervals, a noise floor and gates.")
@click.argument("baseline", type=click.Path(path_type=Path))
@click.argument("candidate", type=click.Path(path_type=Path))
@click.option(
    "--gate", default=None, metavar="LIMITS", help="'ttft_p99<+5%,output_tokens_per_s>-3%'; sets the exit code."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the bootstrap.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(baseline: Path, candidate: Path, gate: str | None, seed: int, as_json: bool) -> None:
    """Compare CANDIDATE with BASELINE; each is a run, or a folder of repeats of one experiment.

    Requests are paired where both runs asked the same ones. A difference inside the noise floor is called none.
    Exit code 1 when a gate fails, or can't be judged by this sample; 5 when a run is not to be believed.
    """
    from dynamometer.cli.output import print_json
    from dynamometer.decisions.compare import compare
    from dynamometer.decisions.gate import gates, judge_change, require
    from dynamometer.errors import Refused
    from dynamometer.report.run_tables import compare_table
    from dynamometer.report.table import draw, terminal

    wanted = gates(gate) if gate is not None else ()
    with ExitStack() as opened:
        comparison = compare(_side(baseline, opened), _side(candidate, opened), seed=seed)
    judged = judge_change(comparison, wanted)
    if as_json:
        print_json({"comparison": comparison, "gates": judged})
    else:
        draw(compare_table(comparison), terminal())
        for one in judged:
            click.echo(f"{'pass' if one.passed else 'FAIL'}  {one.why}")
    require(judged)
    if wanted and comparison.unbelievable:
        raise Refused(f"gates say nothing of a run that is not to be believed: {', '.join(comparison.unbelievable)}")


def _side(place: Path, opened: ExitStack) -> list[Measured]:
    """The run in `place`, or the repeats below it."""
    from contextlib import closing

    from dynamometer.decisions.compare import measure
    from dynamometer.record.store import open_run, read_run

    repeats = sorted(path.parent for path in place.glob("repeat-*/run.json"))
    return [measure(opened.enter_context(closing(open_run(path))), read_run(path)) for path in repeats or [place]]
