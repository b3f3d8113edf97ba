"""Nothing in, milliseconds out: how long facts, a memory budget and an audit take. `python benchmarks/facts.py`"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dynamometer.decisions.audit import audit
from dynamometer.decisions.claim import read_csv
from dynamometer.hardware import choose, gpu, source
from dynamometer.hardware.memory import Deployment, breakdown, judge
from dynamometer.record.clock import now_ns

CLAIMS = Path(__file__).parent.parent / "examples" / "claims.csv"


def best_ms(work: Callable[[], object], repeats: int = 20) -> float:
    """Least of the repeats; noise only adds."""
    times = []
    for _ in range(repeats):
        began_ns = now_ns()
        work()
        times.append((now_ns() - began_ns) / 1e6)
    return min(times)


def model() -> None:
    """A built-in read from its fields again."""
    source.load.cache_clear()
    source.load("deepseek-v3")


def budget() -> None:
    found = source.load("deepseek-v3")
    d = Deployment(context=32768, concurrency=16, tp=8, memory_bytes=80 * 2**30)
    judge(found, d, breakdown(found, d))


def main() -> None:
    source.built_ins()
    gpu.devices()
    claims = read_csv(CLAIMS)
    audit(claims)
    rows = {
        "DeepSeek-V3's config to a model": best_ms(model),
        "its memory on eight GPUs, with limits": best_ms(budget),
        "the cheapest of all devices": best_ms(lambda: choose.choices(source.load("llama-3.1-70b"), Deployment())),
        f"an audit of {len(claims)} claims": best_ms(lambda: audit(claims), 5),
    }
    for name, ms in rows.items():
        print(f"{name:42} {ms:8.2f} ms")


if __name__ == "__main__":
    main()
