"""An interpreter with torch in, its number formats as cells of the study out. Torch runs in that interpreter alone."""

from __future__ import annotations

import subprocess
from pathlib import Path
from statistics import median
from typing import Final

import msgspec

from dynamometer.engines.embedded import Progress, model_file
from dynamometer.engines.recipes import Settings, compute_threads
from dynamometer.errors import TargetError
from dynamometer.quality.divergence import Along, summary
from dynamometer.quality.formats import Cell, Speed
from dynamometer.quality.texts import built_in
from dynamometer.types import Estimate

FORMATS: Final = ("fp32", "bf16", "int8-weight", "int8-dynamic", "fp8-emulated", "int4-weight")
LIMIT_S: Final = 1800


class Line(msgspec.Struct, frozen=True):
    """What the program prints: a reading, a speed, or why a format does not run."""

    format: str
    text: str = ""
    kl: list[float] = []
    agree: list[bool] = []
    baseline: list[float] = []
    candidate: list[float] = []
    bytes: int = 0
    prefill: list[float] = []
    decode: list[float] = []
    why: str = ""


def cells_of(python: str, model: str, texts: int, tokens: int, folder: Path, progress: Progress) -> list[Cell]:
    """One cell a format that runs; `torch fp32` is what the others are held against."""
    job = folder / "torch-job.json"
    given = {
        "model": str(model_file(model or "smollm2", "F16")), "texts": built_in(texts), "tokens": tokens,
        "formats": FORMATS, "threads": compute_threads(Settings()),
    }  # fmt: skip
    job.write_bytes(msgspec.json.encode(given))
    progress("torch's formats", float("nan"))
    command = [python, "-I", str(Path(__file__).with_name("torch_program.py")), str(job)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as wrong:
        raise TargetError(f"{python} cannot run torch's formats: {wrong}") from wrong
    lines = [msgspec.json.decode(line, type=Line) for line in done.stdout.splitlines() if line.startswith(b"{")]
    if not lines:
        last = (done.stderr.decode(errors="replace").strip().splitlines() or ["no message"])[-1]
        raise TargetError(f"{python} measured no format: {last[:200]}; it needs torch, transformers, torchao and gguf")
    return [_cell(name, [line for line in lines if line.format == name]) for name in FORMATS]


def _cell(name: str, lines: list[Line]) -> Cell:
    alongs = [Along(one.text, one.kl, one.agree, one.baseline, one.candidate) for one in lines if one.kl]
    rates = next((one for one in lines if one.prefill), None)
    why = tuple(one.why for one in lines if one.why)
    texts = summary(alongs) if alongs and name != FORMATS[0] else None
    speed = Speed(_middle(rates.prefill), _middle(rates.decode), None) if rates else None
    return Cell(f"torch {name}", f"torch {name}", "F16", rates.bytes if rates else 0, speed, texts, None, None, why)


def _middle(values: list[float]) -> Estimate:
    method = f"median, least and most of {len(values)}"
    return Estimate(median(values), min(values), max(values), len(values), "tokens/s", 1.0, method)
