"""A number of streams in; how truly and how cheaply our client measures them out, judged by a server that knows better.

    python benchmarks/wire.py [--streams 500,1000] [--seconds 5] [--repeats 3] [--aiperf VENV] [--guidellm VENV]

`truthd.c` streams 100 tokens a second to each connection on an exact schedule and logs when it read each request and
wrote each token. What the client says minus what the server did is the client's own error. Client and server share this
machine's cores, so the figures are those of both together; the load average says what else ran. Each figure is the
median of the repeats. On a machine that others use, `chrt -f 5 python benchmarks/wire.py` shows the client's own error
without theirs.

The client is one process that drives the load, writes the log, decodes it and writes the rows. Its CPU time is user and
system time of all of that, start of the interpreter included. Some two thirds of it are the kernel's: reading 48,000
small segments a second and acknowledging each. Delayed acknowledgements (TCP_QUICKACK off) would save a quarter of it,
but then a server that has not set TCP_NODELAY stalls, and the client would have made it slow; so they stay as they are.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from dynamometer.client.workers import run as drive
from dynamometer.engines.openai import chat
from dynamometer.record import manifest
from dynamometer.record.clock import now_ns, origin
from dynamometer.record.log import BODY, END, SENT, WireLog, read_frames, shards
from dynamometer.types import Experiment, Load, Message, Provenance, Request, Target, Workload

TTFT_MS, ITL_MS, TOKENS = 50.0, 10.0, 128
REQUEST_S = (TTFT_MS + (TOKENS - 1) * ITL_MS) / 1000
ID = re.compile(rb'"id":"c-(\d+)"')


class Measured(msgspec.Struct, frozen=True):
    """One tool, once."""

    ttft_mean_ms: float  # as the tool reports it
    ttft_p99_ms: float
    truth_mean_ms: float
    truth_p99_ms: float
    tokens_per_s: float
    wall_s: float  # of the whole process
    load_s: float  # from the server's first read to its last token
    cpu_us_per_token: float
    rss_mb: float
    late_p99_ms: float | None = None


def quantile(values: list[float], share: float) -> float:
    """Nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))]


@contextmanager
def truth(program: Path, log: Path, itl_ms: float = ITL_MS) -> Iterator[str]:
    """The server on a free port; its log is complete when the block has ended."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = ["--ttft-ms", str(TTFT_MS), "--itl-ms", str(itl_ms), "--tokens", str(TOKENS), "--log", str(log)]
    server = subprocess.Popen([program, "--port", str(port), *settings], stderr=subprocess.PIPE)
    assert server.stderr is not None
    server.stderr.readline()  # it listens
    try:
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        server.communicate()


def known(log: Path) -> list[dict[str, int]]:
    """The server's log: request, read_ns, first_ns, last_ns, tokens, worst_late_ns."""
    with log.open() as file:
        return [{key: int(value) for key, value in row.items()} for row in csv.DictReader(file)]


def timed(command: list[str], folder: Path) -> tuple[float, float, float]:
    """Wall seconds, CPU seconds and peak MB of a command and all its children."""
    begun_ns = now_ns()
    with (folder / "output.txt").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    wall_s = (now_ns() - begun_ns) * 1e-9
    if process.returncode:
        sys.exit(f"{command[0]} failed:\n{(folder / 'output.txt').read_text()[-2000:]}")
    return wall_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def ours(program: Path, streams: int, rounds: int, workers: int) -> Measured:
    """Our client in a process of its own."""
    with TemporaryDirectory() as place:
        folder, log = Path(place), Path(place) / "truth.csv"
        with truth(program, log) as url:
            command = [sys.executable, __file__, "--drive", url, str(streams), str(rounds), str(workers), place]
            wall_s, cpu_s, rss_mb = timed(command, folder)
        rows = known(log)
        server = {row["request"]: row for row in rows}
        errors, told, true = [], [], []
        for truth_id, ttft_ms in ttfts(folder):
            actual_ms = (server[truth_id]["first_ns"] - server[truth_id]["read_ns"]) / 1e6
            told.append(ttft_ms)
            true.append(actual_ms)
            errors.append(ttft_ms - actual_ms)
        client = json.loads((folder / "client.json").read_text())
        print(
            f"    paired error of TTFT: mean {statistics.mean(errors):.2f} ms, p99 {quantile(errors, 0.99):.2f} ms; "
            f"latest token by the server {max(row['worst_late_ns'] for row in rows) / 1e6:.1f} ms"
        )
        return measured(rows, told, (wall_s, cpu_s, rss_mb), client.get("lateness_p99_ms"))


