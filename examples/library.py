"""The library in fifteen lines: start the packaged engine, put four streams on it, print what came out."""

from pathlib import Path

from dynamometer.engines.serve import serve
from dynamometer.measure import Beside, measure, ready, sum_up
from dynamometer.record.clock import now_ns
from dynamometer.types import Experiment, Load, Target, Workload

run = Path("runs/library-example")
with serve("llamacpp", now_ns=now_ns) as engine:
    target = Target(engine.url, engine.model)
    experiment = Experiment("library", target, Workload(output_tokens="32"), Load(concurrency=4), requests=12)
    measure(ready(experiment, engine.facts), run, Beside(engine_pids=(engine.pid,)))
found = sum_up(run)
print(found.decision.answer)
print("half of the first tokens came within", found.summary.metrics.ttft_ms.p50, "ms")
