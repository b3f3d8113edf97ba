"""`dyno comply`: a model and a deployment in, what its licences ask and whether it may be shipped out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from dynamometer.compliance.facts import USES, Use
from dynamometer.errors import GateFailed, UsageError

if TYPE_CHECKING:
    from dynamometer.compliance.clear import Clearance
    from dynamometer.compliance.facts import Facts
    from dynamometer.compliance.names import Named

_COLOURS = {"permissive": "green", "review": "yellow", "unknown": "magenta", "blocked": "red"}


class Asked(msgspec.Struct, frozen=True):
    """What the command line says of the deployment."""

    uses: tuple[Use, ...]
    mau: str
    revenue: str
    territories: tuple[str, ...]
    non_commercial: bool
    code: str
    bases: tuple[str, ...]
    accepted: tuple[str, ...]
    offline: bool


@click.command("comply", short_help="Say whether a model may be shipped: licences, obligations, limits.")
@click.argument("model", required=False, default="")
@click.option(
    "--use",
    "uses",
    multiple=True,
    type=click.Choice(USES),
    help="What for; may be given several times.  [default: saas]",
)
@click.option("--mau", default="", metavar="N", help="Monthly active users of all your products, e.g. 250M.")
@click.option("--revenue", default="", metavar="USD", help="Your revenue, e.g. 30M/month or 250M/year.")
@click.option("--territory", "territories", multiple=True, metavar="CODE", help="Where: EU, WORLD or a country code.")
@click.option("--non-commercial", is_flag=True, help="Research, evaluation or private use only.")
@click.option("--code", default="", metavar="LICENCE", help="Licence of the code: a name, or a file or folder.")
@click.option("--base", "bases", multiple=True, metavar="NAME=LICENCE", help="State a base's licence.")
@click.option("--accept", "accepted", multiple=True, metavar="ID", help="A licence whose conditions a person has met.")
@click.option("--statements", default="", metavar="FILE", help="Check statements about licences (CSV) instead.")
@click.option("--offline", is_flag=True, help="Do not look up cards online.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole answer as JSON.")
def command(model: str, statements: str, as_json: bool, **rest: object) -> None:
    """Say whether MODEL may be shipped, under which obligations, and which fact would change that.

    MODEL is a folder with README.md and LICENSE files, a README.md, a GGUF file, card fields as JSON, a hub name or a
    built-in name. Not legal advice.

    Exit code: 0 cleared; 1 blocked, unknown, or with conditions that nobody has accepted with --accept.

    \b
    dyno comply deepseek-ai/DeepSeek-R1-Distill-Llama-8B --use saas --mau 2M
    dyno comply ./my-model --use device --territory EU --accept LicenseRef-gemma
    """
    from dynamometer.cli.output import print_json

    asked = msgspec.convert(rest, Asked)
    if statements:
        return _statements(Path(statements), as_json)
    if not model:
        raise UsageError(
            "dyno comply needs a model: a folder, a README.md, a GGUF file, card fields as JSON or owner/name"
        )
    found = answers(model, asked)
    if as_json:
        print_json(_shaped(found[0]) if len(found) == 1 else [_shaped(one) for one in found])
    else:
        for one in found:
            _print(one)
    refused = [one for one in found if not one.cleared]
    if refused:
        raise GateFailed("; ".join(f"{one.model}: {_next(one)}" for one in refused[:8]))
    return None


def answers(model: str, asked: Asked) -> list[Clearance]:
    """A clearance for each card that the name stands for."""
    from dynamometer.compliance import find
    from dynamometer.compliance.clear import clear
    from dynamometer.compliance.parts import parts

    facts = _facts(asked)
    given = dict(_given(word) for word in asked.bases)
    found = []
    for card in find.resolve(model, online=not asked.offline):
        whole = msgspec.structs.replace(card, code=_licence(asked.code)) if asked.code else card
        accepted = _accepted(asked.accepted)
        found.append(clear(card.name, parts(whole, given, not asked.offline), facts, accepted, card.notes))
    return found


def _facts(asked: Asked) -> Facts:
    from dynamometer.compliance import facts

    return facts.Facts(
        use=tuple(dict.fromkeys(asked.uses)) or ("saas",),
        commercial=not asked.non_commercial,
        mau=facts.people(asked.mau) if asked.mau else None,
        revenue=facts.revenue(asked.revenue) if asked.revenue else None,
        territories=facts.places(asked.territories),
    )


def _given(word: str) -> tuple[str, Named]:
    name, equals, told = word.partition("=")
    if not equals or not name.strip() or not told.strip():
        raise UsageError(f"--base is {word!r}; give NAME=LICENCE, e.g. acme/vit=apache-2.0 or acme/vit=./LICENSE")
    return name.strip(), _licence(told.strip())


def _licence(told: str) -> Named:
    """A licence by name, or read from a file, or from a folder's licence files."""
    from dynamometer.compliance import card, names, text

    path = Path(told).expanduser()
    if not path.exists():
        named = names.read(told)
        if not named.choices:
            raise UsageError(
                f"{told!r} is neither a file nor a licence that is known; give e.g. apache-2.0 or a LICENSE file"
            )
        return named
    texts = card.licence_files(path) if path.is_dir() else ()
    read = [file.read for file in texts] if path.is_dir() else [text.identify(path.read_text("utf-8", "replace"))]
    ids = tuple(dict.fromkeys(identity for one in read for identity in one.ids))
    return names.Named(told, (ids,)) if ids else names.Named(told, (), f"{told} holds no licence text that is known")


