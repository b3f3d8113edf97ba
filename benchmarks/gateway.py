"""A number of streams in; what a proxy adds to them out: this gateway, nginx and LiteLLM, in one run.

    python benchmarks/gateway.py [--streams 500] [--speed 100] [--seconds 4] [--repeats 3] [--litellm VENV]

`truthd.c` streams so many tokens a second to each connection on an exact schedule and logs when it wrote each
first one. Requests come by a Poisson law at the rate that keeps so many streams open on average: started all at once
they would stay in step for ever, and every proxy would be measured with a queue of hundreds of first tokens at one
instant. Each way is warmed up with some requests first.
`dyno`'s own client asks it directly and through each proxy in turn. Added latency is the client's time to first token
minus the server's, by request, less the same quantile without a proxy.
Client, proxy and server share this machine's cores; the load average before each run says what else ran. nginx is a
plain proxy without buffering, with kept connections, on one worker, as the gateway is one process. What is missing here
is left out, and the table says so.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from wire import TOKENS, TTFT_MS, known, quantile, timed, truth, ttfts

from dynamometer.client.workers import run as drive
from dynamometer.engines.openai import chat
from dynamometer.record.clock import now_ns, origin
from dynamometer.record.log import WireLog
from dynamometer.schedule import build as schedule_of
from dynamometer.types import Experiment, Load, Message, Request, Target, Workload

WARM = 200  # requests through each way before the measured ones


class Through(msgspec.Struct, frozen=True):
    """One way, once. Latencies: time to first token by the client minus the server's own, ms."""

    p50_ms: float
    p99_ms: float
    tokens_per_s: float
    proxy_cpu_us: float  # of the proxy, a token
    errors: int


def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def wait(url: str, process: subprocess.Popen[bytes], seconds: float = 60.0) -> None:
    """Until it answers anything at all."""
    end = now_ns() + seconds * 1e9
    while now_ns() < end and process.poll() is None:
        with contextlib.suppress(urllib.error.HTTPError):
            try:
                urllib.request.urlopen(url, timeout=2).close()
                return
            except urllib.error.HTTPError:
                return
            except OSError:
                threading.Event().wait(0.1)
    sys.exit(f"{process.args} did not come up")


@contextmanager
def started(command: list[str], url: str, environ: dict[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, **(environ or {})}
    )
    try:
        wait(url, process, 120.0)
        yield process
    finally:
        process.terminate()
        process.wait(10)


@contextmanager
def ours(folder: Path, url: str) -> Iterator[tuple[str, int]]:
    at = port()
    (folder / "gateway.toml").write_text(
        f'listen = "127.0.0.1:{at}"\nadmin = "127.0.0.1:{port()}"\nfolder = "state"\n'
        f'[baseline]\nurls = ["{url.removesuffix("/v1")}"]\n'
    )
    command = [sys.executable, "-m", "dynamometer", "gateway", str(folder / "gateway.toml")]
    with started(command, f"http://127.0.0.1:{at}/health") as process:
        yield f"http://127.0.0.1:{at}/v1", process.pid


@contextmanager
def nginx(folder: Path, url: str) -> Iterator[tuple[str, int]]:
    at = port()
    engine = url.removesuffix("/v1").removeprefix("http://")
    (folder / "nginx.conf").write_text(
        f"""daemon off; master_process off; worker_processes 1; pid {folder}/nginx.pid; error_log /dev/null;
events {{ worker_connections 8192; }}
http {{
  access_log off; client_body_temp_path {folder}/b; proxy_temp_path {folder}/p;
  fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  keepalive_requests 1000000;
  upstream engine {{ server {engine}; keepalive 1024; keepalive_requests 1000000; }}
  server {{
    listen 127.0.0.1:{at} backlog=1024;
    location / {{
      proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
    }}
  }}
}}"""
    )
    with started(["nginx", "-c", str(folder / "nginx.conf"), "-p", str(folder)], f"http://127.0.0.1:{at}/") as process:
        yield f"http://127.0.0.1:{at}/v1", process.pid


