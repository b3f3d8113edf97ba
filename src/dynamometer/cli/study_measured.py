"""A study's name and what to vary in; what was measured on this machine out: studies of kernels and of real models."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click
import msgspec

if TYPE_CHECKING:
    from types import ModuleType

    from dynamometer.kernels.backends import Backend
    from dynamometer.kernels.found import Found

# study -> (module of the kernels room, one line of help). The help stands here so that a listing imports no torch.
MEASURED: dict[str, tuple[str, str]] = {
    "sparse-attention": ("study_sparse", "What does a window of 512 and 64 global tokens save, over whose attention?"),
    "fused-attention": ("study_fused", "What does a fused attention gain, alone and end to end?"),
    "ablation": ("study_ablation", "Do the gains of fewer heads and routed experts multiply, and what do they cost?"),
    "cpu-isa": ("study_isa", "What do AVX-512, BF16, VNNI and AMX gain over AVX2 for a real model here?"),
    "edge": ("study_edge", "Does a model run under a hard limit on memory, at which speed, and does it leak?"),
    "graph-support": ("study_graph", "Can a router's top-k and gather be exported and compiled, and if not, why?"),
    "quantization-gpu": ("study_quant", "What do fp8, int8 and int4 save in memory and gain in speed?"),
}


class Chosen(msgspec.Struct, frozen=True):
    """What the options of a measured study say."""

    device: str
    pairs: tuple[str, ...]
    quick: bool
    show_options: bool
    out: Path | None
    as_json: bool


def study_options(function: Callable[[Chosen], None]) -> Callable[..., None]:
    """The options that all measured studies share, handed over as one value."""

    @click.option("--device", default="auto", show_default=True, help="cuda, rocm, npu, mlu, xpu, mps, cpu or auto.")
    @click.option("--set", "pairs", multiple=True, metavar="KEY=VALUE", help="Vary it; --show-options lists the keys.")
    @click.option("--quick", is_flag=True, help="Small sizes, to see that it works here; no figure to rely on.")
    @click.option("--show-options", is_flag=True, help="Print what --set takes, with its defaults, and leave.")
    @click.option("--out", "-o", type=click.Path(path_type=Path), default=None, help="Write as .csv, else as JSON.")
    @click.option("--json", "as_json", is_flag=True, help="Print JSON.")
    @wraps(function)
    def command(**given: object) -> None:
        function(msgspec.convert(given, Chosen))

    return command


def commands() -> list[click.Command]:
    return [_command(name, module, line) for name, (module, line) in MEASURED.items()]


def _command(name: str, module: str, line: str) -> click.Command:
    @click.command(name, short_help=line)
    @study_options
    def command(chosen: Chosen) -> None:
        measure(module, chosen)

    command.help = (
        f"{line}\n\nMeasured here and now, on this machine's device; docs/kernels.md says what was found on which "
        f"machine.\n\n\b\ndyno study {name}\ndyno study {name} --quick --device cpu\n"
        f"dyno study {name} --show-options"
    )
    return command


def measure(module: str, chosen: Chosen) -> None:
    """Runs a study of the kernels room and tells what it found."""
    from dynamometer.plugins import optional
    from dynamometer.record.clock import now_ns

    optional("torch", "silicon")
    study = importlib.import_module(f"dynamometer.kernels.{module}")
    from dynamometer.kernels.options import parse, shown

    settings = parse(study.Options, study.QUICK if chosen.quick else {}, chosen.pairs)
    if chosen.show_options:
        return click.echo(shown(settings))
    _writable(chosen.out)
    run = cast("Callable[[object, Backend, object, Callable[[str], None]], Found]", study.run)
    found = run(settings, backend_of(chosen.device), now_ns, lambda line: click.echo(line, err=True))
    return _tell(found, chosen.out, chosen.as_json)


def backend_of(device: str) -> Backend:
    from dynamometer.kernels.backends import reach
    from dynamometer.plugins import optional

    return reach(device, cast("ModuleType", optional("torch", "silicon")))


def _writable(out: Path | None) -> None:
    """Before minutes of measuring, not after them."""
    from dynamometer.errors import UsageError

    if out is not None and (out.is_dir() or not out.absolute().parent.is_dir()):
        raise UsageError(f"--out is {out}; give a file in a folder that is there")


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
