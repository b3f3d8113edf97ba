"""A wire log that grows in; histograms that agree with the exact quantiles within a bucket out."""

from __future__ import annotations

import bisect
import json
import re
import shutil
import socket
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

import numpy as np
import pytest
import slow_engine
from slow_engine import Asked

from dynamometer.errors import UsageError
from dynamometer.metrics.quantiles import from_histogram
from dynamometer.pages.exposition import parse
from dynamometer.record.follow import Followed, serve
from dynamometer.record.live_page import shown_live
from dynamometer.record.store import open_run
from dynamometer.telemetry.histograms import BOUNDS_S, Board, Histogram


def _usual(number: int, random: np.random.Generator) -> Asked:
    return Asked(wait_ms=float(random.exponential(50)))


def test_quantiles_of_the_page_agree_with_the_exact_ones_within_a_bucket(tmp_path: Path) -> None:
    slow_engine.run(tmp_path, _usual)
    followed = Followed(tmp_path)
    followed.look()
    series = parse(followed.board.text(), ("dyno_",))
    name = "dyno_time_to_first_token_seconds_bucket"
    buckets = {one.labels["le"]: one.value for one in series if one.name == name}
    found = _exact(tmp_path)
    for q in (0.5, 0.9, 0.99):
        told = from_histogram(buckets, q, "s")
        assert told.low is not None
        assert told.high is not None
        assert told.low <= np.quantile(found, q, method="inverted_cdf") <= told.high
    values = {(one.name, *one.labels.values()): one.value for one in series}
    assert values["dyno_requests_total", "ok"] == slow_engine.N
    assert values["dyno_tokens_total", "output"] == slow_engine.N * 4
    assert values["dyno_requests_in_flight",] == 0


def test_a_log_is_followed_through_torn_frames(tmp_path: Path) -> None:
    """Whatever piece of the log is there, each request counts once, when its last frame is whole."""
    slow_engine.run(tmp_path / "whole", _usual)
    data = (tmp_path / "whole" / "wire.log").read_bytes()
    grows = tmp_path / "grows"
    grows.mkdir()
    (grows / "run.json").write_bytes((tmp_path / "whole" / "run.json").read_bytes())
    followed, seen = Followed(grows), 0
    for end in range(0, len(data) + 1, 9973):
        (grows / "wire.log").write_bytes(data[:end])
        followed.look()
        assert followed.board.outcomes["ok"] >= seen
        seen = followed.board.outcomes["ok"]
    (grows / "wire.log").write_bytes(data)
    followed.look()
    assert followed.board.outcomes["ok"] == slow_engine.N


def test_the_page_is_served_and_nothing_else_is(tmp_path: Path) -> None:
    slow_engine.run(tmp_path, _usual)
    server = serve(tmp_path, 0)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    base = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        with urlopen(f"{base}/metrics") as page:
            assert f"dyno_time_to_first_token_seconds_count {slow_engine.N}" in page.read().decode()
        with pytest.raises(HTTPError) as refused:
            urlopen(f"{base}/etc/passwd")
        refused.value.close()
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_value_on_a_bound_is_in_its_bucket() -> None:
    """`le` is less or equal."""
    histogram = Histogram(BOUNDS_S)
    histogram.add(BOUNDS_S[3])
    histogram.add(1e9)
    lines = histogram.lines("x")
    assert lines[2].endswith(" 0")
    assert lines[3].endswith(" 1")
    assert lines[len(BOUNDS_S)] == 'x_bucket{le="+Inf"} 2'
    assert all(1.2 < high / low < 1.5 for low, high in pairwise(BOUNDS_S))


def test_a_port_that_is_taken_is_said_at_once(tmp_path: Path) -> None:
    slow_engine.run(tmp_path, _usual)
    server = serve(tmp_path, 0)
    try:
        with pytest.raises(UsageError, match="give another port"), shown_live(tmp_path, server.server_address[1]):
            pass
    finally:
        server.server_close()


def test_the_bench_help_names_the_options() -> None:

    said = subprocess.run(
        [sys.executable, "-m", "dynamometer", "bench", "--help"], capture_output=True, text=True
    ).stdout
    assert all(option in said for option in ("--prometheus", "--retries", "--python", "--image"))


PAGES = Path(__file__).parent.parent / "docs" / "prometheus"


def test_every_series_of_rules_and_dashboard_is_on_the_page_or_a_rule() -> None:
    page = Board().text()
    rules = (PAGES / "rules.yml").read_text()
    recorded = set(re.findall(r"record: (\S+)", rules))
    dashboard = (PAGES / "dashboard.json").read_text()
    assert json.loads(dashboard)["panels"]
    for name in re.findall(r"\bdyno_\w+", rules + dashboard):
        assert name in page
    for name in re.findall(r"\bdyno:[\w:]+", dashboard):
        assert name in recorded


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="Debian's package prometheus is not installed")
def test_a_real_prometheus_computes_the_quantile_within_a_bucket(tmp_path: Path) -> None:
    """It loads the rules too: a wrong one would keep it from starting."""
    slow_engine.run(tmp_path / "run", _usual)
    server = serve(tmp_path / "run", 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    port = _free_port()
    job = {"job_name": "dyno", "scrape_interval": "1s"}
    job["static_configs"] = [{"targets": [f"127.0.0.1:{server.server_address[1]}"]}]  # type: ignore[assignment]
    config = {"scrape_configs": [job], "rule_files": [str(PAGES / "rules.yml")]}
    (tmp_path / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
    command = ["prometheus", f"--config.file={tmp_path / 'prometheus.yml'}", f"--storage.tsdb.path={tmp_path / 'data'}"]
    process = subprocess.Popen(
        [*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        exact = _exact(tmp_path / "run")
        for q in (0.5, 0.9, 0.99):
            told = _asked(port, f"histogram_quantile({q}, sum by (le) (dyno_time_to_first_token_seconds_bucket))")
            place = bisect.bisect_left(BOUNDS_S, float(np.quantile(exact, q, method="inverted_cdf")))
            assert BOUNDS_S[place - 1] <= told <= BOUNDS_S[place]
    finally:
        process.terminate()
        process.wait()
        server.shutdown()
        server.server_close()


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _exact(run: Path) -> np.ndarray:
    span = "min(at_ns) filter (kind = 'chunk') - min(at_ns) filter (kind = 'sent')"
    query = f"select {span} as t from events group by request"
    return np.asarray(open_run(run).execute(query).fetchnumpy()["t"]) / 1e9


def _asked(port: int, query: str) -> float:
    """The answer to an instant query, once the first scrape is in."""
    url = f"http://127.0.0.1:{port}/api/v1/query?{urlencode({'query': query})}"
    for _ in range(120):
        try:
            with urlopen(url) as answer:
                found = json.loads(answer.read())["data"]["result"]
                if found and found[0]["value"][1] != "NaN":
                    return float(found[0]["value"][1])
        except OSError:
            pass
        threading.Event().wait(0.25)
    raise AssertionError("Prometheus has no answer after 30 s")
