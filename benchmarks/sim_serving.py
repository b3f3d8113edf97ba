"""Accuracy of the time per token on public serving points: each (GPU, model, engine) series from all others, without
and with three of its own.

    python benchmarks/sim_serving.py                    # benchmarks/data/serving_measured.csv
    python benchmarks/sim_serving.py FILE.csv           # any file of the same columns

Printed: mean and median absolute percentage error over all points and by series, coverage of the 80 % intervals, and
the same for the physics alone and for the datasheet's floor. Points whose concurrency cannot be known (the batch in
the name and in the columns disagree) are set aside, by a rule that looks at no error, and counted.
"""

from __future__ import annotations

import argparse
import csv
import re
from pathlib import Path

import numpy as np

from dynamometer.hardware import gpu, source
from dynamometer.hardware.gpu import Device
from dynamometer.hardware.model import Model, kv_bytes_per_token, matmul_active
from dynamometer.hardware.roofline import expert_share
from dynamometer.models.serving import Foretold, Points, coefficients, leave_series_out

HERE = Path(__file__).parent
BYTES = {"fp8": 1.0, "fp8_block": 1.01, "nvfp4": 0.5625, "int4_wo": 0.53, "fp4": 0.5625, "int4": 0.53, "bf16": 2.0}
SAME = {  # names of one architecture
    "Qwen/Qwen3-235B-A22B-FP8": "qwen3-235b-a22b",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "llama-3.1-8b",
    "nvidia/DeepSeek-R1-NVFP4": "deepseek-r1",
    "nvidia/Qwen3-32B-NVFP4": "qwen3-32b",
    "nvidia/DeepSeek-V3.1-NVFP4": "deepseek-v3",
    "moonshotai/Kimi-K2.5": "kimi-k2",
}
# Models without a config here: (parameters, of experts, active, share of experts, cache elements a token, KV heads,
# layers, hidden).
# From the makers' announcements, rounded, not verified against a config.
SKETCHES = {
    "MiniMaxAI/MiniMax-M2.5": (229e9, 219e9, 9.6e9, 8 / 256, 62 * 2 * 8 * 128, 8, 62, 3072),
    "Qwen/Qwen3.5-397B-A17B": (395e9, 386e9, 16.5e9, 10 / 512, 15 * 2 * 2 * 256, 2, 60, 4096),
    "zhipuai/GLM-5": (742e9, 725e9, 39e9, 8 / 256, 78 * 576, 0, 78, 6144),
}
ENGINES = ("trtllm", "vllm", "sglang")
CAUSES = (
    "w",
    "wm",
    "wwo",
    "kv",
    "kvmla",
    "pre",
    "prem",
    "prewo",
    "L",
    "Lm",
    "Lmla",
    "Lc",
    "Lc2",
    "ar",
    "arp",
    "B",
    "pa",
)


def facts(name: str) -> tuple[float, ...]:
    """(parameters, of experts, active, expert share, cache elements a token, KV heads, layers, hidden)."""
    if name in SKETCHES:
        return SKETCHES[name]
    model: Model | None = source.find(SAME.get(name, name))
    if model is None:
        raise SystemExit(f"no facts about {name}; add a line to SKETCHES")
    whole = sum(p.elements for p in model.parts if p.kind not in ("embedding", "vision"))
    experts = sum(p.elements for p in model.parts if p.kind.startswith("experts"))
    windowed = 0.5 if any(c.window for c in model.caches) else 1.0
    kv, heads = kv_bytes_per_token(model, 1.0) * windowed, max((c.heads for c in model.caches), default=0)
    return whole, experts, matmul_active(model), expert_share(model), kv, heads, model.layers, model.hidden


def family(name: str) -> str:
    """Models of one architecture under one name: DeepSeek V3 and R1, and each in all its formats."""
    model = source.find(SAME.get(name, name))
    return (model.name if model else name).replace("deepseek-r1", "deepseek-v3")


def weight_bytes(row: dict[str, str]) -> float:
    """Bytes of a weight; a blank field is read from the model's name, else as bf16."""
    for key in (row["gemm_quant_mode"], row["precision"]):
        if key in BYTES:
            return BYTES[key]
    return 1.0 if "FP8" in row["model_path"] else 0.5625 if "NVFP4" in row["model_path"] else 2.0


def number(text: str, default: float = 1.0) -> float:
    return float(text) if text not in ("", "nan") else default


