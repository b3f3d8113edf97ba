"""`dyno provenance`: weights or data in, their manifest, what changed, how they are stored, who signed them out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dynamometer.errors import GateFailed, RecordError, UsageError

if TYPE_CHECKING:
    from dynamometer.compliance.inventory import Difference, Progress

_PATH = click.Path(path_type=Path)
_JOBS = click.option(
    "--jobs", type=click.IntRange(1, 256), default=None, help="Files hashed at once.  [default: cores, at most 8]"
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_SIGNATURE = click.option(
    "--signature", type=_PATH, default=None, help="The signature file.  [default: FOLDER/model.sig]"
)


@click.group("provenance", short_help="Manifests, bills of materials, signatures and pickles of weights.")
def command() -> None:
    """Say what weights and training data are, and whether they are still that.

    \b
    dyno provenance create ./model && dyno provenance verify ./model
    dyno provenance bom ./model -o model.cdx.json
    """


@command.command("create")
@click.argument("folder", type=_PATH)
@click.option("-o", "--out", type=_PATH, default=None, help="The manifest.  [default: FOLDER/provenance.json]")
@click.option(
    "--kind", type=click.Choice(("weights", "data")), default="weights", show_default=True, help="What it holds."
)
@_JOBS
@_JSON
def create(folder: Path, out: Path | None, kind: str, jobs: int | None, as_json: bool) -> None:
    """Write a SHA-256 manifest of FOLDER; an interrupted run goes on where it stopped.

    A name that ends in .sha256 gives lines that sha256sum -c takes.
    """
    from dynamometer.cli.output import print_json
    from dynamometer.compliance import inventory

    place = out or folder / inventory.NAME
    with _bar("hashing", as_json) as progress:
        made = inventory.create(folder, place, kind, jobs or 0, progress)
    if as_json:
        return print_json(made)
    size = sum(one.bytes for one in made.files)
    click.echo(f"{place}: {len(made.files):,} files, {size:,} bytes, digest {made.digest}")
    return None


@command.command("verify")
@click.argument("folder", type=_PATH)
@click.option("-m", "--manifest", type=_PATH, default=None, help="The manifest.  [default: FOLDER/provenance.json]")
@click.option("--allow-added", is_flag=True, help="Files beyond the manifest are no failure.")
@_JOBS
@_JSON
def verify(folder: Path, manifest: Path | None, allow_added: bool, jobs: int | None, as_json: bool) -> None:
    """Hash FOLDER again; exit 1 when it is not what the manifest says."""
    from dynamometer.compliance import inventory

    place = manifest or folder / inventory.NAME
    known = inventory.read(place)
    with _bar("hashing", as_json) as progress:
        found = inventory.verify(known, folder, place, jobs or 0, progress)
    bad = [one for one in found if not (allow_added and one.what == "added")]
    _print(found, as_json, f"{len(known.files):,} files are what {place} says")
    if bad:
        raise GateFailed(f"{folder} is not what {place} says: {len(bad)} differences")


@command.command("diff")
@click.argument("before", type=_PATH)
@click.argument("after", type=_PATH)
@_JSON
def diff(before: Path, after: Path, as_json: bool) -> None:
    """What changed between two manifests; exit 1 when anything did."""
    from dynamometer.compliance import inventory

    found = inventory.compare(inventory.read(before), inventory.read(after))
    _print(found, as_json, "the manifests name the same files")
    if found:
        raise GateFailed(f"{before} and {after} differ in {len(found)} files")


@command.command("scan")
@click.argument("folder", type=_PATH)
@click.option("--strict", is_flag=True, help="Any pickle is a failure, also a harmless one.")
@_JSON
def scan(folder: Path, strict: bool, as_json: bool) -> None:
    """How each weight file of FOLDER is stored; exit 1 for a pickle that would run code, or a damaged file."""
    from dynamometer.cli.output import print_json
    from dynamometer.compliance import pickles
    from dynamometer.errors import MissingPath
    from dynamometer.report.table import Table, draw, terminal

    if not folder.exists():
        raise MissingPath(f"{folder} is not there; give a folder of weights or one file")
    found = pickles.scan(folder)
    if as_json:
        print_json(found)
    else:
        rows = tuple((one.path, one.format, one.risk, "; ".join((one.detail, *one.imports[:4]))) for one in found)
        draw(Table("", ("file", "stored as", "risk", ""), rows, numbers=False), terminal())
        if not found:
            click.echo("no weight files")
    bad = [
        one.path
        for one in found
        if one.risk in ("dangerous", "suspicious", "damaged") or (strict and one.risk != "none")
    ]
    if bad:
        raise GateFailed(f"{len(bad)} files are not safe to load: {', '.join(bad[:6])}; prefer safetensors or GGUF")


@command.command("data")
@click.argument("model")
@click.option("--offline", is_flag=True, help="Do not look up the card online.")
@_JSON
def data(model: str, offline: bool, as_json: bool) -> None:
    """The data sets that MODEL's card declares, with licence and source where they are known."""
    from dynamometer.cli.output import print_json
    from dynamometer.compliance import find
    from dynamometer.compliance.parts import parts
    from dynamometer.report.table import Table, draw, terminal

    cards = find.resolve(model, online=not offline)
    found = [part for card in cards for part in parts(card, {}, online=False) if part.kind == "data"]
    if as_json:
        return print_json(found)
    if not found:
        click.echo(f"{cards[0].origin} declares no data set: what the weights were trained on is not said")
        return None
    rows = tuple((one.name, one.expression, one.source, one.doubt) for one in found)
    draw(Table("", ("data set", "licence", "source", ""), rows, numbers=False), terminal())
    return None