def measured(
    rows: list[dict[str, int]], told_ms: list[float], process: tuple[float, float, float], late_p99_ms: float | None
) -> Measured:
    wall_s, cpu_s, rss_mb = process
    true = [(row["first_ns"] - row["read_ns"]) / 1e6 for row in rows]
    tokens = sum(row["tokens"] for row in rows)
    load_s = (max(row["last_ns"] for row in rows) - min(row["read_ns"] for row in rows)) * 1e-9
    return Measured(
        ttft_mean_ms=statistics.mean(told_ms),
        ttft_p99_ms=quantile(told_ms, 0.99),
        truth_mean_ms=statistics.mean(true),
        truth_p99_ms=quantile(true, 0.99),
        tokens_per_s=tokens / load_s,
        wall_s=wall_s,
        load_s=load_s,
        cpu_us_per_token=cpu_s / tokens * 1e6,
        rss_mb=rss_mb,
        late_p99_ms=late_p99_ms,
    )


def ttfts(folder: Path) -> Iterator[tuple[int, float]]:
    """The server's number of each finished answer, and its time from sent to the first body byte, ms."""
    sent: dict[int, int] = {}
    first: dict[int, tuple[int, int]] = {}
    for path in shards(folder):
        for kind, request, at_ns, payload in read_frames(path):
            if kind == SENT:
                sent[request] = at_ns
            elif kind == BODY and request not in first:
                found = ID.search(payload)
                assert found is not None
                first[request] = (int(found[1]), at_ns)
            elif kind == END:
                truth_id, first_ns = first[request]
                yield truth_id, (first_ns - sent[request]) / 1e6


def drive_once(url: str, streams: int, rounds: int, workers: int, folder: Path) -> None:
    """What the measured process does: the load, the log, the rows."""
    from dynamometer.record.store import refresh

    load = Load("closed", concurrency=streams)
    at = Experiment("wire", Target(url, "truth"), Workload(), load, requests=streams * rounds)
    begun = origin()
    run = manifest.begin(at, begun, Provenance.MEASURED, {}, "")
    requests = (Request(i, (Message("user", "Say tok."),), TOKENS, ignore_eos=True) for i in itertools.count())
    log = WireLog(folder / "wire.log", begun.monotonic_ns)
    account = drive(at, requests, None, chat, log, lambda _: None, workers)
    log.close()
    manifest.write(folder, manifest.finish(run, account.status, account.end_ns, account.client, account.doubts))
    refresh(folder)
    (folder / "client.json").write_bytes(msgspec.json.encode(account.client))


def tokenizer(folder: Path) -> Path:
    """A tokenizer of a few words: the other tools want one, and this machine may be without a network."""
    words = {word: i for i, word in enumerate(("[UNK]", "Say", "tok", "the", "of", "and", "to", "a", "in", "is"))}
    model = {"type": "WordLevel", "vocab": words, "unk_token": "[UNK]"}
    unknown = {"id": 0, "content": "[UNK]", "special": True}
    unknown |= dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    nothing = dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder"))
    whole = {"version": "1.0", **nothing, "added_tokens": [unknown], "pre_tokenizer": {"type": "Whitespace"}}
    place = folder / "tokenizer"
    place.mkdir()
    (place / "tokenizer.json").write_text(json.dumps({**whole, "model": model}))
    kind = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]", "model_max_length": 100_000}
    (place / "tokenizer_config.json").write_text(json.dumps(kind))
    return place


def aiperf(venv: Path, program: Path, streams: int, rounds: int) -> Measured:
    """AIPerf on the same load."""
    with TemporaryDirectory() as place:
        folder, log = Path(place), Path(place) / "truth.csv"
        with truth(program, log) as url:
            command = [str(venv / "bin" / "aiperf"), "profile", "--model", "truth", "--url", url.removesuffix("/v1")]
            command += ["--endpoint-type", "chat", "--streaming", "--tokenizer", str(tokenizer(folder)), "--ui", "none"]
            command += ["--concurrency", str(streams), "--request-count", str(streams * rounds)]
            command += ["--synthetic-input-tokens-mean", "16", "--output-tokens-mean", str(TOKENS)]
            process = timed([*command, "--artifact-dir", place], folder)
        found = json.loads((folder / "profile_export_aiperf.json").read_text())["time_to_first_token"]
        return others(log, process, found["avg"], found["p99"])