def _accepted(words: tuple[str, ...]) -> tuple[str, ...]:
    from dynamometer.compliance import names

    ids: list[str] = []
    for word in words:
        named = names.read(word)
        if not named.choices:
            raise UsageError(f"--accept is {word!r}, which is no licence that is known; take the id from the checklist")
        ids += [identity for choice in named.choices for identity in choice]
    return tuple(ids)


def _shaped(found: Clearance) -> dict[str, object]:
    """The answer with code, weights and data apart, as a script wants it."""
    by_kind = {kind: [one for one in found.parts if one.kind == kind] for kind in ("code", "weights", "data")}
    return {
        "model": found.model,
        "status": found.status,
        "cleared": found.cleared,
        "answer": found.answer,
        "facts": found.facts,
        "weights": by_kind["weights"][0],
        "code": by_kind["code"][0] if by_kind["code"] else None,
        "data": by_kind["data"],
        "inherited": [one for one in found.parts if one.kind in ("base", "possible base")],
        "checklist": found.checklist,
        "boundary": {one.use: {"status": one.status, "because": one.because} for one in found.boundary},
        "attribution": found.attribution,
        "look_at": found.look_at,
        "notes": found.notes,
        "accepted": found.accepted,
        "disclaimer": found.disclaimer,
    }


def _print(found: Clearance) -> None:
    from dynamometer.compliance import tell
    from dynamometer.report.table import draw, terminal

    console = terminal()
    click.echo(f"{found.model}: {click.style(found.status, fg=_COLOURS[found.status], bold=True)}")
    click.echo(found.answer)
    click.echo(f"Facts: {tell.facts_text(found.facts)}\n")
    for table in (tell.parts_table(found), tell.checklist_table(found), tell.boundary_table(found)):
        if table.rows:
            draw(table, console)
            click.echo()
    if found.attribution:
        click.echo("To display or hand on:")
        for line in found.attribution:
            click.echo(f"  {line}")
    for line in (*(f"look at {place}" for place in found.look_at), *found.notes, found.disclaimer):
        click.echo(line)


def _next(found: Clearance) -> str:
    """What stands in the way, in a few words, and what to do."""
    if found.status == "review":
        ids = sorted({item.licence for item in found.checklist if item.kind in ("act", "limit")})
        words = " ".join(f"--accept {one}" for one in ids)
        return f"conditions to meet; when a person has met them, say so with {words or 'the missing facts'}"
    return f"{found.status}{'; look at ' + ', '.join(found.look_at) if found.look_at else ''}"


def _statements(path: Path, as_json: bool) -> None:
    from dynamometer.cli.output import print_json
    from dynamometer.compliance import statements

    found = statements.check_file(path)
    if as_json:
        return print_json(found)
    for row in found:
        click.echo(f"{row.id:8} {row.verdict:14} {row.statement}")
        click.echo(f"{'':8} {row.because}")
        if row.source:
            click.echo(f"{'':8} text: {row.source}")
    return None