def causes(row: dict[str, str], device: Device) -> tuple[dict[str, float], list[float]]:
    """(seconds by cause, coordinates of nearness) of a point."""
    whole, experts, active, share, kv, heads, layers, hidden = facts(row["model_path"])
    tp, dp = max(1.0, number(row["tp_size"])), max(1.0, number(row["attention_dp_size"]))
    ep = max(1.0, number(row["moe_ep_size"]))
    n = max(tp * dp, max(1.0, number(row["moe_tp_size"])) * ep if experts else 1.0)
    n = n if row["system"].startswith("gb") else min(n, 8.0)
    batch, isl, osl = number(row["batch_size"]) * dp, float(row["isl"]), float(row["osl"])
    size = weight_bytes(row)
    rate = device.rates[
        "fp4" if size == 0.5625 and "fp4" in device.rates else "fp8" if size in (1.0, 1.01) else "bf16"
    ].high
    bandwidth, link = device.bandwidth.low, device.link.low if device.link else 25e9
    narrow = (size < 0.6 and "fp4" not in device.rates) or size == 0.53
    latent, moe = heads == 0, experts > 0
    copies = max(1.0, tp / heads) if heads else tp
    prefill = batch * isl / osl  # prompt tokens that a step computes on average
    t = {
        "w": (experts * (1 - (1 - share) ** batch) / n + (whole - experts) / tp) * size / bandwidth,
        "kv": kv * (1 if size < 2 else 2) * copies / tp * (isl + osl / 2) * batch / dp / bandwidth,
        "pre": 2 * active * prefill / n / rate,
        "L": layers,
        "Lc": layers * (n > 1),
        "Lc2": layers * float(np.log2(n)),
        "ar": layers * batch / dp * hidden * 4 * (n - 1) / n / link,
        "arp": layers * prefill / dp * hidden * 4 * (n - 1) / n / link,
        "B": batch / dp,
        "pa": layers * prefill / dp / 1e3,
    }
    t |= {
        "wm": t["w"] * moe,
        "wwo": t["w"] * narrow,
        "kvmla": t["kv"] * latent,
        "prem": t["pre"] * moe,
        "prewo": t["pre"] * narrow,
    }
    t |= {"Lm": t["L"] * moe, "Lmla": t["L"] * latent}
    for engine in ENGINES:
        here = row["backend"] == engine
        t |= {f"{cause} {engine}": t[cause] * here for cause in ("pre", "L", "B", "Lm", "w")}
    busy = t["pre"] / (t["w"] + t["kv"] + 2e-5 * layers + t["pre"])
    near = [np.log(batch), np.log(isl), np.log(osl), np.log(n), 2 * np.log(4 * size), 2.0 * (ep > 1), np.log(busy)]
    return t, [float(v) for v in near]


def clear(row: dict[str, str]) -> bool:
    """False: the batch in the name and in the columns disagree, so the load is not known."""
    named = re.search(r"_c(\d+)(?:_|$)", row["id"])
    if not named or row["system"].startswith("gb"):
        return False
    total = number(row["batch_size"]) * max(1.0, number(row["attention_dp_size"]))
    return float(named[1]) == total and total * (float(row["isl"]) + float(row["osl"])) <= 4e6


def load(path: Path) -> tuple[list[dict[str, str]], Points, int]:
    """(rows, points, rows set aside)."""
    with path.open(newline="", encoding="utf-8") as file:
        everything = list(csv.DictReader(file))
    rows = [row for row in everything if clear(row)]
    made = [causes(row, gpu.get(row["system"])) for row in rows]
    names = [*CAUSES, *(f"{c} {e}" for e in ENGINES for c in ("pre", "L", "B", "Lm", "w"))]
    architecture = [family(r["model_path"]) for r in rows]
    series = [f"{r['system']} {r['model_path']} {r['backend']}" for r in rows]
    points = Points(
        causes=np.array([[t[name] for name in names] for t, _ in made]),
        nearness=np.array([near for _, near in made]),
        device=np.unique([r["system"] for r in rows], return_inverse=True)[1].astype(np.int64),
        model=np.unique(architecture, return_inverse=True)[1].astype(np.int64),
        engine=np.unique([r["backend"] for r in rows], return_inverse=True)[1].astype(np.int64),
        version=np.unique([f"{r['backend']} {r['backend_version']}" for r in rows], return_inverse=True)[1].astype(
            np.int64
        ),
        series=np.unique(series, return_inverse=True)[1].astype(np.int64),
        seconds=np.array([float(r["silicon_tpot_ms"]) for r in rows]) / 1e3,
    )
    return rows, points, len(everything) - len(rows)


def tell(label: str, found: Foretold, points: Points) -> None:
    """One line."""
    known = found.known
    miss = np.abs(found.seconds[known] / points.seconds[known] - 1)
    z = np.abs(np.log(points.seconds[known] / found.seconds[known])) / np.maximum(1e-9, found.spread[known])
    cover = f"  80 % intervals hold {np.mean(z < 1.2816):.0%}" if found.spread.any() else ""
    middle, high = np.median(miss), np.quantile(miss, 0.9)
    print(f"{label:34} {known.sum():5} points  MAPE {miss.mean():6.1%}  median {middle:6.1%}  P90 {high:6.1%}{cover}")


def main() -> None:
    """Load, leave out, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=Path, default=HERE / "data" / "serving_measured.csv")
    rows, points, aside = load(parser.parse_args().file)
    print(f"{len(rows)} points, {aside} set aside (load not known)\n")
    everyone = np.ones(len(rows), dtype=bool)
    nothing = np.zeros(len(rows))
    tell("datasheet floor", Foretold(points.causes[:, 0] + points.causes[:, 3], nothing, everyone), points)
    physics = points.causes @ coefficients(points, np.arange(len(rows)))
    tell("physics, in sample", Foretold(physics, nothing, everyone), points)
    zero, three = leave_series_out(points), leave_series_out(points, own=3)
    tell("series left out", zero, points)
    tell("series left out, 3 of its own", three, points)
    print(f"\n{'series':62} {'points':>6} {'MAPE':>7} {'with 3':>7}")
    names = np.array([f"{r['system']} {r['model_path']} {r['backend']}" for r in rows])
    for name in np.unique(names):
        here = names == name
        miss = np.abs(zero.seconds / points.seconds - 1)[here].mean()
        more = np.abs(three.seconds / points.seconds - 1)[here & three.known]
        print(f"{name:62} {here.sum():6} {miss:7.1%} {f'{more.mean():7.1%}' if len(more) else '      –'}")


if __name__ == "__main__":
    main()