@command.command("bom")
@click.argument("model")
@click.option(
    "-m", "--manifest", type=_PATH, default=None, help="Hashes of the files.  [default: MODEL/provenance.json]"
)
@click.option("-o", "--out", type=_PATH, default=None, help="Where to write.  [default: standard output]")
@click.option("--offline", is_flag=True, help="Do not look up cards online.")
def bom(model: str, manifest: Path | None, out: Path | None, offline: bool) -> None:
    """Write a CycloneDX 1.6 bill of materials of MODEL: card, files, bases, data. Checked against the schema."""
    from dynamometer.compliance import bom as bills
    from dynamometer.compliance import find, inventory
    from dynamometer.compliance.parts import parts

    card = find.resolve(model, online=not offline)[0]
    folder = Path(model) if Path(model).is_dir() else None
    place = manifest or (folder / inventory.NAME if folder else None)
    known = inventory.read(place) if place and (manifest or place.is_file()) else None
    text = bills.text_of(bills.bill(card, parts(card, {}, online=not offline), known, folder))
    bills.validate(text)
    if out:
        try:
            out.write_text(text, encoding="utf-8")
        except OSError as wrong:
            raise RecordError(f"{out} cannot be written: {wrong.strerror}; give another place with --out") from wrong
        without = "" if known else "; no manifest, so no file hashes: dyno provenance create makes one"
        click.echo(f"{out}: CycloneDX 1.6, valid by its schema{without}", err=True)
    else:
        click.echo(text, nl=False)


@command.command("sign")
@click.argument("folder", type=_PATH)
@click.option("--key", type=_PATH, required=True, help="EC private key, PEM.")
@click.option("--password-env", default="", metavar="VARIABLE", help="Environment variable with the key's password.")
@_SIGNATURE
def sign(folder: Path, key: Path, password_env: str, signature: Path | None) -> None:
    """Sign the files of FOLDER in the OpenSSF model-signing format."""
    import os

    from dynamometer.compliance import signing

    if password_env and password_env not in os.environ:
        raise UsageError(f"--password-env names {password_env}, which is not set; export it first")
    place = signature or folder / signing.NAME
    signing.sign(folder, place, key, os.environ.get(password_env) if password_env else None)
    click.echo(f"{place}: signed")


@command.command("check-signature")
@click.argument("folder", type=_PATH)
@click.option("--key", type=_PATH, default=None, help="EC public key, PEM.")
@click.option("--identity", default="", help="Keyless: the signer, e.g. an e-mail address or a workflow's URL.")
@click.option("--issuer", default="", help="Keyless: who vouched for the signer (OIDC issuer's URL).")
@click.option(
    "--certificate", "chain", type=_PATH, multiple=True, help="Certificates of the authorities to trust, PEM."
)
@_SIGNATURE
def check_signature(
    folder: Path, key: Path | None, identity: str, issuer: str, chain: tuple[Path, ...], signature: Path | None
) -> None:
    """Whether the signature of FOLDER holds, by a public key, an identity (Sigstore) or certificates. Exit 1 if not."""
    from dynamometer.compliance import signing

    place = signature or folder / signing.NAME
    ways = sum((key is not None, bool(identity or issuer), bool(chain)))
    if ways != 1 or bool(identity) != bool(issuer):
        raise UsageError("give one of --key FILE, --identity with --issuer, or --certificate FILE")
    if key:
        signing.verify_key(folder, place, key)
    elif chain:
        signing.verify_certificate(folder, place, chain)
    else:
        signing.verify_identity(folder, place, identity, issuer)
    click.echo(f"{place}: holds for every file of {folder}")


def _print(found: tuple[Difference, ...], as_json: bool, good: str) -> None:
    from dynamometer.cli.output import print_json

    if as_json:
        return print_json(found)
    for one in found:
        click.echo(f"{one.what:8} {one.path}{'  ' + one.detail if one.detail else ''}")
    if not found:
        click.echo(good)
    return None


@contextmanager
def _bar(what: str, quiet: bool) -> Iterator[Progress]:
    """A bar of bytes on stderr where there is a terminal; nothing elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    columns = (TextColumn(what), BarColumn(bar_width=30), DownloadColumn(), TimeRemainingColumn())
    with Bar(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as shown:
        task = shown.add_task(what, total=None)
        yield lambda done, total: shown.update(task, completed=done, total=total)
