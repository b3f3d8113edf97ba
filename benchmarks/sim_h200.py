"""Accuracy of the step-time fit and of the simulator on an engine's step log: phases predicted from other phases.

    python benchmarks/sim_h200.py FOLDER                                # each phase from all others
    python benchmarks/sim_h200.py FOLDER --fit open_r4,open_r32,closed_c8 --predict rest
    python benchmarks/sim_h200.py FOLDER --json result.json

FOLDER holds `serve_steps.csv.gz` and `serve_requests.csv.gz` (docs/simulator.md). Printed per phase: the median
relative error of its steps, and predicted / recorded for TTFT P50 and P99, E2E mean, P50 and P99, and output tokens
per second; then how many of the recorded figures lie inside the 80 % intervals of the predictions.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec
import numpy as np

from dynamometer.models.steplog import phases
from dynamometer.record.steplog import read_requests, read_steps
from dynamometer.replay import Predicted, each_from_the_others, predict

TARGETS = {"step": 0.05, "e2e_mean_ms": 0.05, "ttft_p50_ms": 0.15, "ttft_p99_ms": 0.15, "output_tokens_per_s": 0.03}


def show(predicted: list[Predicted]) -> None:
    """A row a phase, then the medians against the targets, then the coverage of the intervals."""
    names = [f.figure for f in predicted[0].figures]
    print(f"{'phase':12} {'requests':>8} {'step':>6}  " + "  ".join(f"{n.removesuffix('_ms'):>13}" for n in names))
    for p in predicted:
        cells = "  ".join(f"{f.error:>+12.1%} " for f in p.figures)
        print(f"{p.phase:12} {p.requests:>8} {p.step_error:>6.1%}  {cells}")
    print()
    for name in ("step", *names):
        errors = [
            p.step_error if name == "step" else next(abs(f.error) for f in p.figures if f.figure == name)
            for p in predicted
        ]
        target = (
            f"target {TARGETS[name]:.0%}, met in {sum(e <= TARGETS[name] for e in errors)} of {len(errors)}"
            if name in TARGETS
            else ""
        )
        print(f"{name:22} median {np.median(errors):6.1%}  worst {np.max(errors):6.1%}  {target}")
    inside = [
        f.low <= f.recorded <= f.high for p in predicted for f in p.figures if f.low is not None and f.high is not None
    ]
    if inside:
        print(f"\n80 % intervals hold {np.mean(inside):.0%} of {len(inside)} recorded figures")


def main() -> None:
    """Parse, predict, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--fit", default="", help="phases to fit to, comma-separated")
    parser.add_argument("--predict", default="", help="phases to predict, or rest")
    parser.add_argument("--json", type=Path, default=None)
    given = parser.parse_args()
    found = phases(read_steps(given.folder), read_requests(given.folder))
    if given.fit or given.predict:
        asked = [] if given.predict in ("", "rest") else given.predict.split(",")
        predicted = list(predict(found, given.fit.split(",") if given.fit else [], asked).phases)
    else:
        predicted = each_from_the_others(found)
    show(predicted)
    if given.json:
        given.json.write_bytes(msgspec.json.format(msgspec.json.encode(predicted), indent=2))


if __name__ == "__main__":
    main()
