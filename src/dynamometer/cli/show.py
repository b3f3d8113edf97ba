"""`dyno show`: a run directory in, its figures out; by our rules, or as another tool would count them."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("show", short_help="Print one run's figures.")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--slo", default="", metavar="LIMITS", help="Judge by this objective instead of the run's own.")
@click.option(
    "--as",
    "tool",
    default="",
    metavar="TOOL",
    help="Count as vllm, sglang, guidellm, aiperf, inference-perf, evalscope, genai-bench, llmperf or loadgen would.",
)
@click.option("--whole", is_flag=True, help="Cut no warm-up but the tagged one.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def command(run: Path, slo: str, tool: str, whole: bool, as_json: bool) -> None:
    """Print the figures of RUN from its rows; a crashed or interrupted run as far as it got.

    Exit code: 1 when an objective is missed, 5 when the run cannot be believed.
    """
    from dynamometer.cli.output import print_json
    from dynamometer.decisions.account import account
    from dynamometer.decisions.gate import objectives
    from dynamometer.report import brief
    from dynamometer.report.table import terminal

    if tool:
        _as(run, tool, as_json)
        return
    found = account(run, objectives(slo) if slo else None, steady=not whole)
    if as_json:
        print_json(found.summary)
    else:
        brief.show(terminal(), found)
    if found.invalid:
        raise SystemExit(5)
    if found.missed:
        raise SystemExit(1)


def _as(run: Path, tool: str, as_json: bool) -> None:
    from contextlib import closing

    from dynamometer.cli.output import print_json
    from dynamometer.metrics import as_others, views
    from dynamometer.record.store import open_run, read_run
    from dynamometer.report.other_tools import other_table
    from dynamometer.report.table import draw, terminal

    as_others.rule(tool)  # an unknown name is said before the rows are read
    with closing(open_run(run)) as connection:
        views.install(connection, read_run(run))
        theirs, ours = as_others.count_as(connection, tool), as_others.ours(connection)
    if as_json:
        print_json({"as": theirs, "ours": ours})
    else:
        draw(other_table(theirs, ours), terminal())
