"""A served model in; how fast it reads and writes by its own clock, what it holds, and the rows of the study out."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Final

import msgspec

from dynamometer.decisions.quantization import Format
from dynamometer.errors import TargetError
from dynamometer.quality.divergence import Divergence
from dynamometer.quality.paired import Paired
from dynamometer.quality.sides import Json, Side
from dynamometer.types import Estimate

PROMPT_TOKENS: Final = 512
OUTPUT_TOKENS: Final = 64


class Speed(msgspec.Struct, frozen=True):
    """By the server's own clock, tokens/s."""

    prefill: Estimate
    decode: Estimate
    resident_bytes: int | None  # proportional set size of its process after the work


class Cell(msgspec.Struct, frozen=True):
    """One format with one type of cache, as far as it was measured."""

    name: str
    weights: str
    cache: str
    file_bytes: int
    speed: Speed | None
    texts: Divergence | None  # None: the baseline itself
    answers: Paired | None
    right: Estimate | None  # percent of the questions
    notes: tuple[str, ...] = ()


def speed(side: Side, pid: int, repeats: int = 5) -> Speed:
    """Reads 512 tokens that no cache knows and writes 64, once to warm up and then `repeats` times."""
    prefill, decode = [], []
    for number in range(repeats + 1):
        prompt = [100 + (number * PROMPT_TOKENS + at) * 7919 % 40_000 for at in range(PROMPT_TOKENS)]
        body = {
            "prompt": prompt,
            "n_predict": OUTPUT_TOKENS,
            "ignore_eos": True,
            "cache_prompt": False,
            "temperature": 0,
        }
        status, said = side.call("/completion", body, root=True)
        timings = said.get("timings")
        if status != 200 or not isinstance(timings, dict):
            raise TargetError(f"{side.label}: llama.cpp gives no timings (HTTP {status})")
        if number:
            prefill.append(_rate(timings, "prompt_per_second"))
            decode.append(_rate(timings, "predicted_per_second"))
    return Speed(_middle(prefill), _middle(decode), resident_bytes(pid))


def resident_bytes(pid: int) -> int | None:
    """Proportional set size, bytes: pages shared with other processes count by their share; None where unknown."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:")), None)


def format_of(cell: Cell) -> Format:
    """The cell as a choice."""
    return Format(
        cell.name, cell.file_bytes, cell.speed.resident_bytes if cell.speed else None,
        cell.speed.prefill if cell.speed else None, cell.speed.decode if cell.speed else None,
        cell.texts.kl if cell.texts else None, cell.texts.agreement if cell.texts else None,
    )  # fmt: skip


def _rate(timings: Json, name: str) -> float:
    value = timings.get(name)
    return float(value) if isinstance(value, int | float) else 0.0


def _middle(values: list[float]) -> Estimate:
    method = f"median, least and most of {len(values)}"
    return Estimate(median(values), min(values), max(values), len(values), "tokens/s", 1.0, method)