def guidellm(venv: Path, program: Path, streams: int, rounds: int) -> Measured:
    """GuideLLM on the same load."""
    with TemporaryDirectory() as place:
        folder, log = Path(place), Path(place) / "truth.csv"
        data, out = folder / "prompts.jsonl", folder / "benchmarks.json"
        row = json.dumps({"prompt": "Say tok.", "output_tokens_count": TOKENS})
        data.write_text(f"{row}\n" * (streams * rounds))
        with truth(program, log) as url:
            command = [str(venv / "bin" / "guidellm"), "run", "--disable-progress", "--backend"]
            command += [f"kind=openai_http,target={url.removesuffix('/v1')},model=truth"]
            command += ["--profile", f"kind=concurrent,streams={streams}", "--data", f"kind=json_file,path={data}"]
            command += ["--tokenizer", f"kind=hf_auto,model={tokenizer(folder)}"]
            command += ["--constraint", f"kind=max_requests,count={streams * rounds}"]
            process = timed([*command, "--output", f"kind=json,path={out}"], folder)
        found = json.loads(out.read_text())["benchmarks"][0]["metrics"]["time_to_first_token_ms"]["successful"]
        return others(log, process, found["mean"], found["percentiles"]["p99"])


def others(log: Path, process: tuple[float, float, float], mean_ms: float, p99_ms: float) -> Measured:
    """What another tool says of its own run. Its peak memory is that of its largest process."""
    rows = [row for row in known(log) if row["tokens"] == TOKENS]
    return msgspec.structs.replace(measured(rows, [0.0], process, None), ttft_mean_ms=mean_ms, ttft_p99_ms=p99_ms)


HEAD = (
    "| tool | streams | TTFT mean (truth) | p99 (truth) | error mean, p99 | tokens/s (offered) "
    "| whole − load | CPU/token | RSS |"
)


def line(tool: str, streams: int, found: list[Measured]) -> str:
    """One row of the table: medians."""

    def middle(name: str) -> float:
        return statistics.median(float(getattr(one, name)) for one in found)

    mean, p99 = middle("ttft_mean_ms") - middle("truth_mean_ms"), middle("ttft_p99_ms") - middle("truth_p99_ms")
    offered = streams * TOKENS / REQUEST_S
    return (
        f"| {tool} | {streams} | {middle('ttft_mean_ms'):.1f} ms ({middle('truth_mean_ms'):.1f}) "
        f"| {middle('ttft_p99_ms'):.1f} ms ({middle('truth_p99_ms'):.1f}) | {mean:+.2f} ms, {p99:+.2f} ms "
        f"| {middle('tokens_per_s'):,.0f} ({offered:,.0f}: {middle('tokens_per_s') / offered:.1%}) "
        f"| {middle('wall_s') - middle('load_s'):.1f} s | {middle('cpu_us_per_token'):.1f} µs "
        f"| {middle('rss_mb'):.0f} MB |"
    )


def main() -> None:
    if sys.argv[1:2] == ["--drive"]:
        url, streams, rounds, workers, folder = sys.argv[2:]
        drive_once(url, int(streams), int(rounds), int(workers), Path(folder))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", default="500,1000")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of the load")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--workers", type=int, default=1, help="client processes")
    parser.add_argument("--aiperf", type=Path, help="virtual environment that has AIPerf")
    parser.add_argument("--guidellm", type=Path, help="virtual environment that has GuideLLM")
    given = parser.parse_args()
    compiler = shutil.which("cc")
    if compiler is None:
        sys.exit("cc is missing: the server that knows the truth is C (apt-get install gcc)")
    rounds = max(1, round(given.seconds / REQUEST_S))
    table = [HEAD, "|---" * 9 + "|"]
    with TemporaryDirectory() as place:
        program = Path(place) / "truthd"
        subprocess.run([compiler, "-O2", "-o", program, Path(__file__).with_name("truthd.c")], check=True)
        for streams in map(int, given.streams.split(",")):
            print(f"{streams} streams of {1000 / ITL_MS:g} tokens/s, {rounds} requests of {TOKENS} tokens on each")
            print(f"    load average before: {os.getloadavg()[0]:.2f} on {os.cpu_count()} cores", flush=True)
            mine = [ours(program, streams, rounds, given.workers) for _ in range(given.repeats)]
            table.append(line("dynamometer", streams, mine))
            if given.aiperf:
                table.append(line("AIPerf", streams, [aiperf(given.aiperf, program, streams, rounds)]))
            if given.guidellm:
                table.append(line("GuideLLM", streams, [guidellm(given.guidellm, program, streams, rounds)]))
    print("\n".join(table))


if __name__ == "__main__":
    main()
