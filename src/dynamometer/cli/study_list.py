"""All studies: what each asks, whether it simulates, measures or fits, what it needs, how long it takes."""

from __future__ import annotations

import click
import msgspec

from dynamometer.cli.output import print_json

ENGINE = "an endpoint (--url), or nothing: the packaged model"
TORCH = "PyTorch (extra silicon)"

# study -> (needs, time of its defaults on two cores, or on a GPU where it needs one)
NEEDS: dict[str, tuple[str, str]] = {
    "surface": (f"{ENGINE}; or a CSV, or runs", "7 minutes; seconds on data"),
    "effects": ("a CSV of a factorial design", "seconds"),
    "surge": (f"{ENGINE}; simulated without --url", "4 minutes; seconds simulated"),
    "quantization": ("nothing; an environment with PyTorch for --torch", "tens of minutes"),
    "power": ("a CSV, or runs with power readings", "seconds"),
    "sparse-attention": (f"{TORCH}, a GPU for its sizes", "minutes"),
    "fused-attention": (f"{TORCH}, a GPU for its sizes", "minutes"),
    "ablation": (TORCH, "minutes"),
    "cpu-isa": (f"{TORCH}, transformers", "minutes"),
    "edge": (f"{TORCH}, root for a hard limit", "7 minutes"),
    "graph-support": (f"{TORCH}, onnx, openvino", "minutes"),
    "quantization-gpu": (f"{TORCH}, torchao, a GPU", "minutes"),
}
SIMULATED = ("nothing", "seconds")


class Line(msgspec.Struct, frozen=True):
    name: str
    kind: str  # simulated | measured | fitted …
    question: str
    needs: str
    time: str


def lines(simulated: dict[str, str], own: dict[str, tuple[str, str, str]], measured: dict[str, str]) -> list[Line]:
    """One line a study; a name that both simulates and measures has one."""
    found = [Line(name, "simulated", question, *SIMULATED) for name, question in simulated.items() if name not in own]
    found += [Line(name, kind, question, *NEEDS[name]) for name, (_, kind, question) in own.items()]
    return found + [Line(name, "measures here", question, *NEEDS[name]) for name, question in measured.items()]


def show(found: list[Line], as_json: bool) -> None:
    """Two lines a study, or JSON."""
    if as_json:
        print_json(found)
        return
    for one in found:
        click.echo(f"{one.name:17} {one.question}")
        click.echo(f"{'':17} {one.kind} · needs {one.needs} · {one.time}")
