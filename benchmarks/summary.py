"""A number of token events in; the time and the memory that the summary of such a run takes out.

    python benchmarks/summary.py [EVENTS, default 10,000,000]

The rows are made up by DuckDB (128 tokens a request at 500 requests/s, gaps of 10 ms with scatter, three families),
written as Parquet as a run would be, and read by a process of its own, so that its memory is that of the summary alone.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from os import getloadavg
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb

from dynamometer.metrics.summary import summarize
from dynamometer.record.clock import cpu_ns, now_ns
from dynamometer.types import Experiment, Load, Provenance, Run, Target, Workload

TOKENS = 128
RUN = Run(
    "made-up",
    1,
    "complete",
    Provenance.SIMULATED,
    Experiment("summary", Target("http://127.0.0.1:9/v1"), Workload(), Load("constant", rate=500.0)),
    {},
    {},
    {},
    0,
    0,
)


def write(folder: Path, events: int) -> None:
    """requests.parquet and events.parquet of about so many token events."""
    requests = max(1, events // TOKENS)
    connection = duckdb.connect()
    connection.execute(
        f"""copy (select r::integer as request, 'load' as phase, ['python', 'sql', 'javascript'][1 + r % 3] as family,
          '' as session, 0 as turn, -1 as after, 0.0::double as level, 512 as input_tokens, {TOKENS} as output_tokens,
          true as ignore_eos, '' as prompt_sha from range({requests}) t(r)) to '{folder}/requests.parquet'"""
    )
    connection.execute(
        f"""copy (with q as (select r::integer as request, (r * 2000000)::bigint as due from range({requests}) t(r)),
        facts as (
          select request, 'due' as kind, due as at_ns, 0 as n, 0 as bytes, '' as note from q union all
          select request, 'sent', due + 20000, 1, 800, 'reused' from q union all
          select request, 'headers', due + 40000000, 200, 0, '' from q union all
          select request, 'chunk', (due + 50000000 + i * 10000000 + hash(request * 1000 + i) % 3000000)::bigint, 0, 4,
            'content' from q, range({TOKENS}) t(i) union all
          select request, 'usage', due + 1400000000, {TOKENS}, 0, 'output' from q union all
          select request, 'finish', due + 1400000000, 0, 0, 'length' from q union all
          select request, 'done', due + 1400000000, 0, 9000, '' from q)
        select * from facts order by request, at_ns) to '{folder}/events.parquet'"""
    )


def measure(folder: Path) -> dict[str, float]:
    """Seconds, CPU seconds and resident megabytes of one summary."""
    connection = duckdb.connect()
    connection.execute("set threads = 2")
    for name in ("requests", "events"):
        connection.execute(f"create view {name} as select * from read_parquet('{folder}/{name}.parquet')")
    connection.execute(
        "create table samples (source varchar, name varchar, device varchar, at_ns bigint, value double)"
    )
    start_ns, start_cpu_ns = now_ns(), cpu_ns()
    summary = summarize(connection, RUN)
    seconds = (now_ns() - start_ns) / 1e9
    cpu_s = (cpu_ns() - start_cpu_ns) / 1e9
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    return {
        "s": seconds,
        "cpu_s": cpu_s,
        "rss_mb": peak_mb,
        "tokens": summary.metrics.itl_ms.n,
        "itl_mean": summary.metrics.itl_ms.mean or 0,
    }


def main() -> None:
    if len(sys.argv) == 3:  # the child
        print(json.dumps(measure(Path(sys.argv[2]))))
        return
    events = int(sys.argv[1].replace(",", "")) if len(sys.argv) > 1 else 10_000_000
    with TemporaryDirectory() as folder:
        write(Path(folder), events)
        child = [sys.executable, __file__, "--measure", folder]
        found = json.loads(subprocess.run(child, check=True, capture_output=True, text=True).stdout)
    print(
        f"{events:,} token events: summary in {found['s']:.1f} s ({found['cpu_s']:.1f} s of CPU,"
        f" load average {getloadavg()[0]:.1f}), {found['rss_mb']:,.0f} MB resident at most"
        f" ({found['tokens']:,} intervals, mean ITL {found['itl_mean']:.3f} ms)"
    )


if __name__ == "__main__":
    main()
