"""`dyno decide`: a decision file in, one recommendation under its constraints out, with what would flip it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dynamometer.errors import GateFailed, RecordError, UsageError

if TYPE_CHECKING:
    from dynamometer.decisions.constraints import Permission
    from dynamometer.decisions.recommend import Recommendation
    from dynamometer.decisions.wish import LicenceTerms, Option, Wish


@click.command("decide", short_help="Join all evidence into one recommendation, and say what would flip it.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("-o", "--out", type=click.Path(path_type=Path), default=None, help="Write a page: .html, .md or .json.")
@click.option("--offline", is_flag=True, help="Do not look up cards online.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(file: Path, out: Path | None, offline: bool, as_json: bool) -> None:
    """Decide between the options of FILE (TOML; see docs/decide.md) under its constraints.

    Evidence: runs (measured or simulated), stated figures with their source (quoted), prices, memory, licences.
    Exit code: 0 one is recommended; 1 none holds every constraint.
    """
    import shlex
    import sys

    from dynamometer.cli.output import print_json
    from dynamometer.decisions import wish as wishes
    from dynamometer.decisions.evidence import gather
    from dynamometer.decisions.gate import objectives
    from dynamometer.decisions.recommend import recommend

    wish = wishes.read(file)
    slo = objectives(wish.constraints.slo) if wish.constraints.slo else ()
    evidence = [gather(option, wish, slo) for option in wish.option]
    found = recommend(wish, evidence, _permissions(wish, offline), slo)
    if as_json:
        print_json(_shaped(found))
    else:
        _show(found)
    if out:
        _write(found, out, " ".join(["dyno", *map(shlex.quote, sys.argv[1:])]))
    if found.chosen is None:
        raise GateFailed(f"{file}: no option holds every constraint")


def _permissions(wish: Wish, offline: bool) -> dict[str, Permission]:
    """What the licence of each option's model says; the leaf is asked here because decisions know nothing of it."""
    terms = wish.constraints.licence
    if terms is None:
        return {}
    found = {}
    for option in wish.option:
        model = option.licence_of or option.model
        if model:
            found[option.name] = _permission(model, terms, option, offline)
    return found


def _permission(model: str, terms: LicenceTerms, option: Option, offline: bool) -> Permission:
    from dynamometer.cli.comply import Asked, answers
    from dynamometer.compliance.facts import USES
    from dynamometer.compliance.limits import limits
    from dynamometer.decisions.constraints import Permission

    strange = [use for use in terms.use if use not in USES]
    if strange:
        raise UsageError(f"[constraints.licence] use is {strange[0]!r}; one of {', '.join(USES)}")
    asked = Asked(
        uses=tuple(use for use in USES if use in terms.use),
        mau=str(terms.mau),
        revenue=str(terms.revenue),
        territories=terms.territory,
        non_commercial=terms.non_commercial,
        code="",
        bases=(),
        accepted=terms.accept,
        offline=offline,
    )
    try:
        found = answers(model, asked)[0]
    except UsageError as wrong:
        return Permission("unknown", False, f"the licence of {option.name} is not known: {wrong}")
    return Permission(found.status, found.cleared, found.answer, limits(found), found.attribution)


def _shaped(found: Recommendation) -> dict[str, object]:
    """The answer without the runs' whole accounts."""
    return {
        "question": found.decision.question,
        "recommendation": found.chosen,
        "answer": found.decision.answer,
        "because": found.decision.because,
        "flips": found.decision.flips,
        "evidence": found.decision.evidence,
        "minimize": found.minimize,
        "against": found.against,
        "chances": found.chances,
        "options": [
            {
                "name": row.name,
                "standing": row.standing,
                "pareto": row.on_front,
                "constraints": row.held,
                "figures": row.evidence.figures,
                "licence": row.permission,
                "runs": [one.run.id for one in row.evidence.accounts],
                "note": row.evidence.option.note,
            }
            for row in found.rows
        ],
        "notes": found.notes,
    }


def _show(found: Recommendation) -> None:
    from dynamometer.report.decision_page import tables
    from dynamometer.report.table import draw, terminal

    console = terminal()
    click.echo(found.decision.question)
    click.echo(click.style(found.decision.answer, bold=True))
    for title, lines in (("Why", found.decision.because), ("What would flip it", found.decision.flips)):
        if lines:
            click.echo(f"\n{title}")
            for line in lines:
                click.echo(f"  {line}")
    click.echo()
    draw(tables(found)[0], console)
    for note in found.notes:
        click.echo(note)
    click.echo("Every number with its source: --out decision.html, .md or .json.")


def _write(found: Recommendation, out: Path, words: str) -> None:
    from dynamometer.cli.output import json_text
    from dynamometer.report.decision_page import decision_markdown, decision_page
    from dynamometer.report.html import write_page

    if out.suffix == ".html":
        write_page(decision_page(found, words), out)
    elif out.suffix in (".md", ".json"):
        text = decision_markdown(found) if out.suffix == ".md" else json_text(_shaped(found)) + "\n"
        try:
            out.write_text(text, encoding="utf-8")
        except OSError as wrong:
            raise RecordError(f"{out} cannot be written: {wrong.strerror}; give another place with --out") from wrong
    else:
        raise UsageError(f"--out is {out}; give a name that ends in .html, .md or .json")
    click.echo(f"page: {out}", err=True)
