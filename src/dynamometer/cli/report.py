"""`dyno report`: run directories in, pages of them out, again from the record."""

from __future__ import annotations

from pathlib import Path

import click

FORMATS = {"html": ".html", "md": ".md", "pdf": ".pdf"}


@click.command("report", short_help="Write the report again from a record: HTML, Markdown or PDF.")
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", "-o", type=click.Path(path_type=Path), default=None, help="One page over several runs.")
@click.option(
    "--format", "kind", type=click.Choice(tuple(FORMATS)), default="html", show_default=True, help="PDF needs Chromium."
)
@click.option("--json", "as_json", is_flag=True, help="Print the paths as JSON.")
def command(runs: tuple[Path, ...], out: Path | None, kind: str, as_json: bool) -> None:
    """Write summary.json and the report of each run in RUNS again; with --out, one page over all of them.

    Markdown holds the verdict, the tables and the captions; a PDF is the HTML page printed by a Chromium or Chrome
    that is installed here.
    """
    from dynamometer.cli.output import print_json
    from dynamometer.errors import UsageError
    from dynamometer.report.html import NAME, run_page, runs_page, tell, write_derived, write_page

    if out and len(runs) < 2:
        raise UsageError("--out makes one page over several runs; name two or more, or leave it out")
    if kind == "html":
        writer = write_page
    else:
        from dynamometer.report.document import write_markdown, write_pdf

        writer = write_markdown if kind == "md" else write_pdf
    written: list[Path] = []
    for run in runs:
        write_derived(run)
        place = (run / NAME).with_suffix(FORMATS[kind])
        if kind != "html":
            writer(run_page(tell(run, alone=True)), place)
        written.append(place)
    if out:
        written.append(writer(runs_page([tell(run) for run in runs]), out))
    if as_json:
        print_json([str(path) for path in written])
    else:
        for path in written:
            click.echo(path)
