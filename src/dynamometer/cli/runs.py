"""`dyno runs`: a folder in, the list of its runs out."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("runs", short_help="List the runs in a folder.")
@click.argument("folder", type=click.Path(path_type=Path), default=Path("runs"))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(folder: Path, as_json: bool) -> None:
    """List the runs in FOLDER (default: runs), the newest first. A damaged run is listed as such."""
    from dynamometer.cli.output import print_json
    from dynamometer.errors import RecordError
    from dynamometer.record.store import list_runs
    from dynamometer.report.run_tables import runs_table
    from dynamometer.report.table import draw, terminal

    found = list_runs(folder)
    if as_json:
        print_json(
            [
                {"path": str(path), "error": str(run)}
                if isinstance(run, RecordError)
                else {"path": str(path), "id": run.id, "status": run.status, "driver": run.driver,
                      "experiment": run.experiment, "doubts": run.doubts}
                for path, run in reversed(found)
            ]
        )  # fmt: skip
    else:
        draw(runs_table(found), terminal())
