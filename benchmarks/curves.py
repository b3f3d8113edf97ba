"""Public saturation curves in; how well fits do on points they did not see, and how often intervals hold, out.

Run: python benchmarks/curves.py [FILE.csv …]

Without a file: the public curves of benchmarks/data/serving_aic.csv and this project's own of one H200
(h200_closed.csv). A file of your own needs the columns `curve`, `concurrency` and either
`output_tokens_per_s` or `ttft_ms`, `tpot_ms` and `output_tokens` (throughput then follows from Little's law). Curves
with fewer than five levels are left out.

In range: each level but the lowest and the highest is predicted from all others; the family is chosen anew each time.
Extrapolated: the two highest levels are predicted from the rest, on curves of at least six levels.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from pathlib import Path

import msgspec
import numpy as np

from dynamometer.models import saturation
from dynamometer.models.forms import THROUGHPUT, Form
from dynamometer.types import Float64

DATA = [Path(__file__).parent / "data" / name for name in ("serving_aic.csv", "h200_closed.csv")]
LEVEL = 0.9


class Miss(msgspec.Struct, frozen=True):
    """One prediction against the level it did not see."""

    error: float  # relative
    held: bool  # inside the interval


def curves(path: Path) -> dict[str, tuple[Float64, Float64]]:
    """Concurrency and output tokens per second of each curve with at least five levels."""
    found: dict[str, dict[float, float]] = defaultdict(dict)
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            x = float(row["concurrency"])
            if row.get("output_tokens_per_s"):
                y = float(row["output_tokens_per_s"])
            else:
                tokens = float(row["output_tokens"])
                y = 1e3 * x * tokens / (float(row["ttft_ms"]) + float(row["tpot_ms"]) * (tokens - 1))
            found[row["curve"]].setdefault(x, y)
    kept = {name: np.array(sorted(levels.items())).T for name, levels in found.items() if len(levels) >= 5}
    return {name: (xy[0], xy[1]) for name, xy in kept.items()}


def left_out(x: Float64, y: Float64, gone: list[int], families: tuple[Form, ...]) -> list[Miss]:
    """The levels `gone`, predicted from the others."""
    stay = np.setdiff1d(np.arange(len(x)), gone)
    fitted = saturation.fit(x[stay], y[stay], level=LEVEL, resamples=2, families=families)
    misses = []
    for i in gone:
        said = saturation.predict(fitted, float(x[i]), extrapolate=True)
        assert said.value is not None
        assert said.low is not None
        assert said.high is not None
        misses.append(Miss(said.value / y[i] - 1, said.low <= y[i] <= said.high))
    return misses


def describe(title: str, misses: list[Miss]) -> str:
    errors = np.abs([miss.error for miss in misses])
    return (
        f"  {title}: median {np.median(errors):.1%}, p90 {np.quantile(errors, 0.9):.1%}, bias "
        f"{np.mean([miss.error for miss in misses]):+.1%}, {LEVEL:.0%} interval holds "
        f"{np.mean([miss.held for miss in misses]):.1%} (n = {len(misses)})"
    )


def main() -> None:
    for path in [Path(name) for name in sys.argv[1:]] or DATA:
        found = curves(path)
        print(f"{path.name}: {len(found)} curves")
        for name, families in (("chosen by held-out error", THROUGHPUT), ("the hyperbola alone", THROUGHPUT[:1])):
            inside, beyond, fitted = [], [], []
            for x, y in found.values():
                fitted.append(saturation.fit(x, y, resamples=2, families=families).chosen.fit.misfit)
                inside += [miss for i in range(1, len(x) - 1) for miss in left_out(x, y, [i], families)]
                if len(x) >= 6:
                    beyond += left_out(x, y, [len(x) - 2, len(x) - 1], families)
            print(f" {name}")
            print(f"  fitted to all levels: median misfit {np.median(fitted):.1%} (median over curves)")
            print(describe("in range, left out", inside))
            print(describe("extrapolated, two levels", beyond))


if __name__ == "__main__":
    main()