@contextmanager
def litellm(folder: Path, url: str, venv: Path) -> Iterator[tuple[str, int]]:
    at = port()
    parameters = {"model": "openai/truth", "api_base": url, "api_key": "none"}
    rows = [{"model_name": "truth", "litellm_params": parameters}]
    (folder / "litellm.yaml").write_text(json.dumps({"model_list": rows}))  # JSON is YAML
    command = [str(venv / "bin" / "litellm"), "--config", str(folder / "litellm.yaml"), "--host", "127.0.0.1"]
    quiet = {"LITELLM_LOG": "ERROR", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    quiet["LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY"] = "true"  # loopback only, no key
    with started([*command, "--port", str(at)], f"http://127.0.0.1:{at}/health/liveliness", quiet) as process:
        yield f"http://127.0.0.1:{at}/v1", process.pid


@contextmanager
def direct(folder: Path, url: str) -> Iterator[tuple[str, int]]:
    yield url, 0


def cpu_s(pid: int) -> float:
    """User and system time of a process and of the children it has."""
    total = 0.0
    tick = os.sysconf("SC_CLK_TCK")
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(path.parent.name) == pid or int(fields[1]) == pid:
            total += (int(fields[11]) + int(fields[12])) / tick
    return total


def request_s(speed: float) -> float:
    """How long one answer takes at so many tokens a second."""
    return TTFT_MS / 1000 + (TOKENS - 1) / speed


def once(way: str, program: Path, load: tuple[int, int, float], venv: Path | None) -> Through:
    """`load`: streams, requests of each, tokens a second."""
    streams, rounds, speed = load
    with TemporaryDirectory() as place:
        folder, log = Path(place), Path(place) / "truth.csv"
        run, warm = folder / "run", folder / "warm"
        run.mkdir()
        warm.mkdir()
        with truth(program, log, 1000 / speed) as url:
            ways = {"direct": direct, "gateway": ours, "nginx": nginx}
            between = litellm(folder, url, venv) if way == "LiteLLM" and venv else ways[way](folder, url)
            with between as (through, pid):
                rate = str(streams / request_s(speed))
                drive_it = [sys.executable, __file__, "--drive", through]
                timed([*drive_it, str(WARM), rate, str(warm)], folder)
                before = cpu_s(pid) if pid else 0.0
                timed([*drive_it, str(streams * rounds), rate, str(run)], folder)
                spent_s = cpu_s(pid) - before if pid else 0.0
        seen = dict(ttfts(run))
        rows = [row for row in known(log) if row["request"] in seen]
        added = [seen[row["request"]] - (row["first_ns"] - row["read_ns"]) / 1e6 for row in rows]
        tokens = sum(row["tokens"] for row in rows)
        load_s = (max(row["last_ns"] for row in rows) - min(row["read_ns"] for row in rows)) * 1e-9
        errors = streams * rounds - len(added)
        return Through(quantile(added, 0.5), quantile(added, 0.99), tokens / load_s, spent_s / tokens * 1e6, errors)


def line(way: str, found: list[Through], plain: list[Through]) -> str:
    def middle(rows: list[Through], name: str) -> float:
        return statistics.median(float(getattr(one, name)) for one in rows)

    p50 = middle(found, "p50_ms") - middle(plain, "p50_ms")
    p99 = middle(found, "p99_ms") - middle(plain, "p99_ms")
    added = f"{p50:+.2f} ms | {p99:+.2f} ms" if found is not plain else "0 | 0"
    cells = [f"{middle(found, 'p50_ms'):.2f} ms", f"{middle(found, 'p99_ms'):.2f} ms", added]
    cells += [f"{middle(found, 'tokens_per_s'):,.0f}", f"{middle(found, 'proxy_cpu_us'):.1f} µs"]
    return f"| {way} | {' | '.join(cells)} | {middle(found, 'errors'):.0f} |"


def drive_once(url: str, count: int, rate: float, folder: Path) -> None:
    """What the measured client does: arrivals by a Poisson law, the log."""
    load = Load("poisson", rate=rate)
    at = Experiment("gateway", Target(url, "truth"), Workload(), load, requests=count)
    requests = (Request(i, (Message("user", "Say tok."),), TOKENS, ignore_eos=True) for i in range(count))
    log = WireLog(folder / "wire.log", origin().monotonic_ns)
    drive(at, requests, schedule_of(load, 1, count, 0.0), chat, log, lambda _: None, 1)
    log.close()


def main() -> None:
    if sys.argv[1:2] == ["--drive"]:
        url, count, rate, folder = sys.argv[2:]
        drive_once(url, int(count), float(rate), Path(folder))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--speed", type=float, default=100.0, help="tokens a second of each stream")
    parser.add_argument("--seconds", type=float, default=4.0, help="length of each load")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--litellm", type=Path, help="virtual environment that has litellm[proxy]")
    given = parser.parse_args()
    compiler = shutil.which("cc")
    if compiler is None:
        sys.exit("cc is missing: the server that knows the truth is C (apt-get install gcc)")
    ways = ["direct", "gateway", *(["nginx"] if shutil.which("nginx") else []), *(["LiteLLM"] if given.litellm else [])]
    found: dict[str, list[Through]] = {way: [] for way in ways}
    rounds = max(1, round(given.seconds / request_s(given.speed)))
    with TemporaryDirectory() as place:
        program = Path(place) / "truthd"
        subprocess.run([compiler, "-O2", "-o", program, Path(__file__).with_name("truthd.c")], check=True)
        for at in range(given.repeats):
            for way in ways:
                if way == "LiteLLM" and at:
                    continue  # it takes minutes and is far from the rest: once is enough
                load = os.getloadavg()[0]
                found[way].append(
                    once(way, program, (given.streams, 1 if way == "LiteLLM" else rounds, given.speed), given.litellm)
                )
                print(f"    {way}: {found[way][-1]}; load average before {load:.2f}", flush=True)
    print(f"{given.streams} streams of {given.speed:g} tokens/s, {TOKENS} tokens a request, {os.cpu_count()} cores")
    print("| way | TTFT error p50 | p99 | added p50 | added p99 | tokens/s | CPU of the proxy a token | failed |")
    print("|---" * 8 + "|")
    for way in ways:
        print(line(way, found[way], found["direct"]))
    if "nginx" not in ways:
        print("nginx is not installed here (apt-get install nginx-light)")


if __name__ == "__main__":
    main()
