"""`dyno audit`: a CSV of claims or one claim as text in, a verdict on each with its arithmetic out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from dynamometer.decisions.audit import Audited
    from dynamometer.decisions.claim import Claim

_COLOURS = {
    "possible": "green",
    "implausible": "yellow",
    "impossible": "red",
    "inconsistent": "magenta",
    "not_checkable": "bright_black",
}


@click.command("audit", short_help="Judge published claims: possible, implausible, impossible, inconsistent.")
@click.argument("claims", nargs=-1)
@click.option("--gate", is_flag=True, help="Exit 1 when a claim is impossible or inconsistent.")
@click.option("--json", "as_json", is_flag=True, help="Print id, verdict, arithmetic and source as JSON.")
def command(claims: tuple[str, ...], gate: bool, as_json: bool) -> None:
    """Judge claims about memory, speed, bandwidth, energy, formulas and ratios.

    CLAIMS are CSV files (columns: docs/audit.md) or sentences. Nothing is measured: each claim is held against counts
    from the model's config, the roofline, published device figures and its own arithmetic.

    \b
    dyno audit claims.csv
    dyno audit 'Llama-3-8B in fp16 decodes 198.7 tokens/s single stream on an A100 80GB'
    """
    from dynamometer.cli.output import print_json
    from dynamometer.decisions import audit
    from dynamometer.errors import GateFailed, UsageError

    if not claims:
        raise UsageError("dyno audit needs claims: a CSV file, or a sentence in quotes")
    found = audit.audit([claim for text in claims for claim in _read(text)])
    if as_json:
        print_json(found)
    else:
        for row in found:
            _print(row)
        totals = {verdict: n for verdict, n in audit.counts(found).items() if n}
        click.echo(f"{len(found)} claims: " + ", ".join(f"{n} {verdict}" for verdict, n in totals.items()))
    bad = [row.id for row in found if row.verdict in ("impossible", "inconsistent")]
    if gate and bad:
        raise GateFailed(
            f"{len(bad)} claims cannot be true as printed: {', '.join(bad[:12])}{'…' if len(bad) > 12 else ''}"
        )


def _read(text: str) -> list[Claim]:
    """A file's claims, or the sentence as one."""
    from dynamometer.decisions import claim, claimtext
    from dynamometer.errors import MissingPath

    looks_like_path = text.endswith((".csv", ".tsv", ".txt")) or ("/" in text and " " not in text)
    if looks_like_path or (len(text) < 250 and Path(text).is_file()):
        path = Path(text)
        if not path.is_file():
            raise MissingPath(f"{text} is not there; give a CSV of claims, or one claim as a sentence")
        return claim.read_csv(path)
    return [claimtext.parse(text)]


def _print(row: Audited) -> None:
    verdict = str(row.verdict)
    click.echo(f"{row.id:8} {click.style(f'{verdict:14}', fg=_COLOURS[verdict], bold=True)} {row.claim}")
    click.echo(f"{'':8} {row.arithmetic}")
    if row.remedy:
        click.echo(f"{'':8} true if: {row.remedy}")
    if row.source:
        click.echo(f"{'':8} bound: {row.source}")
