"""`dyno study`: a study's name in, its cases simulated, measured or fitted, a table and a plain verdict out."""

from __future__ import annotations

from collections.abc import MutableMapping
from importlib import import_module
from pathlib import Path
from typing import cast

import click

from dynamometer.cli import study_measured

# study -> (module whose `command` it is, what it does with which data, one line). Only the named one is imported.
OWN: dict[str, tuple[str, str, str]] = {
    "surface": ("study_surface", "fits data", "Fit throughput over batch and sequence length."),
    "effects": ("study_effects", "fits data", "Main effects and interactions of a factorial design."),
    "surge": ("study_surge", "measures, or simulates", "50 to 500 requests/s in 30 s: what becomes of the requests?"),
    "quantization": (
        "study_quantization",
        "measures",
        "What each format costs in memory and speed and loses in answers.",
    ),
    "power": ("study_power", "fits data", "Weigh throughput against power; energy per token."),
}
MEASURED = {one.name or "": one for one in study_measured.commands()}


class Studies(click.Group):
    """Studies that fit or measure are commands with options of their own; every other name is one that is simulated."""

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        return _own(name) or super().get_command(ctx, name)

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: object
    ) -> click.Context:
        chosen = (_own(args[0]) or self.commands.get(args[0])) if args else None
        given = cast(MutableMapping[str, bool], extra)
        if chosen is not None:
            return chosen.make_context(f"{info_name} {args[0]}", args[1:], parent, **given)
        return super().make_context(info_name, args, parent, **given)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return click.Command.parse_args(self, ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        return ctx.command.invoke(ctx) if ctx.command is not self else click.Command.invoke(self, ctx)


def _own(name: str) -> click.Command | None:
    if name not in OWN:
        return None
    command = import_module(f"dynamometer.cli.{OWN[name][0]}").command
    assert isinstance(command, click.Command)
    return command


@click.group(
    "study",
    cls=Studies,
    commands=MEASURED,
    subcommand_metavar="",
    context_settings={"allow_interspersed_args": True},  # a group's options else end at the study's name
    short_help="Answer a ready question: batching, paged-kv, topology, surface, effects, power…",
)
@click.argument("name", required=False, default="")
@click.option("--list", "listing", is_flag=True, help="Name the studies and their questions.")
@click.option("--repeats", "-k", type=click.IntRange(2), default=3, show_default=True, help="Seeds of every case.")
@click.option("--quick", is_flag=True, help="A tenth of the load: a look, no verdict to rely on.")
@click.option("--out", "-o", type=click.Path(path_type=Path), default=None, help="Write the result as JSON.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(name: str, listing: bool, repeats: int, quick: bool, out: Path | None, as_json: bool) -> None:
    """Answer a ready question. NAME is a study of --list or a TOML file.

    \b
    dyno study list
    dyno study batching
    dyno study topology --quick
    dyno study my-question.toml --json

    These are simulated, and the table says so. Exit code: 0; 1 a claim of the study did not survive.

    surface, effects and power fit measured data instead, with options of their own: dyno study surface --help.

    sparse-attention, fused-attention, ablation, cpu-isa, edge, graph-support and quantization-gpu measure on this
    machine; they need pip install 'dynamometer[silicon]'.
    """
    from dynamometer.cli.study_run import catalogue, run

    if listing or name in ("", "list"):
        from dynamometer.cli.study_list import lines, show

        show(lines(catalogue(), OWN, {known: one.get_short_help_str(200) for known, one in MEASURED.items()}), as_json)
        return
    raise SystemExit(run(name, repeats, quick, out, as_json))
