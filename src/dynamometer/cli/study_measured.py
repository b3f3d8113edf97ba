"""A study's name and what to vary in; what was measured on this machine out: studies of kernels and of real models."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

if TYPE_CHECKING:
    from types import ModuleType

    from dynamometer.kernels.backends import Backend
    from dynamometer.kernels.found import Found

# study -> (module of the kernels room, one line of help). The help stands here so that a listing imports no torch.
MEASURED: dict[str, tuple[str, str]] = {
    "sparse-attention": ("study_sparse", "What does a window of 512 and 64 global tokens save, over whose attention?"),
    "fused-attention": ("study_fused", "What does a fused attention gain, alone and end to end?"),
    "ablation": ("study_ablation", "Do the gains of fewer heads and routed experts multiply, and what do they cost?"),
    "quantization-gpu": ("study_quant", "What do fp8, int8 and int4 save in memory and gain in speed?"),
}


def commands() -> list[click.Command]:
    return [_command(name, module, line) for name, (module, line) in MEASURED.items()]


def _command(name: str, module: str, line: str) -> click.Command:
    """One study as a command; all of them take the same options."""

    @click.command(name, short_help=line)
    @click.option("--device", default="auto", show_default=True, help="cuda, rocm, npu, mlu, xpu, mps, cpu or auto.")
    @click.option("--set", "pairs", multiple=True, metavar="KEY=VALUE", help="Vary it: lengths=2048,16384.")
    @click.option("--quick", is_flag=True, help="Small sizes, to see that it works here; no figure to rely on.")
    @click.option("--show-options", is_flag=True, help="Print what --set takes, with its defaults, and leave.")
    @click.option("--out", "-o", type=click.Path(path_type=Path), default=None, help="Write as .csv or .json.")
    @click.option("--json", "as_json", is_flag=True, help="Print JSON.")
    def command(
        device: str, pairs: tuple[str, ...], quick: bool, show_options: bool, out: Path | None, as_json: bool
    ) -> None:
        found = _measure(module, device, pairs, quick, show_options)
        if found is not None:
            _tell(found, out, as_json)

    command.help = (
        f"{line}\n\nMeasured here and now, on this machine's device; docs/kernels.md says what was found on which "
        f"machine.\n\n\b\ndyno study {name}\ndyno study {name} --quick --device cpu\n"
        f"dyno study {name} --show-options"
    )
    return command


def _measure(name: str, device: str, pairs: tuple[str, ...], quick: bool, show_options: bool) -> Found | None:
    from dynamometer.kernels.options import parse, shown
    from dynamometer.plugins import optional
    from dynamometer.record.clock import now_ns

    torch = cast("ModuleType", optional("torch", "silicon"))
    study = importlib.import_module(f"dynamometer.kernels.{name}")
    chosen = parse(study.Options, study.QUICK if quick else {}, pairs)
    if show_options:
        click.echo(shown(chosen))
        return None
    from dynamometer.kernels.backends import reach

    run = cast("Callable[[object, Backend, object, Callable[[str], None]], Found]", study.run)
    return run(chosen, reach(device, torch), now_ns, lambda line: click.echo(line, err=True))


def _tell(found: Found, out: Path | None, as_json: bool) -> None:
    from dynamometer.cli.output import json_text, print_json
    from dynamometer.kernels.found import as_csv, tables
    from dynamometer.report.table import draw, terminal

    if out is not None:
        out.write_text(as_csv(found) if out.suffix == ".csv" else json_text(found) + "\n", encoding="utf-8")
    if as_json:
        return print_json(found)
    click.echo(found.question + "\n")
    for table in tables(found):
        draw(table, terminal())
    click.echo("\n" + "\n".join(found.verdict))
    if out is not None:
        click.echo(f"written: {out}")
    return None
